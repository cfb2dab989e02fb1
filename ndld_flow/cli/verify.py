"""`ndld-flow verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.cli.completers import complete_runs
from ndld_flow.cli.options import NamedPath, json_option, outputs_option, print_json

if TYPE_CHECKING:
    from ndld_flow.runner.verify import Verified
    from ndld_flow.runner.verify_statement import StatementCheck

HELP = """Check stored artifacts, or files and their statements.

\b
  ndld-flow verify
  ndld-flow verify half.onnx --statement half.intoto.jsonl
  ndld-flow verify --statement provenance.intoto.jsonl --run detector

Without --statement, every stored artifact is checked against its digest, and its copies in run folders too. A damaged
artifact is set aside, and the next run that needs it computes it again.

With --statement, each file, with its external data, must be one that a statement of `ndld-flow attest` is about. With
--run, the statements must also be those that the records and the files of this run give. Signatures are not checked:
`cosign verify-blob-attestation` does that.

\b
Exit codes:  0 success; 1 something is damaged, or differs; 2 a file cannot be read, or there is no such run;
             4 nothing differs, but a statement cannot be compared in full, as its run or a file no longer exists
"""


@click.command("verify", help=HELP, short_help="Check stored artifacts, or files and their statements.")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=NamedPath(dir_okay=False, path_type=Path))
@click.option(
    "--statement",
    type=NamedPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="In-toto statements, or envelopes with them.",
)
@click.option("--run", "run", default="", help="The run whose statements they must be.", shell_complete=complete_runs)
@outputs_option
@json_option
def command(files: tuple[Path, ...], statement: Path | None, run: str, outputs: Path, as_json: bool) -> int:
    if statement is not None:
        checked = api.verify_statement(statement, files, run=run, outputs=outputs)
        if as_json:
            print_json("verify", checked)
        else:
            _print_statements(checked)
        return {True: 0, False: 1, None: 4}[checked.all_well]
    if files or run:
        raise RequestError("name the statements to check against: --statement FILE. `ndld-flow attest` writes them.")
    verified = api.verify(outputs=outputs)
    if as_json:
        print_json("verify", verified)
    else:
        _print_store(verified, outputs)
    return 0 if verified.all_well else 1


def _print_statements(checked: StatementCheck) -> None:
    from ndld_flow.base.quantities import counted
    from ndld_flow.base.text import short_name
    from ndld_flow.cli.terminal import hanging

    for file in checked.files:
        name = short_name(file.file, 200)
        origin = f" of step {short_name(file.step)}" if file.step else ""
        origin += f", computed by {short_name(file.computed_by)}" if file.computed_by else ""
        subject = f"{short_name(file.subject)}{origin}"
        _print_verdict(name, file.problems, f"it is {subject}" if file.subject else "")
    for of_run in checked.of_run:
        name = f"statement of {short_name(of_run.step)}" if of_run.step else "statement"
        _print_verdict(name, of_run.problems, f"it is that of {checked.run}", is_known=not of_run.unchecked)
        for place in of_run.unchecked:
            click.echo(hanging("  not compared: ", short_name(place, 300)))
    kind = "in envelopes, whose signatures were not checked" if checked.is_enveloped else "not signed"
    click.echo(f"{counted(checked.statement_count, 'statement')}, {kind}")


def _print_verdict(name: str, problems: tuple[str, ...], found: str, is_known: bool = True) -> None:
    from ndld_flow.cli.terminal import hanging

    good = (
        click.style("matches", fg="green", bold=True) if is_known else click.style("undecided", fg="yellow", bold=True)
    )
    word = click.style("differs", fg="red", bold=True) if problems else good
    click.echo(f"{name}: {word}{f', {found}' if found and not problems else ''}")
    for problem in problems:
        click.echo(hanging("  ", problem))


def _print_store(checked: Verified, outputs: Path) -> None:
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
