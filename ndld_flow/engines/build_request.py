"""The request to a building process and its answer: plain values in JSON files. Imports little."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.inputs import InputSpec

_REQUEST = "job.json"
_ANSWER = "answer.json"


@dataclass(frozen=True)
class BuildRequest:
    """A model to build an engine of, with all settings."""

    model: Path
    label: str
    """Name of the model in messages and reports."""
    digest: str
    inputs: Mapping[str, InputSpec]
    """The recipe's `inputs:`."""
    settings: BuildSettings
    out: Path
    """An existing folder for the files of the `Engine` artifact."""
    caches: Path
    """A persistent folder for caches, which only save time."""
    scratch: Path
    """An existing folder for the building process."""

    def write(self, folder: Path) -> None:
        (folder / _REQUEST).write_bytes(TypeAdapter(BuildRequest).dump_json(self))

    @classmethod
    def read(cls, folder: Path) -> BuildRequest:
        return TypeAdapter(cls).validate_json((folder / _REQUEST).read_bytes())


@dataclass(frozen=True)
class BuildAnswer:
    """The outcome of a build: an error, or empty fields when the engine is built."""

    error: str = ""
    """Name of a class in `errors`, or `OSError`."""
    message: str = ""
    number: int = 0
    """errno of an OSError."""

    def write(self, folder: Path) -> None:
        (folder / _ANSWER).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> BuildAnswer | None:
        """Read the answer; None if it is incomplete because the process died."""
        try:
            return cls(**json.loads((folder / _ANSWER).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
