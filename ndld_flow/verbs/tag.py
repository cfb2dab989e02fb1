"""Give a run or a sweep a permanent name.

RUN is a tag, a recipe's name (its newest run or sweep), an id or its first characters, a path, or `latest`; the suffix
`#17` or `#best` names a point of a sweep. `gc` never removes a tagged run. A tag that exists moves to the new run.
"""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow.cli.options import outputs_option
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, public


@public
def tag(run: str, name: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> Path:
    """Give a run, a sweep or a sweep's point a permanent name, which protects it from `gc`; return its folder."""
    from ndld_flow.runs.outputs import Outputs

    kept = Outputs(Path(outputs))
    folder = kept.find_any(run)
    kept.set_tag(folder, name)
    return folder


@public
def untag(name: str, *, outputs: str | Path = DEFAULT_OUTPUTS) -> None:
    """Remove a tag. The run stays."""
    from ndld_flow.runs.outputs import Outputs

    Outputs(Path(outputs)).remove_tag(name)


@click.command("tag", help=__doc__)
@click.argument("run")
@click.argument("name", required=False)
@click.option("--delete", "-d", is_flag=True, help="Remove the tag RUN; its run stays.")
@outputs_option
def command(run: str, name: str | None, delete: bool, outputs: Path) -> None:
    if delete:
        untag(run, outputs=outputs)
        click.echo(f"removed the tag {run}")
        return
    if name is None:
        raise click.UsageError("give a NAME, or --delete to remove the tag RUN")
    folder = tag(run, name, outputs=outputs)
    from ndld_flow.runs.outputs import name_folder

    click.echo(f"{name} -> {name_folder(folder)}")
