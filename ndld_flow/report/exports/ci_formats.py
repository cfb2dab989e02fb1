"""Results for other tools: JUnit XML, metrics for github-action-benchmark, and timelines for trace viewers.

In JUnit XML a profile is a test suite, and each gate and candidate a test case. A comparison without gates has one test
case per candidate: the verdict of the deciding metric, which also decides the exit code. Failed gates and regressions
are failures. Inconclusive and incomparable are `error`, so that undecided results do not look like passed or skipped
tests. With `when_undecided: pass` inconclusive is `skipped`, and with `fail` a failure.

github-action-benchmark (`tool: customSmallerIsBetter`) plots metrics over commits:
https://github.com/benchmark-action/github-action-benchmark, a list of {name, unit, value, range, extra}. Names must
stay the same between commits, so they do not contain labels of runs unless there are several candidates.

The Trace Event Format: complete events (`ph: X`, times in microseconds) in threads of processes, which are named by
metadata events (`ph: M`). A profile is a process, a lane is a thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from ndld_flow.base.quantities import quantity
from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Comparison, ProfileComparison
from ndld_flow.records.profile import Layer, Profile, Span
from ndld_flow.report.encoding import Json
from ndld_flow.report.measured import shape_text

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, not even as references."""
_ELEMENTS = {"failed": "failure", "regressed": "failure", "incomparable": "error"}
"""Outcome or verdict -> element of the test case; none if it passed."""
_UNDECIDED = {"inconclusive": "error", "pass": "skipped", "fail": "failure"}
"""`when_undecided` -> element of inconclusive results."""
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


@dataclass(frozen=True)
class _Case:
    name: str
    candidate: int
    outcome: str
    why: str


def comparison_junit(comparison: Comparison) -> str:
    """Return JUnit XML of a comparison's gates, or of its verdicts if it has no gates."""
    root = Xml.Element("testsuites", name="ndld-flow compare")
    for compared in comparison.profiles:
        suite = Xml.SubElement(root, "testsuite", name=_xml_text(compared.name))
        for case in _cases(comparison, compared):
            _add_case(suite, comparison, compared, case)
        _count(suite)
    _count(root)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _cases(comparison: Comparison, compared: ProfileComparison) -> Iterator[_Case]:
    if comparison.gates:
        for gate in comparison.gates:
            if gate.name == compared.name:
                yield _Case(gate.gate, gate.candidate, gate.outcome, gate.why)
        return
    for verdict in compared.deciding:
        yield _Case(verdict.metric, verdict.candidate, verdict.verdict, verdict.why)


def _add_case(suite: Xml.Element, comparison: Comparison, compared: ProfileComparison, case: _Case) -> None:
    subjects = [comparison.subjects[index].label for index in compared.subjects]
    against = f"{subjects[case.candidate]} against {subjects[0]}"
    element = Xml.SubElement(
        suite, "testcase", name=_xml_text(f"{case.name} ({against})"), classname=_xml_text(compared.name), time="0"
    )
    undecided = case.outcome == "inconclusive"
    kind = _UNDECIDED[comparison.when_undecided] if undecided else _ELEMENTS.get(case.outcome)
    if kind is None:
        Xml.SubElement(element, "system-out").text = _xml_text(f"{case.outcome}: {case.why}", 2_000)
        return
    message = _xml_text(f"{case.outcome}: {case.why}", 2_000)
    child = Xml.SubElement(element, kind, message=message)
    if kind != "skipped":
        child.set("type", case.outcome)
        child.text = message


def _count(element: Xml.Element) -> None:
    element.set("tests", str(len(list(element.iter("testcase")))))
    for name, tag in _COUNTS.items():
        element.set(name, str(len(list(element.iter(tag)))))


