"""The job of a race, as a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JOB = "job.json"


@dataclass(frozen=True)
class RaceJob:
    """What a race needs."""

    recipe: str
    """The sweep over the variants, by which they are built, judged and measured."""
    outputs: str
    trust: bool
    variants: tuple[str, ...]
    """The variants to try, in this order; `source` is first."""
    extends: dict[str, str]
    """Variant -> one that quantizes a part of what it does."""
    accuracy: tuple[tuple[str, str], ...]
    """The conditions on metrics of `check_accuracy`: metric and bound."""
    seconds: float
    """No variant starts after this time, and the race ends."""
    folder: str
    """A folder for temporary files."""

    def write(self, folder: Path) -> None:
        (folder / JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> RaceJob:
        values: dict[str, Any] = json.loads((folder / JOB).read_text(encoding="utf-8"))
        pairs = tuple((metric, bound) for metric, bound in values.pop("accuracy"))
        return cls(**{**values, "variants": tuple(values["variants"])}, accuracy=pairs)
