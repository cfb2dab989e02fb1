"""Tasks as text: a worker computes exactly the requested task, or refuses it."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.execution.keys import describe_key, join_keys
from ndld_flow.execution.messages import Failed, TaskOrder, read_order, write_order
from ndld_flow.execution.ssh.messages import Compute
from ndld_flow.execution.ssh.node import Node
from ndld_flow.processes.lines import Line, Output
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.step_types import StepType
from ndld_flow.step import Step
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.store import Store
from tests.steps.test_steps_contract import TYPES, every_step, required, with_least_settings
from tests.support.message_files import CheckMessage
from tests.support.recipes import load_recipe
from tests.support.toys import make_toy

PIPELINES = sorted((Path(__file__).parent.parent.parent / "pipelines").glob("*.yaml"))


def survives(step: Step[Any, Any]) -> bool:
    """Return whether settings survive their transport in an order."""
    text = json.dumps(step.model_dump(mode="json"))
    return type(step).model_validate_json(text) == step


@every_step
def test_default_settings_survive_serialization(found: StepType) -> None:
    if required(found):
        pytest.skip(f"has no default for {required(found)}")
    assert survives(with_least_settings(found))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("run_tool", {"command": ["a", "$Output", "ü\n"], "timeout": "90 s", "environment": {"A": "b"}}),
        (
            "edit",
            {
                "operations": [
                    "remove_noops",
                    {"rename_tensors": {"names": {"x": "y"}}},
                    {"add_initializer": {"name": "w", "value": [1.5, 2.5]}},
                ]
            },
        ),
        ("check_accuracy", {"reference": "b", "tolerance": {"cosine": 0.99}}),
        ("profile", {"batches": [1, 4], "stable": "5 %", "budget": "2 s", "provider_options": {"a": 1}}),
        ("convert_fp16", {"block": {"op_types": ["Softmax"]}}),
        ("sanitize", {"fold_size_threshold": "64 MiB"}),
    ],
)
def test_settings_survive_serialization(name: str, settings: dict[str, object]) -> None:
    assert survives(TYPES[name].cls.model_validate_json(json.dumps(settings)))


@pytest.mark.representatives("ppocr_rec", "ppocr_int8", "silero_vad")
@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_settings_of_shipped_recipes_survive_serialization(path: Path) -> None:
    for step in load_recipe(path, trust=True).steps:
        assert survives(step.step), step.name


def unheard(*_: object) -> None: ...


def make_task(folder: Path, *overrides: str) -> tuple[Task, Store]:
    """The toy's steps as one task: that they would not be done together does not matter here."""
    toy, store = make_toy(folder), Store(folder / "outputs" / "store")
    recipe = load_recipe(toy.recipe, overrides, trust=True)
    source = Onnx(folder / "model.onnx", "source", "ab" * 32)
    parts = [describe_key(step, {"from": source.digest}, {}, store) for step in recipe.steps]
    works = [
        Work(step, joined, {"from": source}, {}, lambda *_: None, recipe.name)
        for step, joined in zip(recipe.steps, join_keys(parts), strict=True)
    ]
    return Task(tuple(works), fresh=True, timeout_s=1.5), store


def there_and_back(order: TaskOrder) -> TaskOrder:
    line = order.to_line()
    assert line.count("\n") == 1
    return TaskOrder.from_line(line)


def test_a_task_survives_serialization(in_folder: Path) -> None:
    task, store = make_task(in_folder, "steps.first.word='\u2028 Größe\\n'")
    order = there_and_back(write_order(task, store, trust=True))
    reports: list[tuple[int, int, int, str]] = []
    back = read_order(order, store, lambda *said: reports.append(said))
    assert (back.fresh, back.timeout_s) == (True, 1.5)
    for asked, work in zip(task.works, back.works, strict=True):
        assert work.step == asked.step
        assert work.parts == asked.parts
        assert work.artifacts == {"from": Onnx(in_folder / "model.onnx", "source", "ab" * 32)}
        assert work.recipe == "toy"
    back.works[2].progress(1, 2, "weighing")
    assert reports == [(2, 1, 2, "weighing")]


