"""List runs and sweeps, each with its outcome, user, machine, model and main metrics.

Folders are sorted by their names and the history, which need no record. A few of the newest are then read one by one;
if conditions or no limit need all records, `runs.jsonl` has a line of each run.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ndld_flow.base.errors import FormatError, RequestError, UnknownNameError
from ndld_flow.base.text import visible_name
from ndld_flow.recipe.gates import Gate, GateError, parse_condition, parse_gate
from ndld_flow.records.document import DAMAGE, Record, Tree, read_tree
from ndld_flow.records.measurement import Metric
from ndld_flow.records.outcomes import RunOutcome
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD
from ndld_flow.runs.disk import explain_disk
from ndld_flow.runs.outputs import ID, Outputs, age_of, folder_names, is_point, name_folder, name_in_history, outcome_in

if TYPE_CHECKING:
    from ndld_flow.history.series import Measured

_Brief: TypeAlias = "tuple[Tree, Sequence[Measured]]"
Tags = Mapping[Path, Sequence[str]]
"""Folder of a run or a sweep -> its tags, as displayed."""
_MOST_METRICS = 3
_MAIN = "latency.median"
"""The metric that is shown of a run without gates."""
_MANY = 200
"""Number of records from which the index is quicker than reading them."""
_LEAST_DIGITS = 6
"""Minimum number of digits of a model's digest that names it."""


class RunSummary(Record):
    """One line of `ndld-flow runs`."""

    run: str
    """`<recipe>/<id>`."""
    kind: Literal["run", "sweep"] = "run"
    started_at: datetime
    passed: bool
    """For a sweep, true if any point passed."""
    outcome: RunOutcome
    """`interrupted` also if the process was killed before it could record its end."""
    failed_in: tuple[str, ...] = ()
    """The steps that an error ended."""
    why: str = ""
    """Why it did not pass, with number and limit; empty for a sweep, and if its end was not recorded."""
    wall_s: float
    tags: tuple[str, ...]
    """Tags, including those of its points, such as `fast #17`."""
    folder: str
    command: tuple[str, ...]
    points: int = 0
    """Number of a sweep's points."""
    best: int | None = None
    """Number of a sweep's best point."""
    user: str = ""
    """The user who ran it; empty if it was not recorded, as are host and machine."""
    host: str = ""
    """The name of the computer on which the command ran."""
    machine: str = ""
    """CPU and GPUs of this computer."""
    model: str = ""
    """The recipe's model, as written in the recipe."""
    metrics: dict[str, Metric] = {}
    """The metrics of the conditions, then those of the gates; without gates, `STEP.latency.median`. Of a sweep, the
    objectives of its best point."""
    damage: str = ""
    """The reason why it cannot be read, and the remedy; the other fields are then unknown."""


@dataclass(frozen=True)
class RunFilter:
    """The runs to list: those that fulfil every condition."""

    where: tuple[str, ...] = ()
    """Conditions on metrics, as in gates: `speed.latency.median < 5 ms`. A metric without its step means that of any
    step; a condition with several such metrics holds if they are of the same step."""
    tag: str = ""
    """A tag, or a pattern such as `release-*`."""
    model: str = ""
    """The location or the file name of a model, or a pattern; or the first digits of its digest."""
    user: str = ""


