"""`ndld-flow bisect`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow import api
from ndld_flow.base.quantities import counted, quantity, seconds
from ndld_flow.cli.completers import complete_overrides
from ndld_flow.cli.options import json_option, outputs_option, print_json
from ndld_flow.runner.bisect.options import BisectOptions

if TYPE_CHECKING:
    from ndld_flow.records.bisection import Bisection, TriedRelease, VerdictChange
    from ndld_flow.report.tables import Table

HELP = """Find the release in which a recipe began to fail.

\b
  ndld-flow bisect upgrade.yaml environments.next.onnxruntime \\
      --good 1.27.0 --bad 1.32.0 --gate 'latency.graph.differences <= 0' --trust
  ndld-flow bisect engine.yaml steps.engine.release --values 10.8,10.9,10.13

KEY is the key of the recipe that varies. The releases between the two ends are those that pip's index lists for this
Python, without pre-releases and yanked ones. For any other key, give the values in order with --values.

The recipe's checks and gates decide, or those of --gate: with exit code 0 a release is good, with 1 bad. Both ends are
tried first. A release with an inconclusive verdict is measured again, and then skipped, as is one that cannot be
installed, or that fails in another way than the bad end; its nearest neighbour is tried instead. Results are reused,
so that the same command continues a search that was interrupted.

Only one change between the ends is assumed, unless --every tries all releases.

\b
Exit codes:  0 the release is found; 2 an end is not as claimed or cannot run;
             4 an end is inconclusive, or several candidates remain
"""


@click.command("bisect", help=HELP, short_help="Find the release in which a recipe began to fail.")
@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml")
@click.argument("key")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_overrides)
@click.option("--good", default="", metavar="RELEASE", help="A release with which the recipe passes.")
@click.option("--bad", default="", metavar="RELEASE", help="A release with which it fails.")
@click.option("--values", default="", metavar="A,B,...", help="All values, from a good one to a bad one.")
@click.option("--gate", "gates", multiple=True, metavar="GATE", help="A gate that replaces those of the recipe.")
@click.option(
    "--attempts",
    type=click.IntRange(1, 100),
    default=BisectOptions.attempts,
    show_default=True,
    help="Runs with a release whose verdict remains inconclusive.",
)
@click.option("--every", is_flag=True, help="Try every release, and list every change.")
@click.option("--trust", is_flag=True, help="Allow pip to install the releases, and code that the recipe names.")
@outputs_option
@json_option
def command(
    recipe: Path,
    key: str,
    overrides: tuple[str, ...],
    good: str,
    bad: str,
    values: str,
    gates: tuple[str, ...],
    attempts: int,
    every: bool,
    trust: bool,
    outputs: Path,
    as_json: bool,
) -> int:
    from ndld_flow.cli.progress import choose_listener

    listed = tuple(value.strip() for value in values.split(",")) if values else ()
    options = BisectOptions(good, bad, listed, gates, attempts, every)
    with choose_listener(as_json=False, loudness="quiet" if as_json else None) as listener:
        found = api.bisect(recipe, key, overrides, options=options, outputs=outputs, trust=trust, listener=listener)
    if as_json:
        print_json("bisect", found)
    else:
        _print(found)
    return found.exit_code


def _print(found: Bisection) -> None:
    from ndld_flow.cli.tables import TerminalTable, wide_console

    wide_console().print(TerminalTable(_table(found)))
    for line in _conclude(found):
        click.echo(line)


def _table(found: Bisection) -> Table:
    """Return a row for each release that was tried, in order."""
    from ndld_flow.report.tables import Column, Table

    gates = list(dict.fromkeys(gate for tried in found.tried for gate in tried.gates))
    columns = (
        Column("Release", "name"),
        Column("Verdict", "text"),
        *(Column(_left_of(gate), "text") for gate in gates),
        Column("Run", "text"),
        Column("Why", "text"),
    )
    rows = tuple(
        (tried.value, tried.verdict, *_values(tried, gates), tried.run.rpartition("/")[2], tried.why)
        for tried in found.tried
    )
    return Table(columns, rows)


def _left_of(gate: str) -> str:
    return gate.partition("<")[0].partition(">")[0].partition("==")[0].strip()


def _values(tried: TriedRelease, gates: list[str]) -> Iterator[str]:
    for gate in gates:
        metric = tried.gates.get(gate)
        yield "" if metric is None else quantity(metric.value, metric.unit)


def _conclude(found: Bisection) -> Iterator[str]:
    if found.problem:
        yield found.problem
        return
    yield ""
    reports = {tried.value: tried.report for tried in found.tried}
    for change in found.changes:
        yield _describe(change, found)
        yield f"  {change.before}: {reports[change.before]}"
        yield f"  {change.after}: {reports[change.after]}"
    tried = f"{len(found.tried)} of {counted(len(found.values), 'release')} tried in {seconds(found.wall_s)}"
    yield f"{tried}; this assumes that there is only one change" if found.assumes_one_change else tried


def _describe(change: VerdictChange, found: Bisection) -> str:
    name = f"{found.package} " if found.package else f"{found.key}="
    first, last = ("first bad", "the last good one") if change.verdict == "bad" else ("good again", "the last bad one")
    if not change.undecided:
        return f"{first}: {name}{change.after}; {last} is {change.before}"
    candidates = ", ".join((*change.undecided, change.after))
    return f"{first}: one of {name}{candidates}; {last} is {change.before}, and those between have no verdict"
