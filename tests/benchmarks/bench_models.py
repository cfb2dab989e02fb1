"""Run every step and every verb on every model that a runtime loads, and count refusals and wrong results.

    python -m tests.benchmarks.bench_models --outcomes outcomes.jsonl [--groups generated wheels backend large]

The models are those of the onnx package's backend tests, real ones from pinned wheels, generated ones of the kinds that
exporters and builders write, and with `--groups large` one of 2.4 GB. Steps are found in the registry, verbs in
`ndld_flow.api`; each is tried on each model, in worker processes with a time limit. For each the table shows the number
of models that a runtime loads, those that were accepted (goal: all), and of the results those that ONNX Runtime does
not load, that the checker refuses although it accepts the source, and whose outputs differ from the source's beyond the
step's tolerance (goal: none). Where fewer bits lose that much, and `check_accuracy` fails the result, it is
`inaccurate` and not `wrong`. Every failure is listed with one line.

All steps of a model run as one recipe, in one process that lives on: a process for each takes ten times as long. On
each `--command-every`th model the command line runs the same recipe and verbs as well, and must give the same results;
`noise`, which takes a minute, runs on these only.
Steps and verbs that measure or search run on the generated models and those from wheels, and on each `--slow-every`th
of the others; the checks of `lint` that start a process, on each tenth. One core needs an hour for all but `large`,
which takes 20 minutes and 12 GB of disk.

`--outcomes` has one line for each trial. A run that was interrupted goes on where it ended, `--again` repeats the
models that had a fault, and `--print` only prints the tables. The last line counts the trials of other versions of the
code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import get_args

from tests.support.model_trials.judge import Fault
from tests.support.model_trials.subjects import GROUPS, Subject, write_subjects
from tests.support.model_trials.trial import LOADED, Outcome
from tests.support.model_trials.workers import examine_all

_ROOT = Path(__file__).parents[2]
_REFUSALS: tuple[Fault, ...] = ("refused", "failed", "crashed", "time out")


@dataclass(frozen=True)
class Line:
    """A trial in the file of outcomes."""

    outcome: Outcome
    code: str
    """Digest of the code that was tried."""


@cache
def digest_code() -> str:
    """Return a digest of the package and of what tries it."""
    digest = hashlib.sha256()
    for folder in ("ndld_flow", "tests/support/model_trials"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def read_lines(path: Path | None) -> dict[tuple[str, str], dict[str, Line]]:
    """Return the trials of each model that was examined to the end, the latest of each operation."""
    found: dict[tuple[str, str], dict[str, Line]] = {}
    current: dict[str, Line] = {}
    for text in path.read_text().splitlines() if path is not None and path.exists() else ():
        try:
            values = json.loads(text)
        except ValueError:  # an interrupted write
            current = {}
            continue
        line = Line(Outcome(**{key: value for key, value in values.items() if key != "code"}), values["code"])
        if any(item.outcome.subject != line.outcome.subject for item in current.values()):
            current = {}
        current[line.outcome.operation] = line
        if line.outcome.operation == LOADED:
            found[line.outcome.group, line.outcome.subject] = current
            current = {}
    return found


def write_lines(path: Path | None, outcomes: Sequence[Outcome]) -> None:
    """Append the trials of a model."""
    if path is not None:
        with path.open("a") as file:
            file.write("".join(json.dumps({**asdict(outcome), "code": digest_code()}) + "\n" for outcome in outcomes))


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a row for each step and verb, steps first."""
    faults = get_args(Fault)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.operation][outcome.fault or "accepted"] += 1
    print("step or verb".ljust(34), "loaded", "accepted", *faults)
    for name in sorted(counts, key=lambda name: (name.startswith("api."), name)):
        _print_row(name, counts[name])
    _print_row("all", sum(counts.values(), Counter()))


def _print_row(name: str, row: Counter[str]) -> None:
    refused = sum(row[fault] for fault in _REFUSALS)
    cells = [str(row[fault] or "").rjust(len(fault)) for fault in get_args(Fault)]
    print(name.ljust(34), str(row.total()).rjust(6), str(row.total() - refused).rjust(8), *cells)


def print_groups(outcomes: Sequence[Outcome]) -> None:
    """Print a row for each group of models."""
    for group in GROUPS:
        own = [outcome for outcome in outcomes if outcome.group == group]
        if not own:
            continue
        models = [outcome for outcome in own if outcome.operation == LOADED]
        loaded = [outcome for outcome in models if not outcome.detail.startswith("not loaded")]
        trials = [outcome for outcome in own if outcome.operation != LOADED]
        counts = Counter(outcome.fault for outcome in trials if outcome.fault)
        accepted = len(trials) - sum(counts[fault] for fault in _REFUSALS)
        found = ", ".join(f"{count} {fault}" for fault, count in counts.most_common()) or "no fault"
        print(
            f"{group}: {len(models)} models, {len(loaded)} loaded by a runtime; "
            f"{len(trials)} trials, {accepted} accepted; {found}"
        )


