"""Exports of a report: Markdown, images, JUnit XML, JSON, traces, CSV."""
# ruff: noqa: RUF001

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from PIL import Image

from ndld_flow import api
from ndld_flow.records.comparison import (
    ComparedMetric,
    Comparison,
    ComparisonGate,
    Coverage,
    Difference,
    LayerRow,
    LayerVerdict,
    MetricVerdict,
    ProfileComparison,
    Subject,
    Verdict,
)
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, ProfileRun, Span, TensorInfo
from ndld_flow.report.comparison.verdicts import layer_changes
from ndld_flow.report.exports import pictures
from ndld_flow.report.exports.ci_formats import chrome_trace, comparison_benchmark_json, comparison_junit
from ndld_flow.report.exports.pictures import comparison_picture, picture_text
from ndld_flow.report.exports.pull_requests import code, comparison_markdown, mermaid_bars, prose, table
from ndld_flow.report.exports.spreadsheets import LAYER_COLUMNS, comparison_csv, layers_csv, layers_frame
from tests.support.a100_exports import a100_exports

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "a|b\\|c\\",
    "`tick` ``two``",
    "@everyone, see #1 and www.evil.example or http://evil.example",
    "**bold** _under_ [link](http://evil.example) ![picture](x) :smile: $x^2$ ~~gone~~",
    "first\nsecond\r\n| third |",
    "<!-- comment --> &amp; &#64;",
    "\x00\x1b[31m\x07",
    "\u202eright to left",
    "🔥" * 300,
    "x" * 10_000,
    '=HYPERLINK("http://evil.example")',
    "ﬁ ﷽ 漢字",
    "$\\frac{1}{0}$ and $broken",
    "$\\nosuch{x}$",
)


def make_profile(label: str, scale: float = 1.0, names: Sequence[str] = ("Conv_0", "Relu_1", "Softmax_2")) -> Profile:
    """Three process runs, and layers of 4, 2 and 1 ms times `scale`."""
    layers = tuple(
        Layer(
            index=index,
            name=name,
            type=("Conv", "Relu", "Softmax")[index % 3],
            precision="float32",
            outputs=(TensorInfo(name="t", dtype="float32", shape=(1, 8)),),
            onnx_nodes=(name,),
            samples_ms=(scale * 4 / 2**index,) * 3,
            macs=100,
        )
        for index, name in enumerate(names)
    )
    spans = tuple(
        Span(lane="CPU", name=layer.name, start_ms=float(layer.index), duration_ms=0.5, layer=layer.index)
        for layer in layers
    )
    return Profile(
        label=label,
        model_digest="",
        backend="onnxruntime",
        machine=Machine(system="Linux", architecture="x86_64", cpu="A CPU", cpu_count=1, memory_bytes=1),
        versions={"onnxruntime": "1.2"},
        options={},
        inputs=(TensorInfo(name="x", dtype="float32", shape=(1, 3)),),
        outputs=(),
        warmup_passes=0,
        warmup_ms=0.0,
        runs=tuple(ProfileRun(latency_ms=(scale * (7 + run / 100), scale * 7.3)) for run in range(3)),
        layers=layers,
        layer_runs=(1, 1, 1),
        timeline=(Span(lane="H2D", name="copy", start_ms=0.0, duration_ms=0.25, kind="transfer"), *spans),
        timeline_basis="one pass",
        notes=("a note",),
    )


