"""Load and run a model and the results of steps on it, and compare their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.support.model_trials.subjects import Subject

Fault = Literal["refused", "failed", "crashed", "time out", "does not load", "invalid", "wrong", "inaccurate"]
TOLERANCES = {"convert_fp16": 0.05, "apply_precision": 0.05, "constrain_precision": 0.05, "quantize": 0.2}
"""Step -> RMS of the differences of an output over the RMS of the output, by the bounds of `check_accuracy`'s slices;
results of other steps may differ by a rounding error."""
ROUNDING = 1e-4


@dataclass(frozen=True)
class Source:
    """A model in ONNX Runtime."""

    outputs: list[Any] | None
    """None where it does not run on the inputs, or gives other values each time."""
    feeds: dict[str, Any]
    error: str
    """Empty if it loads."""
    is_valid: bool
    """Accepted by onnx's checker."""
    fails: bool = False
    """It does not run on the inputs."""


def read_source(subject: Subject) -> Source:
    """Load and run a model."""
    if subject.runtime != "onnxruntime":
        return Source(None, {}, "", False)
    try:
        session = _open(subject.path)
    except Exception as error:
        return Source(None, {}, str(error), False)
    feeds = subject.feeds or _random_feeds(session, subject.inputs)
    outputs = _run(session, feeds)
    is_random = outputs is not None and not _agree(outputs, _run(session, feeds) or [], 0)
    return Source(None if is_random else outputs, feeds, "", not _complaint(subject.path), outputs is None)


def loads_with_shapes(path: Path, feeds: Mapping[str, Any]) -> bool:
    """Return whether ONNX Runtime loads a model whose inputs have fixed shapes, and nothing else is changed."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    for value in model.graph.input:
        fed = feeds.get(value.name)
        if isinstance(fed, np.ndarray):
            value.type.tensor_type.shape.Clear()
            for size in fed.shape:
                value.type.tensor_type.shape.dim.add(dim_value=size)
    changed = path.with_name("fixed.onnx")
    onnx.save(model, changed)
    try:
        _open(changed)
    except Exception:  # ONNX Runtime has a class for each status
        return False
    finally:
        changed.unlink()
    return True


def judge_result(source: Source, path: Path, tolerance: float) -> tuple[Fault | Literal["differs"] | None, str]:
    """Return the fault of a step's model, if any; `differs` where outputs differ by more than the tolerance."""
    if source.error or not source.feeds:
        return None, ""
    try:
        session = _open(path)
    except Exception as error:
        return "does not load", str(error)
    complaint = _complaint(path) if source.is_valid else ""
    if complaint:
        return "invalid", complaint
    if source.outputs is None:
        return None, ""
    types = {value.name: value.type for value in session.get_inputs()}
    feeds = {name: _as_type(value, types[name]) for name, value in source.feeds.items() if name in types}
    outputs = _run(session, feeds)
    if outputs is None:
        return "wrong", "the source runs, and the result does not"
    distance = _distance(source.outputs, outputs)
    if distance <= tolerance:
        return None, ""
    largest = max(map(_largest, (*source.feeds.values(), *source.outputs)), default=0.0)
    return "differs", f"outputs differ by {distance:.2g} of their RMS; inputs and outputs reach {largest:.2g}"


def _largest(value: Any) -> float:
    """Return the largest finite magnitude in a tensor or sequence of numbers; 0 without one."""
    if isinstance(value, list):
        return max(map(_largest, value), default=0.0)
    if value is None or np.asarray(value).dtype.kind not in "fiu":
        return 0.0
    magnitudes = np.abs(np.asarray(value, np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def _open(path: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, feeds: Mapping[str, Any]) -> list[Any] | None:
    try:
        return list(session.run(None, dict(feeds)))
    except Exception:  # ONNX Runtime has a class for each status
        return None


def _complaint(path: Path) -> str:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # it raises ValidationError, and errors of protobuf and of the file system
        return str(error)
    return ""


_DTYPES: Mapping[str, Any] = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_FLOATS = (np.float16, np.float32, np.float64)


def _as_type(value: Any, kind: str) -> Any:
    """Return values of the type of an input, which `keep_io: false` changes; also those of a sequence."""
    kind = kind.removeprefix("optional(")
    if isinstance(value, list):
        return [_as_type(item, kind.removeprefix("seq(")) for item in value] if kind.startswith("seq(") else value
    is_float = isinstance(value, np.ndarray) and value.dtype in _FLOATS
    return value.astype(_DTYPES.get(kind.rstrip(")") + ")", value.dtype)) if is_float else value


def _random_feeds(session: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        known = inputs.get(value.name)
        shape = known if isinstance(known, list) else [size if isinstance(size, int) else 1 for size in value.shape]
        dtype = _DTYPES[value.type]
        if isinstance(known, np.ndarray):
            feeds[value.name] = known.astype(dtype)
        else:
            feeds[value.name] = (generator.random(shape) if dtype in _FLOATS else np.ones(shape)).astype(dtype)
    return feeds


def recipe_inputs(source: Source, folder: Path) -> dict[str, Any]:
    """Write the values of inputs as files, and return a recipe's `inputs:`; those without a file format stay random."""
    from onnx import numpy_helper

    inputs = {}
    for number, (name, value) in enumerate(source.feeds.items()):
        if isinstance(value, np.ndarray):
            path = folder / f"{number}.pb"
            try:
                path.write_bytes(numpy_helper.from_array(value, name).SerializeToString())
            except (RuntimeError, TypeError, ValueError):
                continue
            inputs[name] = {"data": str(path), "shape": list(value.shape)}
    return inputs


def _distance(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest RMS of the differences of an output over the RMS of the output; infinite for other shapes,
    types of numbers, and places of NaN and infinity.
    """
    return max((_output_distance(item, other) for item, other in zip(expected, actual, strict=False)), default=0.0)


def _output_distance(expected: Any, actual: Any) -> float:
    if isinstance(expected, list):
        return _distance(expected, actual) if len(expected) == len(actual) else np.inf
    if expected is None or actual is None or np.asarray(expected).dtype.kind not in "fiub":
        return 0.0 if np.array_equal(expected, actual) else np.inf
    first, other = (np.asarray(value).astype(np.float64) for value in (expected, actual))
    if first.shape != other.shape or not np.array_equal(np.isfinite(first), np.isfinite(other)):
        return np.inf
    first, other = first[np.isfinite(first)], other[np.isfinite(first)]
    error = float(np.sqrt(np.mean((first - other) ** 2))) if first.size else 0.0
    return 0.0 if error < 1e-6 else error / max(float(np.sqrt(np.mean(first**2))), 1e-12)


def _agree(expected: Sequence[Any], actual: Sequence[Any], tolerance: float) -> bool:
    return len(expected) == len(actual) and _distance(expected, actual) <= tolerance
