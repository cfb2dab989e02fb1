"""Comparison of two models: in each round, two new processes, one per model, alternate after a few passes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.base.errors import naming_step
from ndld_flow.base.quantities import seconds
from ndld_flow.measure import turn_worker
from ndld_flow.measure.gpu_watch import watched_gpus
from ndld_flow.measure.process_runs import Side, failure_of
from ndld_flow.measure.turn_worker import Turn, run_turn
from ndld_flow.measure.worker import JOB, Job, Part, TimingPlan, count_threads, write_feeds
from ndld_flow.models.tensors import Array
from ndld_flow.processes.launch import CommandWorker, ProcessEnd
from ndld_flow.records.measurement import FEWEST_ROUNDS
from ndld_flow.records.noise import Round, RoundSide
from ndld_flow.runtimes.protocol import Binding, Session, SessionRequest

_WARMUP_TURNS = 4
_WARM_MS, _TURN_MS = 4.0, 10.0
"""Least time for which a turn of short passes runs before it is measured, and is measured: caches are cold and threads
sleep when a process wakes up. One pass and 2 ms measured a ratio of 2.4 where that of passes without pauses was 1.9."""
_SESSION_WARM_MS, _SESSION_TURN_MS = 1.0, 2.0
"""The same for sessions in one process, which decide between many small models."""
_LONG_MS = 20.0
"""Duration of a pass from which a turn is one pass, and the first: waking up is a small part of it."""
_MOST_PASSES = 1000
_FEWEST_CYCLES, _MOST_CYCLES, _CYCLES_MS = 28, 84, 600.0
"""Fewer cycles do not suffice on a busy machine; more are cheap if they take less time than starting the processes."""
_SESSION_CYCLES_MS = 100.0
_SLOW_CYCLES = 8
"""Minimum number of cycles for slow passes, for which the budget allows no more: each averages over much of the
disturbance."""


@dataclass
class _Model:
    """One of the two, with its files."""

    side: Side
    job: Job
    folder: Path
    child: CommandWorker | None = None
    threads: int = 1
    pass_ms: float = math.inf
    turns: list[Turn] = field(default_factory=list)

    def receive(self, doing: str) -> dict[str, float]:
        """Return its answer. Raises the exception of its process, or `BackendError` if it died."""
        assert self.child is not None
        answer = self.child.receive(doing)
        if isinstance(answer, ProcessEnd):
            with naming_step(self.side.step):
                raise failure_of(self.job, answer)
        values: dict[str, float] = json.loads(answer)
        return values

    def take_turn(self, passes: int, cpu: int, doing: str) -> Turn:
        assert self.child is not None
        self.child.send(f"{passes} {_WARM_MS if self.pass_ms < _LONG_MS else 0.0} {cpu}\n")
        return Turn(**self.receive(doing))

    def warm_up(self, cpu: int) -> None:
        """Run single passes, in the turns of a cycle, and keep the time of the quickest."""
        self.pass_ms = min(self.pass_ms, self.take_turn(1, cpu, "warming up").wall_ms)


class PairMeasurement:
    """Two models that are measured in rounds, and the files that their processes read."""

    def __init__(self, pair: Sequence[Side], folder: Path, round_ms: float) -> None:
        """Prepare both models. `folder` exists and gets the files; a round of slow models takes `round_ms` at most,
        its start included, unless that is too short for a few passes.

        Raises `RequestError` if inputs do not fit.
        """
        self._round_ms = round_ms
        self._models = [self._prepare(side, folder / f"side-{number}") for number, side in enumerate(pair)]
        self._number = 0
        # CPUs alternate, so that steady load on one of them does not bias the result.
        self._cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []

    def measure_round(self) -> Round:
        """Measure one more round. Raises what the processes raise, and `BackendError` if one dies."""
        self._number += 1
        begun_s = time.monotonic()
        rng = random.Random(self._number)  # noqa: S311 - the order of turns is not a secret
        with self._opened(rng):
            cpu = self._choose_cpu()
            for _ in range(_WARMUP_TURNS):
                for each in self._models:
                    each.warm_up(cpu)
            passes, cycle_ms = plan_turns([model.pass_ms for model in self._models], _WARM_MS, _TURN_MS)
            if len(self._models[0].job.parts) > 1:  # of several samples, both run the same
                passes = [min(passes)] * 2
            cycles = plan_cycles(cycle_ms, self._round_ms - (time.monotonic() - begun_s) * 1e3, _CYCLES_MS)
            for cycle, order in enumerate(turn_orders(cycles, rng)):
                doing = f"measuring round {self._number}, cycle {cycle + 1} of {cycles}"
                self._models[0].side.progress(cycle, cycles, doing)
                for model in order:
                    self._models[model].turns.append(self._models[model].take_turn(passes[model], cpu, doing))
            base, candidate = (
                describe_side(model.turns, number, model.threads)
                for model, number in zip(self._models, passes, strict=True)
            )
        return Round(base=base, candidate=candidate, pinned_to=cpu if cpu >= 0 else None)

    def _prepare(self, side: Side, folder: Path) -> _Model:
        request = side.request
        with naming_step(side.step):
            samples = [request.values] if request.values is not None else request.make_values()
        files = [write_feeds(values, folder / f"sample-{number}") for number, values in enumerate(samples)]
        parts = tuple(Part(each, TimingPlan(1)) for each in files)
        return _Model(side, Job(request.path, request.session.in_turns(), parts), folder)

    @contextlib.contextmanager
    def _opened(self, rng: random.Random) -> Iterator[None]:
        """Start a process for each model, in random order; they load at the same time and end with the block."""
        with contextlib.ExitStack() as stack:
            for model in rng.sample(self._models, 2):
                folder = model.folder / f"round-{self._number}"
                folder.mkdir()
                model.job.write(folder / JOB)
                environment = model.side.request.session.environment(model.folder)
                model.child = stack.enter_context(CommandWorker(turn_worker.__name__, folder, environment))
                model.turns, model.pass_ms = [], math.inf
            for model in self._models:
                model.side.progress(0, 0, f"loading for round {self._number}")
                model.threads = int(model.receive("loading")["threads"])
            yield

    def _choose_cpu(self) -> int:
        """Return the CPU to pin both models to, if both have one thread; it changes each round. -1 pins nothing."""
        pinned = all(model.threads == 1 and model.side.request.session.measured_gpu() is None for model in self._models)
        return self._cpus[self._number % len(self._cpus)] if pinned and self._cpus else -1


def plan_turns(pass_ms: Sequence[float], warm_ms: float, turn_ms: float) -> tuple[Sequence[int], float]:
    """Return the passes that are measured in a turn of each model, and the duration of a cycle of turns in ms."""
    passes, cycle_ms = [], 0.0
    for ms in (max(1e-6, each) for each in pass_ms):
        is_long = ms >= _LONG_MS
        passes.append(1 if is_long else min(_MOST_PASSES, math.ceil(turn_ms / ms)))
        cycle_ms += passes[-1] * ms + (0.0 if is_long else max(warm_ms, ms))
    return passes, cycle_ms


def plan_cycles(cycle_ms: float, round_ms: float, wanted_ms: float) -> int:
    """Return the number of cycles of a round: those of fast models take `wanted_ms`, `round_ms` limits those of slow
    ones.
    """
    wanted = min(_MOST_CYCLES, max(_FEWEST_CYCLES, int(wanted_ms / cycle_ms)))
    return min(wanted, max(_SLOW_CYCLES, int(round_ms / cycle_ms)))


def describe_side(turns: Sequence[Turn], passes: int, threads: int) -> RoundSide:
    """Return the record of one model's turns in a round."""
    queued = [turn.queued_ms for turn in turns if turn.queued_ms is not None]
    return RoundSide(
        passes=passes,
        threads=threads,
        wall_ms=tuple(turn.wall_ms / passes for turn in turns),
        cpu_ms=tuple(turn.cpu_ms / passes for turn in turns),
        queued_ms=tuple(ms / passes for ms in queued) if len(queued) == len(turns) else (),
    )


