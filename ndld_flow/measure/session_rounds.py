"""Rounds of two models in this process, for many small models whose differences are large.

A round opens both models anew. It costs a tenth of a round of two fresh processes, because none starts, but the effects
of one process, such as its memory layout, are in all rounds: they decide nothing that ships.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ndld_flow.measure.pair_rounds import (
    WARMUP_TURNS,
    MeasuredRounds,
    RoundLimits,
    describe_side,
    plan_cycles,
    repeat_rounds,
    turn_orders,
)
from ndld_flow.measure.turn_worker import Turn, run_turn
from ndld_flow.measure.worker import count_threads
from ndld_flow.models.tensors import Array
from ndld_flow.records.noise import Round
from ndld_flow.runtimes.protocol import Binding, Session, SessionRequest

_CYCLES_MS = 100.0


def measure_sessions(
    pair: Sequence[Path],
    session: SessionRequest,
    values: Mapping[str, Array],
    limits: RoundLimits,
    is_decided: Callable[[Sequence[Round]], bool],
) -> MeasuredRounds:
    """Measure two models in rounds until the result is significant, or a limit is reached.

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
            opened.append(session.open(pair[side]))
            bindings[side] = opened[-1].bind(values, on_device=True)
            bindings[side].run()  # libraries start threads with the first pass
            threads[side] = count_threads() - before + 1
        warm = [[run_turn(bindings[side].run, 1) for side in range(2)] for _ in range(WARMUP_TURNS)]
        cycles, passes = plan_cycles(warm, round_ms, _CYCLES_MS)
        turns: tuple[list[Turn], list[Turn]] = ([], [])
        for order in turn_orders(cycles, rng):
            for side in order:
                turns[side].append(run_turn(bindings[side].run, passes))
        base, candidate = (describe_side(turns[side], passes, threads[side]) for side in range(2))
        return Round(base=base, candidate=candidate)
    finally:
        for each in opened:
            each.close()
