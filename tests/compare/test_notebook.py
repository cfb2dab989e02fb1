"""Results in notebooks: data frames, and HTML that shows a verdict and hides no markup of strangers."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.compare.compare_runs import Compared
from ndld_flow.compare.measure_model import Profiled
from ndld_flow.execution.events import RunFinished, SweepFinished
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_folder import SWEEP_RECORD
from ndld_flow.runs.list_runs import RunSummary
from tests.support import comparison_fixtures as comparisons
from tests.support import sweep_samples
from tests.support.message_files import CheckMessage
from tests.support.run_fixtures import HOSTILE_NAMES, profile

METRICS = {"speed.latency.median": Metric(value=4.2, unit="ms"), "half.nodes": Metric(value=12.0)}


COMMON = {"passed": True, "exit_code": 0, "nothing_to_do": False, "wall_s": 1.0}


def finished(**fields: object) -> RunFinished:
    verdict = ("PASSED quick in 1 s", "graph 5 -> 4 nodes")
    files = {"run": "quick/1", "folder": "outputs", "report": "outputs/report.html"}
    return RunFinished.model_validate(
        {**COMMON, **files, "verdict": verdict, "gates": (), "metrics": METRICS, **fields}
    )


def swept(folder: Path) -> SweepFinished:
    (folder / SWEEP_RECORD).write_text(sweep_samples.session().to_json(), encoding="utf-8")
    fields = {"sweep": "s", "folder": str(folder), "report": "r", "verdict": ("PASSED s",), "best": 1, "outcomes": {}}
    return SweepFinished.model_validate({**COMMON, **fields})


def compared(folder: Path) -> Compared:
    pair = comparisons.pair()
    return Compared(pair.comparison, [list(profiles) for profiles in pair.profiles], folder)


def test_results_are_data_frames(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    metrics = api.frame(finished())
    assert metrics.loc["speed.latency.median"].tolist() == [4.2, "ms"]
    points = api.frame(swept(tmp_path))
    assert points["point"].tolist() == [point.number for point in sweep_samples.session().points]
    layers = api.frame(Profiled(profile("cnn", 10, 1, 20)))
    assert len(layers) == 20 and layers["share"].sum() == pytest.approx(1)
    changes = api.frame(compared(tmp_path))
    assert changes.sort_values("delta_ms").iloc[0]["base_layers"] == "p2o.Conv.50"


def test_a_list_of_runs_has_a_column_for_each_metric(check_message: CheckMessage) -> None:
    pytest.importorskip("pandas")
    known = {"started_at": datetime(2026, 1, 1, tzinfo=UTC), "passed": True, "outcome": "passed", "wall_s": 1.0}
    runs = [
        RunSummary.model_validate({**known, "run": run, "tags": (), "folder": run, "command": (), "metrics": metrics})
        for run, metrics in (("a/1", METRICS), ("a/2", {}))
    ]
    frame = api.frame(runs)
    assert frame["run"].tolist() == ["a/1", "a/2"]
    assert frame["speed.latency.median ms"].isna().tolist() == [False, True]
    assert list(api.frame([]).columns)[:2] == ["run", "kind"]
    with pytest.raises(api.RequestError) as caught:
        api.frame("quickstart")  # type: ignore[arg-type]
    check_message(caught.value)


def test_notebooks_show_verdict_table_and_report(in_folder: Path) -> None:
    shown = finished()._repr_html_()
    assert "<b" in shown and "PASSED" in shown and 'href="outputs/report.html"' in shown and "5 -&gt; 4 nodes" in shown
    shown = compared(in_folder)._repr_html_()
    assert "improved" in shown and "latency.median" in shown and "comparison.html" in shown
    shown = Profiled(profile("cnn", 10, 1, 20))._repr_html_()
    assert shown.count("<tr>") == 11 and "bound by" in shown


class Tags(HTMLParser):
    """Collects the elements and attributes of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {tag, *(name for name, _ in attrs)}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_names_from_strangers_are_escaped_in_notebooks(name: str) -> None:
    measured = profile(name, 10, 1, 1)
    layers = tuple(layer.model_copy(update={"name": name}) for layer in measured.layers)
    profiled = Profiled(measured.model_copy(update={"layers": layers}))
    for shown in (profiled._repr_html_(), finished(verdict=(f"PASSED {name}", f"graph {name}"))._repr_html_()):
        assert Tags(shown).seen <= {
            *["a", "b", "div", "p", "table", "tbody", "td", "th", "thead", "tr"],
            "href",
            "style",
        }
