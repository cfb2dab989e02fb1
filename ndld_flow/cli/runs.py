"""`ndld-flow runs`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import json_option, outputs_option, print_json
from ndld_flow.runner.list_runs import RunSummary


@click.command("runs", short_help="List finished runs and sweeps.")
@click.argument("recipe", default="*")
@outputs_option
@json_option
def command(recipe: str, outputs: Path, as_json: bool) -> None:
    """List finished runs and sweeps, newest first; with RECIPE only those of one recipe."""
    found = api.runs(recipe, outputs=outputs)
    if as_json:
        print_json([run.model_dump(mode="json") for run in found])
        return
    if not found:
        click.echo(f"no runs in {outputs}/runs yet; `ndld-flow run RECIPE.yaml` makes one")
    width = max((len(run.run) for run in found), default=0)
    for run in found:
        if run.damage:
            click.echo(f"{run.run:<{width}}  {click.style('damaged', fg='red')}: {run.damage}")
            continue
        word = _outcome(run)
        tags = f"  [{', '.join(run.tags)}]" if run.tags else ""
        best = f", best #{run.best}" if run.best is not None else ""
        points = f"  sweep of {run.points} points{best}" if run.kind == "sweep" else ""
        click.echo(
            f"{run.run:<{width}}  {word}  {run.wall_s:8.1f} s  {run.started_at:%Y-%m-%d %H:%M} UTC{points}{tags}"
        )


def _outcome(run: RunSummary) -> str:
    if run.passed:
        return click.style("passed", fg="green")
    return click.style("INCONCLUSIVE", fg="yellow") if run.inconclusive else click.style("FAILED", fg="red")
