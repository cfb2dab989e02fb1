"""The report leads to every file of the run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
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


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "a/../../b"])
def test_edited_records_lead_nowhere_else(folder: Path, tmp_path: Path, path: str) -> None:
    record = json.loads((folder / "run.json").read_text("utf-8"))
    (sanitize,) = (step for step in record["steps"] if step["name"] == "sanitize")
    sanitize["record"]["artifact"]["files"][0]["path"] = path
    (tmp_path / "run.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(RequestError, match=r"run\.json.*steps\.\d.*files\.0\.path"):
        read_run(tmp_path)
