"""Requests, and the state of a run while it is running."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ndld_flow.recipe.recipe import Recipe
from ndld_flow.recipe.sources import FoundModel
from ndld_flow.records.run_record import RunStep
from ndld_flow.runner.events import Listener
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Planner, Unit
from ndld_flow.store.kinds import Artifact


@dataclass(frozen=True)
class Placement:
    """Where the steps of a sweep are computed."""

    jobs: int | None = None
    """Number of worker processes for the steps that do not measure; None: one."""
    ray: str = ""
    """Address of a Ray cluster that computes all steps, such as `auto` or `HOST:PORT`."""
    remote_store: str = ""
    """URL of a store for the cluster's machines where they share no folder: `s3://...`."""


@dataclass(frozen=True)
class Request:
    """A request to `run` or `plan`."""

    recipe: Path
    overrides: tuple[str, ...] = ()
    outputs: Path = Path("outputs")
    force: tuple[str, ...] = ()
    """Steps to run although nothing changed; `all` for every one."""
    trust: bool = False
    """Allow the code a recipe names: `steps_from:`, and settings marked `RunsCode`."""
    command: tuple[str, ...] = ()
    """The command as it was typed, for the run's record."""
    multirun: bool = False
    """Overrides with several values sweep over them: `steps.speed.threads=1,2,4`."""
    place: Placement = Placement()
    """Of a sweep: where its steps are computed."""
    apply: Path | None = None
    """Of a sweep: where to write the best point's settings as a recipe of its own."""


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
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    done: dict[str, RunStep] = field(default_factory=dict)
    """Finished steps by name, in the order in which they finished."""
    id: str = ""
    """The name of its folder, `<utc time>-<short id>`."""
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
        """The finished steps, in the recipe's order."""
        return tuple(self.done[step.name] for step in self.recipe.steps if step.name in self.done)

    @property
    def digests(self) -> Mapping[str, str | None]:
        return {name: artifact.digest for name, artifact in self.artifacts.items()}
