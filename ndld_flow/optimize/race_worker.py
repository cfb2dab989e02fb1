"""The process in which variants of a model race: it builds them, judges them, and lets them alternate pass by pass.

`python -P -m ndld_flow.optimize.race_worker FOLDER` reads `FOLDER/job.json` and writes lines of JSON to standard
output. A model that crashes its library ends this process, and nothing else; whoever started it goes on without it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.optimize.race_process import JOB, RaceJob
from ndld_flow.processes import worker as process


def main() -> None:
    """Run the race of the job in the folder."""
    folder = Path(sys.argv[1])
    process.watch_input()
    output = process.claim_output()
    from ndld_flow.optimize.race import Race  # its imports print to standard error

    emit: Callable[[dict[str, Any]], object] = lambda line: os.write(output, f"{json.dumps(line)}\n".encode())  # noqa: E731
    with suppress(BrokenPipeError):
        try:
            Race(RaceJob.model_validate_json((folder / JOB).read_bytes()), emit).run()
        except NdldFlowError as error:
            emit({"error": str(error)})
    process.exit_worker()


if __name__ == "__main__":
    main()
