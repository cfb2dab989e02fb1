"""Series without steps, with the kinds of noise that measurements have."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

Noise: TypeAlias = str
Draw: TypeAlias = Callable[[random.Random, int], list[float]]


def _independent(draw: Callable[[random.Random], float]) -> Draw:
    return lambda rng, length: [draw(rng) for _ in range(length)]


def _correlated(correlation: float, deviation: float) -> Draw:
    """AR(1): each value remembers a part of the one before."""

    def draw(rng: random.Random, length: int) -> list[float]:
        values = [rng.gauss(0.0, deviation)]
        fresh = deviation * math.sqrt(1 - correlation**2)
        while len(values) < length:
            values.append(correlation * values[-1] + rng.gauss(0.0, fresh))
        return values

    return draw


def _course(course: Callable[[int], float], deviation: float) -> Draw:
    return lambda rng, length: [course(index) + rng.gauss(0.0, deviation) for index in range(length)]


def _sticky(rng: random.Random, length: int) -> list[float]:
    values, mode = [], 0
    for _ in range(length):
        mode = 1 - mode if rng.random() < 0.15 else mode
        values.append(0.06 * mode + rng.gauss(0.0, 0.005))
    return values


def _heavy(rng: random.Random) -> float:
    """Student's t with 3 degrees of freedom."""
    return 0.01 * rng.gauss(0, 1) / math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3)


NOISE: Mapping[Noise, Draw] = {
    "normal 0.5 %": _independent(lambda rng: rng.gauss(0.0, 0.005)),
    "normal 1 %": _independent(lambda rng: rng.gauss(0.0, 0.01)),
    "normal 2 %": _independent(lambda rng: rng.gauss(0.0, 0.02)),
    "normal 3 %": _independent(lambda rng: rng.gauss(0.0, 0.03)),
    "heavy tails": _independent(_heavy),
    "one-sided": _independent(lambda rng: abs(rng.gauss(0.0, 0.02))),
    "3 % outliers": _independent(
        lambda rng: rng.gauss(0.0, 0.01) + (rng.uniform(0.1, 0.5) if rng.random() < 0.03 else 0.0)
    ),
    "two modes": _independent(lambda rng: 0.08 * (rng.random() < 0.5) + rng.gauss(0.0, 0.005)),
    "a rare mode": _independent(lambda rng: 0.08 * (rng.random() < 0.15) + rng.gauss(0.0, 0.005)),
    "AR(1) 0.3": _correlated(0.3, 0.02),
    "AR(1) 0.6": _correlated(0.6, 0.02),
    "AR(1) 0.8": _correlated(0.8, 0.02),
    "drift": _course(lambda place: 0.001 * place, 0.005),
    "slow waves": _course(lambda place: 0.03 * math.sin(place / 60), 0.01),
    "sticky modes": _sticky,
}
"""Name -> noise of the logarithm of values. Modes that last for several points are levels: not even people agree."""


def simulate(noise: Noise, length: int, seed: int) -> list[float]:
    """Return a series around 10 ms without a step."""
    rng = random.Random(f"{noise} {seed}")
    return [10.0 * math.exp(value) for value in NOISE[noise](rng, length)]
