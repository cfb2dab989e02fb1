"""Every document in `ndld_flow/records/`, found as the package finds it."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.document import Document, find_documents
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD, read_run
from ndld_flow.store.kinds import Artifact, is_reserved, known_kinds
from tests.support.run_fixtures import write_quickstart

DOCUMENTS = find_documents()
OF_STEPS = [kind for kind in DOCUMENTS if kind.file_name]


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_a_document_names_its_kind_its_version_and_its_file(kind: type[Document]) -> None:
    fields = list(kind.model_fields)
    assert fields[:2] == ["document", "format_version"], "first, so that a reader of the file sees them first"
    kind.model_rebuild()
    assert kind.model_json_schema()["properties"]["document"]["const"] == kind.kind_name()
    assert kind.known_version() > 0
    assert inspect.getdoc(kind) not in (None, inspect.getdoc(Document))
    assert kind.file_name == Path(kind.file_name).name
    assert not is_reserved(kind.file_name) and kind.file_name not in (RUN_RECORD, SWEEP_RECORD)


def test_kinds_and_files_belong_to_one_document_each() -> None:
    kinds = Counter(kind.kind_name() for kind in DOCUMENTS)
    files = Counter(kind.file_name for kind in DOCUMENTS if kind.file_name)
    assert len(DOCUMENTS) > 15 and len(files) > 10
    assert max(kinds.values()) == max(files.values()) == 1


def test_an_artifact_whose_main_file_is_a_document_has_a_class_for_it() -> None:
    mains = {kind.main for kind in known_kinds() if kind.__module__ == Artifact.__module__}
    documents = {main for main in mains if main.endswith(".json")}
    assert len(documents) > 5
    assert documents <= {kind.file_name for kind in DOCUMENTS}


@pytest.mark.parametrize("kind", OF_STEPS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("damage", ["{}", "other version", "folder"])
def test_a_document_that_is_not_readable_is_named_only(kind: type[Document], damage: str, tmp_path: Path) -> None:
    path = write_quickstart(tmp_path) / "sanitize" / kind.file_name
    path.parent.mkdir()
    assert read_run(tmp_path).unreadable == ()
    if damage == "folder":
        path.mkdir()
    else:
        version = {"document": kind.kind_name(), "format_version": kind.known_version() + 1}
        path.write_text(json.dumps(version if damage == "other version" else {}))
    documents = read_run(tmp_path)
    assert "sanitize" not in documents.of(kind)
    [sentence] = documents.unreadable
    assert f"sanitize/{kind.file_name}" in sentence
    assert (f"its format is {kind.known_version() + 1}," in sentence) == (damage == "other version")


def test_a_run_reads_a_kind_of_document_when_it_is_asked_for(tmp_path: Path) -> None:
    documents = read_run(write_quickstart(tmp_path))
    assert list(documents.of(Accuracy)) == ["agree"]
    assert list(documents.known) == [Accuracy]
    shutil.rmtree(tmp_path / "agree")
    assert list(documents.of(Accuracy)) == ["agree"], "it was read once"
    assert documents.unreadable == ()
    assert set(documents.known) == set(OF_STEPS)


def test_nothing_is_imported_until_documents_are_asked_for() -> None:
    code = "import sys, ndld_flow.records.run_folder; print(*[name for name in sys.modules if '.records.' in name])"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert listed.split() == ["ndld_flow.records.document", "ndld_flow.records.run_folder"]
