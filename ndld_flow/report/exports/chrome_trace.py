"""Write timelines as a Chrome trace, for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

The Trace Event Format: complete events (`ph: X`, times in microseconds) in threads of processes, which are named by
metadata events (`ph: M`). A profile is a process, a lane is a thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from ndld_flow.base.text import short_name
from ndld_flow.records.profile import Layer, Profile, Span
from ndld_flow.report.encoding import Json
from ndld_flow.report.value_text import shape_text

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
