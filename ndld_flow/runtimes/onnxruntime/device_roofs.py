"""Peak performance of the device, measured with a large matrix product and a large elementwise operation.

They are the roofs of a roofline (Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785),
measured in ONNX Runtime with the model's provider and threads, on this machine under its current load.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.quantities import count
from ndld_flow.records.profile import Layer, Roofs
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import OnnxruntimeSession, SessionSettings, open_model

_ENOUGH_S = 0.05
"""Seconds for measuring each operation; the best pass counts."""
_ONE_PASS_S = 0.003
"""Seconds of a pass that is long enough to make its launch overhead negligible."""
_FEWEST = 3
_ELEMENTS = {"float32": "float", "float16": "float16"}
_SIDES = (512, 1024, 2048, 4096, 8192)
"""Sides of the matrices."""
_ROWS, _COLUMNS = (4096, 16384, 65536), 4096
"""Sizes of arrays that exceed every CPU cache."""
_measured: dict[str, Roofs | None] = {}


def measure_roofs(settings: SessionSettings, layers: Sequence[Layer] = ()) -> Roofs | None:
    """Return the best of several passes in about 0.3 s, measured once in a process for the same settings.

    The precision is float16 if the provider computes most of these layers' products in it, else float32. None if the
    provider can run neither operation.
    """
    plain = replace(settings, free_dimensions={}, profile_prefix=None, optimized_model=None, execution="sequential")
    macs: Counter[str] = Counter()
    for layer in layers:
        macs[layer.precision] += layer.macs or 0
    dtype = max(macs, key=macs.__getitem__, default="")
    if dtype not in _ELEMENTS or full_name(settings.provider) == CPU:
        dtype = "float32"  # ONNX Runtime's CPU kernels compute float16 in float32, with casts around
    key = f"{plain} {dtype}"
    if key not in _measured:
        _measured[key] = _measure(plain, dtype)
    return _measured[key]


def _measure(settings: SessionSettings, dtype: str) -> Roofs | None:
    try:
        with tempfile.TemporaryDirectory(prefix="ndld-flow-roofs-") as folder:
            model = open_model(_write_model(Path(folder) / "roofs.onnx", dtype, "MatMul"), settings)
            side, product_s = _best_of(model, dtype, [(side, side) for side in _SIDES])
            model = open_model(_write_model(Path(folder) / "copy.onnx", dtype, "Add"), settings)
            rows, sum_s = _best_of(model, dtype, [(rows, _COLUMNS) for rows in _ROWS])
    except (ModelError, BackendError):  # the profile is valid without roofs
        return None
    moved = 3 * rows * _COLUMNS * np.dtype(dtype).itemsize
    return Roofs(
        macs_per_s=side**3 / product_s,
        bytes_per_s=moved / sum_s,
        dtype=dtype,
        how=(
            f"best of several passes in ONNX Runtime with the same provider and threads: product of two {dtype} "
            f"matrices of {count(side)}x{count(side)}, sum of two of {count(rows)}x{count(_COLUMNS)}"
        ),
    )


def _write_model(path: Path, dtype: str, op_type: str) -> Path:
    element, (a, b) = _ELEMENTS[dtype], ("m, k", "k, n") if op_type == "MatMul" else ("m, n", "m, n")
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> roof ({element}[{a}] a, {element}[{b}] b) => ({element}[m, n] y) '
        f"{{ y = {op_type}(a, b) }}"
    )
    onnx.save(model, path)
    return path


def _best_of(model: OnnxruntimeSession, dtype: str, shapes: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """Return the rows of the first shape whose pass is long enough, or else of the last, and its shortest time."""
    shape = next((each for each in shapes[:-1] if _best(model, each, dtype, 0.0) >= _ONE_PASS_S), shapes[-1])
    return shape[0], _best(model, shape, dtype, _ENOUGH_S)


def _best(model: OnnxruntimeSession, shape: tuple[int, int], dtype: str, enough_s: float) -> float:
    """Return the seconds of the best pass, of three or as many as `enough_s` allows."""
    # Two arrays: ONNX Runtime reads them in place, and a shared one would be read from memory only once.
    binding = model.bind({"a": np.full(shape, 0.5, dtype), "b": np.full(shape, 0.5, dtype)}, on_device=True)
    best, passes = float("inf"), 0
    started = time.perf_counter()
    while passes < _FEWEST or time.perf_counter() - started < enough_s:
        before = time.perf_counter()
        binding.run()
        best = min(best, time.perf_counter() - before)
        passes += 1
    return best
