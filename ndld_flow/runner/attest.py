"""Describe how the results of a run were computed, in the form of in-toto statements with SLSA provenance.

A statement is https://in-toto.io/Statement/v1, its predicate https://slsa.dev/provenance/v1. Its subjects are the files
of one artifact; the build is the step that computed it, in the run that computed it, which need not be the run that has
the result. Everything comes from records, whose digests of files are compared with the files; the only new facts are
the SHA-256 digests, which records do not have.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from blake3 import blake3
from pydantic import JsonValue, ValidationError

from ndld_flow.base.errors import NewerFormatError, OutputsError, RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.lazy_pattern import lazy_pattern
from ndld_flow.base.text import suggest
from ndld_flow.records.document import Record, read_document, stat_file
from ndld_flow.records.export import ExportRecord
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.records.run_folder import RUN_RECORD, find_file, read_run_record
from ndld_flow.records.run_record import RunRecord, RunStep, SourceRecord, StepRecord
from ndld_flow.runner.keys import HIDDEN_VALUES, make_key
from ndld_flow.runner.outputs import POINTS, Outputs, name_folder
from ndld_flow.store.digest import describe_files, find_damage
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.kinds import Onnx, Package
from ndld_flow.store.store import Store

PAGE = "https://ndld-flow.github.io/ndld-flow/how-to/provenance"
BUILD_TYPE = f"{PAGE}#build-type-v1"
"""It changes whenever the same fields have another meaning."""
LOCAL_BUILDER = f"{PAGE}#local-builder"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
OWN_DIGEST = "ndldFlow"
"""Name of digests in ndld_flow's own form: of several files with their names, or of values."""
_EXACT = 2**53
"""Larger whole numbers are written as texts: a JSON number of protobuf is a double."""
_PIECE = 2**20
_HOMES = lazy_pattern(r"(?<![\w.-])(?:/home/[^/\s:\"']+|/Users/[^/\s:\"']+|[A-Za-z]:\\Users\\[^\\\s\"']+)(?![\w.-])")
_ROOT = lazy_pattern(r"(?<![\w.-])/root(?=/|$)")


class ArtifactStatement(Record):
    """The statement about one artifact."""

    step: str
    """The step in the run that was named."""
    computed_by: str
    """`RECIPE/ID` of the run that computed it; empty if that run is not in the outputs folder."""
    subjects: dict[str, str]
    """File -> its SHA-256."""
    statement: dict[str, JsonValue]
    """The statement as plain JSON."""

    @property
    def line(self) -> str:
        """The statement as one line of JSON; equal statements are equal lines."""
        return json.dumps(self.statement, sort_keys=True, separators=(",", ":"))


class Attested(Record):
    """The statements about the artifacts of a run."""

    run: str
    """`RECIPE/ID`"""
    statements: tuple[ArtifactStatement, ...]

    @property
    def lines(self) -> str:
        """The statements in the form of a `.intoto.jsonl` file."""
        return "".join(f"{statement.line}\n" for statement in self.statements)


class ArtifactChangedError(RequestError):
    """A file of an artifact is not the recorded one."""


@dataclass(frozen=True)
class Attestation:
    """The step of a run to make a statement about."""

    run: RunRecord
    folder: Path
    step: RunStep
    record: StepRecord


@dataclass(frozen=True)
class _Origin:
    """The run that computed an artifact."""

    name: str
    run: RunRecord
    step: RunStep


def attest_results(reference: str, outputs: Outputs, builder: str = "") -> Attested:
    """Make statements about the artifacts of `RUN`, `RUN:STEP` or an exported file; `builder` is the builder's URI.

    Raises RequestError if there are none, BackendError without the extra `attest`, and ArtifactChangedError if a file
    is not the recorded one.
    """
    require("attest", "`ndld-flow attest`")
    if builder and not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f]+", builder):
        raise RequestError(f"--builder {builder}: give a URI, such as that of the workflow that ran the recipe.")
    folder, step = _resolve(reference, outputs)
    found = list(find_attestations(folder))
    chosen = [each for each in found if step in ("", each.step.name)]
    if not chosen:
        name = name_folder(folder)
        reason = f"no result `{step}`; {suggest(step, [each.step.name for each in found])}" if step else "no results"
        raise RequestError(f"{reference}: run {name} has {reason}")
    made = tuple(make_statement(each, outputs, builder) for each in chosen)
    return Attested(run=name_folder(folder), statements=made)


def find_attestations(folder: Path) -> Iterator[Attestation]:
    """Yield the steps of a run that have results. Raises RequestError as `read_run_record` does."""
    run = read_run_record(folder)
    for step in run.steps:
        if step.record is not None:
            yield Attestation(run, folder, step, step.record)


