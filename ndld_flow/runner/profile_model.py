"""Profile one model without a recipe: the recipe is written on the spot."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.errors import RequestError
from ndld_flow.records.profile import Profile
from ndld_flow.report.run_folder import read_run
from ndld_flow.runner.events import Listener, RunFinished, ignore
from ndld_flow.runner.run import run_recipe
from ndld_flow.runner.state import Request

STEP = "profile"
RECIPE = "name: {name}\nmodel: {model}\nsteps:\n  profile: {{}}\n"
OF_THE_RECIPE = ("inputs.", "model.", "inputs=")


@dataclass(frozen=True)
class Profiled:
    """A model that was measured, and the run that holds it."""

    finished: RunFinished
    profile: Profile


def profile_model(
    model: str,
    settings: Sequence[str] = (),
    *,
    outputs: Path = Path("outputs"),
    command: Sequence[str] = (),
    listener: Listener = ignore,
) -> Profiled:
    """Measure a model anew, and keep it as a run of its own that `compare`, `report` and `tag` know.

    `settings` are those of the step `profile`, as `passes=200`, and the recipe's inputs, as
    `inputs.x.shape=[1,3,64,64]`. Raises NdldFlowError as `run_recipe` does.
    """
    overrides = tuple(override_profile(setting, STEP) for setting in settings)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model.rpartition(":")[2]).stem).strip("-.") or "model"
    name = f"profile-{stem}"[:100]
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as aside:
        recipe = Path(aside) / f"{name}.yaml"
        recipe.write_text(RECIPE.format(name=name, model=json.dumps(model)), encoding="utf-8")
        finished = run_recipe(Request(recipe, overrides, outputs, (STEP,), command=tuple(command)), listener)
    documents = read_run(Path(finished.folder))
    return Profiled(finished, documents.profiles[STEP])


def read_measured(model: str, settings: Sequence[str] = ()) -> Profile | None:
    """The profile, where `model` is not a model but a profile that is there already; else None.

    Raises RequestError for one that cannot be read, or that comes with settings.
    """
    from ndld_flow.importing.read_profile import read_profile, recognise

    path = Path(model)
    if not path.exists() or recognise(path) is None:
        return None
    if settings:
        raise RequestError(f"{model} is a profile, not a model: it is not measured again, so no settings apply.")
    return read_profile(path)


def override_profile(setting: str, step: str) -> str:
    """A setting as typed for one model, as the override of a recipe with a `profile` step of that name.

    Raises RequestError for what is no `KEY=VALUE`.
    """
    if "=" not in setting:
        raise RequestError(
            f"{setting}: write settings as KEY=VALUE, such as `passes=200` or `inputs.x.shape=[1,3,64,64]`. "
            "`ndld-flow steps profile` explains each."
        )
    return setting if setting.startswith(OF_THE_RECIPE) else f"steps.{step}.{setting}"
