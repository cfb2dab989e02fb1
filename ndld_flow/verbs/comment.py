"""`ndld-flow comment`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow.cli.options import outputs_option

HELP = """Post the result of a run on its pull or merge request.

\b
  ndld-flow comment ci                                   # outcome, gates, latencies, layers that became slower
  ndld-flow comment ci --against baseline                # and the difference from another run
  ndld-flow comment ci --against main:speed --measure    # both models measured again on this machine, in turns
  ndld-flow comment ci --to comment.md                   # write the Markdown, post nothing

RUN is a run, a sweep, a tag, an id or a path. `gh` or `glab` posts the comment, and must be installed: they read the
token from GH_TOKEN or GITLAB_TOKEN. The pull request and its server come from the variables of the job:
GITHUB_REPOSITORY and GITHUB_EVENT_PATH in GitHub Actions, CI_API_V4_URL and CI_MERGE_REQUEST_IID in GitLab. A later run
of the job replaces the text of its comment. In GitHub Actions the result is also appended to the job's summary. In a
job without a pull request, or with one from a fork, nothing is posted.

\b
Exit codes: that of the run; if it passed, that of the comparison
            0 nothing regressed, every gate passed   1 a gate failed, or something regressed   4 a gate is undecided
            2 a gate cannot be judged, or the comment could not be posted
"""


@click.command("comment", help=HELP)
@click.argument("run", required=False)
@click.option("--against", metavar="BASE", help="Compare with this run, or with its profile RUN:STEP.")
@click.option("--gate", "-g", "gates", multiple=True, metavar="GATE", help="A condition of the comparison; repeatable.")
@click.option("--measure", is_flag=True, help="Measure both profiles again, in turns, until the evidence decides.")
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead of RUN: the output of a run that was refused, and has no result.",
)
@click.option("--key", metavar="NAME", help="Name of the comment, where a request has several [default: the recipe's].")
@click.option("--number", type=click.IntRange(min=1), metavar="N", help="Number of the request, instead of the job's.")
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the Markdown, post nothing."
)
@click.option("--summary-only", is_flag=True, help="Append to the summary of the job, post nothing.")
@outputs_option
def command(
    run: str | None,
    against: str | None,
    gates: tuple[str, ...],
    measure: bool,
    log: Path | None,
    key: str | None,
    number: int | None,
    to: Path | None,
    summary_only: bool,
    outputs: Path,
) -> int:
    from ndld_flow import api
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    if (run is None) == (log is None):
        raise click.UsageError("give RUN, or --log FILE for a run without a result")
    if against is None and (gates or measure):
        raise click.UsageError("--gate and --measure need a run to compare with: --against BASE")
    with choose_listener(as_json=False) as listener:
        commented = api.comment(
            run,
            against=against,
            gates=gates,
            measure=leave_out_end(listener) if measure else None,
            log=log,
            key=key,
            number=number,
            to=to,
            post=not summary_only,
            outputs=outputs,
        )
    posted = f"{'posted' if commented.is_new else 'updated'} {commented.url}" if commented.url else commented.note
    click.echo(posted or f"wrote {to}")
    return commented.exit_code
