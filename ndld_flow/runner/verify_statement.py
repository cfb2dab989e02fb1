"""Check in-toto statements against files, and against the run that they name.

A statement may come from a stranger: it is bounded and parsed before anything is believed. Signatures are not checked
here, and a statement without a verified signature proves nothing about its author: that is the task of cosign.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.text import short_name
from ndld_flow.models.external_files import external_file, external_files
from ndld_flow.records.document import Record, read_bounded
from ndld_flow.runner.attest import (
    ArtifactChangedError,
    ArtifactStatement,
    find_attestations,
    hash_file,
    make_statement,
)
from ndld_flow.runner.outputs import Outputs, name_folder
from ndld_flow.store.kinds import Onnx

_MAX_BYTES = 64_000_000
_MAX_LINES = 10_000
_MAX_DIFFERENCES = 8
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_BUILDER = "predicate.runDetails.builder.id"
_DEPENDENCIES = "predicate.buildDefinition.resolvedDependencies["
_OF_ORIGIN = (
    "predicate.runDetails.",
    _DEPENDENCIES,
    "predicate.buildDefinition.externalParameters.recipe",
    "predicate.buildDefinition.externalParameters.stepName",
    "predicate.buildDefinition.internalParameters.ranOn",
    "predicate.buildDefinition.internalParameters.target",
)
"""Places in the statement that only the run that computed the result knows."""


class FileCheck(Record):
    """One file, compared with the subjects of the statements."""

    file: str
    sha256: str
    subject: str
    """Name of the subject that it is; empty if it is none."""
    step: str
    """The step that computed it, as the statement has it; empty if it is no subject, or if that is not stated."""
    computed_by: str
    """The run that computed it, as the statement has it."""
    problems: tuple[str, ...]
    """Reasons why the file is not the attested one; empty if it is."""


class RunCheck(Record):
    """One statement, compared with the records of a run."""

    step: str
    """The step that the statement names; empty if it names none."""
    problems: tuple[str, ...]
    """Differences of the statement from the records; empty if there are none."""
    unchecked: tuple[str, ...] = ()
    """Places in the statement that cannot be compared: SHA-256 digests of files that no longer exist, and facts of a
    run that is no longer there."""


class StatementCheck(Record):
    """The result of a check of statements."""

    statement: str
    """The file of the statements."""
    statement_count: int
    is_enveloped: bool
    """True if the statements are in envelopes that may be signed; signatures are not checked."""
    files: tuple[FileCheck, ...]
    run: str
    """`RECIPE/ID` of the run; empty if the statements were not compared with one."""
    of_run: tuple[RunCheck, ...]

    @property
    def all_well(self) -> bool | None:
        """True if everything matches, False if anything differs; None if nothing differs, and something is unknown."""
        if any(file.problems for file in self.files) or any(each.problems for each in self.of_run):
            return False
        return None if any(check.unchecked for check in self.of_run) else True


@dataclass(frozen=True)
class _Statement:
    """A parsed statement."""

    tree: dict[str, JsonValue]
    subjects: tuple[tuple[str, Mapping[str, str]], ...]
    """Name and digests of each."""
    step: str
    run: str

    def find(self, digests: Mapping[str, str]) -> str | None:
        """Return the name of the subject with these digests: the SHA-256, and blake3 if it has one."""
        for name, known in self.subjects:
            if known.get("sha256") == digests["sha256"] and known.get("blake3", digests["blake3"]) == digests["blake3"]:
                return name
        return None


def check_statement(statement: Path, files: Sequence[Path], run: str, outputs: Outputs) -> StatementCheck:
    """Check files against the statements in a file, and the statements against the run that `run` names, if any.

    Raises RequestError if the statements or a file cannot be read, or the run is not found; BackendError without the
    extra `attest`.
    """
    require("attest", "`ndld-flow verify --statement`")
    if not files and not run:
        raise RequestError(f"{statement}: name the files to check against it, or a run with --run.")
    trees, is_enveloped = _read_statements(statement)
    statements = [_parse(tree, f"{statement}: statement {number}") for number, tree in enumerate(trees, 1)]
    folder = outputs.find(run) if run else None
    return StatementCheck(
        statement=str(statement),
        statement_count=len(statements),
        is_enveloped=is_enveloped,
        files=tuple(_check_file(file, statements) for file in files),
        run=name_folder(folder) if folder is not None else "",
        of_run=tuple(_check_run(statements, folder, outputs)) if folder is not None else (),
    )


def _read_statements(path: Path) -> tuple[list[dict[str, JsonValue]], bool]:
    """Return the statements of a file, which has one or a line for each, and whether they were in envelopes."""
    try:
        text = read_bounded(path, _MAX_BYTES).decode()
    except OSError as error:
        raise RequestError(f"{path}: the statement cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path}: it is not JSON, but has other bytes.") from None
    try:
        values = [_load(text)]
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > _MAX_LINES:
            raise RequestError(f"{path}: it has more than {_MAX_LINES:,} lines.") from None
        values = [_load_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    if not values:
        raise RequestError(f"{path}: it is empty.")
    opened = [_open_envelope(value, path) for value in values]
    return [tree for tree, _ in opened], any(is_enveloped for _, is_enveloped in opened)


def _load_line(line: str, place: str) -> JsonValue:
    try:
        return _load(line)
    except ValueError as error:
        raise RequestError(f"{place}: it is not JSON: {error}.") from None


def _load(text: str) -> JsonValue:
    """Parse JSON. Raises ValueError for repeated keys too, because readers disagree on which one counts."""
    try:
        value: JsonValue = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _without_repeats(pairs: Sequence[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError("a key is repeated")
    return tree


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _open_envelope(value: JsonValue, path: Path) -> tuple[dict[str, JsonValue], bool]:
    """Return a statement out of a DSSE envelope or a Sigstore bundle, or as it is."""
    if not isinstance(value, dict):
        raise RequestError(f"{path}: it has no statement, but a JSON value of another kind.")
    bundled = value.get("dsseEnvelope")
    envelope = bundled if isinstance(bundled, dict) else value
    payload = envelope.get("payload")
    if not isinstance(payload, str):
        return value, False
    if envelope.get("payloadType") != _PAYLOAD_TYPE:
        raise RequestError(f"{path}: the payload of its envelope is not an in-toto statement.")
    try:
        tree = _load(base64.b64decode(payload, validate=True).decode())
    except ValueError as error:
        raise RequestError(f"{path}: the payload of its envelope cannot be read: {error}.") from None
    if not isinstance(tree, dict):
        raise RequestError(f"{path}: the payload of its envelope is not an in-toto statement.")
    return tree, True


def _parse(tree: dict[str, JsonValue], place: str) -> _Statement:
    """Check a statement with in-toto's own classes. Raises RequestError if it is none."""
    from google.protobuf.json_format import ParseDict, ParseError
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message

    try:
        # Consumers ignore unknown fields: https://github.com/in-toto/attestation/blob/main/spec/v1/README.md
        message = ParseDict(tree, Message(), ignore_unknown_fields=True, max_recursion_depth=100)
        Statement.copy_from_pb(message).validate()
    except (ParseError, ValueError) as error:
        raise RequestError(f"{place}: it is not an in-toto statement v1: {short_name(str(error), 200)}.") from None
    predicate = _inner(tree, "predicate")
    return _Statement(
        tree,
        tuple((subject.name, dict(subject.digest)) for subject in message.subject),
        _text(_inner(predicate, "buildDefinition", "externalParameters").get("stepName")),
        _text(_inner(predicate, "runDetails", "metadata").get("invocationId")),
    )


