"""`ndld-flow gc`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import json_option, outputs_option, print_json


@click.command("gc", short_help="Delete artifacts that no kept run or sweep needs.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep only the N newest untagged runs and sweeps of each recipe.",
)
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be deleted.")
@outputs_option
@json_option
def command(keep: int | None, dry_run: bool, outputs: Path, as_json: bool) -> None:
    """Delete artifacts that no kept run or sweep needs.

    Without --keep, all runs and sweeps are kept. Tagged runs and sweeps, and sweeps with a tagged point, are always
    kept. Runs may be in progress: the artifacts that they use are kept, and counted at the end.
    """
    freed = api.gc(outputs=outputs, keep=keep, dry_run=dry_run, notify=lambda text: click.echo(text, err=True))
    if as_json:
        print_json("gc", freed)
        return
    for run in freed.runs:
        click.echo(f"run {run}")
    for sweep in freed.sweeps:
        click.echo(f"sweep {sweep}")
    verb = "would free" if dry_run else "freed"
    sweeps = f"{len(freed.sweeps)} sweeps, " if freed.sweeps else ""
    click.echo(
        f"{verb} {freed.freed_bytes / 2**20:,.1f} MiB: {len(freed.runs)} runs, {sweeps}{len(freed.objects)} artifacts"
    )
    if freed.in_use:
        click.echo(
            f"kept {len(freed.in_use)} artifacts, {freed.in_use_bytes / 2**20:,.1f} MiB, in use by runs in progress"
        )
