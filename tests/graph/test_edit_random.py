"""Random operations on random graphs: the result is valid and runs, or the edit reports an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.catalogue import operation_names
from ndld_flow.models.files import load_model
from ndld_flow.models.lazy_tensors import SparseInitializer
from tests.support import models
from tests.support.editing_fixtures import edit_path
from tests.support.random_edits import (
    FORMS,
    KEEPS_NUMBERS,
    LEFT_OUT,
    MORE,
    OPERATIONS,
    Choices,
    Pick,
    RandomModel,
    other_models,
)
from tests.support.random_graphs import OTHER, UNARY

Arrays = dict[str, Any]
OPERATORS = UNARY + OTHER + MORE + ("Call", "CallIf", "If", "Loop")
"""What is made of several graphs comes twice."""


@dataclass
class Walk:
    """A model that is edited one operation after the other, each in a folder of its own."""

    folder: Path
    path: Path
    pick: Pick
    others: dict[str, Path] = field(default_factory=dict)
    taken: list[dict[str, object]] = field(default_factory=list)
    """The operations that were not refused."""

    @classmethod
    def start(cls, folder: Path, model: onnx.ModelProto, pick: Pick) -> Walk:
        others = {name: models.save(other, folder / f"{name}.onnx") for name, other in other_models().items()}
        path = models.save(model, folder / "source.onnx")
        return cls(folder, path, pick, {**others, "itself": path})

    def step(self, word: str) -> None:
        """Apply one operation, with settings that suit the model as it is now."""
        entry = {word: OPERATIONS[word](Choices.of(self.path, self.pick))}
        before = self.path.read_bytes()
        target = self._new_target()
        try:
            edit_path(self.path, target, entry, others=self.others)
        except RequestError as refusal:
            assert "\n" not in str(refusal)
            return
        finally:
            assert self.path.read_bytes() == before, "the input is never touched"
        onnx.checker.check_model(target, full_check=not has_sparse(target))
        check_run(self.path, target, [entry])
        self.taken.append(entry)
        self.path = target

    def all_at_once(self) -> Path | None:
        """The whole list in one edit of the source; nothing where that is refused."""
        target = self._new_target()
        try:
            edit_path(self.folder / "source.onnx", target, *self.taken, others=self.others)
        except RequestError as refusal:
            assert "\n" not in str(refusal)
            return None
        return target

    def _new_target(self) -> Path:
        target = self.folder / str(len(list(self.folder.iterdir()))) / "model.onnx"
        target.parent.mkdir()
        return target


def has_sparse(path: Path) -> bool:
    """onnx's inference knows no sparse initializers."""
    values = (value for graph in load_model(path).graphs() for value in graph.initializers.values())
    return any(isinstance(value.const_value, SparseInitializer) for value in values)


def run_again(path: Path, feeds: Arrays | None = None) -> tuple[Arrays, Arrays | None]:
    """Return the inputs, random unless given, and the outputs; None where ONNX Runtime has no kernel."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return {}, None
    inputs = {value.name: value for value in session.get_inputs()}
    fed = {name: (feeds or {}).get(name, made_up(value)) for name, value in inputs.items()}
    try:
        names = [value.name for value in session.get_outputs()]
        return fed, dict(zip(names, session.run(None, fed), strict=True))
    except (ort.capi.onnxruntime_pybind11_state.InvalidArgument, ort.capi.onnxruntime_pybind11_state.Fail):
        return fed, None  # shapes that only the values tell


def made_up(value: Any) -> Any:
    dtype = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(bool)": "?"}
    shape = [size if isinstance(size, int) else 2 for size in value.shape]
    numbers = np.linspace(-1, 1, int(np.prod(shape)))
    return numbers.reshape(shape).astype(dtype.get(value.type, "i8" if value.type == "tensor(int64)" else "i4"))


def check_run(before: Path, after: Path, entries: list[dict[str, object]]) -> None:
    """It can be loaded, and outputs of the same names are the same where the operations promise it."""
    if not {word for entry in entries for word in entry} <= KEEPS_NUMBERS:
        run_again(after)
        return
    feeds, wanted = run_again(before)
    _, result = run_again(after, feeds)
    if wanted is None or result is None:
        return
    for name in wanted.keys() & result.keys():
        if not isinstance(wanted[name], np.ndarray):  # a sparse weight that became an output
            continue
        np.testing.assert_allclose(result[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=f"{name}: {entries}")


def random_model(data: st.DataObject, operators: list[str]) -> onnx.ModelProto:
    graph = RandomModel(data)
    for operator in operators:
        graph.grow(operator)
    model = graph.model()
    data.draw(st.sampled_from(FORMS))(model)
    return model


def test_every_operation_is_tried() -> None:
    assert OPERATIONS.keys() | LEFT_OUT.keys() == set(operation_names())
    assert not OPERATIONS.keys() & LEFT_OUT.keys()
    assert OPERATIONS.keys() >= KEEPS_NUMBERS


_walks = given(
    st.data(),
    st.lists(st.sampled_from(OPERATORS), min_size=2, max_size=8),
    st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=4, max_size=8),
)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@_walks
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_result_is_valid_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, operators: list[str], words: list[str]
) -> None:
    check_walk(tmp_path_factory, data, operators, words)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@_walks
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_many_results_are_valid_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, operators: list[str], words: list[str]
) -> None:
    check_walk(tmp_path_factory, data, operators, words)


def check_walk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, operators: list[str], words: list[str]
) -> None:
    """Edit a random model step by step and all at once, and run what comes of it."""
    walk = Walk.start(
        tmp_path_factory.mktemp("edit"),
        random_model(data, operators),
        lambda options: data.draw(st.sampled_from(options)),
    )
    for word in words:
        walk.step(word)
    once, again = walk.all_at_once(), walk.all_at_once()
    assert (once is None) == (again is None)
    if once is not None and again is not None:
        onnx.checker.check_model(once, full_check=not has_sparse(once))
        assert once.read_bytes() == again.read_bytes(), "the same operations give the same bytes"
        check_run(walk.folder / "source.onnx", once, walk.taken)
