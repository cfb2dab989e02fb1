"""The process in which variants of a model race: it builds them, judges them, and lets them alternate pass by pass.

`python -P -m ndld_flow.optimize.race_worker FOLDER` reads `FOLDER/job.json` and writes lines of JSON to standard
output. A model that crashes its library ends this process, and nothing else; whoever started it goes on without it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.execution.messages import describe_error
from ndld_flow.optimize.race_process import JOB, RaceJob
from ndld_flow.processes import worker as process
from ndld_flow.processes.lines import Output


def main() -> None:
    """Run the race of the job in the folder."""
    folder = Path(sys.argv[1])
    process.watch_input()
    output = Output()
    from ndld_flow.optimize.race import Race  # its imports print to standard error

    with suppress(BrokenPipeError):
        try:
            Race(RaceJob.model_validate_json((folder / JOB).read_bytes()), output.send).run()
        except NdldFlowError as error:
            output.send(describe_error(error))
    process.exit_worker()


if __name__ == "__main__":
    main()
