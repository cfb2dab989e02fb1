"""The onnx package's own backend test models, with what they are fed."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ndld_flow.models.files import MAX_IR_VERSION

DATA = Path(onnx.__file__).parent / "backend/test/data"


@dataclass(frozen=True)
class BackendModel:
    """A model, and values for its inputs in order; sequences and optionals are lists and None."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(f"{node.domain}::{node.op_type}" for node in self.model.graph.node)


@cache
def all_backend_models() -> tuple[BackendModel, ...]:
    """Node cases, and the small nets that come as files. Ones with random weights of real nets have no feeds."""
    return tuple(itertools.chain(_node_cases(), _stored_cases()))


def one_of_each_operator() -> Iterator[BackendModel]:
    """Each model with an operator that none before it has."""
    seen: set[str] = set()
    for case in all_backend_models():
        if not case.operators <= seen:
            seen |= case.operators
            yield case


def one_of_each_set_of_operators() -> Iterator[BackendModel]:
    """The first model of each set of operators."""
    seen: set[frozenset[str]] = set()
    for case in all_backend_models():
        if case.operators not in seen:
            seen.add(case.operators)
            yield case


def _unpooled(
    padded: Any, x_shape: Sequence[int], kernel: Any, strides: Any, out_shape: Any, *_: Any, **__: Any
) -> Any:
    """Return the shape of pooled outputs that no test reads; onnx pools them window by window in Python."""
    return np.zeros([*x_shape[:2], *out_shape], padded.dtype)


def _node_cases() -> Iterator[BackendModel]:
    from onnx.backend.test.case.node import collect_testcases

    pool = mock.patch("onnx.reference.ops.op_pool_common.pool", _unpooled)
    with pool, warnings.catch_warnings():  # what onnx computes its expected outputs with
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is not None and case.data_sets:
            case.model.ir_version = min(case.model.ir_version, MAX_IR_VERSION)
            names = [value.name for value in case.model.graph.input]
            values = map(_as_fed, case.data_sets[0][0])
            yield BackendModel(case.name, case.model, dict(zip(names, values, strict=False)))


def _stored_cases() -> Iterator[BackendModel]:
    for path in sorted(DATA.glob("*/*/model.onnx")):
        model = onnx.load(path)
        files = sorted(path.parent.glob("test_data_set_0/input_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
        names = [value.name for value in model.graph.input]
        feeds = {name: _read(file) for name, file in zip(names, files, strict=False)}
        yield BackendModel(f"{path.parent.parent.name}/{path.parent.name}", model, feeds)


def _as_fed(value: Any) -> Any:
    """Some cases give NumPy's scalars, or tensors of dtypes that NumPy lacks."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _read(path: Path) -> Any:
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))


RANDOM = {f"::{word}" for word in ("Bernoulli", "RandomNormalLike", "RandomUniformLike", "Multinomial")}
"""Operators that give other values each time."""


def compare_models(case: BackendModel, result: onnx.ModelProto) -> str:
    """Return whether a model derived from the case gives its outputs.

    `equal` to the bit, `close` but for the last bits, `differs`; `random` where it is; `only the source runs`; `nothing
    runs it`, or nothing that runs the result too runs the source. Both are run by ONNX Runtime, or both by onnx's
    reference.
    """
    if case.operators & RANDOM:
        return "random"
    verdict = "nothing runs it"
    for engine in (_run_onnxruntime, _run_reference):
        wanted = _outputs(engine, case.model, case.feeds)
        if wanted is None:
            continue
        outcome = _outputs(engine, result, case.feeds)
        if outcome is not None:
            return "equal" if equal_values(wanted, outcome) else "close" if close_values(wanted, outcome) else "differs"
        verdict = "only the source runs"
    return verdict


def outputs_of_onnxruntime(case: BackendModel) -> list[Any] | None:
    """Return the outputs of ONNX Runtime; None if it does not run the model."""
    return _outputs(_run_onnxruntime, case.model, case.feeds)


def outputs_of_reference(case: BackendModel) -> list[Any] | None:
    """Return the outputs of onnx's reference; None if it does not run the model."""
    return _outputs(_run_reference, case.model, case.feeds)


def _outputs(engine: Callable[..., list[Any]], model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any] | None:
    try:
        return engine(model, feeds)
    except Exception:  # each has its own errors for what it lacks
        return None


def _run_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def _run_reference(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(model).run(None, feeds))


def equal_values(first: Any, second: Any) -> bool:
    """Return whether two outputs are bitwise equal, sequences included; NaN equals NaN."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal_values, first, second))
    if first is None or second is None:
        return first is second
    result, two = np.asarray(first), np.asarray(second)
    if result.dtype != two.dtype or result.shape != two.shape:
        return False
    return bool(np.array_equal(result, two)) or result.tobytes() == two.tobytes() or _equal_with_nan(result, two)


def _equal_with_nan(result: Any, two: Any) -> bool:
    return result.dtype.kind == "f" and bool(np.array_equal(result, two, equal_nan=True))


def close_values(first: Any, second: Any) -> bool:
    """Return whether two outputs are equal except for the last bits, sequences included."""
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(close_values, first, second))
    if equal_values(first, second):
        return True
    result, two = np.asarray(first), np.asarray(second)
    if result.dtype != two.dtype or result.shape != two.shape or result.dtype.kind not in "fV":
        return False
    result, two = result.astype(np.float64), two.astype(np.float64)
    return bool(np.allclose(result, two, rtol=1e-3 if result.itemsize == 2 else 1e-5, atol=1e-6, equal_nan=True))
