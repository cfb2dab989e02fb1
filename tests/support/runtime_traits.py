"""Facts of a runtime, for profiles that tests write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ndld_flow.profiles.read.onnxruntime_profile import onnxruntime_traits
from ndld_flow.records.profile import RuntimeTraits


def with_traits(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a profile with the facts of its runtime, by the names of its backend and providers."""
    return {"runtime": _traits_of(fields), **fields}


def _traits_of(fields: Mapping[str, Any]) -> RuntimeTraits:
    backend = str(fields["backend"])
    if backend == "onnxruntime":
        return onnxruntime_traits(tuple(fields.get("providers", ())))
    if backend in ("tensorrt", "tensorrt_rtx", "trtexec"):
        library = "" if backend == "trtexec" else backend.replace("_", "-")
        return RuntimeTraits(library=library, runs_engine=True, on_gpu=True)
    before = fields.get("conditions", {}).get("before")
    return RuntimeTraits(on_gpu="gpus" in before if before else None)
