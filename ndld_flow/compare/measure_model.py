"""Measure one model without a recipe: its profile, and the variation of repeated measurements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, require_utf8
from ndld_flow.execution.events import Notice, RunFinished
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.execution.request import request_recipe
from ndld_flow.models.external_files import declared_inputs
from ndld_flow.profiles.compare.intervals import learn_thresholds, noise_samples
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.compare.rounds import spread_of
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.runner.plan import refuse_lacks
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runs.references import read_noise
from ndld_flow.runtimes.registry import find_builder
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import write_text_atomically
from ndld_flow.sweep.run_request import run_alone

if TYPE_CHECKING:
    from ndld_flow.profiles.diagnose.diagnose import Triage
    from ndld_flow.runtimes.settings import Builder

STEP = "profile"
ENGINE = "engine"
RECIPE_KEYS = ("inputs.", "model.", "inputs=")
_BACKEND = re.compile(r"backend=['\"]?(\w+)['\"]?")


@dataclass(frozen=True)
class Profiled:
    """A profile, and the run that measured it."""

    profile: Profile
    finished: RunFinished | None = None
    """None for an existing profile, which was only read."""

    def triage(self) -> Triage:
        """Return the slowest layers, the time by type, what bounds it, and what to try."""
        from ndld_flow.profiles.diagnose.diagnose import triage

        return triage(self.profile)

    def _repr_html_(self) -> str:
        from ndld_flow.report.exports.notebook_html import profile_html

        return profile_html(self.profile, self.finished.report if self.finished else "")


def profile_model(
    model: str,
    settings: Sequence[str] = (),
    *,
    outputs: Path = Path("outputs"),
    on: str = "",
    command: Sequence[str] = (),
    listener: Listener = ignore,
) -> Profiled:
    """Measure a model in a run of its own that `compare`, `report` and `tag` can name; or read an existing profile.

    `settings` are those of the step `profile`, as `passes=200`, and the recipe's inputs, as
    `inputs.x.shape=[1,3,64,64]`. For a runtime that runs engines, such as TensorRT, an engine is built first, unless
    `engine_file` names one; its settings are those of `build_engine`, as `engine.fp16=true`. Code that settings name
    runs without `--trust`, since the user typed its name. Raises NdldFlowError like `run_recipe`, and RequestError for
    settings of an existing profile.
    """
    existing = _read_existing(model, settings)
    if existing is not None:
        return Profiled(existing)
    requested = [match[1] for setting in settings if (match := _BACKEND.fullmatch(setting))]
    builder = _find_builder(requested[-1] if requested else "", settings)
    overrides = tuple(each for setting in settings for each in _override(setting, builder))
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model.rpartition(":")[2]).stem).strip("-.") or "model"
    name = f"profile-{stem}"[:100]
    steps: dict[str, JsonValue] = {STEP: {}}
    if builder is not None:
        steps = {
            ENGINE: {"step": builder.step, "backend": requested[-1]},
            STEP: {"backend": requested[-1], "engine": ENGINE},
        }
    recipe: dict[str, JsonValue] = {"name": name, "model": {"source": model}, "steps": steps}
    ask = partial(
        request_recipe, overrides=overrides, outputs=outputs, force=(STEP,), trust=True, on=on, command=tuple(command)
    )
    loaded = load_sweep(ask(recipe).source, overrides, trust=True)  # a wrong setting must not wait for the passes below
    if isinstance(loaded, Recipe):
        refuse_lacks(loaded.sent_to(on))
    if builder is None and not any(setting.startswith("inputs") for setting in settings):
        recipe["inputs"] = _find_free_sizes(Path(model), listener)
    finished = run_alone(ask(recipe), listener)
    return Profiled(read_run(Path(finished.folder)).of(Profile)[STEP], finished)


def _find_free_sizes(model: Path, listener: Listener) -> dict[str, JsonValue]:
    """Return inputs with sizes that a model accepts where it leaves them free, and report them.

    Nothing is returned without free sizes, and if it accepts none of the likely ones: the step then says what is wrong.
    """
    declared = declared_inputs(model).values() if model.is_file() else ()
    if all(isinstance(dim, int) for each in declared for dim in each.shape or ()):
        return {}
    from ndld_flow.recipe.write_recipe import RecipeOptions, try_model

    trial = try_model(model, RecipeOptions())
    if trial.error:
        return {}
    text = f"measured with {trial.free_sizes}, which the model accepts; `inputs.NAME.shape=[...]` sets other sizes"
    listener(Notice(text=text))
    shapes = {each.spec.name: each.shape for each in trial.inputs if each.free and each.shape is not None}
    return {name: {"shape": list[JsonValue](shape)} for name, shape in shapes.items()}


def _read_existing(model: str, settings: Sequence[str]) -> Profile | None:
    """Return the profile if `model` is an existing profile rather than a model; else None."""
    from ndld_flow.profiles.read.read_profile import read_profile, recognize

    path = Path(model)
    if not path.exists() or recognize(path) is None:
        return None
    if settings:
        raise RequestError(f"{model} is a profile, not a model: it is not measured again, so settings do not apply.")
    return read_profile(path)


def _find_builder(backend: str, settings: Sequence[str]) -> Builder | None:
    """Return how to build what a runtime runs; None if it runs the model, or a setting names the built file."""
    builder = find_builder(backend)
    given = builder is not None and any(setting.startswith(f"{builder.file_setting}=") for setting in settings)
    return None if given else builder


def _override(setting: str, builder: Builder | None) -> Iterator[str]:
    """Yield a setting as overrides of the recipe, in which `builder` builds an engine of the model first."""
    if setting.startswith(f"{ENGINE}."):
        if builder is None:
            raise RequestError(
                f"{setting}: no engine is built here; `backend=tensorrt` or `backend=tensorrt_rtx` without "
                "`engine_file` builds one."
            )
        yield f"steps.{setting}"
        return
    yield override_profile(setting, STEP)
    if builder is not None and setting.partition("=")[0] in builder.shared_settings:
        yield override_profile(setting, ENGINE)


def override_profile(setting: str, step: str) -> str:
    """Return a typed setting as an override of a recipe with a `profile` step of that name.

    Raises RequestError for a setting that is not `KEY=VALUE`.
    """
    if "=" not in setting:
        raise RequestError(
            f"{setting}: write settings as KEY=VALUE, such as `passes=200` or `inputs.x.shape=[1,3,64,64]`. "
            "`ndld-flow steps profile` explains each."
        )
    return setting if setting.startswith(RECIPE_KEYS) else f"steps.{step}.{setting}"


MODEL = "package:onnx/backend/test/data/light/light_resnet50.onnx"
"""The default model: a ResNet-50 that comes with onnx."""
PAIRS = 5
"""Process runs per side in one comparison, the default of `profile`."""
FEWEST_COMPARISONS = 3
"""Minimum number of comparisons: the next one exceeds the largest of n with probability 1 / (n + 1)."""
ROUNDS = 12
"""Number of rounds in which the model alternates with itself; `compare_profiles` can start with their spread."""
RUN_S = 0.5
"""Duration of each process run, the default of `profile`."""


def learn_noise(
    model: str = MODEL,
    settings: Sequence[str] = (),
    *,
    comparisons: int = 8,
    outputs: Path = Path("outputs"),
    listener: Listener = ignore,
) -> Noise:
    """Compare a model with itself repeatedly, and store thresholds for comparisons on this machine.

    `settings` are those of the step `profile` (for both sides) and the recipe's inputs. Raises NdldFlowError as
    `run_alone` does, and RequestError for fewer than `FEWEST_COMPARISONS`, requested or measured.
    """
    if comparisons < FEWEST_COMPARISONS:
        raise RequestError(f"noise: {comparisons} comparisons are too few. Use at least {FEWEST_COMPARISONS}.")
    for setting in settings:
        if setting.partition("=")[0] == "runs":
            raise RequestError(
                f"{setting}: `noise` sets `runs` itself, {PAIRS} per comparison. Set the number of comparisons with "
                "--comparisons instead."
            )
    list(read_noise(Outputs(outputs)))  # raises before minutes of work
    runs = PAIRS * comparisons
    overrides = [
        each for setting in settings for each in (override_profile(setting, "a"), override_profile(setting, "b"))
    ]
    require_utf8(model)
    recipe = _write_recipe(model, runs)
    request = request_recipe(recipe, tuple(dict.fromkeys(overrides)), outputs=outputs, force=("all",))
    finished = run_alone(request, listener)
    documents = read_run(Path(finished.folder))
    noise = _learn(documents.of(Profile)["a"], documents.of(Profile)["b"], model)
    rounds = documents.of(Comparison)["rounds"].profiles[0].rounds
    if rounds is not None:
        noise = noise.model_copy(update={"rounds_spread": spread_of(rounds)})
    machine = digest_json(noise.machine.model_dump(mode="json"))[:12]
    path = Outputs(outputs).noise / f"{noise.backend}-{noise.provider}-{machine}.json"
    write_text_atomically(path, noise.to_json())
    return noise


def _write_recipe(model: str, runs: int) -> dict[str, JsonValue]:
    side: dict[str, JsonValue] = {
        "step": "profile",
        "from": "source",
        "runs": runs,
        "duration": f"{RUN_S * runs} s",
        "stable": "0 %",
        "budget": "1 h",
        "layer_passes": 0,
    }
    rounds: dict[str, JsonValue] = {
        "step": "compare_profiles",
        "base": "a",
        "from": "b",
        "min_rounds": ROUNDS,
        "rounds": ROUNDS,
        "budget": "1 h",
    }
    return {
        "name": "noise",
        "description": "the same model as two that take turns",
        "model": model,
        "steps": {"a": side, "b": side, "rounds": rounds},
    }


def _learn(a: Profile, b: Profile, model: str) -> Noise:
    samples = noise_samples(a, b, PAIRS)
    if len(samples) < FEWEST_COMPARISONS:
        raise RequestError(
            f"noise of {model}: {min(len(a.runs), len(b.runs))} process runs per side were measured, enough for "
            f"{len(samples)} comparisons of {PAIRS}, and fewer than {FEWEST_COMPARISONS} give no threshold. Nothing "
            "was stored. Raise or remove `budget`, or lower `duration` and `passes`."
        )
    learned = learn_thresholds(samples)
    return Noise(
        machine=a.machine,
        backend=a.backend,
        provider=a.providers[0],
        model=model,
        measured_at=datetime.now(UTC),
        metric=Rules.metric,
        samples=tuple(samples),
        threshold=learned.threshold,
        run_cov=learned.run_cov,
        single_run_threshold=learned.single_run_threshold,
    )
