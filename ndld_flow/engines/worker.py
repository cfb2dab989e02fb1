"""A building process: it builds one engine and exits.

`python -P -m ndld_flow.engines.worker FOLDER` reads its job from the folder, writes the engine's files to the job's
output folder and its answer next to the job, and reports progress on standard output. It exits when its standard input
closes, so that no process is left if its parent is killed.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.engines.build_request import BuildAnswer, BuildRequest
from ndld_flow.engines.engine_building import build
from ndld_flow.processes import worker as process


def main() -> None:
    """Run the job of the folder on the command line."""
    folder = Path(sys.argv[1])
    progress = process.start_worker()
    warnings.simplefilter("ignore")  # the bindings warn about names that a later release will remove
    try:
        build(BuildRequest.read(folder), progress)
        answer = BuildAnswer()
    except RequestError as error:
        answer = BuildAnswer(type(error).__name__, str(error))
    except MemoryError:
        answer = BuildAnswer(
            "KilledError", "the building process ran out of memory: free some memory, or raise its limit."
        )
    except OSError as error:
        answer = BuildAnswer("OSError", error.strerror or str(error), error.errno or 0)
    answer.write(folder)
    process.exit_worker()


if __name__ == "__main__":
    main()
