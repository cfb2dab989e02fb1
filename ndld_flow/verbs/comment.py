"""Post the result of a run on its pull or merge request.

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

Exit codes: that of the run, or if it passed, that of the comparison: 0 nothing regressed and every gate passed; 1 a
gate failed, or something regressed; 2 a gate cannot be judged, or the comment could not be posted; 4 a gate is
undecided.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import Given, NewFile, gate_option, options_of, outputs_option
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, public

if TYPE_CHECKING:
    from ndld_flow.compare.comment_run import Commented
    from ndld_flow.execution.listener import Listener


@click.argument("run", required=False)
@click.option("--against", metavar="BASE", help="Compare with this run, or with its profile RUN:STEP.")
@gate_option
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead of RUN: the output of a run that was refused, and has no result.",
)
@click.option("--key", metavar="NAME", help="Name of the comment, where a request has several [default: the recipe's].")
@click.option("--number", type=click.IntRange(min=1), metavar="N", help="Number of the request, instead of the job's.")
@click.option(
    "--to", type=NewFile(".md", ".markdown", ".txt", ""), metavar="FILE", help="Write the Markdown, post nothing."
)
@public
def comment(
    run: str | None = None,
    *,
    against: str | None = None,
    gates: Sequence[str] = (),
    measure: Listener | None = None,
    log: str | Path | None = None,
    key: str | None = None,
    number: int | None = None,
    to: str | Path | None = None,
    post: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> Commented:
    """Post the result of a run or a sweep on the pull request of this CI job, or write its Markdown to the file `to`.

    `against` is a run, or `RUN:STEP`, to compare with, by `gates`; with `measure`, a listener for events, both profiles
    are measured again in turns. `log` is the output of a run without a result, in the place of `run`. `key` names the
    comment, which a later call replaces (default: the recipe); `number` is the pull request's (default: the job's).
    Without `post`, the result is only appended to the summary of a GitHub job.
    """
    from ndld_flow.base.errors import RequestError
    from ndld_flow.compare.comment_run import Baseline, comment_log, comment_run, publish, summarize, write_markdown

    if log is not None:
        name, result = Path(log).stem, comment_log(Path(log))
    elif run is not None:
        baseline = Baseline(against, tuple(gates), measure) if against is not None else None
        name, result = comment_run(run, Path(outputs), baseline)
    else:
        raise RequestError("name a run, or the log of one that has no result.")
    if to is not None:
        write_markdown(result, Path(to))
        return result
    if not post:
        return summarize(result, os.environ)
    return publish(key or name, result, os.environ, number)


@click.command("comment", help=__doc__, params=options_of(comment))
@click.option("--measure", is_flag=True, help="Measure both profiles again, in turns, until the evidence decides.")
@click.option("--summary-only", is_flag=True, help="Append to the summary of the job, post nothing.")
@outputs_option
def command(measure: bool, summary_only: bool, **options: Given) -> int:
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    if (options["run"] is None) == (options["log"] is None):
        raise click.UsageError("give RUN, or --log FILE for a run without a result")
    if options["against"] is None and (options["gates"] or measure):
        raise click.UsageError("--gate and --measure need a run to compare with: --against BASE")
    with choose_listener(as_json=False) as listener:
        commented = comment(measure=leave_out_end(listener) if measure else None, post=not summary_only, **options)
    posted = f"{'posted' if commented.is_new else 'updated'} {commented.url}" if commented.url else commented.note
    click.echo(posted or f"wrote {options['to']}")
    return commented.exit_code