def list_runs(
    outputs: Outputs, recipe: str = "*", wanted: RunFilter | None = None, *, limit: int | None = None
) -> list[RunSummary]:
    """Return runs and sweeps (of one recipe), newest first: at most `limit`, and those that cannot be read until then.

    Raises RequestError for a condition that cannot be parsed, that compares different units, or whose metrics no run
    has.
    """
    if not recipe or "/" in recipe or "\0" in recipe:
        raise RequestError(f"runs of {recipe!r}: give a recipe, or a pattern such as `ppocr-*`.")
    wanted = wanted or RunFilter()
    conditions = _Conditions(tuple(map(_parse, wanted.where)))
    folders, unreadable = _sorted_folders(outputs, recipe)
    reads_all = len(folders) > _MANY and (
        limit is None or limit > _MANY or bool(wanted.where or wanted.model or wanted.user)
    )
    briefs: Mapping[str, _Brief | None] = {}
    if reads_all:
        from ndld_flow.runs.run_lines import read_runs  # only for many runs

        recipes = [name for name in folder_names(outputs.runs) if fnmatchcase(name, recipe)]
        briefs = read_runs(outputs, recipes, lambda _, line: (line.brief(), line.measured()))
    tags: dict[Path, list[str]] = {}
    for name, tagged in outputs.tagged().items():
        tags.setdefault(tagged, []).append(name)
        if is_point(tagged):
            tags.setdefault(tagged.parent.parent, []).append(f"{name} #{int(tagged.name)}")
    reader = _Reader(outputs, tags, wanted, conditions, briefs)
    found = list(_first(reader.read(folders), limit))
    conditions.refuse_unknown_metrics()
    return [*found, *unreadable]


def _first(summaries: Iterator[RunSummary | None], limit: int | None) -> Iterator[RunSummary]:
    """Yield the first `limit` runs that were read, and those between them that cannot be."""
    count = 0
    for summary in summaries if limit != 0 else ():
        if summary is not None:
            count += not summary.damage
            yield summary
        if count == limit:
            return


def _parse(text: str) -> Gate:
    try:
        return parse_condition(text)
    except GateError as error:
        raise RequestError(f"--where {visible_name(text)}: {error}.") from None


def _sorted_folders(outputs: Outputs, recipe: str) -> tuple[list[tuple[str, str]], list[RunSummary]]:
    """Return the folders of runs and sweeps, newest first, each with the name of its record; and folders that cannot
    be listed."""
    order, unreadable = outputs.history.read(), list[RunSummary]()
    found: list[tuple[tuple[int, str, int, str], str, str]] = []
    for parent, record in ((outputs.runs, RUN_RECORD), (outputs.sweeps, SWEEP_RECORD)):
        for name in folder_names(parent):
            if not fnmatchcase(name, recipe):
                continue
            try:
                identifiers = folder_names(parent / name, missing_ok=False)
            except NotADirectoryError:
                continue
            except OSError as error:
                unreadable.append(_describe_unreadable(parent / name, record, outputs, error))
                continue
            start = f"{parent}/{name}"
            found += (
                (age_of(f"{name}/{run}", f"{start}/{run}/{record}", order), f"{start}/{run}", record)
                for run in identifiers
                if ID.fullmatch(run) or (parent / name / run / record).is_file()
            )
    found.sort(key=lambda entry: entry[0], reverse=True)
    return [(folder, record) for _, folder, record in found], unreadable


@dataclass
class _Conditions:
    """The parsed conditions of `--where`, and what is known of their metrics."""

    gates: tuple[Gate, ...]
    known: set[str] = field(default_factory=set)
    """Names of all metrics of the runs that were read, with and without their steps."""

    def hold(self, metrics: Mapping[str, Metric]) -> list[str] | None:
        """Return the metrics of the conditions in full, if all hold for a run with these metrics; else None."""
        if not self.gates:
            return []
        steps = {name.partition(".")[0]: None for name in metrics}
        if not self.known.issuperset(metrics):
            self.known.update(*((name, name.partition(".")[2]) for name in metrics))
        named: dict[str, None] = {}
        for gate, names in self._named:
            for step in ("",) if all(name in metrics for name in names) else steps:
                full = {name: name if name in metrics else f"{step}.{name}" for name in names}
                if all(name in metrics for name in full.values()) and _holds(
                    gate, {name: metrics[each] for name, each in full.items()}
                ):
                    named |= dict.fromkeys(full.values())
                    break
            else:
                return None
        return list(named)

    @cached_property
    def _named(self) -> list[tuple[Gate, list[str]]]:
        return [(gate, gate.names) for gate in self.gates]

    def refuse_unknown_metrics(self) -> None:
        """Raise RequestError for a metric that no run has: it is probably misspelt."""
        for name in (name for gate in self.gates for name in gate.names):
            if self.known and name not in self.known:
                raise UnknownNameError(f"--where: no run has a metric `{name}`", name, sorted(self.known))


