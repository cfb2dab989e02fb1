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
    """Check every stored artifact against its digest, reading all of it, and its copies in the folders of runs.

    What is damaged in the store is set aside and made again by the next run that needs it. Exit code 1 when anything
    was damaged.
    """
    found = api.verify(outputs=outputs)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        click.echo(f"{found.object_count} artifacts, {found.checked_bytes / 2**20:,.1f} MiB read")
        for digest in found.damaged:
            click.echo(f"damaged, set aside in {outputs}/store/damaged: {digest}")
        for key in found.damaged_records:
            click.echo(f"a record that cannot be read, set aside in {outputs}/store/damaged: {key}")
        for copy in found.damaged_copies:
            click.echo(f"damaged in the folder of a run: {copy}")
        if found.damaged_copies:
            click.echo("run its recipe again for a whole folder; `gc --keep` removes the damaged one, or you do")
        if found.all_well:
            click.echo("all as they were stored")
    return 0 if found.all_well else 1
