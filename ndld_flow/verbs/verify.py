"""`ndld-flow verify`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import json_option, outputs_option, print_json

HELP = """Check stored artifacts against their digests.

Every stored artifact is checked, and its copies in run folders too. A damaged artifact is set aside, and the next run
that needs it computes it again.

\b
Exit codes:  0 success; 1 something is damaged; 2 a record of another version of ndld-flow could not be checked
"""


@click.command("verify", help=HELP)
@outputs_option
@json_option
def command(outputs: Path, as_json: bool) -> int:
    verified = api.verify(outputs=outputs)
    if as_json:
        print_json("verify", verified)
    else:
        click.echo(f"{verified.object_count} artifacts, {verified.checked_bytes / 2**20:,.1f} MiB read")
        for digest in verified.damaged:
            click.echo(f"damaged, set aside in {outputs}/store/damaged: {digest}")
        for key in verified.damaged_records:
            click.echo(f"unreadable record, set aside in {outputs}/store/damaged: {key}")
        for copy in verified.damaged_copies:
            click.echo(f"damaged in a run folder: {copy}")
        if verified.damaged_copies:
            click.echo(
                "run the recipe again for an intact folder; `gc --keep` deletes the damaged one, or delete it yourself"
            )
        for path in verified.other_versions:
            click.echo(f"of another version of ndld-flow, not checked: {path}")
        if verified.all_well:
            click.echo("all artifacts match their digests")
    return 0 if verified.all_well else 1 if verified.is_damaged else 2