def turn_orders(cycles: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yield the order of turns in each cycle: random, and reversed in the next cycle."""
    order = (0, 1)
    for cycle in range(cycles):
        order = rng.choice([(0, 1), (1, 0)]) if cycle % 2 == 0 else (order[1], order[0])
        yield order


@dataclass(frozen=True)
class RoundLimits:
    """Limits of the measurement of rounds."""

    rounds: int
    budget_ms: float
    """No further round starts after this time if there are at least `fewest`."""
    fewest: int = FEWEST_ROUNDS


@dataclass(frozen=True)
class MeasuredRounds:
    """The rounds of a pair, and the reason for stopping."""

    rounds: tuple[Round, ...]
    stopped_because: str


def measure_rounds(
    pair: Sequence[Side], folder: Path, limits: RoundLimits, is_decided: Callable[[Sequence[Round]], bool]
) -> MeasuredRounds:
    """Measure rounds until the result is significant, or a limit is reached. `folder` is an existing one for files.

    Raises `BackendError` if a process dies or a provider does not load, `ModelError` and `RequestError` as profiling
    does.
    """
    with watched_gpus(pair), tempfile.TemporaryDirectory(prefix="rounds-", dir=folder) as files:
        measurement = PairMeasurement(pair, Path(files), limits.budget_ms / 4)
        return repeat_rounds(measurement.measure_round, limits, is_decided)


def repeat_rounds(
    measure_round: Callable[[], Round], limits: RoundLimits, is_decided: Callable[[Sequence[Round]], bool]
) -> MeasuredRounds:
    """Measure rounds until the result is significant, or a limit is reached."""
    started, rounds = time.monotonic(), list[Round]()
    while True:
        rounds.append(measure_round())
        used_ms = (time.monotonic() - started) * 1e3
        taken = f"{len(rounds)} rounds in {seconds(used_ms / 1e3)}"
        if is_decided(rounds):
            return MeasuredRounds(tuple(rounds), f"decided after {taken}")
        if len(rounds) >= limits.rounds:
            return MeasuredRounds(tuple(rounds), f"stopped by the limit of rounds after {taken}")
        if used_ms >= limits.budget_ms and len(rounds) >= limits.fewest:
            return MeasuredRounds(tuple(rounds), f"stopped by the limit of the budget after {taken}")


def measure_sessions(
    pair: Sequence[Path],
    session: SessionRequest,
    values: Mapping[str, Array],
    limits: RoundLimits,
    is_decided: Callable[[Sequence[Round]], bool],
) -> MeasuredRounds:
    """Measure two models in rounds in this process, for many small models whose differences are large.

    A round opens both models anew. It costs a tenth of a round of two fresh processes, because none starts, but the
    effects of one process, such as its memory layout, are in all rounds: they decide nothing that ships.
    Raises `ModelError` and `BackendError` if one does not run.
    """
    rng = random.Random(0)  # noqa: S311 - the order of turns is not a secret
    return repeat_rounds(lambda: _measure_round(pair, session, values, limits.budget_ms / 4, rng), limits, is_decided)


def _measure_round(
    pair: Sequence[Path], session: SessionRequest, values: Mapping[str, Array], round_ms: float, rng: random.Random
) -> Round:
    opened: list[Session] = []
    bindings: dict[int, Binding] = {}
    threads: dict[int, int] = {}
    try:
        for side in rng.sample(range(2), 2):
            before = count_threads()
            opened.append(session.in_turns().open(pair[side]))
            bindings[side] = opened[-1].bind(values, on_device=True)
            bindings[side].run()  # libraries start threads with the first pass
            threads[side] = count_threads() - before + 1
        warm = [[run_turn(bindings[side].run, 1).wall_ms for _ in range(_WARMUP_TURNS)] for side in range(2)]
        pass_ms = [min(each) for each in warm]
        passes, cycle_ms = plan_turns(pass_ms, _SESSION_WARM_MS, _SESSION_TURN_MS)
        turns: tuple[list[Turn], list[Turn]] = ([], [])
        for order in turn_orders(plan_cycles(cycle_ms, round_ms, _SESSION_CYCLES_MS), rng):
            for side in order:
                warm_ms = _SESSION_WARM_MS if pass_ms[side] < _LONG_MS else 0.0
                turns[side].append(run_turn(bindings[side].run, passes[side], warm_ms))
        base, candidate = (describe_side(turns[side], passes[side], threads[side]) for side in range(2))
        return Round(base=base, candidate=candidate)
    finally:
        for each in opened:
            each.close()
