"""`ndld-flow undeploy`."""

from __future__ import annotations

import click

from ndld_flow import api
from ndld_flow.base.quantities import size


@click.command("undeploy", short_help="Remove what ndld-flow installed and computed on a target.")
@click.argument("target")
def command(target: str) -> int:
    """Remove what ndld-flow installed and computed on a target: its folder, with environments and results.

    TARGET is a name in the settings, or ssh://HOST. A folder that is in use is not removed. Runs on this machine keep
    their results.
    """
    removed = api.undeploy(target)
    click.echo(f"removed {removed.folder} on {target}: {size(removed.size_bytes)}")
    return 0
