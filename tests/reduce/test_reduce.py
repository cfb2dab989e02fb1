"""`reduce`: the smallest part of a model with which a recipe still fails in the same way, and never in another."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.execution.events import Event, Notice
from ndld_flow.inputs import InputSpec
from ndld_flow.reduce import cutting
from ndld_flow.reduce.cutting import cut_part
from ndld_flow.reduce.failure import failure_of_error
from ndld_flow.reduce.part import Cut, ReduceOptions, Whole
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import func_model
from tests.support.page_data import data_of

REFUSE = '''
"""Refuses a model, or crashes on it, if it has certain operators."""

import os
import random
import signal
from pathlib import Path

import numpy as np

from ndld_flow.plugin import Context, Onnx, RequestError, Result, Step


class Refuse(Step[Onnx, Onnx]):
    """Refuse some operators."""

    needs: tuple[str, ...] = ()
    """Operators that the failure needs together."""
    crash: bool = False
    """Crash instead of an error."""
    other: str = ""
    """An operator without which the error has other words."""
    deep: bool = False
    """Look into bodies and functions too."""
    chance: float = 1.0
    """Probability of the failure."""
    scale: float = 0.0
    """Multiply the outputs of these operators instead."""

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx

        model = onnx.load(source.path)
        here = {node.op_type for node in model.graph.node}
        if self.deep:
            waiting = [model.graph, *model.functions]
            while waiting:
                graph = waiting.pop()
                here |= {node.op_type for node in graph.node}
                waiting += [attribute.g for node in graph.node for attribute in node.attribute if attribute.type == 5]
        if self.scale:
            for node in [node for node in model.graph.node if node.op_type in self.needs]:
                plain, node.output[0] = node.output[0], f"{node.output[0]}_plain"
                scaled = onnx.helper.make_node("Mul", [node.output[0], "scale"], [plain])
                model.graph.node.insert(list(model.graph.node).index(node) + 1, scaled)
            scale = onnx.numpy_helper.from_array(np.array(self.scale, np.float32), "scale")
            model.graph.initializer.append(scale)
            onnx.save(model, out / Onnx.main)
            return Result("scaled")
        if random.random() >= self.chance:
            onnx.save(model, out / Onnx.main)
            return Result("lucky")
        if self.other and self.other not in here:
            raise RequestError("something else is wrong")
        if here >= set(self.needs):
            if self.crash:
                os.kill(os.getpid(), signal.SIGSEGV)
            raise RequestError(f"cannot digest '{model.graph.node[0].name}' with {len(here)} operators")
        onnx.save(model, out / Onnx.main)
        return Result("fine")
'''
SECRET = np.float32(0.123456789)


def chain(*op_types: str) -> onnx.ModelProto:
    """Return a chain of operators of one input, with a MatMul by secret weights before each."""
    nodes, weights, value = [], [], "x"
    for index, op_type in enumerate(op_types):
        weight = np.random.default_rng(index).normal(0, 0.3, (8, 8)).astype(np.float32)
        weight[0, 0] = SECRET
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{index}"], [f"m{index}"], name=f"matmul_{index}"))
        nodes.append(helper.make_node(op_type, [f"m{index}"], [f"y{index}"], name=f"{op_type.lower()}_{index}"))
        value = f"y{index}"
    shape = [1, 8]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MANY = ("Tanh", "Sigmoid", "Tanh", "Softplus", "Tanh", "Erf", "Tanh", "Softmax", "Tanh", "Sin")


@pytest.fixture
def chained(in_folder: Path) -> Path:
    """A folder with a model and the step `refuse`."""
    onnx.save(chain(*MANY), in_folder / "model.onnx")
    (in_folder / "refuse.py").write_text(REFUSE)
    return in_folder


def recipe_of(folder: Path, settings: str) -> Path:
    """Write a recipe whose step `first` does nothing, and whose step `second` may refuse the model."""
    path = folder / "failing.yaml"
    path.write_text(
        "model: model.onnx\nsteps_from: [refuse.py]\n"
        f"steps:\n  first: {{step: refuse, needs: [Conv]}}\n  second: {{step: refuse, {settings}}}\n"
    )
    return path


def operators_in(path: Path) -> list[str]:
    """Return the operators of the model in a zip."""
    with zipfile.ZipFile(path) as archive:
        model = onnx.ModelProto.FromString(archive.read(f"{path.stem}/model.onnx"))
    onnx.checker.check_model(model, full_check=True)
    return [node.op_type for node in model.graph.node]


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("operators", "needs", "crash"),
    [
        (("Tanh", "Erf", "Sin"), ("Erf",), False),
        pytest.param(MANY, ("Erf", "Sigmoid"), False, marks=THOROUGH),
        pytest.param(MANY, ("Erf", "Sigmoid"), True, marks=THOROUGH),
    ],
)
def test_exactly_the_needed_nodes_remain(
    chained: Path, operators: Sequence[str], needs: Sequence[str], crash: bool, request: pytest.FixtureRequest
) -> None:
    if crash:
        request.getfixturevalue("isolated_steps")
    onnx.save(chain(*operators), chained / "model.onnx")
    recipe = recipe_of(chained, f"needs: [{', '.join(needs)}], crash: {str(crash).lower()}")
    reduced = api.reduce(recipe, trust=True, to=chained / "small.zip")
    assert sorted(operators_in(chained / "small.zip")) == sorted(needs)
    assert (reduced.nodes, reduced.nodes_before, reduced.minimal) == (len(needs), 2 * len(operators), True)
    assert reduced.trials <= 10 * len(needs)
    assert Path(reduced.page) == chained / "small.html"
    data = data_of(Path(reduced.page).read_text("utf-8"))
    operators_drawn = data["nodes"]["operator"]
    assert sorted(operator for operator in operators_drawn if operator != "Constant") == sorted(needs)
    inputs = [index for index, kind in enumerate(data["tensors"]["kind"]) if kind == "input"]
    held = [data["tensors"]["held"][place] for place in inputs]
    assert held and all(data["held"][place]["numbers"] for place in held), "the values that the part reads are shown"


@THOROUGH
def test_a_failure_with_other_words_is_not_the_failure(chained: Path) -> None:
    recipe = recipe_of(chained, "needs: [Erf], other: Softmax")
    api.reduce(recipe, trust=True, to=chained / "small.zip")
    assert sorted(operators_in(chained / "small.zip")) == ["Erf", "Softmax"]


OVERFLOWS = """
model: model.onnx
steps:
  half: {step: convert_fp16, block: {sensitive: false}}
  unused: {step: sanitize, from: source}
  agree: {step: check_accuracy, reference: source, candidate: half}