def metric_of(name: str, profiles: Sequence[Profile], **changes: Any) -> ComparedMetric:
    runs = tuple(tuple(run.median_ms for run in profile.runs) for profile in profiles)
    values = tuple(sorted(run)[len(run) // 2] for run in runs)
    return ComparedMetric(**{"metric": name, "unit": "ms", "values": values, "runs": runs, **changes})


def verdict_of(metric: ComparedMetric, candidate: int, verdict: Verdict) -> MetricVerdict:
    base_value, candidate_value = (metric.values[index] or math.nan for index in (0, candidate))
    ratio = candidate_value / base_value
    return MetricVerdict(
        metric=metric.metric,
        base=0,
        candidate=candidate,
        verdict=verdict,
        ratio=ratio,
        base_value=base_value,
        candidate_value=candidate_value,
        low=ratio * 0.98,
        high=ratio * 1.03,
        threshold=0.03,
        why=f"{verdict} because of {ratio:.2f}",
    )


def section(name: str, profiles: Sequence[Profile], verdicts: Sequence[Verdict]) -> ProfileComparison:
    """Profiles compared row by row; the last layer of each candidate has no partner."""
    last = len(profiles[0].layers) - 1
    rows = [
        LayerRow(
            layers=tuple((index,) if index < last or not subject else () for subject in range(len(profiles))),
            methods=("nodes",) * len(profiles),
            confidence=1.0,
            confidences=(1.0,) * len(profiles),
        )
        for index in range(len(profiles[0].layers))
    ]
    alone = [
        LayerRow(
            layers=tuple((last,) if other == subject else () for other in range(len(profiles))),
            methods=("unmatched",) * len(profiles),
            confidence=1.0,
            confidences=(1.0,) * len(profiles),
        )
        for subject in range(1, len(profiles))
    ]
    metrics = (metric_of("latency.p90", profiles), metric_of("latency.median", profiles))
    return ProfileComparison(
        name=name,
        subjects=tuple(range(len(profiles))),
        steps=("speed",) * len(profiles),
        differences=(
            Difference(circumstance="threads", detail="intra_op", values=("1",) * len(profiles), forbids=False),
            Difference(circumstance="hardware", detail="cpu", values=("a", *["b"] * (len(profiles) - 1)), forbids=True),
        ),
        metrics=metrics,
        decided_by="latency.median",
        verdicts=tuple(
            verdict_of(metric, index, verdict) for metric in metrics for index, verdict in enumerate(verdicts, 1)
        ),
        rows=(*rows, *alone),
        layer_verdicts=tuple(
            LayerVerdict(row=row, candidate=index, verdict=verdict, ratio=1.5, p_value=0.01, q_value=0.02)
            for index, verdict in enumerate(verdicts, 1)
            for row in range(last)
        ),
        coverage=(
            None,
            *(Coverage(matched_ms=6, unmatched_ms=1, matched_share=6 / 7, by_method={}) for _ in verdicts),
        ),
    )


def subject(label: str) -> Subject:
    return Subject(label=label, location=label, kind="run")


def two_profiles(name: str = "speed", labels: Sequence[str] = ("main", "branch"), **changes: Any) -> Comparison:
    """A regression of half again."""
    measured = profiles_of(labels)
    fields: dict[str, Any] = {
        "subjects": tuple(map(subject, labels)),
        "profiles": (section(name, measured, ["regressed"] * (len(labels) - 1)),),
        "verdict": "regressed",
        "why": "latency.median 7 ms -> 10.5 ms: +50 %",
    }
    return Comparison(**{**fields, **changes})


def profiles_of(labels: Sequence[str], names: Sequence[str] = ("Conv_0", "Relu_1", "Softmax_2")) -> list[Profile]:
    return [make_profile(label, 1 + index / 2, names) for index, label in enumerate(labels)]


def gate(outcome: Any, candidate: int = 1, name: str = "speed") -> ComparisonGate:
    return ComparisonGate(
        gate="latency.median <= +5 %", name=name, candidate=candidate, outcome=outcome, why=f"it {outcome}"
    )


RENDER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def cells_of(markdown: str) -> list[list[str]]:
    """The tables of a document as a reader sees them: rows of plain texts."""
    tokens = RENDER.parse(markdown)
    rows: list[list[str]] = []
    for index, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open"):
            rows[-1].append(seen(tokens[index + 1].children or []))
    return rows


def seen(children: Sequence[Any]) -> str:
    """Inline tokens as text. Whatever is no text must be our own `<code>`."""
    for child in children:
        assert child.type in ("text", "text_special", "html_inline"), (child.type, child.content)
        if child.type == "html_inline":
            assert child.content in ("<code>", "</code>")
    return "".join(child.content for child in children if child.type != "html_inline")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_do_not_break_a_table(name: str) -> None:
    for shown in (code(name), prose(name)):
        rows = cells_of(table(["a", "b"], [[shown, "end"]], numbers=(1,)))
        assert [len(row) for row in rows] == [2, 2]
        assert rows[1][1] == "end"
        assert len(rows[1][0]) <= 400 + 40  # zero-width spaces
        assert "\u202e" not in shown
        assert not any(bad in shown for bad in ("<img", "http://", "www.", "|", "\n", "`", "](", "$"))


@settings(max_examples=20)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_name_is_displayed_literally(name: str) -> None:
    from ndld_flow.base.text import visible_name

    rows = cells_of(table(["a"], [[f"x{code(name)}x"]]))
    shown = rows[1][0]
    visible = visible_name(name)
    if visible.isascii() or visible.isprintable():
        assert shown == f"x{visible}x"


def test_mentions_links_and_references_are_escaped() -> None:
    source = prose("@everyone, see #1, www.evil.example, http://evil.example :smile: [a](b)")
    # Markdown makes addresses links before it reads character references; GitHub looks for the rest after that.
    assert not any(bad in source for bad in ("www.", "http://", "[a]"))
    shown = cells_of(table(["a"], [[source]]))[1][0]
    assert not any(bad in shown for bad in ("@everyone", "#1", ":smile:"))
    assert "everyone" in shown


def test_a_comparison_is_written_as_markdown() -> None:
    comparison = two_profiles(
        gates=(gate("failed"), gate("passed")), left_out=("`other` has no partner",), noise="learned: 2 %"
    )
    markdown = comparison_markdown(comparison, [profiles_of(["main", "branch"])])
    assert "regressed: latency.median 7 ms -> 10.5 ms" in markdown
    assert "mermaid" not in markdown, "the bars of a pair look equal"
    rows = cells_of(markdown)
    assert ["latency.median <= +5 %", "speed", "branch", "❌ failed", "it failed"] in rows
    assert ["Metric", "main", "branch", "Ratio", "95 % interval", "Verdict"] in rows
    assert ["latency.median", "7.15 ms", "10.7 ms", "1.500×", "1.470× to 1.545×", "❌ regressed"] in rows
    assert ["Conv_0", "Conv", "4.00 ms", "6.00 ms", "+2.00 ms (+50 %)", "❌ regressed"] in rows
    assert ["Softmax_2", "Softmax", "–", "1.50 ms", "+1.50 ms", "only in the candidate"] in rows
    assert ["hardware", "cpu", "a", "b", "forbids a verdict"] in rows
    assert "time (14.3 %) has no partner" in markdown
    assert markdown.count("<details>") == markdown.count("</details>") == 3
    # A block of HTML ends at an empty line, and only then Markdown begins again.
    assert markdown.count("</summary>\n\n") == 3
    assert "2 differences in conditions, 1" in markdown
    assert "- &#96;other&#96; has no partner" in markdown


@pytest.mark.parametrize("others", [0, 1])
def test_only_further_metrics_are_folded(others: int) -> None:
    measured = profiles_of(["main", "branch"])
    whole = section("speed", measured, ["regressed"])
    cut = whole.model_copy(update={"metrics": whole.metrics[: 1 + others], "verdicts": whole.verdicts[:1]})
    text = comparison_markdown(two_profiles(profiles=(cut,)), [measured])
    assert ("All metrics" in text) == bool(others)


def test_several_candidates_and_profiles_are_written_as_markdown() -> None:
    labels = ["main", "one", "two"]
    measured = [profiles_of(labels), profiles_of(labels)]
    sections = (
        section("fast", measured[0], ["improved", "unchanged"]),
        section("slow", measured[1], ["regressed", "inconclusive"]),
    )
    comparison = two_profiles(labels=labels, profiles=sections, geometric_mean_ratio=1.5)
    markdown = comparison_markdown(comparison, measured)
    rows = cells_of(markdown)
    assert "![" not in markdown
    assert 'x-axis ["1 main", "2 one", "3 two"]' in markdown
    assert "#### <code>fast</code>" in markdown
    assert "mean over all profiles: 1.500×" in markdown
    assert ["latency.median", "two", "7.15 ms", "14.3 ms", "2.000×", "1.960× to 2.060×", "➖ unchanged"] in rows
    assert "layers of <code>two</code>" in markdown


def test_values_of_charts_have_no_exponent() -> None:
    assert "    bar [12340000, 0.00001234]\n" in mermaid_bars("size", {"a": 12_341_234.0, "b": 1.2341e-5}, "bytes")


def test_only_tested_layers_are_called_slower() -> None:
    """A layer that was measured in one run has no test: its change is in the table alone."""
    comparison = two_profiles()
    compared = comparison.profiles[0]
    for q_value, expected in ((0.001, True), (None, False)):
        judged = tuple(
            layer_verdict.model_copy(update={"q_value": q_value}) for layer_verdict in compared.layer_verdicts
        )
        changed = comparison.model_copy(update={"profiles": (compared.model_copy(update={"layer_verdicts": judged}),)})
        markdown = comparison_markdown(changed, [profiles_of(["main", "branch"])])
        assert (
            "became slower**: <code>Conv&#95;0</code> +2.00 ms (+50 %)" in markdown.replace("_", "&#95;")
        ) is expected


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_titles_of_charts_do_not_end_their_block(name: str) -> None:
    chart = mermaid_bars(name, {"a": 1.0}, name)
    assert chart.count("```") == 2 and chart.count("\n") == 7


@pytest.mark.representatives("11", "10", "12")
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_escaped_everywhere(name: str) -> None:
    labels = [name, f"{name}2"]
    measured = profiles_of(labels, [name, f"{name}b", f"{name}c"])
    comparison = two_profiles(name, labels, why=name, left_out=(name,), noise=name, gates=(gate("failed", name=name),))
    markdown = comparison_markdown(comparison, [measured])
    assert {len(row) for row in cells_of(markdown)} <= {5, 6}
    assert len(markdown) < 12_000
    assert "<img" not in markdown
    assert markdown.count("```") == 0
    suite = Xml.fromstring(comparison_junit(comparison))  # noqa: S314
    assert len(list(suite.iter("testcase"))) == 1
    json.loads(comparison_benchmark_json(comparison))
    json.loads(chrome_trace([(name, measured[0])]))
    assert len(list(csv.reader(io.StringIO(comparison_csv(comparison, [measured]), newline="")))) == 5


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=str(index), marks=[pytest.mark.thorough] * (index % 4 > 0))
        for index, name in enumerate(HOSTILE)
    ],
)
def test_hostile_names_are_drawn(name: str, tmp_path: Path) -> None:
    labels = [name, f"{name}2"]
    measured = profiles_of(labels, [name, f"{name}b", f"{name}c"])
    comparison = two_profiles(name, labels, why=name, left_out=(name,), noise=name, gates=(gate("failed", name=name),))
    with Image.open(comparison_picture(comparison, [measured], tmp_path / "p.png")) as picture:
        assert picture.size[0] == pictures.WIDTH_IN * pictures.DPI


