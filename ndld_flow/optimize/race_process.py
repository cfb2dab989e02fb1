"""Run a race in its process, and keep what it has found: at any time, whatever happens to that process."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from ndld_flow.base.errors import BackendError
from ndld_flow.execution.events import RaceStage, StepWaits, VariantProgressed, VariantTried
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.messages import Refused, Waits
from ndld_flow.optimize.compose import SOURCE
from ndld_flow.optimize.goals import PAYS
from ndld_flow.processes.launch import CommandWorker, ProcessEnd
from ndld_flow.processes.lines import Line
from ndld_flow.records.document import Record
from ndld_flow.records.optimization import TriedVariant, VariantOutcome

_WORKER = "ndld_flow.optimize.race_worker"
JOB = "job.json"
_END_S = 2.0
"""Seconds that a race may take to end after its time: the passes or the judgement that runs."""
_MOST_CRASHES = 3
USELESS = ("failed", "the same")
"""Outcomes of a variant without which those that need it are not tried."""


def find_useless(name: str, needs: Mapping[str, str], useless: Container[str]) -> str:
    """Return what is useless of what a variant needs, directly or through others; empty if nothing is."""
    while name := needs.get(name, ""):
        if name in useless:
            return name
    return ""


class RaceJob(Record):
    """The variants of a race, its limits, and its conditions."""

    recipe: str
    """The sweep over the variants, by which they are built, judged and measured."""
    outputs: str
    trust: bool
    variants: tuple[str, ...]
    """The variants to try, in this order; `source` is first."""
    extends: dict[str, str]
    """Variant -> one that quantizes a part of what it does."""
    needs: dict[str, str] = {}
    """Variant -> another without which it is not tried, such as the source in its runtime."""
    known: dict[str, VariantOutcome] = {}
    """Variant -> its outcome before this process started, in this race or another."""
    accuracy: tuple[tuple[str, str], ...]
    """The conditions on metrics of `check_accuracy`: metric and bound."""
    seconds: float
    """No variant starts after this time, and the race ends."""
    proof_s: float = 0.0
    """Time to leave for a proof, once a variant seems to be faster than the source."""
    proved: str = ""
    """The best variant that is proved."""
    may_fix_sizes: bool = False
    """The model leaves sizes free, and all samples have one size, so that `--fix-shapes` may help."""
    folder: str = ""
    """A folder for temporary files."""


class Racing(Line):
    """The race builds, judges and measures a variant; none if its name is empty."""

    kind: Literal["racing"] = "racing"
    variant: str
    doing: RaceStage


class Tried(Line):
    """A variant's outcome is known, or has changed."""

    kind: Literal["tried"] = "tried"
    variant: TriedVariant
    leads: bool


class Ranked(Line):
    """The variants that may be the best, the best first."""

    kind: Literal["ranked"] = "ranked"
    ranking: tuple[str, ...]


class Finished(Line):
    """The race has reported all of its variants."""

    kind: Literal["finished"] = "finished"


_Message = Racing | Waits | Tried | Ranked | Finished | Refused
_MESSAGES: TypeAdapter[_Message] = TypeAdapter(Annotated[_Message, Field(discriminator="kind")])


@dataclass
class RaceResult:
    """What a race has found so far."""

    tried: dict[str, TriedVariant] = field(default_factory=dict)
    """Variant -> the latest that is known of it."""
    ranking: tuple[str, ...] = ()
    """Right variants that may be the best, the best first; the leader alone if the race was ended before."""
    finished: bool = False
    waited: str = ""
    """What it was waiting for at its end, such as a device that another run holds."""

    def add(self, tried: TriedVariant, *, leads: bool) -> None:
        self.tried[tried.name] = tried
        if leads:
            self.ranking = (tried.name, *(name for name in self.ranking if name != tried.name))
        elif tried.outcome != "not proved":
            self.ranking = tuple(name for name in self.ranking if name != tried.name)


