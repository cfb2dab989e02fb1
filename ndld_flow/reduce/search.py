"""Search for a small set of nodes that still fails, and for recipes with only the steps that a failure needs.

1. The nodes with evidence against them are tried alone, then with the nodes that they read, then with those that read
   them.
2. Without evidence: a failure mostly needs an operator and what it reads. Of each kind of node (its operator and those
   that it reads) one example with the nodes that it reads represents all; halving finds one that fails.
3. Otherwise halving finds the shortest beginning of the execution order that fails; its last node is needed.
4. What else is needed is most likely near: the nodes at the smallest distance from the needed ones are added, 1, 2, 4,
   ... of them, until the set fails; halving finds the farthest that is needed. This is repeated until the needed nodes
   fail alone. With k of n nodes needed at distances that d nodes do not exceed, it takes log2 n + 2 k log2 d trials,
   against k log2 n of a search that ignores the edges.
5. Nodes are left out one at a time until none can be: the set is 1-minimal.

Only sets that were tried are returned, so that nothing is assumed about failures of larger sets.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept, smallest_count
from ndld_flow.recipe.gates import parse_gate
from ndld_flow.recipe.recipe import SOURCE, Recipe, RecipeStep
from ndld_flow.records.run_record import RunRecord
from ndld_flow.reduce.failure import Failure
from ndld_flow.reduce.part import NodeFacts
from ndld_flow.store.kinds import Onnx

Fails = Callable[[Kept], bool]
_CERTAIN = 1.0
_FIRST_SUSPECTS = 8
_MOST_AROUND = 8
"""Nodes next to the suspects that are tried with them."""
_FEW = 4
"""Sets of so few nodes, or of so few for each that is known to be needed, are not halved: nodes are left out one at a
time."""
_MANY = 3


class NodeSearch:
    """A search among nodes that fail together."""

    def __init__(self, nodes: Sequence[NodeFacts], severity: Mapping[int, float], fails: Fails) -> None:
        self._order = [node.index for node in nodes]
        self._severity, self._fails = severity, fails
        self._types = {node.index: node.op_type for node in nodes}
        producers = {name: node.index for node in nodes for name in node.outputs}
        self._reads: dict[int, set[int]] = defaultdict(set)
        self._readers: dict[int, set[int]] = defaultdict(set)
        for node in nodes:
            for name in node.inputs:
                if name in producers:
                    self._reads[node.index].add(producers[name])
                    self._readers[producers[name]].add(node.index)
        self.smallest: Kept = frozenset(self._order)
        """The smallest set that failed so far."""
        self._known: dict[Kept, bool] = {}
        self.minimal = False
        """True if no single node of the smallest set can be left out."""

    def run(self) -> None:
        """Search until the set is minimal, or the trials are spent, given that all nodes fail, or those located."""
        self._known[frozenset(self._order)] = True
        try:
            if len(self.smallest) == len(self._order):
                self._halve_examples()
                self._halve()
            before: Kept = frozenset()
            while before != self.smallest:
                before = self.smallest
                for index in sorted(before, key=self._rank)[::-1]:
                    self._try(self.smallest - {index})
        except BudgetSpentError:
            return
        self.minimal = True

    def _try(self, kept: Iterable[int]) -> bool:
        tried = frozenset(kept)
        if tried not in self._known:
            self._known[tried] = bool(tried) and self._fails(tried)
        if self._known[tried] and len(tried) < len(self.smallest):
            self.smallest = tried
        return self._known[tried]

    def locate(self) -> bool:
        """Try the suspects and what is near them; return whether a set fails, and find the needed nodes of it."""
        ranked = sorted((index for index in self._order if self._severity.get(index)), key=self._rank)
        certain = sum(self._severity[index] >= _CERTAIN for index in ranked)
        suspects = ranked[: certain or _FIRST_SUSPECTS]
        around = self._by_distance(suspects, [index for index in self._order if index not in suspects])
        read = {each for index in suspects for each in self._reads[index]}.difference(suspects)
        near = read.union(*(self._readers[index] for index in suspects)).difference(suspects)
        for count in sorted({0, min(len(read), _MOST_AROUND), min(len(near), _MOST_AROUND)}) if suspects else ():
            if self._try([*suspects, *around[:count]]):
                self._narrow(suspects if count else [], around[:count] if count else suspects)
                return True
        return False

    def _halve_examples(self) -> None:
        """Halve the kinds of nodes, each with an example; that all of them fail together need not be true."""
        examples: dict[tuple[str, ...], list[int]] = {}
        for index in self._order:
            read = sorted(self._reads[index])
            kind = (self._types[index], *sorted({self._types[each] for each in read}))
            examples.setdefault(kind, [index, *read])
        stars = list(examples.values())
        if len(stars) > len(self._order) // 2:
            return
        high = smallest_count(lambda count: self._try(node for star in stars[:count] for node in star), 0, len(stars))
        star = stars[high - 1]
        if self._try(star):
            self._narrow(star[:1], star[1:])

    def _rank(self, index: int) -> tuple[float, int]:
        return -self._severity.get(index, 0.0), index

    def _halve(self) -> None:
        order = [index for index in self._order if index in self.smallest]
        if len(order) <= _FEW:
            return
        high = smallest_count(lambda count: self._try(order[:count]), 0, len(order))
        self._narrow([order[high - 1]], order[: high - 1])

    def _narrow(self, needed: list[int], rest: Sequence[int]) -> None:
        """Find the nodes of `rest` that are needed too, the nearest first; together with `needed` all of them fail."""
        while rest and not self._try(needed):
            if len(needed) >= _MANY and len(self.smallest) <= _FEW * len(needed):
                return  # much of what is left is needed: leaving out single nodes takes fewer trials
            ordered = self._by_distance(needed, rest) if needed else sorted(rest, key=self._rank)

            def fails(count: int, found: tuple[int, ...] = tuple(needed), near: Sequence[int] = ordered) -> bool:
                return self._try([*found, *near[:count]])

            low, high = 0, 1
            while high < len(ordered) and not fails(high):
                low, high = high, 2 * high
            high = smallest_count(fails, low, min(high, len(ordered)))
            needed.append(ordered[high - 1])
            rest = ordered[: high - 1]

    def _by_distance(self, needed: Collection[int], rest: Collection[int]) -> list[int]:
        """Return nodes by their distance, and of those as near what is read first."""
        distance = dict.fromkeys(needed, 0.0)
        waiting = deque(needed)
        while waiting:
            node = waiting.popleft()
            for near, extra in (
                *((each, 1.0) for each in self._reads[node]),
                *((each, 1.1) for each in self._readers[node]),
            ):
                if near not in distance:
                    distance[near] = distance[node] + extra
                    waiting.append(near)
        return sorted(rest, key=lambda index: (distance.get(index, math.inf), *self._rank(index)))


_OF_SAMPLES = ("data", "inputs", "samples", "steps", "loader")
"""Settings of steps on the samples that they read: all read the values of the part's inputs instead."""
Steps = Mapping[str, Mapping[str, Any]]