@pytest.mark.thorough
def test_a_comment_fits_the_limit_of_github() -> None:
    name = "|<" * 5_000
    labels = [f"{name}{index}" for index in range(9)]
    measured = [profiles_of(labels, [f"{name}{index}" for index in range(12)]) for _ in range(30)]
    sections = tuple(section(f"{name}{index}", many, ["regressed"] * 8) for index, many in enumerate(measured))
    markdown = comparison_markdown(two_profiles(labels=labels, profiles=sections), measured)
    assert 30_000 < len(markdown) < 65_536
    assert markdown.startswith("### ❌ regressed")
    assert "The report has more" in markdown
    assert markdown.count("<details>") == markdown.count("</details>")


def asked_of_first(precision: str) -> Profile:
    source = make_profile("source")
    first = source.layers[0].model_copy(update={"asked_precision": precision})
    return source.model_copy(update={"layers": (first, *source.layers[1:])})


def test_requested_precisions_are_in_tables() -> None:
    assert layers_frame(asked_of_first("fp16"))["asked_precision"].tolist() == ["fp16", "", ""]


def test_layer_changes_are_sorted_by_size() -> None:
    measured = profiles_of(["a", "b"])
    changes = layer_changes(section("s", measured, ["regressed"]), measured)
    assert [(change.name, change.base_ms, change.candidate_ms) for change in changes] == [
        ("Conv_0", 4, 6),
        ("Softmax_2", 0, 1.5),
        ("Relu_1", 2, 3),
        ("Softmax_2", 1, 0),
    ]
    assert [change.verdict is None for change in changes] == [False, True, False, True]