def _holds(gate: Gate, metrics: Mapping[str, Metric]) -> bool:
    """Return whether a condition holds for a run that has its metrics. Raises RequestError."""
    try:
        gate.check_units(lambda name: metrics[name].unit)
    except GateError as error:
        raise RequestError(f"--where {visible_name(gate.text)}: {error}.") from None
    try:
        return gate.decide(metrics).passed
    except GateError:  # a division by zero
        return False


@dataclass(frozen=True)
class _Reader:
    """Reads the records of runs, and leaves out those that are not wanted."""

    outputs: Outputs
    tags: Tags
    wanted: RunFilter
    conditions: _Conditions
    briefs: Mapping[str, _Brief | None]
    """`<recipe>/<id>` -> what its line has, for runs that need not be read."""

    def read(self, folders: Sequence[tuple[str, str]]) -> Iterator[RunSummary | None]:
        """Yield a summary for each folder, or None if its run is not wanted."""
        for path, record in folders:
            folder = Path(path)
            tags = tuple(self.tags.get(folder.resolve(), ())) if self.tags else ()
            if self.wanted.tag and not any(fnmatchcase(tag.split(" #")[0], self.wanted.tag) for tag in tags):
                continue
            brief = self.briefs.get(name_in_history(folder)) if record == RUN_RECORD else None
            if brief:
                with contextlib.suppress(*DAMAGE):  # a line may hold anything: its record decides
                    yield self._summarize(folder, brief[0], _metrics_of_line(brief[1]), record, tags)
                    continue
            try:
                tree = read_tree(folder / record)
                metrics = (
                    _Metrics(_best_point(tree).get("metrics", {})) if record == SWEEP_RECORD else _metrics_of_run(tree)
                )
                yield self._summarize(folder, tree, metrics, record, tags)
            except (OSError, FormatError) as error:
                yield _describe_unreadable(folder, record, self.outputs, error, tags)
            except DAMAGE:
                yield _describe_unreadable(folder, record, self.outputs, None, tags)

    def _summarize(
        self, folder: Path, record: Tree, metrics: Mapping[str, Metric], name: str, tags: tuple[str, ...]
    ) -> RunSummary | None:
        is_sweep = name == SWEEP_RECORD
        if self.wanted.user and self.wanted.user != record.get("user", ""):
            return None
        if self.wanted.model and not _is_model(record, self.wanted.model):
            return None
        named = self.conditions.hold(metrics)
        if named is None:
            return None
        main = _objectives(record) if is_sweep else _main_metrics(record, metrics)
        outcome = self.outputs.outcome_now(outcome_in(record), folder)
        models = _models_of(record)
        # `FAILED det in 32.9 s: agree: cosine 0.9 is less than 1`
        reason = str(next(iter(record.get("verdict", ())), "")).partition(": ")[2]
        return RunSummary(
            run=name_folder(folder),
            kind="sweep" if is_sweep else "run",
            started_at=record["started_at"],
            passed=record["passed"],
            outcome=outcome,
            failed_in=tuple((record.get("failure") or {}).get("steps", ())),
            why="" if is_sweep or record["passed"] else reason,
            wall_s=record["wall_s"],
            tags=tags,
            folder=str(folder),
            command=tuple(record["command"]),
            points=len(record["points"]) if is_sweep else 0,
            best=record["best"] if is_sweep else None,
            user=record.get("user", ""),
            host=record.get("host", ""),
            machine=_describe_machine(record.get("machine")),
            model=models[0][0] if models else "",
            metrics={**{name: metrics[name] for name in named}, **main},
        )


def _describe_machine(machine: Any) -> str:  # noqa: ANN401 - plain JSON
    if not isinstance(machine, dict):
        return ""
    return ", ".join(filter(None, (str(machine.get("cpu", "")), *map(str, machine.get("gpus", ())))))


