"""The typing of a network: by the builder (weak) or by the model (strong)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.engines.build_settings import BuildSettings, Typing
from ndld_flow.runtimes.tensorrt.release_names import Names

_STRONG_FLAG = "STRONGLY_TYPED"
_PRECISIONS = ("fp16", "bf16", "int8", "fp8", "tf32")
_CONSTRAINT_WORDS: Mapping[Typing, str] = {"obey": "; constraints obeyed", "prefer": "; constraints preferred"}
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
    constrained = settings.typing in _CONSTRAINT_WORDS
    if settings.typing == "strong" or types_strongly(names):
        # Where all networks are strongly typed, the flag is ignored or gone; TensorRT-RTX 1.7 sets it itself.
        flags = (_STRONG_FLAG,) if names.has("NetworkDefinitionCreationFlag", _STRONG_FLAG) else ()
        return TypingPlan(True, flags, constrained, False, f"strongly typed{_CAST_WORDS.get(settings.typing, '')}")
    allowed = [name.upper() for name in _PRECISIONS if getattr(settings, name)]
    types = ", ".join(name for name in allowed if names.has("BuilderFlag", name)) or "FP32"
    description = f"weakly typed: {types}{_CONSTRAINT_WORDS.get(settings.typing, '')}"
    return TypingPlan(False, (), False, constrained, description)


def types_strongly(names: Names) -> bool:
    """Return True if every network of the release is strongly typed."""
    return not names.has("BuilderFlag", "FP16")
