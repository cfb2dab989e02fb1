"""Quality and cost of the searches of a sweep: printed, not asserted.

`python -m tests.benchmarks.bench_search [seeds] [batch]`, default 20 seeds, asked 8 at a time: minutes, spent in TPE.

For each landscape the regret (how much more than the best allowed point the best found takes) after a quarter and half
of the grid, the mean over seeds; the share of seeds within 2 % of the best after a quarter; and milliseconds a point.
"""

from __future__ import annotations

import statistics
import sys
import time

from ndld_flow.sweep_search.search import Method, SearchOptions
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import NumberedSpace
from tests.support.search_landscapes import LANDSCAPES, Landscape, regrets

METHODS: tuple[Method, ...] = ("random", "hill_climb", "tpe")


def bench(landscape: Landscape, method: Method, seeds: int, batch: int) -> None:
    size = NumberedSpace(landscape.space).size or 0
    quarter, half, near, cost = [], [], [], []
    for seed in range(seeds):
        options = SearchOptions(method, ("minimize",), points=size // 2, seed=seed)
        started = time.perf_counter()
        result = list(regrets(make_search(landscape.space, options), landscape, size // 2, batch, seed))
        cost.append((time.perf_counter() - started) / len(result))
        quarter.append(result[size // 4 - 1])
        half.append(result[-1])
        near.append(result[size // 4 - 1] < 0.02)
    print(
        f"{landscape.name:<16} {size:>6} {method:<12} {statistics.mean(quarter):>8.1%} {statistics.mean(half):>8.1%} "
        f"{statistics.mean(near):>8.0%} {statistics.mean(cost) * 1000:>8.2f}"
    )


def main() -> None:
    seeds, batch = (int(given) for given in (*sys.argv[1:], *("20", "8")[len(sys.argv) - 1 :]))
    print(f"{'landscape':<16} {'points':>6} {'method':<12} {'25 %':>8} {'50 %':>8} {'near':>8} {'ms':>8}")
    for landscape in LANDSCAPES:
        for method in METHODS:
            bench(landscape, method, seeds, batch)


if __name__ == "__main__":
    main()
