"""Log runs to MLflow tracking.

\b
  ndld-flow mlflow latest --uri http://tracking:5000
  ndld-flow mlflow detector --all                    # every run of a recipe that is not there yet

Each run becomes one MLflow run, with its settings, metrics and tags, in the experiment with the recipe's name; its
report and record are uploaded. A run that is already there is not logged
again. Without --uri, MLFLOW_TRACKING_URI decides, as for MLflow itself. It needs its client, the
extra `mlflow`; `ndld-flow doctor` prints how to install that.

Exit codes: 0 success; 2 there is no such run, the client is missing, or the server cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.quantities import counted
from ndld_flow.cli.options import Given, json_option, options_of, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public

if TYPE_CHECKING:
    from ndld_flow.runs.mlflow_export import Logged

OUTPUT: VerbOutput[list[Logged]] = VerbOutput(__name__, "What became of each run in MLflow tracking.")


@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--all", "every", is_flag=True, help="All runs of the recipes that RUN names.")
@click.option("--uri", default="", metavar="URI", help="The tracking server, or a local folder.")
@click.option("--experiment", default="", metavar="NAME", help="Name of the experiment [default: the recipe's].")
@public
def log_to_mlflow(
    runs: Sequence[str] = ("latest",),
    *,
    every: bool = False,
    uri: str = "",
    experiment: str = "",
    files: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
) -> list[Logged]:
    """Log runs to MLflow tracking, each once; with `every`, all runs of the recipes that `runs` names.

    `uri` is that of a tracking server, by default MLFLOW_TRACKING_URI; `experiment` by default the recipe's name. With
    `files`, the report and the record are uploaded too.
    """
    from ndld_flow.base.errors import RequestError
    from ndld_flow.runs.mlflow_export import Destination, log_runs
    from ndld_flow.runs.outputs import Outputs

    kept = Outputs(Path(outputs))
    folders: dict[Path, None] = {}
    for run in runs:
        found = list(kept.folders(run)) if every and run and "/" not in run else []
        if every and not found:
            raise RequestError(f"mlflow --all: {kept.root} has no run of a recipe {run!r}.")
        folders |= dict.fromkeys(found or [kept.find(run)])
    return list(log_runs(list(folders), kept, Destination(uri, experiment, files)))


@click.command("mlflow", help=__doc__, params=options_of(log_to_mlflow))
@click.option("--no-files", is_flag=True, help="Do not upload the report and the record.")
@outputs_option
@json_option
def command(runs: tuple[str, ...], no_files: bool, as_json: bool, **options: Given) -> None:
    logged = log_to_mlflow(runs or ("latest",), files=not no_files, **options)
    if as_json:
        print_json(OUTPUT, logged)
        return
    for each in logged:
        where = f" {each.experiment}, {each.mlflow_run}" if each.mlflow_run else ": it has not finished"
        if len(logged) <= 20 or each.outcome == "skipped":
            click.echo(f"{each.outcome} {each.run}{where}")
    if len(logged) > 1:
        click.echo(f"{counted(sum(each.outcome == 'logged' for each in logged), 'run')} logged, of {len(logged)}")
