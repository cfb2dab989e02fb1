"""The result of a run as Markdown, from the records of real runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.records.run_folder import RunDocuments, read_run
from ndld_flow.records.run_record import RunFailure
from ndld_flow.report.collect_summary import collect_summary
from ndld_flow.report.exports.pull_requests import RUN_SUMMARY, prose, run_markdown
from ndld_flow.report.verdict import verdict_lines
from tests.support.models import make_cnn


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose second gate fails."""
    place = tmp_path_factory.mktemp("summary")
    make_cnn(place / "model.onnx")
    quick = "runs: 1, passes: 2, duration: 0, stable: 0 %, warmup: 0, warmup_passes: 0, layer_passes: 0"
    (place / "my.yaml").write_text(
        f"name: mine\nmodel: {place}/model.onnx\nsteps:\n  sanitize: {{}}\n"
        f"  base: {{step: profile, from: source, {quick}}}\n  speed: {{step: profile, {quick}}}\n"
        "gates: [sanitize.nodes >= 1, sanitize.nodes <= 1]\n"
    )
    return Path(api.run(place / "my.yaml", outputs=place / "outputs").folder)


@pytest.fixture
def documents(folder: Path) -> RunDocuments:
    return read_run(folder)


def test_every_run_has_a_summary(folder: Path, documents: RunDocuments) -> None:
    assert (folder / RUN_SUMMARY).read_text() == run_markdown(documents)


def test_the_outcome_comes_first_then_gates_and_latencies(documents: RunDocuments) -> None:
    markdown = run_markdown(documents)
    assert markdown.startswith("### ❌ FAILED mine")
    results = markdown.partition("Result")[2].partition("Gate")[0]
    for line in verdict_lines(collect_summary(documents))[1:]:
        word, _, text = line.partition(" ")
        assert (f"| {word} | {prose(text)} |" in results) == (not text.startswith("none "))
    assert "<code>sanitize.nodes &#60;= 1</code>" in markdown
    assert ("✅ passed" in markdown, "❌ failed" in markdown) == (True, True)
    assert 'x-axis ["base", "speed"]' in markdown
    assert "](" not in markdown, "relative links do not resolve in comments"


def test_a_failure_shows_its_reason_and_the_end_of_the_log(documents: RunDocuments) -> None:
    failure = RunFailure(message="speed: no | memory", exit_code=5, steps=("speed",), log_lines={"speed": ("a", "<b>")})
    run = documents.run.model_copy(update={"outcome": "killed", "failure": failure, "passed": False})
    markdown = run_markdown(replace(documents, run=run))
    assert markdown.startswith("### ❌ KILLED mine")
    assert "no &#124; memory" in markdown
    assert "a<br>&#60;b>" in markdown