def _models_of(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the location and the digest of each model, the recipe's `model:` first; without digests for a sweep."""
    if "source" in record:
        sources = [record["source"], *record.get("models", {}).values()]
        return [(str(source["location"]), str(source["artifact"]["digest"])) for source in sources]
    recipe = record["recipe"]
    sources = [recipe.get("model"), *(recipe.get("models") or {}).values()]
    return [
        (str(source.get("source", "")), str(source.get("blake3", "")))
        if isinstance(source, dict)
        else (str(source), "")
        for source in sources
        if source
    ]


def _is_model(record: Mapping[str, Any], pattern: str) -> bool:
    """Return whether a run reads the model that a user names."""
    return any(
        fnmatchcase(location, pattern)
        or fnmatchcase(location.rpartition("/")[2], pattern)
        or (len(pattern) >= _LEAST_DIGITS and digest.startswith(pattern))
        for location, digest in _models_of(record)
    )


class _Metrics(Mapping[str, Metric]):
    """Metrics in a record, validated when they are read: a list of 10,000 runs reads a few of 60 each."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self._plain = plain

    def __getitem__(self, name: str) -> Metric:
        return Metric.model_validate(self._plain[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)


def _metrics_of_run(record: Mapping[str, Any]) -> _Metrics:
    return _Metrics(
        {
            f"{step['name']}.{name}": metric
            for step in record["steps"]
            if step.get("record")
            for name, metric in step["record"]["metrics"].items()
        }
    )


def _metrics_of_line(measured: Iterable[Measured]) -> _Metrics:
    return _Metrics(
        {
            f"{each.what.step}.{name}": {"value": value, "unit": unit}
            for each in measured
            for (name, unit), value in zip(each.what.units.items(), each.values, strict=True)
        }
    )


def _main_metrics(record: Mapping[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics that the gates name; without gates, the latency of each measuring step."""
    names = [name for gate in record.get("gates", ()) for name in parse_gate(gate["gate"]).names]
    names = names or [name for name in metrics if name.partition(".")[2] == _MAIN]
    return {name: metrics[name] for name in [name for name in dict.fromkeys(names) if name in metrics][:_MOST_METRICS]}


def _best_point(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the best point of a sweep, as measured again if it was."""
    best: Mapping[str, Any] = next((point for point in record["points"] if point["number"] == record["best"]), {})
    return {**best, **(best.get("again") or {})}


def _objectives(record: Mapping[str, Any]) -> dict[str, Metric]:
    values = _best_point(record).get("objectives", ())
    return {
        objective["text"]: Metric(value=value, unit=objective.get("unit", ""))
        for objective, value in list(zip(record["objectives"], values, strict=False))[:_MOST_METRICS]
        if value is not None
    }


def _describe_unreadable(
    folder: Path, record: str, outputs: Outputs, error: OSError | FormatError | None, tags: tuple[str, ...] = ()
) -> RunSummary:
    """Return the summary of a run that cannot be read, with the reason and the remedy."""
    remedy = f"Its other files are unchanged: run its recipe again, then remove {folder}."
    if isinstance(error, FormatError):
        damage = str(error)
    elif isinstance(error, PermissionError):
        damage = explain_disk(error, outputs.root)
    elif isinstance(error, FileNotFoundError):
        damage = f"{record} is missing. {remedy}"
    else:
        damage = f"{record} cannot be read. {remedy}"
    return RunSummary(
        run=name_folder(folder) if ID.fullmatch(folder.name) else folder.name,
        kind="sweep" if record == SWEEP_RECORD else "run",
        started_at=datetime.fromtimestamp(_changed_s(folder), UTC),
        passed=False,
        outcome="bug",
        wall_s=0.0,
        tags=tags,
        folder=str(folder),
        command=(),
        damage=damage,
    )


def _changed_s(folder: Path) -> float:
    """Return the time of a folder's last change in seconds since 1970; 0 if that is not permitted."""
    try:
        status = folder.stat()
    except OSError:
        return 0.0
    return status.st_mtime if stat.S_ISDIR(status.st_mode) else 0.0
