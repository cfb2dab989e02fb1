"""How NVIDIA ModelOpt is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ndld_flow.base.settings import Settings
from ndld_flow.base.units import Milliseconds
from ndld_flow.step import RunsCode


class ModelOpt(Settings):
    """NVIDIA ModelOpt in an environment of its own."""

    python: Annotated[Path, RunsCode()]
    """The interpreter of an environment that has ModelOpt, such as `modelopt/bin/python`; make one with
    `python3 -m venv modelopt` and `modelopt/bin/pip install 'nvidia-modelopt[onnx]'`. It runs only when the recipe is
    trusted. Its version of ModelOpt is part of the step's key."""
    format: Literal["fp8", "int8", "int4"] = "fp8"
    """`fp8` (E4M3) and `int8`: activations and weights, for TensorRT. `int4`: weights of Gemm and MatMul only, in
    blocks."""
    high_precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """What is not quantised becomes this."""
    timeout: Annotated[Milliseconds, Field(gt=0)] = 3_600_000.0
    """How long it may take, such as `10 min`; an hour by default."""
