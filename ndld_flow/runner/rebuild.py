"""Build the engines of a run again, and compare them with the recorded ones without running either."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.errors import RequestError, naming_step
from ndld_flow.base.text import suggest
from ndld_flow.engines.build_request import BuildRequest
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.building import build_engine
from ndld_flow.engines.engine_lock import compare_engines
from ndld_flow.records.build import Build
from ndld_flow.records.document import Record
from ndld_flow.records.engine_lock import EngineComparison, EngineLock
from ndld_flow.records.run_folder import find_file, first_problem, read_record, read_run
from ndld_flow.runner.devices import Claim, holding
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.references import find_model
from ndld_flow.store.kinds import Engine


class RebuiltEngine(Record):
    """One engine that was built again."""

    step: str
    attempt: int
    """1 for its first build here."""
    comparison: EngineComparison
    """Compared with the engine of the run."""


class Rebuilt(Record):
    """The engines of a run, built again."""

    run: str
    """`RECIPE/ID`"""
    engines: tuple[RebuiltEngine, ...]

    @property
    def is_reproduced(self) -> bool | None:
        """True if every engine is identical or equal; None if none differs, and one is undecided."""
        verdicts = {engine.comparison.verdict for engine in self.engines}
        if "different" in verdicts:
            return False
        return None if "undecided" in verdicts else True


def rebuild_engines(
    run: str, outputs: Outputs, *, step: str, times: int, trust: bool, progress: Callable[[str, str], None]
) -> Rebuilt:
    """Build the engines of a run again, each `times` times, from the stored models and the recorded settings.

    Timing caches are not used: tactics are timed anew, unless the settings name a lock. `step` selects one engine, and
    `progress(step, what)` is called meanwhile. Raises RequestError if the run has no such engine, if its model is no
    longer there, or if its settings name code and `trust` is False; and errors of the builder.
    """
    folder = outputs.find(run)
    documents = read_run(folder)
    builds = documents.builds
    name = f"{documents.run.recipe_name}/{documents.run.id}"
    if not builds or (step and step not in builds):
        wanted = f" `{step}`; {suggest(step, builds)}" if builds else ": no step of it built one"
        raise RequestError(f"{run}: run {name} has no engine{wanted}")
    chosen = {step: builds[step]} if step else builds
    for engine, build in chosen.items():
        if not trust and (build.options.get("library") or build.options.get("plugins")):
            raise RequestError(
                f"{run}: the settings of {engine} name a library or plugins, which are code: examine them, then allow "
                "them with --trust."
            )
    parents = {each.name: each.record.parents for each in documents.run.steps if each.record is not None}
    rebuilt: list[RebuiltEngine] = []
    for engine, build in chosen.items():
        before = read_record(
            EngineLock,
            find_file(folder / engine, Engine.lock),
            "has no lock of its engine",
            "Run the recipe again.",
            "is not a lock that",
        )
        model = find_model(f"{folder}:{parents[engine]['from']}", outputs)
        with naming_step(engine):
            again = _build_again(build, model, outputs, times, partial(progress, engine))
            rebuilt += (
                RebuiltEngine(step=engine, attempt=number, comparison=compare_engines(before, after))
                for number, after in enumerate(again, 1)
            )
    return Rebuilt(run=name, engines=tuple(rebuilt))


def _build_again(
    build: Build, model: Path, outputs: Outputs, times: int, progress: Callable[[str], None]
) -> Iterator[EngineLock]:
    """Yield the locks of engines of one model, whose files are removed again."""
    settings = _settings_of(build)
    is_built_ahead = build.backend == "tensorrt_rtx" or bool(build.compute_capabilities)
    device = "" if is_built_ahead else f"gpu-{settings.gpu}"
    for number in range(1, times + 1):
        claim = Claim(f"rebuild of {build.label}", progress)
        with outputs.store.building() as folder, holding(device, outputs.store, claim):
            for name in ("out", "scratch"):
                (folder / name).mkdir()
            request = BuildRequest(
                model=model,
                label=build.label,
                digest=build.model_digest,
                inputs={},
                settings=settings,
                out=folder / "out",
                caches=folder / "caches",
                scratch=folder / "scratch",
            )
            progress(f"build {number} of {times}")
            build_engine(request, lambda *_: None)
            yield EngineLock.model_validate_json((folder / "out" / Engine.lock).read_bytes())


def _settings_of(build: Build) -> BuildSettings:
    """Return the settings of a build with the shapes that it chose, which may have come from the recipe's inputs, and
    without timings of its own.
    """
    profiles = [
        {name: {"min": shapes.min, "opt": shapes.opt, "max": shapes.max} for name, shapes in profile.inputs.items()}
        for profile in build.profiles
    ]
    timings = {"timing_cache_file": None, "error_on_timing_cache_miss": False, "attempt": 1}
    options = {**build.options, **timings, "profiles": profiles, "batch": None}
    try:
        return BuildSettings.model_validate_json(json.dumps(options))  # JSON has lists where settings are tuples
    except ValidationError as error:
        raise RequestError(
            f"{build.label}: the recorded settings are not those of this version: {first_problem(error)}"
        ) from None
