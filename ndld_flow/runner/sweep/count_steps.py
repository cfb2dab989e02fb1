"""How many different steps the points of a sweep have, told before they are done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from pydantic import JsonValue

from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.runner.order import Unit, arrange_steps
from ndld_flow.runner.sweep.point_run import PointRun
from ndld_flow.store.digest import digest_json


@dataclass
class CountedStep:
    """A step over all points, by what its work depends on."""

    step: str
    """Its type."""
    uses: int = 0
    """Points that have it."""
    distinct: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)


@dataclass
class _Counter:
    """What is known of the points of one batch."""

    counted: dict[str, CountedStep]
    made: dict[tuple[int, str], str] = field(default_factory=dict)
    """Point's number and the name of what is made -> what its work depends on, as a digest."""

    def count(self, units: Sequence[tuple[PointRun, Unit]]) -> None:
        """Count what points do at the same time: what is measured in one sitting depends on all of it."""
        alone = {(point.number, step.name): self._digest(point, step) for point, unit in units for step in unit}
        company = defaultdict[Hashable, set[str]](set)
        for point, unit in units:
            company[_sitting(unit[0])] |= {alone[point.number, step.name] for step in unit}
        for point, unit in units:
            together: list[JsonValue] = [*sorted(company[_sitting(unit[0])])] if _sitting(unit[0]) else []
            for step in unit:
                own = alone[point.number, step.name]
                self.made[point.number, step.name] = digest_json([own, together]) if len(together) > 1 else own
                self._note(point, step)

    def _digest(self, point: PointRun, step: RecipeStep) -> str:
        models = point.run.models
        reads: dict[str, JsonValue] = {
            key: models[name].record.digest if name in models else self.made[point.number, name]
            for key, name in step.reads.items()
        }
        used = step.used_inputs(point.run.recipe.file.inputs)
        inputs: dict[str, JsonValue] = {name: part.model_dump(mode="json") for name, part in used.items()}
        return digest_json([step.type.name, step.type.version, step.settings, reads, inputs])

    def _note(self, point: PointRun, step: RecipeStep) -> None:
        done = point.run.done.get(step.name)
        if done is not None and done.record is None:
            return  # something said no: it will not be done
        one = self.counted.setdefault(step.name, CountedStep(step.type.name))
        one.uses += 1
        one.distinct.add(self.made[point.number, step.name])
        if done is not None:
            one.there.add(self.made[point.number, step.name])


def count_steps(batches: Sequence[Sequence[PointRun]]) -> Mapping[str, CountedStep]:
    """Name of a step -> how many there are of it, as far as it can be told without doing it.

    `batches`: points that are done together.
    """
    counted: dict[str, CountedStep] = {}
    for batch in batches:
        points = [point for point in batch if point.failure is None]
        counter = _Counter(counted)
        for units in zip_longest(*(arrange_steps(point.run.recipe) for point in points)):
            counter.count([(point, unit) for point, unit in zip(points, units, strict=True) if unit is not None])
    return counted


def _sitting(step: RecipeStep) -> Hashable:
    """What steps of a sitting have in common; empty for those that are not measured."""
    return (step.type.name, step.step.device) if step.type.cls.takes_turns else ()
