"""Share the points of a sweep among shards: each enumerates them all and takes every n-th measurement session."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.points import Sweep
from ndld_flow.runner.request import Shard
from ndld_flow.runner.sweep.try_points import Batch, ask_batches, batch_size, depends_on_results
from ndld_flow.sweep_search.search import Search


def session_size(sweep: Sweep, search: Search, count: int) -> int:
    """Return the number of points that run together: fewer than the recipe says if a shard would have none else."""
    if search.size is None:
        return batch_size(sweep)
    return max(1, min(batch_size(sweep), math.ceil(search.size / count)))


def ask_shard(sweep: Sweep, search: Search, shard: Shard) -> Iterator[Batch]:
    """Yield the batches of one shard: every n-th, so that all shards have points of the whole range."""
    return islice(
        ask_batches(sweep, search, session_size(sweep, search, shard.count)), shard.index - 1, None, shard.count
    )


def count_points(sweep: Sweep, search: Search, shard: Shard) -> int:
    """Return the number of a shard's points, or an upper bound if that of all points is one."""
    size, every = session_size(sweep, search, shard.count), search.size
    if every is None:
        raise RequestError(f"--shard {shard}: the number of points is unknown: set `sweep.points`.")
    starts = range((shard.index - 1) * size, every, shard.count * size)
    return sum(min(size, every - start) for start in starts)


def refuse_dependent_points(sweep: Sweep, option: str) -> None:
    """Raise RequestError for a sweep whose next points depend on the results of earlier ones."""
    if depends_on_results(sweep):
        what = "saturation" if sweep.section.saturation is not None else f"method: {sweep.section.method}"
        raise RequestError(
            f"{option}: with `{what}`, each point depends on the results of earlier ones, so no shard knows its points "
            "in advance. Use `grid`, `one_at_a_time` or `random`, or run the sweep on one machine or with --ray."
        )
