"""Comparisons by simulated rounds, to count how often the rule is wrong under noise of every kind."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.compare.rounds import FLOOR, RoundsPlan, describe_rounds, judge_by_rounds
from ndld_flow.profiles.compare.verdicts import Bounds
from ndld_flow.records.comparison import ComparedMetric, Verdict
from ndld_flow.records.noise import Round, RoundSide

CYCLES, LIMIT, THRESHOLD = 28, 12, 0.03
A_A = 0.0
"""The true difference of a model from itself."""
METRIC = ComparedMetric(metric="latency.median", unit="ms", values=(1.0, 1.0))
BOUNDS = Bounds.under(Rules(threshold=THRESHOLD), (), ())


@dataclass(frozen=True)
class Scenario:
    """Noise of a machine, as standard deviations of the logarithm of a pass."""

    pass_noise: float = 0.02
    drift: float = 0.0
    """Shared by both models, and correlated from turn to turn with `memory`."""
    memory: float = 0.9
    own_drift: float = 0.0
    """The same for each model by itself: alternation cannot remove it."""
    walk: float = 0.0
    """A random walk that both share: heat, clocks that slow down."""
    bursts: float = 0.0
    """Share of turns that other load prolongs, by a factor with a heavy tail."""
    two_speeds: float = 0.0
    """Half of the passes, at random, take so much longer."""
    process: float = 0.005
    """What each process brings with it."""
    two_layouts: bool = False
    """Each process has one of two speeds, `process` faster or slower."""
    late_load: bool = False
    """Heavy load starts in the third round."""
    allowed_percent: int = 1
    """False verdicts that the rule is known to give at most in A/A comparisons."""


SCENARIOS = {
    "calm": Scenario(),
    "drift": Scenario(drift=0.05, walk=0.01),
    "heavy tails": Scenario(bursts=0.3),
    "autocorrelated by itself": Scenario(pass_noise=0.01, own_drift=0.01, memory=0.95),
    "passes of two speeds": Scenario(two_speeds=0.3),
    "processes of two layouts, 1.5 %": Scenario(process=0.015, two_layouts=True),
    "processes of two layouts, 3 %": Scenario(process=0.03, two_layouts=True, allowed_percent=5),
    "processes differ by 2 %": Scenario(process=0.02, allowed_percent=3),
    "processes differ by 3 %": Scenario(process=0.03, allowed_percent=5),
    "load that starts midway": Scenario(late_load=True),
    "busy": Scenario(pass_noise=0.1, bursts=0.3, drift=0.1),
}


def decide(rng: random.Random, scenario: Scenario, effect: float, floor: float = FLOOR) -> Verdict:
    """Return the verdict on a candidate that is truly slower by `effect`, looking after every round."""
    return decide_slowly(rng, scenario, effect, floor)[0]


def decide_slowly(rng: random.Random, scenario: Scenario, effect: float, floor: float = FLOOR) -> tuple[Verdict, int]:
    """Return the verdict, and the number of rounds that it took."""
    plan = RoundsPlan(on_device=False, rounds_limit=LIMIT, budget_ms=math.inf, threshold=THRESHOLD, floor=floor)
    rounds: list[Round] = []
    while True:
        rounds.append(simulate_round(rng, scenario, effect, len(rounds)))
        paired_rounds = describe_rounds(rounds, plan, "")
        verdict = judge_by_rounds(METRIC, (0, 1), BOUNDS, paired_rounds).verdict
        if verdict != "inconclusive" or len(rounds) == LIMIT:
            return verdict, len(rounds)


def simulate_round(rng: random.Random, scenario: Scenario, effect: float, number: int) -> Round:
    """Return round `number` of a model and a candidate that is truly slower by `effect`."""
    processes = [_process(rng, scenario), _process(rng, scenario) + math.log1p(effect)]
    samples: list[list[float]] = [[], []]
    for side, shared in _turns(rng, scenario):
        bursts = 0.5 if scenario.late_load and number >= 2 else scenario.bursts
        log = processes[side] + shared + rng.gauss(0, scenario.pass_noise)
        log += math.log(rng.paretovariate(1.2)) if rng.random() < bursts else 0.0
        log += scenario.two_speeds if rng.random() < 0.5 else 0.0
        samples[side].append(10 * math.exp(log))
    base, candidate = (
        RoundSide(passes=1, threads=1, wall_ms=tuple(ms), cpu_ms=tuple(ms), queued_ms=(0.0,) * CYCLES) for ms in samples
    )
    return Round(base=base, candidate=candidate)


def _process(rng: random.Random, scenario: Scenario) -> float:
    if scenario.two_layouts:
        return rng.choice((-scenario.process, scenario.process))
    return rng.gauss(0, scenario.process)


def _turns(rng: random.Random, scenario: Scenario) -> Iterator[tuple[int, float]]:
    """Yield the side of each turn and the load of the machine meanwhile."""
    drift, walk, own, first = 0.0, 0.0, [0.0, 0.0], 0
    for cycle in range(CYCLES):
        first = rng.randrange(2) if cycle % 2 == 0 else 1 - first
        for side in (first, 1 - first):
            drift = scenario.memory * drift + rng.gauss(0, scenario.drift)
            walk += rng.gauss(0, scenario.walk)
            own[side] = scenario.memory * own[side] + rng.gauss(0, scenario.own_drift)
            yield side, drift + walk + own[side]
