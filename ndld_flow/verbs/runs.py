"""List runs and sweeps, newest first.

Each is listed with its outcome, user, machine, model and main metrics. With RECIPE, only those of one recipe.
Conditions are written as gates. A metric without its step, as in "latency.median < 5 ms", means that of any step; a
sweep is judged by its best point. Shown are the metrics of the conditions and the gates, or the latencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ndld_flow.base.declared_metrics import metric_text
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import shortened, visible_name
from ndld_flow.cli.options import Given, json_option, options_of, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.cli.terminal import hanging, styled
from ndld_flow.records.outcomes import ENDINGS
from ndld_flow.runs.list_runs import RunFilter, RunSummary, list_runs
from ndld_flow.runs.outputs import Outputs

_COLOURS = {"passed": "green", "failed": "red", "inconclusive": "yellow"}
_SHOWN = 50
_LONGEST = 60
"""Maximum number of characters of the name of a user, a host, a model or a metric."""

OUTPUT: VerbOutput[list[RunSummary]] = VerbOutput(__name__, "The runs and sweeps, the newest first.")


@click.argument("recipe", default="*")
@click.option(
    "--where", "-w", multiple=True, metavar="CONDITION", help='Only where this holds: "speed.latency.median < 5 ms".'
)
@click.option("--tag", default="", metavar="TAG", help="Only those with this tag, or one like `release-*`.")
@click.option("--model", default="", metavar="MODEL", help="Only those of this model: its path, name or digest.")
@click.option("--user", default="", metavar="USER", help="Only those of this user.")
@click.option("--limit", "-n", type=click.IntRange(min=1), metavar="N", help=f"The newest N [default: {_SHOWN}].")
@public
def runs(
    recipe: str = "*",
    *,
    where: Sequence[str] = (),
    tag: str = "",
    model: str = "",
    user: str = "",
    limit: int | None = None,
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> list[RunSummary]:
    """Return runs and sweeps, newest first, at most `limit`; those that cannot be read have the reason in `damage`.

    `where` has conditions as in gates (`latency.median < 5 ms`: of any step), `tag` and `model` may be patterns.
    """
    wanted = RunFilter(tuple(where), tag, model, user)
    return list_runs(Outputs(Path(outputs)), recipe, wanted, limit=limit)


@click.command("runs", help=__doc__, params=options_of(runs))
@click.option("--all", "show_all", is_flag=True, help="All of them; with --json, that is the default.")
@outputs_option
@json_option
def command(limit: int | None, show_all: bool, outputs: Path, as_json: bool, **filters: Given) -> None:
    if limit is not None and show_all:
        raise click.UsageError("--limit and --all exclude each other.")
    limit = limit if limit is not None or show_all or as_json else _SHOWN
    more = None if limit is None else limit + 1
    found = runs(**filters, limit=more, outputs=outputs)
    readable = [run for run in found if not run.damage]
    is_more = limit is not None and len(readable) > limit
    if is_more:
        found.remove(readable[-1])
    if as_json:
        print_json(OUTPUT, found)
        return
    if not found:
        is_filtered = any(value not in ("*", "", ()) for value in filters.values())
        none = "no run matches" if is_filtered else "no runs yet; `ndld-flow run RECIPE.yaml` creates one"
        click.echo(f"{outputs}: {none}")
    _print_runs(found)
    if is_more:
        click.echo(f"older ones are not shown: --all, or --limit {10 * (limit or _SHOWN)}", err=True)


def _name(text: str) -> str:
    return shortened(visible_name(text), _LONGEST)


def _facts(run: RunSummary) -> str:
    """Format time, user and host, model, main metrics, points and tags; what was not recorded is left out."""
    who = "@".join(_name(text) for text in (run.user or "unknown user", run.host)) if run.host else _name(run.user)
    model = _name(run.model.rpartition("/")[2])
    metrics = ", ".join(
        f"{_name(name)} {metric_text(name, metric.value, metric.unit)}" for name, metric in run.metrics.items()
    )
    best = f", best #{run.best}" if run.best is not None else ""
    points = f"sweep of {run.points} points{best}" if run.kind == "sweep" else ""
    tags = f"[{', '.join(run.tags)}]" if run.tags else ""
    when = f"{run.wall_s:8.1f} s  {run.started_at:%Y-%m-%d %H:%M} UTC"
    return "  ".join(filter(None, (when, points, who, model, metrics, tags)))


def _print_runs(runs: Sequence[RunSummary]) -> None:
    width = max((len(run.run) for run in runs), default=0)
    for run in runs:
        if run.damage:
            click.echo(f"{run.run:<{width}}  {styled('not read', 'red')}: {run.damage}")
        else:
            why = f": {visible_name(run.why)}" if run.why else ""
            ending = ENDINGS[run.outcome]  # `passed`, `FAILED`, `KILLED in speed`
            word = "passed" if run.outcome == "passed" else ending.headline
            where = f" in {' and '.join(run.failed_in)}" if run.failed_in else ""
            outcome = styled(f"{word}{where}", _COLOURS[ending.tone])
            click.echo(hanging(f"{run.run:<{width}}  ", f"{outcome}{why}  {_facts(run)}"))
    damaged = sum(bool(run.damage) for run in runs)
    if 0 < damaged < len(runs):
        click.echo(
            f"{counted(damaged, 'run')} cannot be read, and {'is' if damaged == 1 else 'are'} not judged", err=True
        )
