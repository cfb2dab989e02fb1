"""Show what a run would do, and why, without running it.

Where a step will run, those that read its result are shown as steps that run too. The run still reuses them if the
result is the same as before. Steps that depend on installed libraries show what they would do on this machine; a
setting such as `release=10.8` plans an engine for a TensorRT that is not installed. The exit code is 2 if a release
does not support a step's settings.

For a sweep: its points, the steps that they share, finished steps, and how long the rest may take.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.text import shortened, visible_text
from ndld_flow.cli.options import (
    Given,
    cache_options,
    choose_url,
    json_option,
    outputs_option,
    print_json,
    recipe_options,
    target_option,
)
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.execution.events import Event
    from ndld_flow.execution.request import AnyRecipe
    from ndld_flow.runner.plan import Decision, StepDecision
    from ndld_flow.sweep.plan_sweep import PlannedPoint, SweepPlan

READS_MODELS = True

OUTPUT: VerbOutput[list[StepDecision] | SweepPlan] = VerbOutput(
    __name__, "The decision on each step, or the work of a sweep."
)


@public
def plan(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    force: Sequence[str] = (),
    trust: bool = False,
    multirun: bool = False,
    on: str = "",
    cache: str | None = None,
    listener: Listener | None = None,
) -> list[Decision] | SweepPlan:
    """Return for each step whether a run would execute or reuse it, and why; of a sweep its points and their steps.

    The arguments are those of `run`.
    """
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.runs.cache_settings import CacheChoice
    from ndld_flow.sweep.run_request import plan_request

    request = request_recipe(
        recipe, overrides, outputs=outputs, force=force, trust=trust, multirun=multirun, on=on, cache=CacheChoice(cache)
    )
    return plan_request(request, listener or ignore)


@public
def digest(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    multirun: bool = False,
) -> str:
    """Return a digest of everything but the machine that decides the results of a recipe, as a key for caches of CI.

    Equal digests mean equal settings, models, data, code and libraries. Models may be downloaded.
    """
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.sweep.run_request import digest_request

    request = request_recipe(recipe, overrides, outputs=outputs, trust=trust, multirun=multirun)
    return digest_request(request, ignore)


@click.command("plan", help=__doc__)
@recipe_options
@click.option(
    "--digest", "as_digest", is_flag=True, help="Print a digest of all that decides the result, as a key for CI caches."
)
@target_option
@cache_options
@outputs_option
@json_option
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    as_digest: bool,
    force: tuple[str, ...],
    on: str,
    cache: str | None,
    no_cache: bool,
    as_json: bool,
    **options: Given,
) -> int:
    if as_digest and as_json:
        raise click.UsageError("--digest prints a digest, not JSON: give one of --digest and --json.")
    if as_digest and on:
        raise click.UsageError("--digest is the same on any machine: leave --on out.")
    if as_digest:
        click.echo(digest(recipe, overrides, **options))
        return 0
    url = choose_url(cache, no_cache)
    planned = plan(recipe, overrides, force=force, on=on, cache=url, listener=_print_warning, **options)
    if not isinstance(planned, list):
        print_json(OUTPUT, planned) if as_json else click.echo("\n".join(_lines(planned)))
        return 0
    return _print(planned, as_json)


def _print_warning(event: Event) -> None:
    if event.event == "notice" and event.warning:
        click.echo(f"warning: {event.text}", err=True)


def _print(decisions: Sequence[Decision], as_json: bool) -> int:
    foreseen = [decision.foresee() for decision in decisions]
    if as_json:
        from ndld_flow.runner.plan import describe_decisions

        print_json(OUTPUT, describe_decisions(decisions, foreseen))
    else:
        width = max(len(decision.step.name) for decision in decisions)
        for decision, seen in zip(decisions, foreseen, strict=True):
            reason = decision.reason
            text = f"{reason.text:<16}  " if decision.detail else reason.text
            shown = click.style(f"{reason.symbol} {text}", fg=reason.colour)
            click.echo(f"{decision.step.name:<{width}}  {shown}{decision.detail}")
            for colour, sentences in (("", seen.notes), ("red", seen.problems), ("yellow", seen.lacks)):
                for sentence in sentences:
                    click.echo(f"{'':<{width}}    {click.style(sentence, fg=colour or None)}")
        todo = sum(not decision.reused for decision in decisions)
        click.echo(f"{todo} of {len(decisions)} steps to run" if todo else "nothing to do")
    return 2 if any(seen.problems for seen in foreseen) else 0


_MOST_SHOWN = 12


def _lines(plan: SweepPlan) -> Iterator[str]:
    count = "points" if plan.point_count is None else f"at most {plan.point_count} points"
    if plan.point_count == len(plan.points):
        count = f"{len(plan.points)} points"
    excluded = f", {plan.excluded_count} excluded" if plan.excluded_count else ""
    later = "" if plan.point_count == len(plan.points) else f"; {len(plan.points)} of them are known in advance"
    yield f"{plan.method}: {count}{excluded}{later}"
    yield from (_point_line(point) for point in plan.points[:_MOST_SHOWN])
    if len(plan.points) > _MOST_SHOWN:
        yield f"      and {len(plan.points) - _MOST_SHOWN} more"
    yield ""
    width = max((len(step.name) for step in plan.steps), default=0)
    for step in plan.steps:
        shared = f", shared by {step.uses} points" if step.distinct < step.uses else ""
        here, cached = step.stored - step.cached, step.cached
        there = (f", {here} finished" if here else "") + (f", {cached} in the cache" if cached else "")
        different = "once" if step.distinct == 1 else f"{step.distinct} times"
        yield f"{step.name:<{width}}  {different}{shared}{there}"
    yield _work(plan)


def _work(plan: SweepPlan) -> str:
    todo = sum(step.distinct - step.stored for step in plan.steps)
    if not todo:
        points = f"points {', '.join(map(str, plan.remeasured))}" if plan.remeasured else ""
        return f"the best will be measured again: {points}" if points else "nothing to do"
    took = f", {plan.estimate.text}" if plan.estimate is not None else ""
    then = "; then the best are measured again" if plan.remeasured is None else ""
    return f"{todo} steps to run for {len(plan.points)} points{took}{then}"


def _point_line(point: PlannedPoint) -> str:
    values = visible_text(", ".join(f"{name}={json.dumps(value)}" for name, value in point.values.items()))
    if point.problem:
        state, colour = " ".join(point.problem.split()), "red"
    else:
        state, colour = (f"to run: {', '.join(point.waiting)}", "cyan") if point.waiting else ("there", "green")
    return f"{point.number:>4}  {shortened(values, 100)}  {click.style(shortened(state, 120), fg=colour)}"