def colours_in(path: Path) -> set[tuple[int, ...]]:
    with Image.open(path) as picture:
        found = picture.convert("RGB").getcolors(1 << 24)
    assert found is not None
    return {colour for count, colour in found if count > 200 and isinstance(colour, tuple)}


@pytest.mark.thorough
def test_the_image_is_opaque_and_shows_all_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "DPI", 200)
    comparison = two_profiles()
    path = comparison_picture(comparison, [profiles_of(["main", "branch"])], tmp_path / "p.png")
    with Image.open(path) as picture:
        assert picture.size[0] == 2_000
        assert picture.size[1] < 1_400
        assert picture.convert("RGBA").getchannel("A").getextrema() == (255, 255)
        assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
    colours = colours_in(path)
    assert (0xB0, 0x46, 0x00) in colours  # slower
    assert (0x00, 0x70, 0x4F) in colours  # the layer that is gone


def test_text_of_an_image_fits() -> None:
    assert picture_text("Conv_0", 1.0, 10) == "Conv_0"
    cut = picture_text("W" * 5_000, 1.0, 10)
    assert "…" in cut
    assert 5 < len(cut) < 12
    assert len(picture_text("i" * 5_000, 1.0, 10)) > len(cut)
    assert picture_text("\u202eab🔥c", 1.0, 10) == "\ufffdab□c"


