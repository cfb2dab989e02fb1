"""`ndld-flow plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ndld_flow.cli.options import json_option, outputs_option, print_json, recipe_options

if TYPE_CHECKING:
    from ndld_flow.runner.plan import Decision
    from ndld_flow.step import Foresight


@click.command("plan", short_help="Show what a run would do, and why, without running it.")
@recipe_options
@outputs_option
@json_option
def command(
    recipe: Path,
    overrides: tuple[str, ...],
    force: tuple[str, ...],
    trust: bool,
    multirun: bool,
    outputs: Path,
    as_json: bool,
) -> int:
    """Show what a run would do, and why, without running it.

    A step that reads another step which will run is expected to run too; if the other step produces the same artifact
    as before, the run reuses this one after all. Steps that depend on installed libraries show what they would do on
    this machine; a setting such as `release=10.8` plans an engine for a TensorRT that is not installed. The exit code
    is 2 if a release cannot carry out a step's settings.

    For a sweep: its points, the steps that they share, finished steps, and how long the rest may take.
    """
    from ndld_flow import api

    planned = api.plan(recipe, overrides, outputs=outputs, force=force, trust=trust, multirun=multirun)
    if not isinstance(planned, list):
        from ndld_flow.cli.sweep_plan import plan_document, show_plan

        print_json(plan_document(planned)) if as_json else show_plan(planned)
        return 0
    return _print(planned, as_json)


def _print(decisions: Sequence[Decision], as_json: bool) -> int:
    foreseen = [decision.step.step.foresee().of_step(decision.step.name) for decision in decisions]
    if as_json:
        print_json([_row(decision, seen) for decision, seen in zip(decisions, foreseen, strict=True)])
    else:
        _show(decisions, foreseen)
    return 2 if any(seen.problems for seen in foreseen) else 0


def _row(decision: Decision, seen: Foresight) -> dict[str, Any]:
    return {
        "name": decision.step.name,
        "step": decision.step.type.name,
        "reason": decision.reason.text,
        "detail": decision.detail,
        "key": decision.key,
        "notes": seen.notes,
        "problems": seen.problems,
        "lacks": seen.lacks,
    }


def _show(decisions: Sequence[Decision], foreseen: Sequence[Foresight]) -> None:
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
