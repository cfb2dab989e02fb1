"""The process in which variants of a model race: it builds them, judges them, and lets them alternate pass by pass.

`python -P -m ndld_flow.runner.optimize.race_worker FOLDER` reads `FOLDER/job.json` and writes lines of JSON to standard
output. A model that crashes its library ends this process, and nothing else; whoever started it goes on without it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.processes import worker as process

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


def main() -> None:
    """Run the race of the job in the folder."""
    folder = Path(sys.argv[1])
    process.watch_input()
    output = process.claim_output()
    from ndld_flow.runner.optimize.race import Race  # its imports print to standard error

    emit: Callable[[dict[str, Any]], object] = lambda line: os.write(output, f"{json.dumps(line)}\n".encode())  # noqa: E731
    with suppress(BrokenPipeError):
        try:
            Race(RaceJob.read(folder), emit).run()
        except NdldFlowError as error:
            emit({"error": str(error)})
    process.exit_worker()


if __name__ == "__main__":
    main()
