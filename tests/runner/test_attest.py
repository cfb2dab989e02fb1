"""`attest` and `verify --statement`: what statements contain, and attempts to make a false one pass."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import EXTRAS, Extra
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.runner.keys import make_key
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn, make_ext

RECIPE: Mapping[str, Any] = {
    "name": "toy",
    "model": "model.onnx",
    "steps": {
        "clean": {"step": "edit", "operations": [{"name_all": {}}]},
        "half": {"step": "convert_fp16", "keep_io": True},
    },
}
STATEMENTS = Path("toy.intoto.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and its statements."""
    folder = tmp_path_factory.mktemp("attested")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        make_cnn(Path("model.onnx"))
        api.run(RECIPE, output="out.onnx")
        api.attest("toy", to=STATEMENTS)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to change, as the current directory; its records name the place of the first run."""
    shutil.copytree(finished, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def half() -> Path:
    return Path(api.runs()[0].folder) / "half/model.onnx"


def statement(step: str = "half", run: str = "toy") -> dict[str, Any]:
    (only,) = api.attest(f"{run}:{step}").statements
    return only.statement


def write(*trees: object) -> Path:
    path = Path("changed.jsonl")
    path.write_text("".join(f"{json.dumps(tree)}\n" for tree in trees))
    return path


def problems(checked: api.StatementCheck) -> str:
    found = [check.problems for check in checked.files] + [check.problems for check in checked.of_run]
    return "; ".join(problem for problems in found for problem in problems)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file, which may be a link of one in the store."""
    path.unlink()
    path.write_bytes(data)