def test_equal_data_gives_equal_images(tmp_path: Path) -> None:
    comparison, measured = two_profiles(), [profiles_of(["main", "branch"])]
    first = comparison_picture(comparison, measured, tmp_path / "a.png").read_bytes()
    assert comparison_picture(comparison, measured, tmp_path / "b.png").read_bytes() == first


@pytest.mark.thorough
def test_settings_of_matplotlib_are_kept_and_have_no_effect(tmp_path: Path) -> None:
    import matplotlib as mpl

    comparison, measured = two_profiles(), [profiles_of(["main", "branch"])]
    plain = comparison_picture(comparison, measured, tmp_path / "plain.png").read_bytes()
    mpl.rcParams["xtick.direction"] = "in"
    try:
        assert comparison_picture(comparison, measured, tmp_path / "p.png").read_bytes() == plain
        assert mpl.rcParams["xtick.direction"] == "in"
    finally:
        mpl.rcdefaults()


@pytest.mark.thorough
def test_images_of_few_and_many_values_are_drawn(tmp_path: Path) -> None:
    bare = [profile.model_copy(update={"layers": (), "layer_runs": ()}) for profile in profiles_of(["main", "branch"])]
    exact = section("model", bare, ["unchanged"]).model_copy(update={"rows": (), "layer_verdicts": ()})
    alone = metric_of("model.bytes", bare, unit="bytes", values=(4_000_000.0, None), runs=())
    verdicts = (verdict_of(alone, 1, "incomparable"),)
    exact = exact.model_copy(update={"metrics": (alone,), "decided_by": "model.bytes", "verdicts": verdicts})
    comparison_picture(two_profiles(profiles=(exact,)), [bare], tmp_path / "little.png")

    labels = [f"candidate {index}" for index in range(12)]
    measured = [profiles_of(labels) for _ in range(9)]
    sections = tuple(section(f"profile {index}", many, ["improved"] * 11) for index, many in enumerate(measured))
    path = comparison_picture(two_profiles(labels=labels, profiles=sections), measured, tmp_path / "much.png")
    with Image.open(path) as picture:
        assert picture.size[1] < 6_000


def test_gates_are_written_as_junit() -> None:
    outcomes = ("passed", "failed", "inconclusive", "incomparable")
    root = Xml.fromstring(comparison_junit(two_profiles(gates=tuple(map(gate, outcomes)))))  # noqa: S314
    suite = root.find("testsuite")
    assert suite is not None
    assert suite.attrib == {"name": "speed", "tests": "4", "failures": "1", "errors": "2", "skipped": "0"}
    assert root.get("tests") == "4"
    children = [[child.tag for child in case] for case in suite]
    assert children == [["system-out"], ["failure"], ["error"], ["error"]]
    case = suite[1]
    assert case.get("name") == "latency.median <= +5 % (branch against main)"
    assert case.get("classname") == "speed"
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "failed: it failed"


