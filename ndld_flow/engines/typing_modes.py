"""The typing of a network: by the builder (weak) or by the model (strong)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ndld_flow.engines.build_settings import BuildSettings, Typing
from ndld_flow.runtimes.tensorrt.release_names import Names

STRONG_FLAG = "STRONGLY_TYPED"
_CONSTRAINT_FLAGS: Mapping[Typing, str] = {
    "obey": "OBEY_PRECISION_CONSTRAINTS",
    "prefer": "PREFER_PRECISION_CONSTRAINTS",
}
_CONSTRAINT_WORDS: Mapping[str, str] = {
    "OBEY_PRECISION_CONSTRAINTS": "; constraints obeyed",
    "PREFER_PRECISION_CONSTRAINTS": "; constraints preferred",
}
_CAST_WORDS: Mapping[Typing, str] = {
    "obey": ", constraints as Casts",
    "prefer": ", preferred constraints applied exactly, as Casts",
}


@dataclass(frozen=True)
class TypingPlan:
    """The builder's settings of types."""

    strongly_typed: bool
    creation_flags: tuple[str, ...]
    """Members of NetworkDefinitionCreationFlag to create the network with."""
    precision_flags: tuple[str, ...]
    """Members of BuilderFlag to set. TF32 is on by default: if it is not among these, it must be cleared."""
    constraint_flag: str
    """The member of BuilderFlag that puts precision constraints into effect; empty for none."""
    casts: bool
    """Precision constraints become Casts in the model."""
    layer_precisions: bool
    """Precision constraints are set on the network's layers."""
    description: str
    """Description such as `weakly typed: FP16, TF32; constraints obeyed`."""


def decide_typing(settings: BuildSettings, names: Names) -> TypingPlan:
    """Return the effect of the setting `typing` and the precision flags in a release.

    In a release without precision flags, every network is strongly typed, and `obey` and `prefer` are the same: a Cast
    in the model cannot be merely preferred. `unsupported_settings.refuse_settings` rejects settings that a release
    lacks.
    """
    constrained = settings.typing in _CONSTRAINT_FLAGS
    if settings.typing == "strong" or types_strongly(names):
        return _strong(settings, names, casts=constrained)
    flags = tuple(flag for flag in _precision_flags(settings) if names.has("BuilderFlag", flag))
    constraint = _CONSTRAINT_FLAGS.get(settings.typing, "")
    return TypingPlan(
        strongly_typed=False,
        creation_flags=(),
        precision_flags=flags,
        constraint_flag=constraint,
        casts=False,
        layer_precisions=constrained,
        description=f"weakly typed: {', '.join(flags) or 'FP32'}{_CONSTRAINT_WORDS.get(constraint, '')}",
    )


def types_strongly(names: Names) -> bool:
    """Return True if every network of the release is strongly typed."""
    return not names.has("BuilderFlag", "FP16")


def _strong(settings: BuildSettings, names: Names, *, casts: bool) -> TypingPlan:
    # In releases where all networks are strongly typed, the flag is ignored or gone; TensorRT-RTX 1.7 sets it itself.
    flags = (STRONG_FLAG,) if names.has("NetworkDefinitionCreationFlag", STRONG_FLAG) else ()
    return TypingPlan(
        strongly_typed=True,
        creation_flags=flags,
        precision_flags=("TF32",) if settings.tf32 else (),
        constraint_flag="",
        casts=casts,
        layer_precisions=False,
        description=f"strongly typed{_CAST_WORDS.get(settings.typing, '')}",
    )


def _precision_flags(settings: BuildSettings) -> Iterator[str]:
    allowed = {
        "FP16": settings.fp16,
        "BF16": settings.bf16,
        "INT8": settings.int8,
        "FP8": settings.fp8,
        "TF32": settings.tf32,
    }
    return (flag for flag, on in allowed.items() if on)