@pytest.mark.usefixtures("folder")
def test_a_statement_has_everything_that_decided_the_result() -> None:
    tree = statement()
    message = ParseDict(tree, Message())
    Statement.copy_from_pb(message).validate()
    provenance = ParseDict(tree["predicate"], Provenance())
    data = half().read_bytes()
    assert message.subject[0].name == "model.onnx"
    assert message.subject[0].digest["sha256"] == hashlib.sha256(data).hexdigest()
    definition = tree["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["step"] == "convert_fp16"
    assert definition["externalParameters"]["settings"]["keep_io"] is True
    assert definition["externalParameters"]["recipe"] == "toy"
    read = {each["name"]: each.get("digest", each.get("annotations")) for each in definition["resolvedDependencies"]}
    assert read["from: clean, model.onnx"]["sha256"] == statement("clean")["subject"][0]["digest"]["sha256"]
    source = hashlib.sha256(Path("model.onnx").read_bytes()).hexdigest()
    (of_clean,) = (
        each
        for each in statement("clean")["predicate"]["buildDefinition"]["resolvedDependencies"]
        if each["name"] == "from: source, model.onnx"
    )
    assert read["behind these: model.onnx, model.onnx"]["sha256"] == of_clean["digest"]["sha256"] == source
    assert set(read["onnx"]) == {"version"}
    assert provenance.run_details.metadata.invocation_id == api.runs()[0].run
    started, finished = provenance.run_details.metadata.started_on, provenance.run_details.metadata.finished_on
    assert started.ToDatetime() < finished.ToDatetime()
    assert provenance.run_details.builder.version["ndld-flow"]


def test_a_run_and_its_files_match_their_statements(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    checked = api.verify_statement(STATEMENTS, ["out.onnx", half()], run="toy")
    assert checked.all_well is True
    assert [(file.subject, file.step) for file in checked.files] == [("model.onnx", "half")] * 2
    assert [each.step for each in checked.of_run] == ["clean", "half"]
    done = ndld_flow("attest", "out.onnx", cwd=Path())
    assert done.stdout in STATEMENTS.read_text(), "an exported file has the statement of its step"
    assert "behind these: model.onnx, model.onnx" in done.stdout
    assert hashlib.sha256(Path("model.onnx").read_bytes()).hexdigest() in done.stdout, "the source is still there"
    shown = ndld_flow("verify", "out.onnx", "--statement", str(STATEMENTS), "--run", "toy", cwd=Path())
    assert (shown.returncode, shown.stdout.count("matches")) == (0, 3)
    assert "not signed" in shown.stdout


@pytest.mark.usefixtures("folder")
def test_another_file_does_not_match() -> None:
    Path("other.onnx").write_bytes(half().read_bytes() + b"\0")
    checked = api.verify_statement(STATEMENTS, ["other.onnx", half()])
    assert [bool(file.problems) for file in checked.files] == [True, False]
    assert ndld_flow("verify", "other.onnx", "--statement", str(STATEMENTS), cwd=Path()).returncode == 1


CHANGES: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "setting": lambda tree: tree["predicate"]["buildDefinition"]["externalParameters"]["settings"].update(keep_io=1),
    "step": lambda tree: tree["predicate"]["buildDefinition"]["externalParameters"].update(step="quantize"),
    "build type": lambda tree: tree["predicate"]["buildDefinition"].update(buildType="https://else/where"),
    "predicate type": lambda tree: tree.update(predicateType="https://slsa.dev/provenance/v0.2"),
    "source": lambda tree: tree["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"].update(blake3="0"),
    "library": lambda tree: tree["predicate"]["buildDefinition"]["resolvedDependencies"][-1].update(annotations={}),
    "left out": lambda tree: tree["predicate"]["buildDefinition"]["resolvedDependencies"].pop(0),
    "run": lambda tree: tree["predicate"]["runDetails"]["metadata"].update(invocationId="toy/another"),
    "more": lambda tree: tree["predicate"].update(approved=True),
    "subject": lambda tree: tree["subject"][0]["digest"].update(sha256="0" * 64),
    "more subjects": lambda tree: tree["subject"].append({"name": "evil.onnx", "digest": {"sha256": "0" * 64}}),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_statement_is_not_that_of_the_run(change: Callable[[dict[str, Any]], object]) -> None:
    tree = statement()
    change(tree)
    checked = api.verify_statement(write(tree), run="toy")
    assert checked.all_well is False
    assert problems(checked)


@pytest.mark.usefixtures("folder")
def test_a_builder_may_be_named() -> None:
    (only,) = api.attest("toy:half", builder="https://ci.example/workflows/1").statements
    assert only.statement["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example/workflows/1"  # type: ignore[index,call-overload]
    assert api.verify_statement(write(only.statement), run="toy").all_well is True
    with pytest.raises(RequestError, match="give a URI"):
        api.attest("toy", builder="our CI")


@pytest.mark.usefixtures("folder")
def test_a_damaged_result_gets_no_statement() -> None:
    data = bytearray(half().read_bytes())
    data[-1] ^= 1
    replace_file(half(), bytes(data))
    with pytest.raises(RequestError, match=r"half/model\.onnx: its contents have changed, so no statement"):
        api.attest("toy")
    checked = api.verify_statement(STATEMENTS, run="toy")
    assert [bool(each.problems) for each in checked.of_run] == [False, True]
    assert "its contents have changed" in problems(checked)
    Path("other").mkdir()
    replace_file(half(), b"")
    half().unlink()
    half().symlink_to("/dev/zero")
    with pytest.raises(RequestError, match="so no statement"):
        api.attest("toy:half")


@pytest.mark.usefixtures("folder")
def test_an_exported_file_that_was_replaced_gets_no_statement() -> None:
    replace_file(Path("out.onnx"), Path("model.onnx").read_bytes())
    with pytest.raises(RequestError, match="not the file that was exported"):
        api.attest("out.onnx")


def test_a_changed_record_gets_no_statement(folder: Path) -> None:
    record = Path(api.runs()[0].folder) / "run.json"
    tree = json.loads(record.read_text())
    tree["steps"][1]["record"]["parts"]["settings"]["keep_io"] = False
    replace_file(record, json.dumps(tree).encode())
    with pytest.raises(RequestError, match="does not have the key or the digest of what it lists"):
        api.attest("toy:half")
    tree["steps"][1]["record"]["parts"]["settings"]["keep_io"] = True
    tree["steps"][1]["record"]["artifact"]["digest"] = "0" * 64
    replace_file(record, json.dumps(tree).encode())
    with pytest.raises(RequestError, match="does not have the key or the digest of what it lists"):
        api.attest("toy:half")
    tree["steps"][1]["record"]["artifact"]["files"][0]["path"] = "../../../../../../model.onnx"
    replace_file(record, json.dumps(tree).encode())
    with pytest.raises(RequestError, match="is not a run's record"):
        api.attest("toy:half")
    assert folder.exists()


def test_a_reused_result_is_that_of_the_run_that_computed_it(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(finished)
    first = statement("half")
    again = {
        **RECIPE,
        "name": "again",
        "steps": {**RECIPE["steps"], "report": {"step": "edit", "operations": [{"set_metadata": {"domain": "x"}}]}},
    }
    record = json.loads((Path(api.run(again).folder) / "run.json").read_text())
    assert [step["outcome"] for step in record["steps"]] == ["reused", "reused", "done"]
    assert statement("half", "again") == first
    assert api.verify_statement(STATEMENTS, run="again").all_well is True
    assert "again/" in str(statement("report", "again"))
    shutil.move("outputs/runs/toy", "hidden")
    try:
        unknown = statement("half", "again")
        assert "invocationId" not in unknown["predicate"]["runDetails"]["metadata"], "nobody knows"
        assert "again" not in json.dumps(unknown)
        assert "ranOn" not in json.dumps(unknown)
        checked = api.verify_statement(STATEMENTS, run="again")
        assert (checked.all_well, problems(checked)) == (None, "")
        first["subject"][0]["digest"]["sha256"] = "0" * 64
        assert api.verify_statement(write(first), run="again").all_well is False
        assert ndld_flow("verify", "--statement", str(STATEMENTS), "--run", "again", cwd=Path()).returncode == 4
    finally:
        shutil.move("hidden", "outputs/runs/toy")


def test_external_data_are_subjects_and_must_match(in_folder: Path) -> None:
    make_ext(in_folder / "model.onnx", width=64)
    steps = {"named": {"step": "edit", "operations": [{"name_all": {}}]}}
    api.run({"name": "big", "model": "model.onnx", "steps": steps}, output="out/out.onnx")
    (only,) = api.attest("big", to="big.jsonl").statements
    data = [name for name in only.subjects if name != "model.onnx"]
    assert data, "the model has external data"
    assert api.verify_statement("big.jsonl", ["out/out.onnx"], run="big").all_well is True
    changed = bytearray((Path("out") / data[0]).read_bytes())
    changed[0] ^= 1
    replace_file(Path("out") / data[0], bytes(changed))
    checked = api.verify_statement("big.jsonl", ["out/out.onnx"])
    assert problems(checked) == f"its data, {data[0]}, are not those of the statement"
    (Path("out") / data[0]).unlink()
    assert "is missing" in problems(api.verify_statement("big.jsonl", ["out/out.onnx"]))


def test_paths_and_credentials_stay_here(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cnn(in_folder / "model.onnx")
    monkeypatch.setenv("SOME_TOKEN", "abcdefgh12345678")
    steps = {
        "clean": {
            "step": "edit",
            "operations": [{"set_metadata": {"metadata": {"note": f"abcdefgh12345678 {in_folder}/x"}}}],
        }
    }
    api.run({"name": "toy", "model": str(in_folder / "model.onnx"), "steps": steps})
    text = json.dumps(statement("clean"))
    assert "abcdefgh12345678" not in text
    assert str(in_folder) not in text
    assert " x" in text, "a path below the current directory is relative"
    assert str(Path.home()) not in text
    assert "values that are not shown" not in text


@pytest.mark.usefixtures("folder")
def test_envelopes_are_opened() -> None:
    payload = base64.b64encode(json.dumps(statement()).encode()).decode()
    envelope = {"payloadType": "application/vnd.in-toto+json", "payload": payload, "signatures": []}
    for enveloped in (
        envelope,
        {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope},
    ):
        checked = api.verify_statement(write(enveloped), [half()], run="toy")
        assert (checked.all_well, checked.is_enveloped) == (True, True)
    with pytest.raises(RequestError, match="not an in-toto statement"):
        api.verify_statement(write({**envelope, "payloadType": "text/plain"}), run="toy")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        "[" * 100_000,
        '{"_type": "https://in-toto.io/Statement/v1"}',
        '{"payload": "{}", "payloadType": "application/vnd.in-toto+json"}',
        '{"subject": [], "subject": []}',
        "\x00",
        "NaN",
        '{"_type": "https://in-toto.io/Statement/v1", "subject": {}, "predicateType": "x", "predicate": {"a": 1}}',
    ],
)
def test_what_is_no_statement_is_refused(text: str) -> None:
    Path("bad.jsonl").write_text(text)
    with pytest.raises(RequestError, match=r"bad\.jsonl"):
        api.verify_statement("bad.jsonl", run="toy")


@pytest.mark.usefixtures("folder")
def test_wrong_requests_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for call, message in (
        (lambda: api.attest("toy:haf"), "did you mean"),
        (lambda: api.attest("model.onnx"), "no record of its export"),
        (lambda: api.verify_statement(STATEMENTS), "name the files"),
        (lambda: api.verify_statement(STATEMENTS, ["nowhere"]), "nowhere: the file cannot be read"),
        (lambda: api.verify_statement("nowhere", run="toy"), "cannot be read"),
    ):
        with pytest.raises(RequestError, match=message):
            call()
    done = ndld_flow("verify", "model.onnx", cwd=Path())
    assert (done.returncode, "--statement FILE" in done.stderr) == (2, True)
    missing = Extra("attest", "in-toto-attestation", (), ("nowhere_at_all",), "", None)
    monkeypatch.setitem(EXTRAS, "attest", missing)
    with pytest.raises(BackendError, match=r"pip install 'ndld-flow\[attest\]'"):
        api.attest("toy")


def test_a_key_is_that_of_the_parts() -> None:
    """`attest` relies on it."""
    parts = KeyParts(step="a", version="1", settings={}, inputs={}, reads={}, libraries={}, machine="")
    assert make_key(parts) != make_key(parts.model_copy(update={"version": "2"}))
