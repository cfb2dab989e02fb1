"""`ndld-flow site`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.base.quantities import counted
from ndld_flow.cli.options import NamedPath, json_option, outputs_option, print_json

HELP = """Write static pages of all runs, for a team.

\b
  ndld-flow site                                  # into the folder site
  ndld-flow site public --title "Vision models" --reports 500

The first page has the state of each recipe and a table of all runs with a filter; each recipe, model and machine has a
page. Any web server can host the folder, at any path, and it opens from the disk too; no page requests anything from
elsewhere. Run it again after each run: it writes what has changed, and removes the pages of runs that no longer exist.
Files that it has not written are neither replaced nor removed.

\b
Exit codes:  0 success; 2 a file that it has not written is in the way, or there is no outputs folder
"""


@click.command("site", help=HELP, short_help="Write static pages of all runs, for a team.")
@click.argument("folder", default="site", type=NamedPath(file_okay=False, path_type=Path))
@click.option("--title", default="Runs", show_default=True, metavar="TEXT", help="Heading of the first page.")
@click.option(
    "--reports",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Copy the reports of the newest N runs of each recipe, and of tagged runs.",
)
@click.option(
    "--report-size", default="20 MB", show_default=True, metavar="SIZE", help="Leave out reports larger than this."
)
@click.option("--open", "open_it", is_flag=True, help="Open the first page in a browser.")
@outputs_option
@json_option
def command(
    folder: Path, title: str, reports: int, report_size: str, open_it: bool, outputs: Path, as_json: bool
) -> None:
    progress = (lambda _: None) if as_json else (lambda text: click.echo(text, err=True))
    written = api.site(
        folder, title=title, reports=reports, report_size=report_size, outputs=outputs, progress=progress
    )
    if as_json:
        print_json("site", written)
    else:
        click.echo(
            f"{written.index}: {counted(written.run_count, 'run')}, {counted(written.report_count, 'report')}; "
            f"{counted(written.written, 'file')} written, {written.unchanged} unchanged, {written.removed} removed"
        )
        for path in written.kept:
            click.echo(f"{folder / path} is no longer needed; somebody has changed it, so it stays", err=True)
    if open_it:
        click.launch(Path(written.index).resolve().as_uri())
