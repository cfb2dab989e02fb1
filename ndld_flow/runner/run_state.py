"""Runs in progress, and how they are opened. `run_record.py` has the steps that a run computes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from blake3 import blake3
from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, Problem, RecipeError, RequestError
from ndld_flow.recipe.recipe import ModelSource, Recipe, RecipeStep
from ndld_flow.recipe.resolved import resolve_recipe
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.runner.check_inputs import refuse_missing_data
from ndld_flow.runner.plan import Planner, Unit
from ndld_flow.runs.cache_settings import choose_cache
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runtimes.environments import provide_environment
from ndld_flow.store.kinds import Artifact
from ndld_flow.store.locks import WAITS
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.execution.cache import Cache
    from ndld_flow.execution.listener import Listener
    from ndld_flow.execution.ray.executor import OnRay
    from ndld_flow.execution.request import Request
    from ndld_flow.execution.ssh.targets import Targets
    from ndld_flow.records.run_record import RunStep, StepRecord


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
    """Closed when the run has ended, for whatever reason."""
    opened: bool = False
    """True if its folder exists."""
    keeps_folder: bool = True
    """False for a trial: only its outcome is used."""
    targets: Targets | None = None
    """The targets of its steps, if not all run here."""
    cluster: Callable[[], OnRay] | None = None
    """Returns the cluster that computes all steps, connected; None if none does."""

    @property
    def steps(self) -> tuple[RunStep, ...]:
        """Return the finished steps, in the recipe's order."""
        return tuple(self.done[step.name] for step in self.recipe.steps if step.name in self.done)

    def target_of(self, step: RecipeStep) -> str:
        """Return the machine on which a step is computed, for people; empty for this one."""
        return "Ray" if self.cluster is not None else step.target

    @property
    def digests(self) -> Mapping[str, str | None]:
        return {name: artifact.digest for name, artifact in self.artifacts.items()}

    @property
    def paths(self) -> Mapping[str, Path]:
        """Return name -> file of the recipe's models and of finished steps."""
        return {name: artifact.path for name, artifact in self.artifacts.items()}

    @cached_property
    def resolved(self) -> dict[str, JsonValue]:
        """Return the recipe as its record has it. Each step's progress is recorded, and the recipe stays the same."""
        return resolve_recipe(self.recipe, {name: model.record.digest for name, model in self.models.items()})

    @cached_property
    def commit(self) -> str:
        """Return the git commit of the current directory; git is asked once, and not by a run without a record."""
        return read_commit(Path.cwd())


@dataclass
class RunOpener:
    """Opens the runs of a request: one, or one for each point of a sweep."""

    outputs: Outputs
    listener: Listener
    in_sweep: ClassVar[bool] = False
    forced: frozenset[str] = frozenset()
    """Names of the steps that run even if nothing changed."""
    machine_of: Callable[[RecipeStep], str] | None = None
    """Returns the fingerprint of the machine that would compute a step, where that is not this one."""
    cache: Cache | None = None
    """The shared cache, if one is used."""
    targets: Targets | None = None
    """The targets of the steps, if not all run here."""
    on: str = ""
    """The target of the command line, on which the steps that need a device run."""
    looks_only: bool = False
    """Only plan: create no private environments."""
    known: dict[str, StepRecord] = field(default_factory=dict)
    """Every record that a point of this sweep has used, by key: computed by it, or found intact."""
    models: dict[ModelSource, FoundModel] = field(default_factory=dict)
    """The models of all runs. Each is read once."""

    @property
    def store(self) -> Store:
        return self.outputs.store

    def open_run(self, recipe: Recipe, previous: Mapping[str, StepRecord] | None = None) -> RunState:
        """Open a run; `previous` has the records of the recipe's latest run.

        Raises as `find_model` does, and RecipeError for missing data files if a model is fetched.
        """
        started_at, start = datetime.now(UTC), time.perf_counter()
        recipe = recipe.sent_to(self.on)
        self._provide_environments(recipe)
        site_of = self.targets.site_of if self.targets is not None else lambda step: None
        planner = Planner(
            recipe,
            self.store,
            previous or {},
            self.forced,
            self.known,
            self.machine_of,
            self.cache,
            site_of,
            self.in_sweep,
        )
        if any(source.is_fetched for source in recipe.models.values()):
            refuse_missing_data(recipe)
        models = self.find_models(recipe)
        _check_feedback(recipe, models)
        artifacts: dict[str, Artifact] = {name: model.artifact for name, model in models.items()}
        run_id = make_id(started_at)
        return RunState(recipe, self.outputs, planner, models, self.listener, started_at, start, run_id, artifacts)

    def _provide_environments(self, recipe: Recipe) -> None:
        """Create the missing private environments of a recipe's steps, whose locks are part of keys.

        Raises RequestError for a step that runs elsewhere, and BackendError if pip cannot install something.
        """
        for step in recipe.steps:
            for environment in step.environments:
                if step.target or self.machine_of is not None:
                    raise RequestError(
                        "private environments are created on this machine only: remove `environment`, or run the step "
                        "here. A target has an environment of its own, and may name another with `python:`.",
                        step=step.name,
                    )
                if not self.looks_only:
                    provide_environment(environment, self._report)

    def check_models(self) -> None:
        """Raise ModelError when a model has changed since the sweep started."""
        for source, model in self.models.items():
            if self._find_model(source).record.digest != model.record.digest:
                raise ModelError(
                    f"model {source.source}: it changed while the sweep ran, so the inputs of the last points are "
                    "unknown. Run again; if you restore the earlier contents, with `--force all`."
                )

    def find_models(self, recipe: Recipe) -> dict[str, FoundModel]:
        """Return the models of a recipe by name; each is looked for once. Raises as `find_model` does."""
        named = {}
        for name, source in recipe.models.items():
            model = self.models.get(source) or self.models.setdefault(source, self._find_model(source))
            named[name] = replace(model, artifact=replace(model.artifact, label=name))
        return named

    def _find_model(self, source: ModelSource) -> FoundModel:
        return find_model(source, self.store, self._report, self._report_bytes)

    def _report(self, text: str) -> None:
        from ndld_flow.execution.events import Notice

        self.listener(Notice(text=text, waits=text.startswith(WAITS)))

    def _report_bytes(self, source: str, done: int, size: int | None) -> None:
        from ndld_flow.execution.events import Fetching

        self.listener(Fetching(source=source, done_bytes=done, size_bytes=size, finished=done == size))


