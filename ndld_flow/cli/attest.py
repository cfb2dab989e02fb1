"""`ndld-flow attest`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow.cli.completers import complete_runs
from ndld_flow.cli.options import NamedPath, outputs_option

HELP = """Write statements about the origin of results, for signing.

\b
  ndld-flow attest latest -o provenance.intoto.jsonl
  ndld-flow attest detector:engine -o engine.intoto.jsonl
  ndld-flow attest half.onnx -o half.intoto.jsonl       # a file that `run -o` exported
  ndld-flow verify half.onnx --statement half.intoto.jsonl

Each result of a run gets an in-toto statement with SLSA provenance (https://slsa.dev/provenance/v1): the SHA-256 of its
files, the step with its settings and version, everything that it read, libraries, machine, run and times. A reused
result is described by the run that computed it. User, host and command are left out, and paths are made relative.

The files are read, and compared with the records of the run. Statements are not signed: `cosign attest-blob
--statement` signs them. Needs `pip install 'ndld-flow[attest]'`.

\b
Exit codes:  0 success; 2 there is no such result, or a file is not the recorded one
"""


@click.command("attest", help=HELP, short_help="Write statements about the origin of results, for signing.")
@click.argument("subject", metavar="RUN[:STEP]", shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    type=NamedPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write, with a line for each statement; by default they are printed.",
)
@click.option("--builder", default="", metavar="URI", help="URI of the builder, such as that of the workflow in CI.")
@outputs_option
def command(subject: str, output: Path | None, builder: str, outputs: Path) -> None:
    from ndld_flow import api
    from ndld_flow.base.quantities import counted

    attested = api.attest(subject, to=output, builder=builder, outputs=outputs)
    if output is None:
        click.echo(attested.lines, nl=False)
        return
    for each in attested.statements:
        origin = each.computed_by or "a run that is no longer there"
        click.echo(f"{each.step}: {counted(len(each.subjects), 'file')}, computed by {origin}")
    click.echo(f"{counted(len(attested.statements), 'statement')} {output}")