def _xml_text(text: str, limit: int = 300) -> str:
    """Return one line without characters that XML does not allow."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", short_name(text, limit))


_RESTLESS = ("latency.mean", "latency.p90", "latency.p95", "latency.p99", "enqueue.median")
"""Metrics left out: means and tails vary between runs of identical code and would raise alerts."""


def comparison_benchmark_json(comparison: Comparison) -> str:
    """Return the candidates' stable metrics of which less is better; `extra` holds the base."""
    entries = [entry for compared in comparison.profiles for entry in _compared(comparison, compared)]
    return json.dumps(entries, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _compared(comparison: Comparison, compared: ProfileComparison) -> Iterator[dict[str, str | float]]:
    candidates = range(1, len(compared.subjects))
    for metric in compared.metrics:
        if metric.better != "lower" or (metric.metric in _RESTLESS and metric.metric != compared.decided_by):
            continue
        for index in candidates:
            value = metric.values[index]
            if value is None or not math.isfinite(value):  # JSON does not support NaN
                continue
            label = comparison.subjects[compared.subjects[index]].label if len(candidates) > 1 else ""
            name = f"{compared.name}: {metric.metric}" + (f" ({label})" if label else "")
            runs = metric.runs[index] if index < len(metric.runs) else ()
            base = metric.values[0]
            lines = [f"base: {short_name(comparison.subjects[compared.subjects[0]].label)}"]
            if base is not None:
                lines[0] += f", {quantity(base, metric.unit)}"
            lines += [
                f"{verdict.verdict}: {short_name(verdict.why, 400)}"
                for verdict in compared.verdicts
                if (verdict.metric, verdict.base, verdict.candidate) == (metric.metric, 0, index)
            ]
            entry: dict[str, str | float] = {"name": short_name(name, 200), "unit": metric.unit, "value": value}
            if len(runs) > 1 and all(map(math.isfinite, runs)):
                entry["range"] = f"± {(max(runs) - min(runs)) / 2:.3g}"
            yield entry | {"extra": "\n".join(lines)}


_NAME = 200


def chrome_trace(profiles: Sequence[tuple[str, Profile]]) -> str:
    """Return the timelines of labelled profiles as JSON, one process each."""
    events = [event for pid, (label, profile) in enumerate(profiles, 1) for event in _events(pid, label, profile)]
    basis: dict[str, Json] = {
        f"{pid} {short_name(label, _NAME)}": short_name(profile.timeline_basis, 400)
        for pid, (label, profile) in enumerate(profiles, 1)
    }
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"written by": "ndld-flow", **basis}}
    return json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n"


def _events(pid: int, label: str, profile: Profile) -> Iterator[dict[str, Json]]:
    spans = [span for span in profile.timeline if math.isfinite(span.start_ms) and math.isfinite(span.duration_ms)]
    lanes = {lane: tid for tid, lane in enumerate(dict.fromkeys(span.lane for span in spans), 1)}
    yield _named("process_name", pid, 0, {"name": short_name(label, _NAME)})
    yield _named("process_sort_index", pid, 0, {"sort_index": pid})
    for lane, tid in lanes.items():
        yield _named("thread_name", pid, tid, {"name": short_name(lane, _NAME)})
        yield _named("thread_sort_index", pid, tid, {"sort_index": tid})
    for span in spans:
        yield {
            "ph": "X",
            "name": short_name(span.name, _NAME),
            "cat": span.kind,
            "ts": span.start_ms * 1e3,
            "dur": max(span.duration_ms, 0.0) * 1e3,
            "pid": pid,
            "tid": lanes[span.lane],
            "args": _args(span, profile.layers),
        }


def _named(name: str, pid: int, tid: int, args: dict[str, Json]) -> dict[str, Json]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _args(span: Span, layers: Sequence[Layer]) -> dict[str, Json]:
    """Return the known properties of a layer that viewers show on selection."""
    if span.layer is None or not 0 <= span.layer < len(layers):
        return {}
    layer = layers[span.layer]
    properties: dict[str, Json] = {
        "type": short_name(layer.type, _NAME),
        "precision": short_name(layer.precision, _NAME),
        "reads": short_name(layer.input_precision, _NAME),
        "multiply unit": layer.unit,
        "provider": short_name(layer.provider, _NAME),
        "tactic": short_name(layer.tactic, _NAME),
        "outputs": ", ".join(f"{output.dtype} {shape_text(output.shape)}" for output in layer.outputs[:8]),
        "onnx nodes": short_name(", ".join(layer.onnx_nodes[:50]), 1_000),
        "role": "" if layer.purpose == "compute" else layer.purpose,
        "macs": layer.macs,
    }
    return {name: value for name, value in properties.items() if value not in ("", None)}