def print_faults(outcomes: Sequence[Outcome]) -> None:
    """Print one line for each fault of a kind, with the steps and verbs, and the first of the models."""
    kinds: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.fault:
            kinds[outcome.fault, _kind(outcome)].append(outcome)
    for (fault, detail), found in sorted(kinds.items(), key=lambda item: (item[0][0], -len(item[1]))):
        models = list(dict.fromkeys(outcome.subject for outcome in found))
        shown = ", ".join(models[:3]) + (", ..." if len(models) > 3 else "")
        operations = ", ".join(sorted({outcome.operation for outcome in found}))
        print(f"{fault}: {len(found)} in {len(models)} models ({shown}): {operations}: {detail}")


def _kind(outcome: Outcome) -> str:
    """Return a message without steps, names and numbers, so that equal causes are one line.

    Losses stay apart: each needs a reason in its model, or is a wrong result that `check_accuracy` noticed.
    """
    if outcome.fault == "inaccurate":
        return f"{outcome.subject}: {outcome.detail}"[:300]
    text = re.sub(r"(?<!\w)'[^']*'|\"[^\"]*\"", "'...'", re.sub(r"^step \w+: ", "", outcome.detail))
    return re.sub(r"\d[\d.e+-]*", "N", text)[:300]


def print_all(lines: Sequence[Line]) -> None:
    """Print every table."""
    outcomes = [line.outcome for line in lines]
    tried = [outcome for outcome in outcomes if outcome.operation != LOADED or outcome.fault]
    print_groups(outcomes)
    print()
    print_table(tried)
    print()
    print_faults(tried)
    others = Counter(line.code for line in lines if line.code != digest_code())
    print(f"\n{len(lines) - others.total()} trials of this code, {others.total()} of {len(others)} other versions")


@contextmanager
def _subjects(arguments: argparse.Namespace) -> Iterator[list[Subject]]:
    """Yield the models to try, in an order in which any part of them is a sample."""
    with tempfile.TemporaryDirectory() as name:
        found = write_subjects(Path(name), arguments.groups, arguments.every, arguments.slow_every)
        found = [subject for subject in found if arguments.only in subject.name]
        if arguments.quick:
            found = [replace(subject, is_slow=False) for subject in found]
        if arguments.command_every:
            found = [
                replace(subject, by_command=number % arguments.command_every == 0 and subject.group != "large")
                for number, subject in enumerate(found)
            ]
        known = read_lines(arguments.outcomes)
        faulty = {key for key, lines in known.items() if any(line.outcome.fault for line in lines.values())}
        done = known.keys() - (faulty if arguments.again else set())
        if arguments.again:
            found = [subject for subject in found if (subject.group, subject.name) in faulty]
        yield Random(0).sample(rest := [s for s in found if (s.group, s.name) not in done], len(rest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS[:3])
    parser.add_argument("--every", type=int, default=1, help="take each Nth model of the backend tests only")
    parser.add_argument("--quick", action="store_true", help="without steps and verbs that measure, search or build")
    parser.add_argument("--slow-every", type=int, default=100, help="measure and search on each Nth of these")
    parser.add_argument("--command-every", type=int, default=100, help="the command line on each Nth model; 0: on none")
    parser.add_argument("--only", default="", help="models whose name has this part")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=240, help="seconds for one step on one model")
    parser.add_argument("--outcomes", type=Path, help="a file for the trials, as JSON lines")
    parser.add_argument("--again", action="store_true", help="repeat the models that have a fault in this file")
    parser.add_argument("--print", action="store_true", help="print what is in this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    known = read_lines(arguments.outcomes)
    if not arguments.print:
        start = time.perf_counter()
        with _subjects(arguments) as subjects:
            for number, group in enumerate(examine_all(subjects, arguments.workers, arguments.limit), start=1):
                write_lines(arguments.outcomes, group)
                known[group[-1].group, group[-1].subject] = {
                    outcome.operation: Line(outcome, digest_code()) for outcome in group
                }
                if number % 20 == 0:
                    took = f"{time.perf_counter() - start:.0f} s"
                    print(f"{number} of {len(subjects)} models, {took}", file=sys.stderr, flush=True)
    print_all([line for lines in known.values() for line in lines.values()])


if __name__ == "__main__":
    main()