def _resolve(reference: str, outputs: Outputs) -> tuple[Path, str]:
    """Return the folder of a run, and a step or an empty string for all."""
    path = Path(reference)
    if path.is_file() and path.name != RUN_RECORD:
        return _find_export(path, outputs)
    head, colon, step = reference.rpartition(":")
    # Tags, recipes and ids contain no colon; the path of a run's folder may.
    if not colon or (path / RUN_RECORD).is_file():
        return outputs.find(reference), ""
    return outputs.find(head), step


def _find_export(path: Path, outputs: Outputs) -> tuple[Path, str]:
    """Return the run and step of an exported file, by the record beside it."""
    record = path.with_name(f"{path.name}.json")
    try:
        exported = read_document(ExportRecord, record)
    except NewerFormatError:
        raise
    except (OSError, ValidationError):
        raise RequestError(
            f"{path}: there is no record of its export, {record.name}, beside it. Name the run, as in `latest:STEP`."
        ) from None
    digests = hash_file(path)
    if exported.sha256.get(path.name) != digests["sha256"]:
        raise ArtifactChangedError(f"{path}: it is not the file that was exported: its SHA-256 is {digests['sha256']}.")
    folder = outputs.find(exported.run)
    records = {step.name: step.record for step in read_run_record(folder).steps}
    record_of = records.get(exported.step)
    if record_of is None or record_of.artifact.digest != exported.artifact:
        raise RequestError(f"{path}: run {exported.run} has no such result of `{exported.step}`.")
    return folder, exported.step


def make_statement(attestation: Attestation, outputs: Outputs, builder: str = "") -> ArtifactStatement:
    """Make the statement about one artifact, whose files are read and compared with their records.

    Raises ArtifactChangedError if they differ.
    """
    record = attestation.record
    artifact = record.artifact
    if make_key(record.parts) != record.key or describe_files(artifact.kind, artifact.files).digest != artifact.digest:
        raise ArtifactChangedError(
            f"{attestation.step.name}: its record does not have the key or the digest of what it lists: it was "
            "changed, or written by an earlier version. Run the recipe again."
        )
    origin = find_origin(attestation, outputs)
    subjects = _subjects(attestation, outputs)
    predicate: dict[str, JsonValue] = {
        "buildDefinition": _build_definition(attestation, origin, outputs),
        "runDetails": _run_details(record, origin, builder),
    }
    statement = _as_statement(subjects, predicate)
    return ArtifactStatement(
        step=attestation.step.name,
        computed_by=origin.name if origin is not None else "",
        subjects={name: digests["sha256"] for name, digests in subjects.items()},
        statement=statement,
    )


def find_origin(attestation: Attestation, outputs: Outputs) -> _Origin | None:
    """Return the run that computed an artifact: a reused result has the record of that run. None if it is not here."""
    if attestation.step.outcome != "reused":
        return _Origin(name_folder(attestation.folder), attestation.run, attestation.step)
    record = attestation.record
    for folder in _runs_before(outputs, record.started_at):
        try:
            if record.key.encode() not in (folder / RUN_RECORD).read_bytes():
                continue
            run = read_run_record(folder)
        except (OSError, RequestError):
            continue  # `runs` lists it as damaged
        for step in run.steps:
            if step.outcome != "reused" and step.record == record:
                return _Origin(name_folder(folder), run, step)
    return None


def _runs_before(outputs: Outputs, moment: datetime) -> Iterator[Path]:
    """Yield the folders of runs and of points that may have begun a step at a moment, the newest first."""
    limit = f"{moment + timedelta(seconds=1):%Y%m%dT%H%M%SZ}~"
    runs = [(path.parent.name, path.parent) for path in outputs.runs.glob(f"*/*/{RUN_RECORD}")]
    points = outputs.sweeps.glob(f"*/*/{POINTS}/*/{RUN_RECORD}")
    runs += [(path.parents[2].name, path.parent) for path in points]
    yield from (folder for name, folder in sorted(runs, reverse=True) if name <= limit)


def _subjects(attestation: Attestation, outputs: Outputs) -> dict[str, dict[str, str]]:
    """Return the files of an artifact with their digests; the zip of a package first."""
    folder = attestation.folder / attestation.step.name
    artifact = attestation.record.artifact
    subjects: dict[str, dict[str, str]] = {}
    if artifact.kind == Package.kind:
        subjects[f"{attestation.step.name}{Package.suffix}"] = {}
    for file in artifact.files:
        digests = hash_recorded(find_file(folder, file.path), file)
        if isinstance(digests, str):
            raise ArtifactChangedError(
                f"{attestation.step.name}/{file.path}: {digests}, so no statement can be made about it. `ndld-flow "
                "verify` sets damaged results aside, and the next run computes them again."
            )
        subjects[file.path] = digests
    if artifact.kind == Package.kind:  # hashed last: every file is intact
        subjects[f"{attestation.step.name}{Package.suffix}"] = {"sha256": _hash_zip(folder, artifact, outputs.store)}
    return subjects


