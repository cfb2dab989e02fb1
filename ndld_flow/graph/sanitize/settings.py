"""Settings of `sanitize`."""

from typing import Annotated, Literal

from pydantic import Field

from ndld_flow.base.quantities import Bytes
from ndld_flow.base.settings import Settings
from ndld_flow.inputs import Shape


class SanitizeSettings(Settings):
    """Settings of `sanitize`."""

    fold_constants: bool = True
    """Evaluate nodes that depend only on constants. Random operators and Q/DQ pairs are kept."""
    fold_size_threshold: Bytes | None = None
    """Results larger than this are not folded, and constants larger than this are not read. Without it, the model does
    not grow: results over 64 MiB are not folded, nor those that add over 64 KiB more than they free."""
    passes: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """Number of passes over the model; `auto` continues until nothing changes."""
    remove_unused: bool = True
    """Remove nodes, initializers and functions that no output depends on."""
    deduplicate: bool = True
    """Merge equal nodes and equal initializers."""
    simplify: bool = True
    """Remove nodes that change nothing (Identity, Dropout, Casts to the same type, ...) and branches never taken."""
    fuse: bool = True
    """Fuse BatchNormalization, Mul, Add and Pad into Conv, MatMul + Add to Gemm, and LayerNormalization from its parts.
    Outputs then differ in the last bits (about 1e-7). Without fusion every value is computed as before, though a
    runtime may choose another kernel for weights that have become constant."""
    inline_functions: bool = False
    """Inline local functions first."""
    input_shapes: dict[str, Shape] = Field(default={})
    """Input -> shape to fix before folding, such as `{x: [1, 3, 320, 320]}`."""