def _inner(tree: Mapping[str, JsonValue], *names: str) -> Mapping[str, JsonValue]:
    for name in names:
        inner = tree.get(name)
        tree = inner if isinstance(inner, dict) else {}
    return tree


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def _check_file(path: Path, statements: Sequence[_Statement]) -> FileCheck:
    try:
        digests = hash_file(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(f"{path}: the file cannot be read ({reason}).") from None
    found = [(statement, name) for statement in statements if (name := statement.find(digests)) is not None]
    if not found:
        return FileCheck(
            file=str(path),
            sha256=digests["sha256"],
            subject="",
            step="",
            computed_by="",
            problems=("no statement is about a file with its digest",),
        )
    # The same file may be a subject of several statements: a model, and a package that has it.
    checked = [(statement, name, tuple(_data_problems(path, name, statement))) for statement, name in found]
    statement, name, problems = min(checked, key=lambda each: len(each[2]))
    return FileCheck(
        file=str(path),
        sha256=digests["sha256"],
        subject=name,
        step=statement.step,
        computed_by=statement.run,
        problems=problems,
    )


def _data_problems(path: Path, name: str, statement: _Statement) -> Iterator[str]:
    """Yield the external data of a model that are not subjects of its statement: weights are part of a model."""
    suffix = Path(Onnx.main).suffix
    if suffix not in (path.suffix, Path(name).suffix):
        return
    try:
        locations = external_files(path)
    except ModelError as error:
        yield str(error)
        return
    for location in locations:
        try:
            digests = hash_file(external_file(path, location).path)
        except ModelError as error:
            yield str(error)
        except OSError as error:
            yield f"its data, {short_name(location)}, cannot be read ({error.strerror})"
        else:
            if statement.find(digests) is None:
                yield f"its data, {short_name(location)}, are not those of the statement"


def _check_run(statements: Sequence[_Statement], folder: Path, outputs: Outputs) -> Iterator[RunCheck]:
    """Compare each statement with the one that the run's records and files give now."""
    made: list[ArtifactStatement] = []
    damaged: list[str] = []
    for attestation in find_attestations(folder):
        try:
            made.append(make_statement(attestation, outputs))
        except ArtifactChangedError as error:
            damaged.append(error.message)
    for statement in statements:
        alike = [each for each in made if _is_of(statement, each)]
        nothing = RunCheck(step=statement.step, problems=("the run has no result with these files", *damaged))
        yield min((_compare(statement, each) for each in alike), key=_distance, default=nothing)


def _is_of(statement: _Statement, made: ArtifactStatement) -> bool:
    """Return whether a statement is about a result: about one of its files, or about a step of its name."""
    known = {digests.get("sha256") for _, digests in statement.subjects}
    return not known.isdisjoint(made.subjects.values()) or statement.step == made.step


def _distance(check: RunCheck) -> tuple[int, int]:
    return len(check.problems), len(check.unchecked)


def _compare(statement: _Statement, made: ArtifactStatement) -> RunCheck:
    problems: list[str] = []
    unchecked: list[str] = []
    for place, stated, known in _differences(statement.tree, made.statement, ""):
        if place == _BUILDER:
            continue  # chosen with --builder, and not recorded
        is_sha256 = place.startswith(_DEPENDENCIES) and place.endswith("].digest.sha256")
        if is_sha256 and stated is _ABSENT:
            continue  # the file was missing when the statement was made; its blake3 digest is compared
        if (is_sha256 and known is _ABSENT) or (not made.computed_by and place.startswith(_OF_ORIGIN)):
            unchecked.append(place)
        else:
            problems.append(f"{place} is {_shown(stated)}; by the run's record it is {_shown(known)}")
    return RunCheck(step=statement.step, problems=_first(problems), unchecked=_first(unchecked))


def _first(texts: Sequence[str]) -> tuple[str, ...]:
    more = len(texts) - _MAX_DIFFERENCES
    return (*texts[:_MAX_DIFFERENCES], *([f"and {more:,} more"] if more > 0 else []))


class _Absent:
    """The absence of a value."""


_ABSENT = _Absent()
_Value = JsonValue | _Absent


def _differences(stated: _Value, known: _Value, place: str) -> Iterator[tuple[str, _Value, _Value]]:
    """Yield the places where two values differ, with both."""
    if isinstance(stated, dict) and isinstance(known, dict):
        for name in sorted({*stated, *known}):
            yield from _differences(stated.get(name, _ABSENT), known.get(name, _ABSENT), f"{place}.{name}".lstrip("."))
    elif isinstance(stated, list) and isinstance(known, list):
        for index in range(max(len(stated), len(known))):
            ours, theirs = (each[index] if index < len(each) else _ABSENT for each in (stated, known))
            yield from _differences(ours, theirs, f"{place}[{index}]")
    elif type(stated) is not type(known) or stated != known:
        yield place, stated, known


def _shown(value: _Value) -> str:
    return "absent" if isinstance(value, _Absent) else short_name(json.dumps(value), 80)
