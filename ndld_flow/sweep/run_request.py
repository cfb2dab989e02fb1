"""Run or plan the recipe of a request, or its sweep. What a plan does not need is imported by the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import first_of
from ndld_flow.execution.keys import HIDDEN_VALUES, describe_key
from ndld_flow.execution.request import Request
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runner.check_inputs import refuse_wrong_inputs
from ndld_flow.runner.open_run import open_single, working_on
from ndld_flow.runner.plan import Decision, look_ahead, plan_steps
from ndld_flow.store.digest import digest_json

if TYPE_CHECKING:
    from ndld_flow.execution.events import RunFinished, SweepFinished
    from ndld_flow.execution.listener import Listener
    from ndld_flow.runner.run_state import RunState
    from ndld_flow.sweep.plan_sweep import SweepPlan


def run_request(request: Request, listener: Listener) -> RunFinished | SweepFinished:
    """Run a recipe, or its sweep. Raises NdldFlowError, see base/errors.py."""
    finished: RunFinished | SweepFinished
    with working_on(request, "run") as loaded:
        if isinstance(loaded, Recipe):
            finished = _run_and_export(loaded, request, listener)
        else:
            if request.output is not None:
                raise RequestError(
                    f"--output {request.output}: a sweep has many results. Write its best point with `--best "
                    "best.yaml`, and run that with --output."
                )
            from ndld_flow.sweep.run_sweep import run_sweep

            finished = run_sweep(loaded, request, listener)
    listener(finished)
    return finished


def _run_and_export(recipe: Recipe, request: Request, listener: Listener) -> RunFinished:
    """Run a recipe; if it passes, write the results that the recipe or the request names."""
    from ndld_flow.runner.run import run_recipe

    if not recipe.file.export and request.output is None:
        return run_recipe(recipe, request, listener)
    from ndld_flow.execution.events import Notice
    from ndld_flow.runner.export import export_results, plan_exports

    exports = plan_exports(recipe, request.output)
    finished = run_recipe(recipe, request, listener)
    if finished.passed:
        folder = Path(finished.folder)
        run = read_run_record(folder)
        written = export_results(exports, run, folder)
        shipped = tuple(
            (f"weights in {first_of([Path(file).name for file in data], 3)}, " if data else "")
            + run.results.get(export.step, "not proven faster")
            for export, (_, *data) in zip(exports, written, strict=True)
        )
        return finished.model_copy(update={"exported": tuple(files[0] for files in written), "shipped": shipped})
    listener(Notice(text="the run did not pass, so its result was not exported", warning=True))
    return finished


def plan_request(request: Request, listener: Listener) -> list[Decision] | SweepPlan:
    """Decide for each step whether it would run, and why; or plan a sweep.

    Nothing is computed, but models may be downloaded. Raises NdldFlowError as `run_request` does.
    """
    with working_on(request, "plan") as loaded:
        if isinstance(loaded, Recipe):
            run = open_single(loaded, request, listener, looks_only=True)
            with run.held:
                look_ahead([(run.planner, run.digests)])
                decisions = plan_steps(run.planner, run.digests, run.paths)
                if not all(decision.reused for decision in decisions):
                    refuse_wrong_inputs(loaded, run.paths)
                return decisions
        from ndld_flow.sweep.plan_sweep import plan_sweep

        return plan_sweep(loaded, request, listener)


def digest_request(request: Request, listener: Listener) -> str:
    """Return the digest of everything but the machine that decides the results of a recipe or its sweep.

    It covers the settings of all steps, the models, data files, code and libraries, and no paths and no credentials, so
    that machines of CI agree on it. Raises NdldFlowError as `plan_request` does.
    """
    with working_on(request, "plan") as loaded:
        recipe = loaded if isinstance(loaded, Recipe) else loaded.base
        return digest_recipe(recipe, open_single(recipe, request, listener))


def digest_recipe(recipe: Recipe, run: RunState) -> str:
    """Return the digest of an opened recipe, as `digest_request` does."""

    def parts(step: RecipeStep) -> JsonValue:
        known = describe_key(step, {}, recipe.file.inputs, run.outputs.store, lambda _: "")
        reads = {name: digest for name, digest in known.reads.items() if name != HIDDEN_VALUES}
        read_steps: dict[str, JsonValue] = {**step.reads}  # what these will write is not known yet
        return [step.name, read_steps, known.model_copy(update={"reads": reads}).model_dump(mode="json")]

    section = recipe.file.sweep
    return digest_json(
        {
            "models": {name: model.record.digest for name, model in run.models.items()},
            "steps": [parts(step) for step in recipe.steps],
            "gates": list(recipe.file.gates),
            "sweep": section.model_dump(mode="json") if section is not None else None,
        }
    )