def test_stored_inputs_are_found_wherever_the_store_is(in_folder: Path) -> None:
    task, store = make_task(in_folder)
    inside = Onnx(store.object_folder("cd" * 32) / "model.onnx", "half", "cd" * 32)
    step = RecipeStep(**{**vars(task.works[0].step), "reads": {"from": "half"}})
    work = Work(step, describe_key(step, {"from": "cd" * 32}, {}, store), {"from": inside}, {}, lambda *_: None)
    order = there_and_back(write_order(Task((work,)), Store(Path("outputs/store")), trust=True))
    elsewhere = Store(in_folder / "elsewhere")
    back = read_order(order, elsewhere, unheard)
    assert back.works[0].source.path == elsewhere.object_folder("cd" * 32) / "model.onnx"


def changed(order: TaskOrder, **parts: object) -> TaskOrder:
    """An order whose first key was made elsewhere."""
    first = order.works[0]
    other = first.model_copy(update={"parts": first.parts.model_copy(update=parts)})
    return order.model_copy(update={"works": (other, *order.works[1:])})


@pytest.mark.representatives("inputs", "machine")
@pytest.mark.parametrize(
    "parts",
    [
        {"libraries": {"onnx": "1.0.1"}},
        {"version": "2+abc"},
        {"machine": "Linux 9, a quantum computer"},
        {"reads": {"from": "00" * 32}},
        {"settings": {"word": "other", "seconds": 0.0, "passed": True}},
        {"inputs": {"x": {}}},
        {"step": "dye"},
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_task_with_a_wrong_key_is_refused(
    in_folder: Path, parts: dict[str, object], check_message: CheckMessage
) -> None:
    task, store = make_task(in_folder)
    order = changed(write_order(task, store, trust=True), **parts)
    with pytest.raises(BackendError) as caught:
        read_order(there_and_back(order), store, unheard)
    check_message(caught.value)


def test_a_steps_file_that_changed_meanwhile_is_refused(in_folder: Path, check_message: CheckMessage) -> None:
    task, store = make_task(in_folder)
    order = write_order(task, store, trust=True)
    file = in_folder / "steps" / "stamp.py"
    file.write_text(file.read_text() + "\n# changed\n")
    with pytest.raises(BackendError) as caught:
        read_order(order, store, unheard)
    check_message(caught.value)


def test_an_unknown_step_is_refused(in_folder: Path, check_message: CheckMessage) -> None:
    task, store = make_task(in_folder)
    order = write_order(task, store, trust=True).model_copy(update={"step_files": ()})
    with pytest.raises(BackendError) as caught:
        read_order(order, store, unheard)
    check_message(caught.value)


def test_code_needs_trust_in_workers_too(in_folder: Path, check_message: CheckMessage) -> None:
    task, store = make_task(in_folder)
    order = write_order(task, store, trust=False)
    with pytest.raises(RequestError) as caught:
        read_order(order, store, unheard)
    check_message(caught.value)
    step = TYPES["profile"].cls.model_validate_json('{"backend": "tensorrt", "engine_file": "a", "library": "lib"}')
    first = order.works[0].model_copy(update={"step": "profile", "settings": step.model_dump(mode="json")})
    with pytest.raises(RequestError) as caught:
        read_order(order.model_copy(update={"works": (first,), "step_files": ()}), store, unheard)
    check_message(caught.value)


class Sent(Output):
    """Records the messages of a node instead of writing them."""

    def __init__(self) -> None:
        self.lines: queue.SimpleQueue[Line] = queue.SimpleQueue()

    def send(self, line: Line, data: object = ()) -> None:
        self.lines.put(line)


def test_a_target_that_cannot_compute_an_order_answers(tmp_path: Path) -> None:
    """Else its sender would wait forever."""
    sent = Sent()
    Node(Store(tmp_path), sent)._answer(Compute(order="no order"))
    answer = sent.lines.get(timeout=60)
    assert isinstance(answer, Failed)
    assert answer.error == "ValidationError"