gates: [agree.cosine >= 0.5, half.nodes >= 1]
"""


def overflowing() -> onnx.ModelProto:
    """Return a chain in which Exp exceeds the range of fp16, and Tanh returns to small values."""
    model = chain("Tanh", "Sigmoid", "Exp", "Tanh", "Sigmoid")
    scale = numpy_helper.from_array(np.full((8, 8), 5, np.float32), "w2")
    model.graph.initializer[2].CopyFrom(scale)
    return model


@THOROUGH
def test_the_part_fails_by_the_values_that_it_had_inside_and_hides_the_others(in_folder: Path) -> None:
    onnx.save(overflowing(), "model.onnx")
    Path("failing.yaml").write_text(OVERFLOWS)
    ended = ndld_flow("reduce", "failing.yaml", "-o", "small.zip", cwd=in_folder)
    assert ended.returncode == 0, ended.stderr
    assert set(operators_in(Path("small.zip"))) <= {"Exp", "MatMul", "Tanh"}
    with zipfile.ZipFile("small.zip") as archive:
        names = archive.namelist()
        assert all(SECRET.tobytes() not in archive.read(name) for name in names)
        recipe = yaml.safe_load(archive.read("small/recipe.yaml"))
        assert set(recipe["steps"]) == {"half", "agree"}
        assert recipe["steps"]["agree"]["power"] == "off"
        archive.extractall(in_folder)
    assert [Path(name).name for name in names][:4] == ["README.md", "failure.json", "model.onnx", "recipe.yaml"]
    again = ndld_flow("run", "recipe.yaml", cwd=in_folder / "small")
    assert again.returncode == 1, again.stdout


def test_a_recipe_that_passes_has_nothing_to_reduce(chained: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        api.reduce(recipe_of(chained, "needs: [Conv]"), trust=True)
    check_message(caught.value)
    assert not Path("reduced.zip").exists()


@THOROUGH
def test_an_interrupted_reduction_continues(chained: Path) -> None:
    recipe, trials = recipe_of(chained, "needs: [Erf, Sigmoid]"), list[str]()

    def interrupt(event: Event) -> None:
        trials.extend([event.text] if isinstance(event, Notice) and event.text.startswith("trial") else [])
        if len(trials) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.reduce(recipe, trust=True, listener=interrupt)
    [journal] = (chained / "outputs/reductions").iterdir()
    journal.write_text(journal.read_text() + '{"part": "[[0')  # as a kill leaves it
    rest = api.reduce(recipe, trust=True).trials
    assert rest + 2 == api.reduce(recipe, trust=True).trials


@THOROUGH
def test_outcomes_of_other_code_are_not_used(chained: Path) -> None:
    """A change of the step between two starts, or of a library or the data, may change any outcome."""
    recipe = recipe_of(chained, "needs: [Erf]")

    def interrupt(event: Event) -> None:
        if isinstance(event, Notice) and event.text.startswith("trial 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.reduce(recipe, trust=True, listener=interrupt)
    (chained / "refuse.py").write_text(REFUSE.replace("set(self.needs)", "{*self.needs, 'Sigmoid'}"))
    api.reduce(recipe, trust=True, to=chained / "small.zip")
    assert sorted(operators_in(chained / "small.zip")) == ["Erf", "Sigmoid"]
    assert len(list((chained / "outputs/reductions").iterdir())) == 1  # that of the other code stays


@THOROUGH
def test_the_budget_ends_the_search_with_the_smallest_model_found(chained: Path) -> None:
    reduced = api.reduce(recipe_of(chained, "needs: [Erf, Sigmoid]"), trust=True, options=ReduceOptions(trials=9))
    assert 2 <= reduced.nodes < reduced.nodes_before
    assert not reduced.minimal or reduced.nodes == 2


@THOROUGH
@pytest.mark.parametrize(("needed", "left"), [("Relu", ["Relu"]), ("If", ["If"])])
def test_a_body_replaces_its_node_unless_the_failure_needs_the_node(
    in_folder: Path, needed: str, left: Sequence[str]
) -> None:
    onnx.save(branched(), "model.onnx")
    Path("refuse.py").write_text(REFUSE)
    reduced = api.reduce(recipe_of(in_folder, f"needs: [{needed}], deep: true"), trust=True, to="small.zip")
    assert operators_in(Path("small.zip")) == left
    assert reduced.nodes == 1  # nothing but constants is left in the branches of the If


def branched() -> onnx.ModelProto:
    """Return a model with an If, whose taken branch has four nodes."""
    shape = [2, 8]
    branches = {}
    for name, operators in (("then", ("Abs", "Relu", "Neg", "Exp")), ("else", ("Sin", "Cos"))):
        nodes, value = [], "h"
        for operator in operators:
            nodes.append(helper.make_node(operator, [value], [f"{name}_{operator}"], name=f"{name}_{operator}"))
            value = f"{name}_{operator}"
        output = helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)
        branches[f"{name}_branch"] = helper.make_graph(nodes, name, [], [output])
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"], name="tanh"),
        helper.make_node("ReduceSum", ["h"], ["sum"], name="sum", keepdims=0),
        helper.make_node("Less", ["sum", "many"], ["is_small"], name="less"),
        helper.make_node("If", ["is_small"], ["z"], name="choose", **branches),
        helper.make_node("Sigmoid", ["z"], ["y"], name="sigmoid"),
    ]
    graph = helper.make_graph(
        nodes,
        "branched",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array(1e6, np.float32), "many")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@THOROUGH
@pytest.mark.parametrize(("needed", "before"), [("LeakyRelu", "func"), ("Tanh", "loop"), ("Tanh", "scan")])
def test_functions_and_iterations_are_opened(in_folder: Path, needed: str, before: str) -> None:
    onnx.save(func_model() if before == "func" else repeated(before), "model.onnx")
    Path("refuse.py").write_text(REFUSE)
    recipe = recipe_of(in_folder, f"needs: [{needed}], deep: true")
    recipe.write_text(recipe.read_text() + "inputs: {x: {shape: [3, 8]}}\n")
    api.reduce(recipe, trust=True, to="small.zip")
    assert operators_in(Path("small.zip")) == [needed]


def repeated(how: str) -> onnx.ModelProto:
    """Return a model with a Loop or a Scan."""
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [8])
    state = helper.make_tensor_value_info("s_out", TensorProto.FLOAT, [8])
    stacked = helper.make_tensor_value_info("stacked", TensorProto.FLOAT, [8])
    s_in = helper.make_tensor_value_info("s_in", TensorProto.FLOAT, [8])
    work = [
        helper.make_node("Add", ["s_in", "row" if how == "scan" else "first"], ["sum"], name="add"),
        helper.make_node("Tanh", ["sum"], ["s_out"], name="tanh"),
        helper.make_node("Neg", ["s_out"], ["stacked"], name="neg"),
    ]
    if how == "scan":
        body = helper.make_graph(work, "body", [s_in, row], [state, stacked])
        node = helper.make_node("Scan", ["first", "x"], ["last", "all"], name="scan", body=body, num_scan_inputs=1)
    else:
        number = helper.make_tensor_value_info("number", TensorProto.INT64, [])
        goes_on, still = (helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("goes_on", "still"))
        work.append(helper.make_node("Identity", ["goes_on"], ["still"], name="still"))
        body = helper.make_graph(work, "body", [number, goes_on, s_in], [still, state, stacked])
        node = helper.make_node("Loop", ["three", "", "first"], ["last", "all"], name="loop", body=body)
    nodes = [helper.make_node("ReduceMax", ["x"], ["first"], name="max", axes=[0], keepdims=0), node]
    graph = helper.make_graph(
        nodes,
        how,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])],
        [
            helper.make_tensor_value_info("last", TensorProto.FLOAT, [8]),
            helper.make_tensor_value_info("all", TensorProto.FLOAT, [3, 8]),
        ],
        [numpy_helper.from_array(np.array(3), "three")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def recurrent() -> onnx.ModelProto:
    """Return a model whose state doubles at each step."""
    nodes = [
        helper.make_node("Sin", ["x"], ["wave"], name="wave"),
        helper.make_node("Add", ["state", "state"], ["twice"], name="twice"),
        helper.make_node("Add", ["twice", "zero"], ["next"], name="next"),
        helper.make_node("Mul", ["wave", "next"], ["y"], name="mul"),
    ]
    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "state", "y", "next")
    }
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [tensors["x"], tensors["state"]],
        [tensors["y"], tensors["next"]],
        [numpy_helper.from_array(np.zeros(1, np.float32), "zero")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


SEQUENCE = """
model: model.onnx
steps_from: [refuse.py]
inputs: {x: {data: ones}, state: {from: next, data: ones}}
steps:
  half: %s
  agree:
    {step: check_accuracy, reference: source, candidate: half, steps: 24, tolerance: {slices: off, max_rel: 0.1}}
