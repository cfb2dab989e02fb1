"""Log runs to MLflow tracking, through MLflow's own client: parameters, metrics, tags, the report and the record.

Each run of ndld-flow becomes one MLflow run, found again by its tag `ndld_flow.run`: logging it twice changes nothing.
One that was not logged to its end, because the program was killed or the server failed, is deleted and logged again.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.records.document import Record
from ndld_flow.records.outcomes import RunOutcome
from ndld_flow.records.run_folder import RUN_RECORD, read_run_record
from ndld_flow.records.run_record import RunRecord, metrics_of
from ndld_flow.runs.outputs import Outputs, name_folder
from ndld_flow.store.hidden_credentials import hide_credentials

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Item = TypeVar("Item")
_REPORT = "report.html"
_RUN, _OUTCOME = "ndld_flow.run", "ndld_flow.outcome"
_STATUSES: Mapping[RunOutcome, str] = {"passed": "FINISHED", "inconclusive": "FINISHED", "interrupted": "KILLED"}
"""Outcome -> MLflow's status; others are `FAILED`."""
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_\-. /]")
"""Characters that names of parameters and metrics must not have, on any of MLflow's servers and systems."""
_LONGEST_NAME, _LONGEST_PARAMETER, _LONGEST_TAG = 250, 500, 5000
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100
"""Maximum numbers of one request."""


class Logged(Record):
    """A run in MLflow tracking."""

    run: str
    """`<recipe>/<id>`."""
    experiment: str
    mlflow_run: str
    """Its id there; empty for a run that was not logged."""
    outcome: Literal["logged", "unchanged", "skipped"]
    """`unchanged`: it was there. `skipped`: it has not finished."""


@dataclass(frozen=True)
class Destination:
    """A tracking server, and what it gets."""

    uri: str = ""
    """By default MLflow's own: MLFLOW_TRACKING_URI, or a file in the current directory."""
    experiment: str = ""
    """By default the recipe's name."""
    with_files: bool = True
    """Also upload the report and the record."""


def log_runs(folders: Sequence[Path], outputs: Outputs, destination: Destination) -> Iterator[Logged]:
    """Log runs, and yield what became of each. Raises BackendError without MLflow's client, RequestError for a folder
    that is no run, and for a server that cannot be reached or refuses it."""
    require("mlflow", "`ndld-flow mlflow`")
    # Its client reports usage to its makers, and tries a dead server again for minutes.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    shown = short_name(hide_credentials(destination.uri)) or "MLFLOW_TRACKING_URI"
    try:
        client = MlflowClient(tracking_uri=destination.uri or None)
        for folder in folders:
            yield _log(client, folder, outputs, destination)
    except MlflowException as error:
        reason = short_name(hide_credentials(one_paragraph(error)), 300)
        raise RequestError(
            f"mlflow: {shown} cannot be used ({reason}). Is the server running, and the URI right?"
        ) from None


def _log(client: MlflowClient, folder: Path, outputs: Outputs, destination: Destination) -> Logged:
    run = read_run_record(folder)
    name, experiment = name_folder(folder), destination.experiment or run.recipe_name
    outcome = outputs.outcome_now(run.outcome, folder)
    if outcome == "running":
        return Logged(run=name, experiment=experiment, mlflow_run="", outcome="skipped")
    number = _experiment(client, experiment)
    # Names of recipes and ids have no quotes.
    condition = f"tags.`{_RUN}` = '{name.replace(chr(39), '')}'"
    for known in client.search_runs([number], condition, max_results=10):
        if known.data.tags.get(_OUTCOME) == outcome:
            return Logged(run=name, experiment=experiment, mlflow_run=known.info.run_id, outcome="unchanged")
        client.delete_run(known.info.run_id)
    started_ms = round(run.started_at.timestamp() * 1e3)
    created = client.create_run(number, start_time=started_ms, tags=_tags(run, name), run_name=run.id)
    identifier: str = created.info.run_id
    _log_values(client, identifier, run, started_ms)
    if destination.with_files:
        for path in (folder / RUN_RECORD, folder / _REPORT):
            if path.is_file():
                client.log_artifact(identifier, str(path))
    client.set_tag(identifier, _OUTCOME, outcome)  # last: a run without it is not complete
    end_ms = started_ms + round(run.wall_s * 1e3)
    client.set_terminated(identifier, _STATUSES.get(outcome, "FAILED"), end_ms)
    return Logged(run=name, experiment=experiment, mlflow_run=identifier, outcome="logged")


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        created: str = client.create_experiment(name)
        return created
    if found.lifecycle_stage != "active":
        raise RequestError(f"mlflow: the experiment {short_name(name)} was deleted there: restore it, or name another.")
    identifier: str = found.experiment_id
    return identifier


def _log_values(client: MlflowClient, identifier: str, run: RunRecord, started_ms: int) -> None:
    from mlflow.entities import Metric, Param

    metrics = {
        _name(name): metric.value for name, metric in metrics_of(run.steps).items() if math.isfinite(metric.value)
    }
    parameters = {_name(name): _shortened(value, _LONGEST_PARAMETER) for name, value in _settings(run)}
    for some in _parts(metrics.items(), _MOST_METRICS):
        client.log_batch(identifier, metrics=[Metric(name, value, started_ms, 0) for name, value in some])
    for values in _parts(parameters.items(), _MOST_PARAMETERS):
        client.log_batch(identifier, params=[Param(name, value) for name, value in values])


def _parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    waiting = iter(items)
    while part := list(islice(waiting, size)):
        yield part


def _settings(run: RunRecord) -> Iterator[tuple[str, object]]:
    yield "model", run.source.location
    for step in run.steps:
        if step.record is not None:
            yield f"{step.name}.step", step.record.parts.step
            for name, value in step.record.parts.settings.items():
                if value is not None:
                    yield f"{step.name}.{name}", value


def _tags(run: RunRecord, name: str) -> dict[str, str]:
    units = sorted({f"{metric}: {value.unit}" for metric, value in metrics_of(run.steps).items() if value.unit})
    tags = {
        _RUN: name,
        "ndld_flow.recipe": run.recipe_name,
        "ndld_flow.identity": run.identity,
        "ndld_flow.model": run.source.artifact.digest,
        "ndld_flow.machine": ", ".join(filter(None, (run.machine.cpu, *run.machine.gpus))),
        "ndld_flow.gates": "\n".join(f"{'passed' if gate.passed else 'failed'}: {gate.gate}" for gate in run.gates),
        "ndld_flow.units": "\n".join(units),
        "mlflow.user": run.user,
        "mlflow.source.name": " ".join(run.command),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": run.commit,
        **{f"ndld_flow.version.{_name(library)}": version for library, version in run.versions.items()},
    }
    return {key: _shortened(value, _LONGEST_TAG) for key, value in tags.items() if value}


def _name(text: str) -> str:
    return _NOT_ALLOWED.sub("_", text)[:_LONGEST_NAME]


def _shortened(value: object, limit: int) -> str:
    text = hide_credentials(str(value))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