def shorten_recipe(recipe: Recipe, record: RunRecord, failure: Failure) -> dict[str, Any]:
    """Return a recipe with only the steps that its failure needs, and without model and inputs."""
    by_name = {step.name: step for step in recipe.steps}
    gate = failure.where if failure.kind == "gate" else ""
    # An error between two steps, such as of a gate on a metric that was not recorded, may concern any of them.
    failing = failing_steps(failure, by_name) or list(by_name)
    reads = {name: [read for read in step.reads.values() if read in by_name] for name, step in by_name.items()}
    needed = _closure(failing, reads)
    steps = {name: _settings(step, record) for name, step in by_name.items() if name in needed}
    if not _needs_power(failure):  # planted faults would take twice as long as each trial
        steps = {name: {**each, **_WITHOUT_POWER.get(each["step"], {})} for name, each in steps.items()}
    others = {key: value for key, value in record.recipe.items() if key in ("models", "runtime", "steps_from")}
    return {
        **others,
        "name": "reduced",
        "steps": steps,
        "gates": [gate] if gate else recipe.file.gates if not failure.where else [],
    }


_WITHOUT_POWER: Steps = {"check_accuracy": {"power": "off"}}
_OF_POWER = frozenset(("noticed", "within_bounds", "unseen"))


def _needs_power(failure: Failure) -> bool:
    """Return whether a failure may depend on what a check would notice."""
    names = parse_gate(failure.where).names if failure.kind == "gate" else ()
    return failure.kind not in ("check", "gate") or any(name.rpartition(".")[2] in _OF_POWER for name in names)