def run_race(job: RaceJob, folder: Path, listener: Listener, result: RaceResult) -> None:
    """Run a race, and fill `result` while it runs, also if Ctrl-C ends it.

    A variant that crashes the process has failed, and a new process goes on with the others. Raises BackendError if the
    source does.
    """
    deadline = time.monotonic() + job.seconds
    left = job.variants
    for _ in range(_MOST_CRASHES + 1):
        known = {name: tried.outcome for name, tried in result.tried.items()}
        rest = job.model_copy(update={"variants": left, "known": known, "seconds": deadline - time.monotonic()})
        ended = _run_process(rest, folder, listener, result)
        if ended is None or result.finished or time.monotonic() > deadline:
            return
        crashed, reason = ended
        if crashed == job.variants[0]:
            crashed = ""  # nothing can be raced without the source
        if not crashed and result.tried:  # its last rounds: what it has found stays
            return
        if not crashed:
            raise BackendError(f"the race of the variants ended: {reason}")
        lost = TriedVariant(name=crashed, runtime="", outcome="failed", why=reason)
        result.add(lost, leads=False)
        listener(VariantTried(variant=lost))
        # The source, those that may be the best, and those that were not tried.
        may_win = [name for name, tried in result.tried.items() if tried.outcome == "not proved"]
        unknown = [name for name in job.variants[1:] if name not in result.tried]
        left = (job.variants[0], *(name for name in may_win if name != job.variants[0]), *unknown)


def _run_process(job: RaceJob, folder: Path, listener: Listener, result: RaceResult) -> tuple[str, str] | None:
    """Run one process to its end, or until the time is used up; return the variant that crashed it, and how.

    None if it was ended. Raises BackendError for an error of the source.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="race-") as scratch:
        place = Path(scratch)
        (place / JOB).write_text(job.model_copy(update={"folder": scratch}).model_dump_json(), encoding="utf-8")
        with CommandWorker(_WORKER, place) as worker:
            overdue = threading.Event()

            def end() -> None:
                overdue.set()
                worker.__exit__()

            deadline = time.monotonic() + job.seconds

            def report(stage: Racing) -> None:
                left_s = max(deadline - time.monotonic(), 0.0)
                listener(VariantProgressed(variant=stage.variant, doing=stage.doing, left_s=left_s))

            def end_for_proof() -> None:
                """End what is being prepared if a faster variant waits for its proof."""
                leader = result.tried.get(next(iter(result.ranking), SOURCE))
                waits = leader is not None and leader.name not in (SOURCE, job.proved)
                if leader is not None and waits and leader.speed is not None and leader.speed.ratio < PAYS:
                    end()

            limits = (job.seconds, end), (job.seconds - job.proof_s, end_for_proof)
            timers = [threading.Timer(max(limit_s, 0.0) + _END_S, act) for limit_s, act in limits]
            for timer in timers:
                timer.start()
            report(Racing(variant=job.variants[0], doing="building"))
            try:
                return _receive(worker, listener, report, result, overdue.is_set)
            finally:
                for timer in timers:
                    timer.cancel()
                report(Racing(variant="", doing="ended"))


def _receive(
    worker: CommandWorker,
    listener: Listener,
    report: Callable[[Racing], None],
    result: RaceResult,
    is_overdue: Callable[[], bool],
) -> tuple[str, str] | None:
    doing = ""
    while True:
        line = worker.receive(doing)
        if isinstance(line, ProcessEnd):
            if result.finished or is_overdue():
                return None
            output = line.output.splitlines()
            killed = f"it was killed by {line.signal_name}" if line.signal_name else f"exit code {line.code}"
            return doing, killed if line.signal_name or not output else output[-1][:300]
        message = _MESSAGES.validate_json(line)
        if isinstance(message, Racing):
            doing = message.variant
            report(message)
        _take(message, listener, result)


def _take(message: _Message, listener: Listener, result: RaceResult) -> None:
    """Keep a message of the race, and pass it on. Raises BackendError for the error of the source."""
    result.waited = message.holder if isinstance(message, Waits) else ""
    match message:
        case Waits():
            listener(StepWaits(name=message.name, waits_for=message.holder))
        case Refused():
            raise BackendError(message.text, step=message.step)
        case Ranked():
            result.ranking = message.ranking
        case Finished():
            result.finished = True
        case Tried(variant=tried, leads=leads):
            if tried.outcome == "not tried" and tried.name in result.tried:
                return  # what an earlier race found of it stays
            known = result.tried.get(tried.name)
            result.add(tried, leads=leads)
            # The end of a race measures again those that follow the best, and the source.
            is_known = tried.name == SOURCE if known is None else known.outcome == tried.outcome
            if leads or not is_known:
                listener(VariantTried(variant=tried, leads=leads))