def test_verdicts_are_written_as_junit_without_gates() -> None:
    labels = ["main", "a", "b", "c"]
    measured = profiles_of(labels)
    sections = (section("speed", measured, ["improved", "regressed", "inconclusive"]),)
    root = Xml.fromstring(comparison_junit(two_profiles(labels=labels, profiles=sections)))  # noqa: S314
    cases = list(root.iter("testcase"))
    assert [case.get("name") for case in cases] == [
        "latency.median (a against main)",
        "latency.median (b against main)",
        "latency.median (c against main)",
    ]
    assert [[child.tag for child in case] for case in cases] == [["system-out"], ["failure"], ["error"]]


@pytest.mark.parametrize(("word", "element"), [("inconclusive", "error"), ("pass", "skipped"), ("fail", "failure")])
def test_junit_reports_an_undecided_gate_as_the_run_does(word: str, element: str) -> None:
    comparison = two_profiles(gates=(gate("inconclusive"),)).model_copy(update={"when_undecided": word})
    root = Xml.fromstring(comparison_junit(comparison))  # noqa: S314
    assert [[child.tag for child in case] for case in root.iter("testcase")] == [[element]]


@given(st.text(max_size=30))
@example("\ufffe\uffff")
def test_any_text_is_valid_in_xml(text: str) -> None:
    comparison = two_profiles(gates=(gate("failed", name="speed"),), subjects=(subject("a"), subject(text)))
    case = next(Xml.fromstring(comparison_junit(comparison)).iter("testcase"))  # noqa: S314
    assert "against a" in str(case.get("name"))


def test_metrics_are_written_for_github_action_benchmark() -> None:
    measured = profiles_of(["main", "branch"])
    higher = metric_of("throughput", measured, unit="1/s", better="higher")
    unknown = metric_of("memory.peak", measured, unit="bytes", values=(1.0, None))
    broken = metric_of("load", measured, values=(1.0, math.nan))
    compared = section("speed", measured, ["regressed"])
    compared = compared.model_copy(update={"metrics": (*compared.metrics, higher, unknown, broken)})
    entries = json.loads(comparison_benchmark_json(two_profiles(profiles=(compared,))))
    # Tails differ from run to run: an alert on them would be noise.
    assert [entry["name"] for entry in entries] == ["speed: latency.median"]
    median = entries[0]
    assert (median["unit"], median["value"]) == ("ms", pytest.approx(7.155 * 1.5, rel=1e-3))
    assert median["range"] == "± 0.0075"
    assert "regressed: regressed because of 1.50" in median["extra"]


def test_a_chrome_trace_is_written() -> None:
    two = [("first", make_profile("a")), ("second", make_profile("b", 2))]
    document = json.loads(chrome_trace(two))
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"], e["name"]): e["args"].get("name") for e in events if e["ph"] == "M"}
    assert names[1, 0, "process_name"] == "first"
    assert names[2, 0, "process_name"] == "second"
    assert [names[1, tid, "thread_name"] for tid in (1, 2)] == ["H2D", "CPU"]
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(span["name"], span["cat"], span["ts"], span["dur"], span["tid"]) for span in spans] == [
        ("copy", "transfer", 0, 250, 1),
        ("Conv_0", "layer", 0, 500, 2),
        ("Relu_1", "layer", 1000, 500, 2),
        ("Softmax_2", "layer", 2000, 500, 2),
    ]
    assert spans[1]["args"] == {
        "type": "Conv",
        "precision": "float32",
        "outputs": "float32 1×8",
        "onnx nodes": "Conv_0",
        "macs": 100,
    }
    assert document["displayTimeUnit"] == "ms"


def test_a_trace_skips_non_finite_values() -> None:
    broken = make_profile("a").model_copy(
        update={
            "timeline": (
                Span(lane="a", name="n", start_ms=math.nan, duration_ms=1.0),
                Span(lane="a", name="m", start_ms=1.0, duration_ms=-1.0, layer=99),
            )
        }
    )
    spans = [event for event in json.loads(chrome_trace([("x", broken)]))["traceEvents"] if event["ph"] == "X"]
    assert [(span["name"], span["dur"], span["args"]) for span in spans] == [("m", 0, {})]


