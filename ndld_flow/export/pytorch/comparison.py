"""Comparison of a written module with ONNX Runtime, on the same inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.agreement import Agreement, find_yardstick
from ndld_flow.accuracy.model_comparison import reduced_precision, storable
from ndld_flow.accuracy.tolerance import SLICE_BOUNDS, Tolerance, outside
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.text import short_name
from ndld_flow.export.pytorch import run_module
from ndld_flow.export.pytorch.export_model import ExportedModule
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.processes.program import Program, minimal_environment, run_program
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.samples.sample_feeds import Samples

_BOUNDS = {"slice_rms": 0.01, "slice_max": 0.02, "position_rms": 0.04}
"""Bounds of float32: a fifth of those for lossless changes. Rounding is a hundred times below them."""


@dataclass(frozen=True)
class OutputDistance:
    """How far an output of the module is from ONNX Runtime's."""

    name: str
    metrics: Mapping[str, float]
    failures: tuple[str, ...]
    """A sentence for each bound that does not hold."""
    is_constant: bool
    """ONNX Runtime's output has one value only, so that the agreement is weak evidence."""


@dataclass(frozen=True)
class ModuleCheck:
    """Where the module, its inputs and its outputs are."""

    model: Path
    folder: Path
    """Folder of the module."""
    scratch: Path
    timeout_s: float


def compare_module(
    exported: ExportedModule, check: ModuleCheck, samples: Samples, report: Callable[[str], None]
) -> list[OutputDistance]:
    """Run the module and the model on samples; returns how far apart each output is.

    Raises `RequestError` if the module does not run, or returns another number of outputs.
    """
    feeds, ours, theirs = (check.scratch / name for name in ("feeds", "onnxruntime", "pytorch"))
    for folder in (feeds, ours, theirs):
        folder.mkdir()
    session = open_model(check.model, SessionSettings())
    dtypes: list[str] = []
    for number, sample in enumerate(samples):
        arrays = sample.arrays
        binding = session.bind(arrays)
        binding.run()
        outputs = binding.outputs()
        ordered = [arrays[name] for name in exported.inputs]
        dtypes = [array.dtype.name for array in ordered]
        _save(feeds / f"{number}.npz", "input", ordered)
        _save(ours / f"{number}.npz", "output", [_tensor(name, outputs[name]) for name in exported.outputs])
    (feeds / "dtypes.json").write_text(json.dumps(dtypes))
    program = Program(
        command=[
            sys.executable,
            "-I",
            "-B",
            str(Path(run_module.__file__)),
            str(check.folder),
            str(feeds),
            str(theirs),
        ],
        environment=minimal_environment(check.scratch),
        timeout_s=check.timeout_s,
    )
    try:
        run_program(program, report)
    except RequestError as error:
        raise RequestError(f"the written module does not run: {error}") from None
    bounds = dict(SLICE_BOUNDS["default"] if reduced_precision(check.model) else _BOUNDS)
    count = len(samples)
    return [
        _distance(name, partial(_arrays, ours, number, count), partial(_arrays, theirs, number, count), bounds)
        for number, name in enumerate(exported.outputs)
    ]


def _save(path: Path, word: str, arrays: list[Array]) -> None:
    np.savez(path, **{f"{word}_{number}": storable(array) for number, array in enumerate(arrays)})  # type: ignore[arg-type]


def _tensor(name: str, array: Array | None) -> Array:
    if array is None:
        raise ModelError(f"output {short_name(name)} is not a tensor")
    return array


def _arrays(folder: Path, number: int, count: int) -> Iterator[Array]:
    """Yield one output, sample by sample."""
    for sample in range(count):
        with np.load(folder / f"{sample}.npz", allow_pickle=False) as arrays:
            if f"output_{number}" not in arrays:
                raise RequestError(f"the written module returns {len(arrays.files)} outputs, not all of the model's")
            yield arrays[f"output_{number}"]


def _distance(
    name: str, ours: Callable[[], Iterator[Array]], theirs: Callable[[], Iterator[Array]], bounds: dict[str, float]
) -> OutputDistance:
    yardstick = find_yardstick(ours)
    agreement = Agreement(yardstick=yardstick)
    for sample, (r, c) in enumerate(zip(ours(), theirs(), strict=True)):
        if r.shape != c.shape or r.dtype != c.dtype:
            found, wanted = (f"{array.dtype.name} {shape_text(array.shape)}" for array in (c, r))
            return OutputDistance(name, {}, (f"it is {found}, and {wanted} in ONNX Runtime (sample {sample})",), False)
        agreement.add(r, c, f"sample {sample}")
    metrics = agreement.metrics()
    own = bounds if yardstick.kind == "numbers" else Tolerance().bounds(yardstick.kind)
    failures = outside(metrics, own, agreement.worst_slices())
    if agreement.nonfinite:
        failures.append(f"{agreement.nonfinite} elements are NaN or infinite in one of both only")
    return OutputDistance(name, metrics, tuple(failures), agreement.is_weak_evidence)
