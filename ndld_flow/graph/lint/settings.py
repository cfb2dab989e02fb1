"""Settings of a lint."""

from __future__ import annotations

from typing import Literal

from ndld_flow.base.quantities import Bytes, Milliseconds
from ndld_flow.base.settings import Settings

CheckName = Literal[
    "external_data",
    "onnx.checker",
    "shape_inference",
    "versions",
    "unknown_op",
    "duplicate_name",
    "missing_name",
    "unused_node",
    "unused_initializer",
    "unused_input",
    "dynamic_output",
    "float64",
    "nan_inf",
    "fp16_range",
    "onnxruntime",
    "polygraphy",
    "channel_scales",
]
"""Every check, in the order they run."""


class LintSettings(Settings):
    """Settings of a lint."""

    checks: tuple[CheckName, ...] = ()
    """Run only these checks; empty runs all."""
    skip: tuple[CheckName, ...] = ()
    """Checks to skip."""
    polygraphy: Literal["auto", "always", "never"] = "auto"
    """Polygraphy's lint, which runs the model: `auto` skips it for large models and where it is not installed."""
    large_model: Bytes = 2**30
    """Above this size, checks that read all weights or run the model are skipped unless `checks` names them."""
    time_limit: Milliseconds = 60_000.0
    """For all checks together; the report lists those that did not finish."""
