"""`ndld-flow runs`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.completers import complete_runs
from ndld_flow.cli.options import json_option, outputs_option, print_json
from ndld_flow.cli.terminal import hanging, styled
from ndld_flow.records.run_record import ENDINGS
from ndld_flow.runner.list_runs import RunSummary

_COLOURS = {"passed": "green", "failed": "red", "inconclusive": "yellow"}


def _word(run: RunSummary) -> str:
    """Format a run's outcome: `passed`, `FAILED`, `KILLED in speed`."""
    ending = ENDINGS[run.outcome]
    word = "passed" if run.outcome == "passed" else ending.headline
    where = f" in {' and '.join(run.failed_in)}" if run.failed_in else ""
    return styled(f"{word}{where}", _COLOURS[ending.tone])


@click.command("runs", short_help="List runs and sweeps.")
@click.argument("recipe", default="*", shell_complete=complete_runs)
@outputs_option
@json_option
def command(recipe: str, outputs: Path, as_json: bool) -> None:
    """List runs and sweeps, newest first, each with its outcome; with RECIPE, only those of one recipe."""
    runs = api.runs(recipe, outputs=outputs)
    if as_json:
        print_json("runs", runs)
        return
    if not runs:
        click.echo(f"no runs in {outputs}/runs yet; `ndld-flow run RECIPE.yaml` creates one")
    width = max((len(run.run) for run in runs), default=0)
    for run in runs:
        if run.damage:
            click.echo(f"{run.run:<{width}}  {styled('damaged', 'red')}: {run.damage}")
            continue
        word = _word(run)
        tags = f"  [{', '.join(run.tags)}]" if run.tags else ""
        best = f", best #{run.best}" if run.best is not None else ""
        points = f"  sweep of {run.points} points{best}" if run.kind == "sweep" else ""
        facts = f"{run.wall_s:8.1f} s  {run.started_at:%Y-%m-%d %H:%M} UTC{points}{tags}"
        click.echo(hanging(f"{run.run:<{width}}  ", f"{word}  {facts}"))