"""


@THOROUGH
@pytest.mark.parametrize(
    ("step", "samples", "states"),
    [("{step: convert_fp16}", 1, False), ("{step: refuse, needs: [Add], scale: 1.01}", None, True)],
)
def test_a_sequence_becomes_one_step_or_the_shortest_that_fails(
    in_folder: Path, step: str, samples: int | None, states: bool
) -> None:
    """The state exceeds the range of fp16 at step 16; the errors of single steps add up to the bound at step 5."""
    onnx.save(recurrent(), "model.onnx")
    Path("refuse.py").write_text(REFUSE)
    Path("failing.yaml").write_text(SEQUENCE % step)
    reduced = api.reduce("failing.yaml", trust=True, to="small.zip", options=ReduceOptions(samples=32))
    with zipfile.ZipFile("small.zip") as archive:
        recipe = yaml.safe_load(archive.read("small/recipe.yaml"))
    assert any("from" in item for item in recipe["inputs"].values()) is states
    assert reduced.samples == samples if samples is not None else 3 <= reduced.samples <= 8
    assert reduced.nodes <= 3


@THOROUGH
def test_steps_and_samples_that_the_failure_does_not_need_are_left_out(in_folder: Path) -> None:
    """Only the third sample overflows; the first steps change nothing that matters."""
    onnx.save(chain("Tanh", "Exp", "Tanh"), "model.onnx")
    model = onnx.load("model.onnx")
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.eye(8, dtype=np.float32) * 15, "w1"))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.eye(8, dtype=np.float32), "w0"))
    onnx.save(model, "model.onnx")
    for number in range(4):
        np.save(f"sample{number}.npy", np.full((1, 8), 1.0 if number == 2 else -1.0, np.float32))
    Path("failing.yaml").write_text(
        "model: model.onnx\ninputs: {x: {data: [sample0.npy, sample1.npy, sample2.npy, sample3.npy]}}\n"
        "steps:\n  clean: {step: sanitize}\n  named: {step: edit, operations: [{set_metadata: {producer_name: me}}]}\n"
        "  half: {step: convert_fp16, block: {sensitive: false}}\n"
        "  agree: {step: check_accuracy, reference: source, candidate: half, tolerance: {slices: off, max_rel: 0.5}}\n"
    )
    reduced = api.reduce("failing.yaml", to="small.zip")
    assert reduced.samples == 1
    assert reduced.steps == ("half", "agree")
    assert reduced.nodes <= 2


@THOROUGH
def test_a_failure_that_comes_and_goes_is_reduced_and_its_share_is_stated(chained: Path) -> None:
    onnx.save(chain("Tanh", "Erf", "Sin"), chained / "model.onnx")
    recipe = recipe_of(chained, "needs: [Erf], chance: 0.6")
    for number in range(20):  # the run that decides whether there is a failure may pass, too
        try:
            reduced = api.reduce(recipe, trust=True, to=chained / "small.zip", outputs=f"outputs{number}")
            break
        except RequestError as error:
            assert "does not fail" in str(error) or "not the same each" in str(error)
    assert "Erf" in operators_in(chained / "small.zip")
    with zipfile.ZipFile(chained / "small.zip") as archive:
        readme = archive.read("small/README.md").decode()
    assert f"failed in {reduced.failed} of {reduced.verified} runs" in readme


@THOROUGH
def test_the_zip_reproduces_the_failure_in_an_empty_folder(
    chained: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The command of the README runs in a new process with an environment of its own."""
    onnx.save(overflowing(), "model.onnx")
    Path("failing.yaml").write_text(OVERFLOWS)
    api.reduce("failing.yaml", to="small.zip")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with zipfile.ZipFile("small.zip") as archive:
        archive.extractall(elsewhere)
    readme = (elsewhere / "small/README.md").read_text()
    [command] = [line.strip() for line in readme.splitlines() if line.startswith("    ndld-flow")]
    assert json.loads((elsewhere / "small/failure.json").read_text())["command"] == command
    binary = Path(sys.executable).with_name("ndld-flow")
    environment = {"PATH": f"{binary.parent}:/usr/bin:/bin", "HOME": str(elsewhere)}
    ended = subprocess.run(
        command.split(), cwd=elsewhere / "small", env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "NaN or infinite" in ended.stdout
    for version in ("onnx", "onnxruntime", "Python"):
        assert version in readme


@pytest.mark.parametrize(
    ("messages", "same"),
    [
        (("cannot run 'conv_1' at 3 nodes", "cannot run 'relu' at 17 nodes"), True),
        (("file /a/b is missing", "file /c is missing"), True),
        (("cannot run 'conv'", "cannot read 'conv'"), False),
    ],
)
def test_failures_are_compared_by_their_words(messages: Sequence[str], same: bool) -> None:
    first, second = (failure_of_error("error", "step", RequestError(message)) for message in messages)
    assert first.same_as(second) is same
    assert not first.same_as(failure_of_error("error", "other step", RequestError(messages[0])))
    assert not first.same_as(failure_of_error("killed", "step", RequestError(messages[0])))


def test_a_part_whose_rank_is_not_inferred_has_that_of_its_run(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model too large to keep all of its tensors: those of the part's edges are captured."""
    nodes = [
        helper.make_node("Squeeze", ["x"], ["squeezed"], name="squeeze"),  # of which dimensions depends on the sizes
        helper.make_node("Tanh", ["squeezed"], ["t"], name="tanh"),
        helper.make_node("Exp", ["t"], ["y"], name="exp"),
    ]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "one", 8])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "squeezing", [value], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
    Path("part").mkdir()
    monkeypatch.setattr(cutting, "_ALL_AT_ONCE_BYTES", 0)
    whole = Whole(
        path=Path("model.onnx").absolute(), inputs={"x": InputSpec(shape=(2, 1, 8))}, samples=1, values=Path("values")
    )
    cut_part(whole, Cut(kept=(1,)), part := Path("part"))
    assert [len(output.type.tensor_type.shape.dim) for output in onnx.load(part / "model.onnx").graph.output] == [2]