def read_csv(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_layers_are_written_as_csv() -> None:
    text = layers_csv([("one", make_profile("a")), ("two", make_profile("b", 2))])
    rows = read_csv(text)
    assert text.endswith("\r\n")
    assert rows[0] == ["profile", *LAYER_COLUMNS]
    first = dict(zip(rows[0], rows[1], strict=True))
    assert (first["profile"], first["name"], first["median_ms"], first["output_dims"]) == (
        "one",
        "Conv_0",
        "4.0",
        "1x8",
    )
    assert float(first["share"]) == pytest.approx(4 / 7)
    assert [row[0] for row in rows[1:]] == ["one"] * 3 + ["two"] * 3


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "\n@x"])
def test_csv_contains_no_formula(name: str) -> None:
    rows = read_csv(layers_csv([(name, make_profile("a", names=[name, 'quote " and, comma', "x"]))]))
    assert rows[1][0].startswith("'")
    assert rows[1][2].startswith("'")
    assert rows[2][2] == 'quote " and, comma'


def test_negative_numbers_stay_numbers() -> None:
    measured = profiles_of(["a", "b"])
    rows = read_csv(comparison_csv(two_profiles(labels=["a", "b"]), [measured]))
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert [(record["base_layers"], record["candidate_layers"], record["delta_ms"]) for record in records] == [
        ("Conv_0", "Conv_0", "2.0"),
        ("Relu_1", "Relu_1", "1.0"),
        ("Softmax_2", "", "-1.0"),
        ("", "Softmax_2", "1.5"),
    ]
    assert [record["matched_by"] for record in records] == ["nodes"] * 3 + ["unmatched"]
    assert [record["verdict"] for record in records] == ["regressed", "regressed", "", ""]


def test_layers_are_a_data_frame() -> None:
    frame = layers_frame(make_profile("a"))
    assert list(frame.columns) == list(LAYER_COLUMNS)
    assert frame.loc[0, "name"] == "Conv_0"
    assert frame["median_ms"].sum() == pytest.approx(7)
    assert list(layers_frame(make_profile("a").model_copy(update={"layers": ()})).columns) == list(LAYER_COLUMNS)


def test_non_finite_values_are_empty_in_tables() -> None:
    layer = Layer(index=0, name="a", type="b", samples_ms=(math.nan, math.inf))
    profile = make_profile("a").model_copy(update={"layers": (layer,)})
    measured = profiles_of(["a", "b"])
    compared = section("s", measured, ["unchanged"])
    verdict = compared.layer_verdicts[0].model_copy(update={"ratio": math.inf})
    compared = compared.model_copy(update={"layer_verdicts": (verdict,)})
    rows = read_csv(comparison_csv(two_profiles(profiles=(compared,)), [measured]))
    assert dict(zip(rows[0], rows[1], strict=True))["ratio"] == ""
    row = dict(zip(*read_csv(layers_csv([("x", profile)])), strict=True))
    assert (row["median_ms"], row["min_ms"], row["share"]) == ("", "", "0.0")


def test_a_chart_holds_only_finite_values_and_escaped_labels() -> None:
    chart = mermaid_bars("Median latency", {'a"]\n```<b>': 1.5, "fast": 0.25, "none": 0.0, "broken": math.nan}, "ms")
    assert 'x-axis ["a b", "fast"]' in chart
    named = mermaid_bars("x", {"4 20261121T093000Z-3f9a1c:speed": 1.0}, "ms")
    assert '"4 20261121T093000Z-…9a1c speed"' in named  # not as if it were a whole name
    assert "bar [1.5, 0.25]" in chart
    assert chart.count("```") == 2
    assert mermaid_bars("x", {"none": 0.0, "broken": math.inf}, "ms") == ""


def test_an_import_is_written_as_csv(tmp_path: Path) -> None:
    written = api.report(str(a100_exports() / "fp16"), to=tmp_path / "fp16.csv").read_text("utf-8")
    heading, first, second, *_ = csv.reader(io.StringIO(written))
    assert heading == ["profile", *LAYER_COLUMNS]
    assert [first[2], second[2]] == ["Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1", "Conv_0 + Relu_1"]
