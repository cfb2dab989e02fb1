"""`ndld-flow plan`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import json_option, outputs_option, print_json, recipe_options


@click.command("plan", short_help="Say what a run would do, and why, without doing it.")
@recipe_options
@outputs_option
@json_option
def command(
    recipe: Path, overrides: tuple[str, ...], force: tuple[str, ...], trust: bool, outputs: Path, as_json: bool
) -> None:
    """Say what a run would do, and why, without doing it.

    A step that reads another step which will run is expected to run too; should that one make the same as before, the
    run reuses it after all.
    """
    decisions = api.plan(recipe, overrides, outputs=outputs, force=force, trust=trust)
    if as_json:
        rows = [
            {"name": d.step.name, "step": d.step.type.name, "reason": d.reason.text, "detail": d.detail, "key": d.key}
            for d in decisions
        ]
        print_json(rows)
        return
    width = max(len(decision.step.name) for decision in decisions)
    for decision in decisions:
        reason = decision.reason
        text = f"{reason.text:<16}  " if decision.detail else reason.text
        shown = click.style(f"{reason.symbol} {text}", fg=reason.colour)
        click.echo(f"{decision.step.name:<{width}}  {shown}{decision.detail}")
    todo = sum(not decision.reused for decision in decisions)
    click.echo(f"{todo} of {len(decisions)} steps to run" if todo else "nothing to do")
