"""The objectives of `optimize`: the metric by which the search ranks, and the condition that proves a gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ndld_flow.base.errors import RequestError, UnknownNameError

AT_LEAST = 0.99
"""Largest upper end of a ratio to the source at which a variant is better: two equal models may differ by 1 %."""
PAYS = 0.97
"""Largest ratio to the best proved latency at which a variant is worth the time of a proof."""
SLOWER = 1.03
"""Largest upper end of the ratio of latencies at which a variant is not slower, when another objective comes first."""
Evidence = Literal["alternating passes", "process runs", "exact", "single builds"]


@dataclass(frozen=True)
class Objective:
    """An objective."""

    name: str
    direction: Literal["minimize", "maximize"]
    metric: str
    """The metric of the step `speed`, or of the step `engine` where only an engine is built."""
    evidence: Evidence
    ratio: str = ""
    """The ratio to the source in a proof, below 1 for a gain, whose ends are `{end}`: `_low` and `_high`."""


_TIMES = "versus.latency.median.ratio{end}"
OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective("latency", "minimize", "speed.latency.min", "alternating passes", _TIMES),
        Objective("size", "minimize", "speed.model_bytes", "exact", "speed.model_bytes / base.model_bytes"),
        Objective("memory", "minimize", "speed.memory.peak_bytes", "process runs", "versus.memory.peak.ratio{end}"),
        Objective("build_time", "minimize", "speed.load_ms", "process runs", "versus.load.ratio{end}"),
        Objective(
            "throughput",
            "maximize",
            "speed.throughput.items",
            "alternating passes",
            f"{_TIMES} * base.items_per_pass / speed.items_per_pass",
        ),
    )
}
"""Name -> objective, for targets that run models on this machine."""
ENGINE_OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective("size", "minimize", "engine.engine_bytes", "exact", "engine.engine_bytes / base.engine_bytes"),
        Objective("build_time", "minimize", "engine.build_s", "single builds", "engine.build_s / base.build_s"),
    )
}
"""Name -> objective, for targets whose engines this machine builds and cannot run."""


def choose_objectives(
    minimize: Sequence[str], maximize: Sequence[str], by_default: Sequence[str], *, built_only: bool = False
) -> tuple[Objective, ...]:
    """Return the objectives, those to minimize first; `by_default` names those of the target.

    Raises RequestError for a name that is no objective, or one of the other direction.
    """
    known = ENGINE_OBJECTIVES if built_only else OBJECTIVES
    given = [*(("minimize", name) for name in minimize), *(("maximize", name) for name in maximize)]
    for direction, name in given:
        objective = known.get(name)
        if objective is None and name in OBJECTIVES:
            raise RequestError(
                f"--{direction} {name}: no device of this target is here, so that it is unknown; "
                f"known are {', '.join(known)}."
            )
        if objective is None:
            raise UnknownNameError(f"--{direction} {name}: it is no objective", name, list(known))
        if objective.direction != direction:
            raise RequestError(f"--{direction} {name}: write --{objective.direction} {name}.")
    names = dict.fromkeys(name for _, name in given) or dict.fromkeys(by_default)
    return tuple(known[name] for name in names)
