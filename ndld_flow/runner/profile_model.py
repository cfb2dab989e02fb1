"""Profile one model without a recipe: the recipe is generated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, require_utf8
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.runner.events import Listener, RunFinished, ignore
from ndld_flow.runner.request import request_recipe
from ndld_flow.runner.run import run_alone

if TYPE_CHECKING:
    from ndld_flow.profiles.diagnose.diagnose import Triage

STEP = "profile"
ENGINE = "engine"
RECIPE_KEYS = ("inputs.", "model.", "inputs=")
_BACKEND = re.compile(r"backend=['\"]?(tensorrt|tensorrt_rtx)['\"]?")
_OF_BOTH = ("library=", "gpu=")
"""Settings of the step that builds the engine, too: it must use the same TensorRT and GPU."""


@dataclass(frozen=True)
class Profiled:
    """A profile, and the run that measured it."""

    profile: Profile
    finished: RunFinished | None = None
    """None for a profile that existed, and was only read."""

    def triage(self) -> Triage:
        """Return the slowest layers, the time by type, what bounds it, and what to try."""
        from ndld_flow.profiles.diagnose.diagnose import triage

        return triage(self.profile)


def profile_model(
    model: str,
    settings: Sequence[str] = (),
    *,
    outputs: Path = Path("outputs"),
    command: Sequence[str] = (),
    listener: Listener = ignore,
) -> Profiled:
    """Measure a model in a run of its own that `compare`, `report` and `tag` can name; or read an existing profile.

    `settings` are those of the step `profile`, as `passes=200`, and the recipe's inputs, as
    `inputs.x.shape=[1,3,64,64]`. With `backend=tensorrt` or `backend=tensorrt_rtx` an engine is built first, unless
    `engine_file` names one; its settings are those of `build_engine`, as `engine.fp16=true`. Code that settings name
    runs without `--trust`, as the user typed its name. Raises NdldFlowError as `run_recipe` does, and RequestError for
    settings of an existing profile.
    """
    existing = _read_existing(model, settings)
    if existing is not None:
        return Profiled(existing)
    requested = [found[1] for setting in settings if (found := _BACKEND.fullmatch(setting))]
    builds = bool(requested) and not any(setting.startswith("engine_file=") for setting in settings)
    overrides = tuple(each for setting in settings for each in _override(setting, builds))
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model.rpartition(":")[2]).stem).strip("-.") or "model"
    name = f"profile-{stem}"[:100]
    require_utf8(model)
    steps: dict[str, JsonValue] = {STEP: {}}
    if builds:
        steps = {
            ENGINE: {"step": "build_engine", "backend": requested[-1]},
            STEP: {"backend": requested[-1], "engine": ENGINE},
        }
    request = request_recipe(
        {"name": name, "model": model, "steps": steps},
        overrides,
        outputs=outputs,
        force=(STEP,),
        trust=True,
        command=tuple(command),
    )
    finished = run_alone(request, listener)
    return Profiled(read_run(Path(finished.folder)).profiles[STEP], finished)


def _read_existing(model: str, settings: Sequence[str]) -> Profile | None:
    """Return the profile if `model` is an existing profile rather than a model; else None."""
    from ndld_flow.profiles.read.read_profile import read_profile, recognise

    path = Path(model)
    if not path.exists() or recognise(path) is None:
        return None
    if settings:
        raise RequestError(f"{model} is a profile, not a model: it is not measured again, so no settings apply.")
    return read_profile(path)


def _override(setting: str, builds: bool) -> Iterator[str]:
    """Yield a setting as overrides of the recipe; `builds`: it builds an engine of the model first."""
    if setting.startswith(f"{ENGINE}."):
        if not builds:
            raise RequestError(
                f"{setting}: no engine is built here; `backend=tensorrt` or `backend=tensorrt_rtx` without "
                "`engine_file` builds one."
            )
        yield f"steps.{setting}"
        return
    yield override_profile(setting, STEP)
    if builds and setting.startswith(_OF_BOTH):
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
