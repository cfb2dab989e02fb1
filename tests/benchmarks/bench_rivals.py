"""Compare `ndld-flow optimize` with the grid of all that it may choose, and with other tools, on twenty unlike models.

    python -m tests.benchmarks.bench_rivals [--models text_detection decoder] [--contenders grid optimize_any]

Each file of `tests/benchmarks/rivals/` is a contender. It gets an ONNX model of fixed shapes, 36 samples, a bound
(cosine similarity of the worst output of the worst sample, 0.99) and a number of threads; it runs in an environment
with its packages, which pip fills if this interpreter has not got them, and delivers a model with the settings to run
it. A neutral judge opens each delivered model in its runtime, compares its outputs with the source's on 24 unseen
samples and on the 36 others, and times all that hold the bound on both in alternating passes, by CPU time and by wall
time. The source is timed twice: the difference is noise. CPU time decides, or with several threads wall time.

`grid` is the true best: all variants that `optimize --for any` may choose, each judged and measured. A rival that
delivers a wrong model, or none, has lost; the table shows why. With `--loaded`, two busy loops run while a contender
works, and none while its model is judged and timed.

Results of the same terms are kept in a folder of `--folder`, line by line: an interrupted run goes on where it ended,
`--again NAME` repeats a contender, `--only-deliver` leaves the timing to a later run, and `--print` only prints the
table. All twenty models take many hours on two busy cores, and 20 GB of disk. On a machine that measures other things
too, set NDLD_FLOW_DEVICE_LOCKS to a folder of its own, so that `optimize` does not wait for these.

No wheel has a reranker; the classifier of photographs is there instead. The brain waves are made up, as no wheel has
recorded ones, and the rows of the table are scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ndld_flow.store.digest import digest_file
from tests.benchmarks.rivals.protocol import Delivery
from tests.support.rivalry.contest import Outcome, Terms, contenders, run_contender
from tests.support.rivalry.judging import Times, judge, time_in_turns
from tests.support.rivalry.subjects import SUBJECTS, prepare_subject
from tests.support.rivalry.table import Row, print_table

SOURCE, TWIN = "source", "source again"
_OUTCOMES, _MEASURED = "outcomes.jsonl", "measured.jsonl"


@dataclass(frozen=True)
class Measured:
    """The times of one subject's models, taken in the same rounds."""

    subject: str
    keys: tuple[str, ...]
    """The digest, the runtime and the settings of each."""
    times: tuple[Times, ...]

    @classmethod
    def read(cls, line: str) -> Measured:
        values = json.loads(line)
        times = tuple(Times(**item) for item in values["times"])
        return cls(values["subject"], tuple(values["keys"]), times)


def key_of(delivery: Delivery) -> str:
    """Return what the speed of a model depends on; OpenVINO's weights are beside its .xml."""
    path = Path(delivery.model)
    files = [path, *([path.with_suffix(".bin")] if path.suffix == ".xml" else [])]
    if not path.exists():
        return f"{path}: it is being made again"
    digests = [digest_file(file) for file in files]
    return json.dumps([*digests, delivery.runtime, dict(sorted(delivery.settings.items()))])


def source_key(name: str, folder: Path) -> str:
    """Return the key of a subject itself."""
    return key_of(Delivery(str(prepare_subject(name, folder / "subjects").model)))


def read_outcomes(results: Path) -> dict[tuple[str, str], Outcome]:
    """Return the latest outcome of each contender on each subject."""
    outcomes = map(Outcome.read, _lines(results / _OUTCOMES))
    return {(outcome.subject, outcome.contender): outcome for outcome in outcomes}


