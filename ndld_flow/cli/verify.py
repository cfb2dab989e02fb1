"""`ndld-flow verify`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import json_option, outputs_option, print_json


@click.command("verify", short_help="Check every stored artifact against its digest.")
@outputs_option
@json_option
def command(outputs: Path, as_json: bool) -> int:
    """Check every stored artifact against its digest, and its copies in run folders too.

    A damaged artifact is set aside, and the next run that needs it computes it again. The exit code is 1 if anything is
    damaged.
    """
    checked = api.verify(outputs=outputs)
    if as_json:
        print_json("verify", checked)
    else:
        click.echo(f"{checked.object_count} artifacts, {checked.checked_bytes / 2**20:,.1f} MiB read")
        for digest in checked.damaged:
            click.echo(f"damaged, set aside in {outputs}/store/damaged: {digest}")
        for key in checked.damaged_records:
            click.echo(f"unreadable record, set aside in {outputs}/store/damaged: {key}")
        for copy in checked.damaged_copies:
            click.echo(f"damaged in a run folder: {copy}")
        if checked.damaged_copies:
            click.echo(
                "run the recipe again for an intact folder; `gc --keep` deletes the damaged one, or delete it yourself"
            )
        if checked.all_well:
            click.echo("all artifacts match their digests")
    return 0 if checked.all_well else 1
