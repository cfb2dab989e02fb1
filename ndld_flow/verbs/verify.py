"""Check stored artifacts against their digests.

Every stored artifact is checked, and its copies in run folders too. A damaged artifact is set aside, and the next run
that needs it computes it again.

Exit codes: 0 success; 1 something is damaged; 2 a record of another version of ndld-flow could not be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import json_option, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public

if TYPE_CHECKING:
    from ndld_flow.runner.verify import Verified

OUTPUT: VerbOutput[Verified] = VerbOutput(__name__, "The number of checked files, and the damage.")


@public
def verify(*, outputs: str | Path = DEFAULT_OUTPUTS, notify: Callable[[str], None] = lambda _: None) -> Verified:
    """Check every stored artifact against its digest; set damaged ones aside. `notify` is called with the reason of a
    wait.
    """
    from ndld_flow.runner.verify import verify_outputs
    from ndld_flow.runs.outputs import Outputs

    return verify_outputs(Outputs(Path(outputs)), notify)


@click.command("verify", help=__doc__)
@outputs_option
@json_option
def command(outputs: Path, as_json: bool) -> int:
    verified = verify(outputs=outputs, notify=lambda text: click.echo(text, err=True))
    if as_json:
        print_json(OUTPUT, verified)
    else:
        _show(verified, outputs)
    return 0 if verified.all_well else 1 if verified.is_damaged else 2


def _show(verified: Verified, outputs: Path) -> None:
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