def open_cache(request: Request, store: Store, listener: Listener, *, looks_only: bool = False) -> Cache | None:
    """Return the shared cache that a request uses; None without one. Raises as `choose_cache` does.

    `looks_only`: nothing is fetched or pushed.
    """
    settings = choose_cache(request.cache)
    if settings is None:
        return None
    from ndld_flow.execution.cache import Cache

    return Cache(settings, store, listener, looks_only=looks_only)


def _check_feedback(recipe: Recipe, models: Mapping[str, FoundModel]) -> None:
    """Raise RecipeError for states that no output of a model can feed.

    Only models of the recipe are known before anything runs; a step's result is checked when it runs.
    """
    for step in recipe.steps:
        used = step.used_inputs(recipe.file.inputs) if step.type.cls.runs_sequences else {}
        if not any(spec.fed_from for spec in used.values()):
            continue
        from ndld_flow.models.files import model_inputs, model_outputs
        from ndld_flow.samples.feedback import check_feedback, find_feedback

        for model in (models[name] for name in step.own_reads.values() if name in models):
            inputs, outputs = (read(model.artifact.path) for read in (model_inputs, model_outputs))
            known = {spec.name for spec in inputs}
            feedback = {name: output for name, output in find_feedback(used).items() if name in known}
            mistakes = check_feedback(feedback, inputs, outputs, model.artifact.label)
            prefix = f"steps.{step.inputs_of[0]}.inputs" if step.inputs_of else "inputs"
            where = str(recipe.path)
            problems = [Problem(where, f"{prefix}.{name}.from", what, hint) for name, what, hint in mistakes]
            if problems:
                raise RecipeError(problems)


def choose_forced(requested: Sequence[str], recipe: Recipe) -> frozenset[str]:
    """Return the names of the steps that `--force` selects. Raises RequestError for an unknown step."""
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


_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TIMEOUT_S = 5.0
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""The configuration of a stranger's repository may name programs."""


def read_commit(folder: Path) -> str:
    """Return the commit that is checked out in a folder's working tree.

    Empty without git, outside a working tree, in one of another user (which git refuses), and if git does not answer.
    """
    git = shutil.which("git")
    if git is None or not Path(git).is_absolute():  # a relative one could be a file of the project
        return ""
    command = [git, *_HARMLESS, "rev-parse", "--verify", "--quiet", "HEAD"]
    # In a hook of git, GIT_DIR names a repository for every folder.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment | {"GIT_CONFIG_NOSYSTEM": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    commit = done.stdout.decode("ascii", "replace").strip()
    return commit if done.returncode == 0 and _COMMIT.fullmatch(commit) else ""
