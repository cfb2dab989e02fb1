"""The report leads to every file of the run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from ndld_flow import api
from ndld_flow.records.run_folder import read_run
from ndld_flow.report.panels.files import collect_files
from tests.support.models import make_cnn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a model, a profile and a comparison of outputs."""
    place = tmp_path_factory.mktemp("files")
    make_cnn(place / "model.onnx")
    quick = "runs: 1, passes: 2, duration: 0, stable: 0 %, warmup: 0, warmup_passes: 0"
    (place / "my.yaml").write_text(
        f"model: {place}/model.onnx\nsteps:\n  sanitize: {{}}\n  agree: {{step: check_accuracy, reference: source}}\n"
        f"  speed: {{step: profile, {quick}}}\n"
    )
    return Path(api.run(place / "my.yaml", outputs=place / "outputs").folder)


def links(folder: Path) -> set[str]:
    page = (folder / "report.html").read_text()
    section = page[page.index('<section id="files"') :].partition("</section>")[0]
    return {unquote(link) for link in re.findall(r'href="\./([^"]+)"', section)}


def test_every_file_is_linked_and_every_link_leads_to_a_file(folder: Path) -> None:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert links(folder) == files - {"report.html"}
    assert "speed/layers.csv" in files


def test_the_result_is_at_the_top(folder: Path) -> None:
    head = (folder / "report.html").read_text().partition('<dl class="glance">')[0]
    assert '<a href="./sanitize/model.onnx">' in head


def test_large_artifacts_are_linked_where_they_are(folder: Path, tmp_path: Path) -> None:
    documents = read_run(folder)
    (tmp_path / "sanitize/stored").mkdir(parents=True)
    (view,) = (view for view in collect_files(replace(documents, folder=tmp_path)) if view.step == "sanitize")
    assert view.files[0].link == "./sanitize/stored/model.onnx"


def test_edited_records_lead_nowhere_else(folder: Path) -> None:
    documents = read_run(folder)
    (sanitize,) = (step for step in documents.run.steps if step.name == "sanitize")
    assert sanitize.record is not None
    for path in ("../../secret", "/etc/passwd", "a/../../b"):
        file = sanitize.record.artifact.files[0].model_copy(update={"path": path})
        artifact = sanitize.record.artifact.model_copy(update={"files": (file,)})
        record = sanitize.record.model_copy(update={"artifact": artifact})
        run = documents.run.model_copy(update={"steps": (sanitize.model_copy(update={"record": record}),)})
        shown = [file.link for view in collect_files(replace(documents, run=run)) for file in view.files]
        assert not any("secret" in link or "passwd" in link or ".." in link for link in shown)
