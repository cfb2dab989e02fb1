"""Open runs: single ones and the points of a sweep, which share models and records."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from blake3 import blake3

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.recipe.recipe import ModelSource, Recipe, RecipeStep
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.records.run_record import RunStep, StepRecord
from ndld_flow.runner.events import Listener, Notice
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Planner, Unit
from ndld_flow.store.kinds import Artifact
from ndld_flow.store.store import Store


@dataclass
class RunState:
    """A run while it is running."""

    recipe: Recipe
    outputs: Outputs
    planner: Planner
    models: dict[str, FoundModel]
    """Models by their names in the recipe."""
    listener: Listener
    started_at: datetime
    start: float
    """`time.perf_counter()` at the start."""
    id: str
    """The name of its folder, `<utc time>-<short id>`."""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    done: dict[str, RunStep] = field(default_factory=dict)
    """Finished steps by name, in the order in which they finished."""
    command: tuple[str, ...] = ()
    at_work: Unit = ()
    """The steps that are being decided, computed or placed."""
    logs: dict[str, deque[str]] = field(default_factory=dict)
    """Step -> the last lines of its log, of steps that were computed in this run."""
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closed when the run has ended, in whatever way."""
    opened: bool = False
    """Whether its folder exists."""

    @property
    def steps(self) -> tuple[RunStep, ...]:
        """Return the finished steps, in the recipe's order."""
        return tuple(self.done[step.name] for step in self.recipe.steps if step.name in self.done)

    @property
    def digests(self) -> Mapping[str, str | None]:
        return {name: artifact.digest for name, artifact in self.artifacts.items()}


@dataclass
class RunOpener:
    """Opens the runs of a request: one, or one for each point of a sweep."""

    outputs: Outputs
    listener: Listener
    forced: frozenset[str] = frozenset()
    """Names of the steps that run even if nothing changed."""
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step, where that is not this one."""
    known: dict[str, StepRecord] = field(default_factory=dict)
    """Every record that a point of this sweep has used, by key: computed by it, or found intact."""
    models: dict[ModelSource, FoundModel] = field(default_factory=dict)
    """The models of all runs. Each is read once."""

    @property
    def store(self) -> Store:
        return self.outputs.store

    def open_run(self, recipe: Recipe, previous: Mapping[str, StepRecord] | None = None) -> RunState:
        """Open a run; `previous` has the records of the recipe's latest run. Raises as `find_model` does."""
        started_at, start = datetime.now(UTC), time.perf_counter()
        planner = Planner(recipe, self.store, previous or {}, self.forced, self.known, self.machine_of)
        models = self._find_models(recipe)
        artifacts: dict[str, Artifact] = {name: model.artifact for name, model in models.items()}
        run_id = make_id(started_at)
        return RunState(recipe, self.outputs, planner, models, self.listener, started_at, start, run_id, artifacts)

    def check_models(self) -> None:
        """Raise ModelError when a model has changed since the sweep started."""
        for source, model in self.models.items():
            if self._find_model(source).record.digest != model.record.digest:
                raise ModelError(
                    f"model {source.source}: it changed while the sweep ran, so the inputs of the last points are "
                    "unknown. Run again; if you restore the earlier contents, with `--force all`."
                )

    def _find_models(self, recipe: Recipe) -> dict[str, FoundModel]:
        named = {}
        for name, source in recipe.models.items():
            model = self.models.get(source) or self.models.setdefault(source, self._find_model(source))
            named[name] = replace(model, artifact=replace(model.artifact, label=name))
        return named

    def _find_model(self, source: ModelSource) -> FoundModel:
        return find_model(source, self.store, lambda text: self.listener(Notice(text=text)))


def choose_forced(requested: Sequence[str], recipe: Recipe) -> frozenset[str]:
    """Return the names of the steps that `--force` means. Raises RequestError for an unknown step."""
    names = [step.name for step in recipe.steps]
    unknown = [name for name in requested if name not in (*names, "all")]
    if unknown:
        raise RequestError(
            f"--force {unknown[0]}: there is no such step; the steps are: {', '.join(names)}, and `all`."
        )
    return frozenset(names if "all" in requested else requested)


def make_id(started_at: datetime) -> str:
    """Return the UTC time and six hex digits that distinguish runs of the same second."""
    apart = blake3(f"{os.getpid()} {time.time_ns()}".encode()).hexdigest()[:6]
    return f"{started_at:%Y%m%dT%H%M%SZ}-{apart}"
