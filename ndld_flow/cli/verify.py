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
    """Check every stored artifact against its digest, reading all of it.

    What is damaged is set aside and made again by the next run that needs it. Exit code 1 when anything was.
    """
    found = api.verify(outputs=outputs)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        click.echo(f"{found.object_count} artifacts, {found.checked_bytes / 2**20:,.1f} MiB read")
        for digest in found.damaged:
            click.echo(f"damaged, set aside in {outputs}/store/damaged: {digest}")
        if not found.damaged:
            click.echo("all as they were stored")
    return 1 if found.damaged else 0