def _hash_zip(folder: Path, artifact: ArtifactRecord, store: Store) -> str:
    """Return the SHA-256 of a package as `-o` exports it. The file is seekable, as the bytes of a stream are others."""
    from ndld_flow.packages.archive import write_zip

    with store.building() as built:
        path = built / f"package{Package.suffix}"
        with path.open("wb") as target:
            write_zip({file.path: find_file(folder, file.path) for file in artifact.files}, target)
        return hash_file(path)["sha256"]


def hash_recorded(path: Path, file: ArtifactFile) -> dict[str, str] | str:
    """Return the digests of a file, or how it differs from its record."""
    damage = find_damage(path, file, lambda _: file.digest)
    if damage:
        return damage
    try:
        digests = hash_file(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return digests if digests["blake3"] == file.digest else "its contents have changed"


def hash_file(path: Path) -> dict[str, str]:
    """Return the SHA-256 and the blake3 digest of a regular file, read once. Raises OSError."""
    stat_file(path)
    sha256, other = hashlib.sha256(), blake3()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            sha256.update(piece)
            other.update(piece)
    return {"sha256": sha256.hexdigest(), "blake3": other.hexdigest()}


def _build_definition(attestation: Attestation, origin: _Origin | None, outputs: Outputs) -> dict[str, JsonValue]:
    parts = attestation.record.parts
    hide = _Hider(origin.run if origin is not None else attestation.run)
    external: dict[str, JsonValue] = {
        "step": parts.step,
        "settings": hide.plain(parts.settings),
        "inputs": hide.plain(parts.inputs),
    }
    internal: dict[str, JsonValue] = {
        "stepVersion": parts.version,
        "key": attestation.record.key,
        "artifact": {"kind": attestation.record.artifact.kind, OWN_DIGEST: attestation.record.artifact.digest},
    }
    if parts.machine:
        internal["machine"] = hide.plain(parts.machine)
    if parts.together:
        internal["measuredTogetherWith"] = [key for key in parts.together if key]
    if origin is not None:
        external["recipe"] = hide.plain(origin.run.recipe_name)
        external["stepName"] = origin.step.name
        internal |= _computer(origin, hide)
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": external,
        "internalParameters": internal,
        "resolvedDependencies": [*_dependencies(attestation, origin, outputs, hide)],
    }


def _computer(origin: _Origin, hide: _Hider) -> dict[str, JsonValue]:
    """Return what is known of the machine that computed a step: that of the run, unless it ran on a target."""
    if origin.step.target:
        return {"target": hide.plain(origin.step.target)}
    machine = origin.run.machine
    facts: dict[str, JsonValue] = {"system": machine.system, "architecture": machine.architecture, "cpu": machine.cpu}
    facts |= {"gpus": list(machine.gpus), "driver": machine.driver, "python": machine.python}
    return {"ranOn": {name: value for name, value in facts.items() if value}}


def _run_details(record: StepRecord, origin: _Origin | None, builder: str) -> dict[str, JsonValue]:
    metadata: dict[str, JsonValue] = {"startedOn": _time(record.started_at)}
    if record.ended_at is not None:
        metadata["finishedOn"] = _time(record.ended_at)
    made_by: dict[str, JsonValue] = {"id": builder or LOCAL_BUILDER}
    if origin is not None:
        metadata["invocationId"] = origin.name
        if not origin.step.target and (version := origin.run.versions.get("ndld-flow")):
            made_by["version"] = {"ndld-flow": version}
    return {"builder": made_by, "metadata": metadata}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _dependencies(
    attestation: Attestation, origin: _Origin | None, outputs: Outputs, hide: _Hider
) -> Iterator[dict[str, JsonValue]]:
    """Yield everything that the step read: the files of models and results, data, libraries, the working tree."""
    record = attestation.record
    known = _Known(origin.run if origin is not None else attestation.run, outputs)
    for key, digest in sorted(record.parts.reads.items()):
        if key == HIDDEN_VALUES:
            continue  # of credentials
        artifact = known.artifact(digest)
        label = key if key not in record.parents else f"{key}: {record.parents[key]}"
        if artifact is None:
            yield {"name": hide.text(label), "digest": {OWN_DIGEST: digest}}
        else:
            yield from known.files(hide.text(label), artifact)
    for source in known.sources_behind(record.parts.reads.values()):
        yield from known.files(hide.text(f"behind these: {source.location}"), source.artifact)
    for name, version in sorted(record.parts.libraries.items()):
        yield {"name": hide.text(name), "annotations": {"version": hide.plain(version)}}
    if origin is not None and origin.run.commit and not origin.step.target:
        yield {
            "name": "working tree of the current directory",
            "digest": {"gitCommit": origin.run.commit},
            "annotations": {"uncommittedChanges": "unknown"},
        }