def measure_quickly(short: Mapping[str, Any]) -> dict[str, Any]:
    """Return a short recipe whose profiles measure no longer than a comparison of a latency with a bound needs.

    A profile whose other metrics a gate reads stays as it is.
    """

    def is_less(value: float, given: object) -> bool:
        return not isinstance(given, int | float) or value < given

    steps = {
        name: {**settings, **{key: value for key, value in _QUICK.items() if is_less(value, settings.get(key))}}
        if settings["step"] == "profile" and _reads_latency_only(name, short["gates"])
        else settings
        for name, settings in short["steps"].items()
    }
    return {**short, "steps": steps}


_QUICK = {
    "runs": 1,
    "passes": 3,
    "duration": 200.0,
    "stable": 0.0,
    "warmup_passes": 1,
    "warmup": 0.0,
    "layer_passes": 0,
}
_QUICK_METRICS = ("median", "mean", "min", "max", "p90", "p95", "p99")


def measure_as(full: Mapping[str, Any], quick: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that measures quickly with the measurements of another one."""
    steps = {}
    for name, settings in quick["steps"].items():
        others = {key: value for key, value in settings.items() if key not in _QUICK}
        steps[name] = others | {key: value for key, value in full["steps"][name].items() if key in _QUICK}
    return {**quick, "steps": steps}


def _reads_latency_only(name: str, gates: Iterable[str]) -> bool:
    known = {f"{name}.latency.{word}" for word in _QUICK_METRICS}
    read = [metric for gate in gates for metric in parse_gate(gate).names if metric.partition(".")[0] == name]
    return known.issuperset(read)


def failing_steps(failure: Failure, known: Iterable[str]) -> list[str]:
    """Return the steps at which a recipe fails: those of a gate, or the step of a check or an error."""
    if failure.kind == "gate":
        names = [name.partition(".")[0] for name in parse_gate(failure.where).names]
    else:
        names = failure.where.split(" and ")
    return [name for name in names if name in known]


def _closure(start: Iterable[str], reads: Mapping[str, Iterable[str]]) -> set[str]:
    waiting, needed = list(start), set[str]()
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += [read for read in reads[name] if read not in needed]
    return needed


def _settings(step: RecipeStep, record: RunRecord) -> dict[str, Any]:
    """Return a step's settings that differ from their defaults, with absolute paths, and the results that it reads.

    The recipe's `custom_operators:` are among the settings of the steps that use them.
    """
    resolved = record.recipe["steps"]
    assert isinstance(resolved, Mapping)
    full = resolved[step.name]
    assert isinstance(full, Mapping)
    fields = {field.alias or name: (name, field) for name, field in type(step.step).model_fields.items()}
    unchanged = [
        key
        for key, (name, field) in fields.items()
        if not field.is_required() and getattr(step.step, name) == field.get_default(call_default_factory=True)
    ]
    given = [key for key in full if key not in (*unchanged, *_OF_SAMPLES)]
    reads = {key: name for key, name in step.reads.items() if key in full}
    return {"step": step.type.name, **{key: full[key] for key in given}, **reads}


def models_between(recipe: Recipe, short: Mapping[str, Any], failing: Iterable[str]) -> list[str]:
    """Return the steps of a short recipe that only change the model, the last first; no step at which it fails."""
    kinds = {step.name: step.type.cls.kinds() for step in recipe.steps}
    return [name for name in reversed(short["steps"]) if kinds[name] == (Onnx, Onnx) and name not in set(failing)]


def bypass(
    recipe: Recipe, short: Mapping[str, Any], name: str, failing: Iterable[str], source: str | None = None
) -> dict[str, Any] | None:
    """Return a recipe without a step: what read its result reads `source`, by default what the step reads.

    None if a step then compares a model with itself.
    """
    step = next(step for step in recipe.steps if step.name == name)
    source = source or short["steps"][name].get(step.type.cls.read_key, SOURCE)
    keys = {step.name: list(step.own_reads) for step in recipe.steps}
    steps = {
        other: {key: source if key in keys[other] and value == name else value for key, value in settings.items()}
        for other, settings in short["steps"].items()
        if other != name
    }
    reads = {other: [settings[key] for key in keys[other] if key in settings] for other, settings in steps.items()}
    if any(len(set(found)) < len(found) for found in reads.values()):
        return None
    needed = _closure(failing, {other: [read for read in found if read in steps] for other, found in reads.items()})
    return {**short, "steps": {other: settings for other, settings in steps.items() if other in needed}}


def files_in(value: Any) -> Iterator[str]:  # noqa: ANN401 - plain data
    """Yield the absolute paths of existing files in nested plain data."""
    if isinstance(value, str) and value.startswith("/") and Path(value).exists():
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from files_in(part)
