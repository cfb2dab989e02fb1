"""The record of a model that a runtime compiled."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from ndld_flow.records.document import VERSIONS, Document


class Compiled(Document):
    """The runtime, settings and model of a compiled model, which is refused with others."""

    document: Literal["compiled"] = "compiled"
    format_version: int = VERSIONS["compiled"]
    backend: str
    """The runtime that opens it, as `backend` names it in recipes."""
    library: str
    """`OpenVINO`."""
    version: str
    """The release of the library; another one may refuse the file, or compute something else."""
    label: str
    """The step whose model was compiled, or `source`."""
    model_digest: str
    file_digest: str
    """blake3 of `model.compiled`, without the files that it refers to."""
    settings: dict[str, JsonValue]
    """The settings of `compile_model`, which the sessions of the file have too."""
    instructions: tuple[str, ...] = ()
    """Instruction sets of the CPU that it is for; empty if it runs on any CPU."""
