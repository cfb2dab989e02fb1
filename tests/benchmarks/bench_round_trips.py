"""All round trips of edits over all of the onnx package's own backend test models.

Prints, asserts nothing: `python -m tests.benchmarks.bench_round_trips [--every N] [TRIP ...]`. About 20 minutes of CPU
for all trips; with `--every 10` two.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import onnxruntime as ort

from tests.graph.test_edit_backend_models import TRIPS, round_trip
from tests.support.backend_models import BackendModel, all_backend_models

COLUMNS = ("equal", "close", "refused", "differs", "crashed", "random", "only the source runs", "nothing runs it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trips", nargs="*", metavar="TRIP", help=f"one of: {', '.join(TRIPS)}; all unless said")
    parser.add_argument("--every", type=int, default=1, help="take each Nth model only")
    parser.add_argument("--refusals", action="store_true", help="print each refusal, names of nodes taken out, once")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    ort.set_default_logger_severity(4)
    cases = all_backend_models()[:: arguments.every]
    print("trip".ljust(30), *(word.rjust(max(len(word), 7)) for word in ("models", *COLUMNS, "CPU s")))
    for name in arguments.trips or TRIPS:
        measure_trip(name, cases, arguments.refusals)


def measure_trip(name: str, cases: tuple[BackendModel, ...], refusals: bool) -> None:
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        results = {case.name: result_of(name, case, Path(folder) / str(n)) for n, case in enumerate(cases)}
    seconds = time.process_time() - start
    counts = Counter(result.partition(":")[0] for result in results.values())
    figures = {"models": len(cases)} | {word: counts[word] for word in COLUMNS}
    row = [str(figure).rjust(max(len(word), 7)) for word, figure in figures.items()]
    print(name.ljust(30), *row, f"{seconds:7.0f}", flush=True)
    outcome = {kind_of(result): case for case, result in reversed(results.items()) if is_told(result, refusals)}
    for kind, case in sorted(outcome.items()):
        print(f"    {kind} ({case})")


def result_of(name: str, case: BackendModel, folder: Path) -> str:
    try:
        return round_trip(case, TRIPS[name], folder)
    except Exception as error:
        return f"crashed: {type(error).__name__} {error}"


def is_told(result: str, refusals: bool) -> bool:
    kind = result.partition(":")[0]
    return kind in ("differs", "crashed", "only the source runs") or (refusals and kind == "refused")


def kind_of(result: str) -> str:
    """The words without the names."""
    return re.sub(r"'[^']*'", "'...'", result)[:300]


if __name__ == "__main__":
    main()