class _Known:
    """The models and artifacts of a run, by their digests."""

    def __init__(self, run: RunRecord, outputs: Outputs) -> None:
        records = [step.record for step in run.steps if step.record is not None]
        self._outputs = outputs
        self._sources = {model.artifact.digest: model for model in (*run.models.values(), run.source)}
        self._steps = {record.artifact.digest: record.artifact for record in records}
        self._reads = {record.artifact.digest: list(record.parts.reads.values()) for record in records}

    def artifact(self, digest: str) -> ArtifactRecord | None:
        """Return the artifact with a digest; None if the run has none, as for a data file."""
        if digest in self._steps:
            return self._steps[digest]
        source = self._sources.get(digest)
        return source.artifact if source is not None else None

    def sources_behind(self, digests: Iterable[str]) -> list[SourceRecord]:
        """Return the models from which artifacts were computed over several steps, without those that are read."""
        direct, seen, waiting = set(digests), set[str](), list(digests)
        while waiting:
            digest = waiting.pop()
            if digest in self._reads and digest not in seen:
                waiting += self._reads[digest]
            seen.add(digest)
        return [source for digest, source in self._sources.items() if digest in seen - direct]

    def files(self, label: str, artifact: ArtifactRecord) -> Iterator[dict[str, JsonValue]]:
        """Yield the files of an artifact: with their SHA-256 where they still exist unchanged."""
        for file in artifact.files:
            path = self._path(artifact, file)
            found = hash_recorded(path, file)
            digests = {"blake3": file.digest} if isinstance(found, str) else found
            yield {
                "name": f"{label}, {file.path}",
                "digest": {**digests},
                "annotations": {"artifact": artifact.digest},
            }

    def _path(self, artifact: ArtifactRecord, file: ArtifactFile) -> Path:
        source = self._sources.get(artifact.digest)
        if source is None or artifact.digest in self._steps:
            return self._outputs.store.object_folder(artifact.digest) / file.path
        path = Path(source.path)
        return path if file.path == Onnx.main else path.parent / file.path


class _Hider:
    """Removes paths of this computer's users from texts: those below the run's directory become relative."""

    def __init__(self, run: RunRecord) -> None:
        self._directory = run.directory.rstrip("/\\")
        self._is_root = run.user in ("", "root")

    def text(self, text: str) -> str:
        """Return a text with relative paths, and `~` for homes."""
        if len(self._directory) > 1:
            bound = _within(self._directory)
            text = bound.sub("", text)
        text = _HOMES.sub("~", text)
        return _ROOT.sub("~", text) if self._is_root else text

    def plain(self, value: JsonValue | Mapping[str, JsonValue]) -> JsonValue:
        """Return plain data that survives protobuf's JSON: without paths, large numbers as texts."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.plain(inner) for inner in value]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return str(value) if is_number and not abs(value) <= _EXACT else value  # type: ignore[arg-type]  # also NaN


@lru_cache(maxsize=8)
def _within(directory: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(directory)}[/\\]")


def _as_statement(
    subjects: Mapping[str, Mapping[str, str]], predicate: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return a statement as plain JSON, checked by the classes that in-toto generates from its definitions."""
    from google.protobuf.json_format import MessageToDict, ParseDict
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.resource_descriptor_pb2 import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    provenance = ParseDict(predicate, Provenance())
    descriptors = [ResourceDescriptor(name=name, digest=digests) for name, digests in subjects.items()]
    statement = Statement(descriptors, PREDICATE_TYPE, MessageToDict(provenance))
    statement.validate()
    tree = _whole(MessageToDict(statement.pb))
    assert isinstance(tree, dict)
    return tree


def _whole(value: JsonValue) -> JsonValue:
    """Return plain data with whole numbers as such: protobuf's JSON has only doubles."""
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def write_statements(attested: Attested, path: Path) -> None:
    """Write a `.intoto.jsonl` file, with a line for each statement. Raises OutputsError if it cannot be written."""
    try:
        write_text_atomically(path, attested.lines)
    except OSError as error:
        raise OutputsError(f"{path}: the statements cannot be written ({error.strerror}).") from None