def read_measured(results: Path) -> dict[str, Measured]:
    """Return the latest times of each subject."""
    found = map(Measured.read, _lines(results / _MEASURED))
    return {measured.subject: measured for measured in found}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(f"{line}\n")


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Time the source, twice, and every model that is right, unless all of them were timed together before."""
    terms: Terms = arguments.terms
    outcomes = _own(name, read_outcomes(folder / terms.name))
    known = read_measured(folder / terms.name).get(name)
    subject = prepare_subject(name, folder / "subjects")
    source = Delivery(str(subject.model))
    models = {SOURCE: source, TWIN: source}
    for outcome in outcomes.values():
        models |= {key_of(delivery): delivery for delivery in outcome.right(terms.bound)}
    models.pop(key_of(source), None)
    if known is not None and set(models) <= set(known.keys):
        return
    times = time_in_turns(list(models.values()), subject.unseen, terms.threads, arguments.rounds, arguments.processes)
    measured = Measured(name, tuple(models), tuple(times))
    append(folder / terms.name / _MEASURED, json.dumps(asdict(measured)))


def main() -> None:
    arguments = parse_arguments()
    folder: Path = arguments.folder
    terms: Terms = arguments.terms
    if not arguments.print:
        for name in arguments.models:
            contest(name, folder, arguments)
        for name in () if arguments.only_deliver else arguments.models:
            judge_on_given(name, folder, terms)
            measure(name, folder, arguments)
    outcomes, measured = read_outcomes(folder / terms.name), read_measured(folder / terms.name)
    rows = [
        row(name, _own(name, outcomes), measured[name], source_key(name, folder), terms)
        for name in arguments.models
        if name in measured
    ]
    print_table(rows, terms)


def _own(name: str, outcomes: Mapping[tuple[str, str], Outcome]) -> dict[str, Outcome]:
    return {contender: outcome for (subject, contender), outcome in outcomes.items() if subject == name}


def contest(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Run the contenders that have not run on a subject, and measure what all have delivered."""
    subject = prepare_subject(name, folder / "subjects", arguments.samples)
    results = folder / arguments.terms.name
    for contender in arguments.contenders:
        known = read_outcomes(results).get((name, contender))
        if known is not None and contender not in arguments.again:
            continue
        own = results / "delivered" / name / contender
        shutil.rmtree(own, ignore_errors=True)
        print(f"{name}: {contender} ...", flush=True)
        outcome = run_contender(contender, subject, own, folder / "environments", arguments.terms)
        append(results / _OUTCOMES, outcome.write())
        found = ", ".join(f"{item.cosine:.4f}" if item.cosine is not None else item.failed for item in outcome.judged)
        print(f"  {outcome.wall_s:.0f} s, {outcome.cpu_s:.0f} s of CPU: {outcome.failed or found}", flush=True)


def judge_on_given(name: str, folder: Path, terms: Terms) -> None:
    """Compare delivered models that hold the bound on unseen samples with the source on those that the tools had."""
    subject = prepare_subject(name, folder / "subjects")
    for outcome in _own(name, read_outcomes(folder / terms.name)).values():
        if all(judged.cosine is None or judged.given is not None for judged in outcome.judged):
            continue
        judged = [
            replace(found, given=judge(subject.model, delivery, subject.calibration, terms.threads).cosine)
            for delivery, found in zip(outcome.deliveries, outcome.judged, strict=True)
        ]
        append(folder / terms.name / _OUTCOMES, replace(outcome, judged=tuple(judged)).write())


def row(name: str, outcomes: Mapping[str, Outcome], measured: Measured, source: str, terms: Terms) -> Row:
    """Return a subject's row of the table; `source` is the key of the source, which some contenders deliver."""
    times = dict(zip(measured.keys, measured.times, strict=True))
    times[source] = times[SOURCE]
    times_of = {
        contender: [(item, times.get(key_of(item))) for item in outcome.right(terms.bound)]
        for contender, outcome in outcomes.items()
    }
    return Row(name, dict(outcomes), times_of, times[SOURCE], times[TWIN], terms.clock)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS), metavar="NAME")
    parser.add_argument("--contenders", nargs="+", choices=contenders(), default=contenders(), metavar="NAME")
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME", help="contenders to run again")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache/ndld_flow-rivals")
    parser.add_argument("--rounds", type=int, default=8, help="of each measuring process")
    parser.add_argument("--processes", type=int, default=6, help="in which all are timed")
    parser.add_argument("--threads", type=int, default=1, help="of every model, and of every tool")
    parser.add_argument("--loaded", action="store_true", help="two busy loops run while a contender works")
    parser.add_argument("--budget", default="", metavar="TIME", help="of optimize, by default its own")
    parser.add_argument("--bound", type=float, default=0.99, help="of the cosine similarity")
    parser.add_argument("--samples", type=int, nargs=2, default=(36, 24), help="to use, and unseen")
    parser.add_argument("--only-deliver", action="store_true", help="leave the timing to a later run")
    parser.add_argument("--print", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    arguments.terms = Terms(arguments.bound, arguments.threads, arguments.loaded, arguments.budget)
    return arguments


if __name__ == "__main__":
    main()
