"""Checks that run the model in another process: it may crash, hang, or exhaust memory."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.accuracy.slices import channel_magnitudes
from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.lint.subject import Subject, about
from ndld_flow.inputs import InputSpec
from ndld_flow.models.declared_inputs import model_inputs
from ndld_flow.records.inspection import Finding, Severity
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings

# The model's path is passed as an argument: nothing from outside is interpreted.
_LOAD = """
import sys
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
try:
    ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print(error)
    sys.exit(1)
"""
# Feeds and outputs are passed as files of plain arrays.
_RUN = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
with np.load(sys.argv[2]) as feeds:
    values = session.run(None, {name: feeds[name] for name in feeds.files})
np.savez(sys.argv[3], *(value if isinstance(value, np.ndarray) else np.empty(0) for value in values))
"""
_POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main())"
_HUNDREDFOLD = 100.0
_PLAIN_NAME = re.compile(r"[\w.][\w.:/]*")
_NODE = re.compile(r"[Nn]ode:? ?\(?(?:name:)?'?(?P<name>[^\s')]+)")


class TimeLimitError(Exception):
    """The time limit was reached."""


def onnxruntime_loads(subject: Subject, timeout_s: float) -> Iterator[Finding]:
    """Check that ONNX Runtime can load the model. Raises `TimeLimitError`."""
    process = _run(["-c", _LOAD, str(subject.path.resolve())], timeout_s)
    if process.returncode == 0:
        return
    if process.returncode < 0 or not process.stdout.strip():
        yield about("onnxruntime", "error", f"ONNX Runtime crashed while loading it (exit code {process.returncode})")
        return
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", one_paragraph(process.stdout))
    names = {node.name: node.op_type for node in subject.nodes() if node.name}
    match = _NODE.search(message)
    node = match["name"] if match and match["name"] in names else ""
    yield Finding(severity="error", check="onnxruntime", message=message, node=node, op_type=names.get(node, ""))


def channel_scales(subject: Subject, inputs: Mapping[str, InputSpec], timeout_s: float) -> Iterator[Finding]:
    """Find outputs whose channels differ a hundredfold in range, on random values of the recipe's shapes.

    Raises `TimeLimitError`. Finds nothing if the model does not run: other checks report that.
    """
    samples = make_samples(model_inputs(subject.path), inputs, SampleSettings(), subject.path.name)
    feeds = {name: feed.values for name, feed in next(iter(samples)).feeds.items()}
    if any(values.dtype.isbuiltin != 1 or values.dtype.hasobject for values in feeds.values()):
        return
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
        feeds_file, outputs_file = Path(folder, "feeds.npz"), Path(folder, "outputs.npz")
        np.savez(feeds_file, allow_pickle=False, **feeds)
        process = _run(["-c", _RUN, str(subject.path.resolve()), str(feeds_file), str(outputs_file)], timeout_s)
        if process.returncode:
            return
        with np.load(outputs_file, allow_pickle=False) as arrays:
            outputs = [arrays[name] for name in arrays.files]
    for value, array in zip(subject.proto.graph.output, outputs, strict=True):
        largest = channel_magnitudes(array) if array.dtype.kind == "f" else None
        if largest is None or (message := _scale_difference(largest)) is None:
            continue
        yield about("channel_scales", "info", f"output {value.name!r}: {message}")


def _scale_difference(largest: Sequence[float]) -> str | None:
    """Return a sentence on the channels with the largest and the smallest values; None below a hundredfold."""
    top = max(range(len(largest)), key=largest.__getitem__)
    low = min((i for i in range(len(largest)) if largest[i] > 0), key=largest.__getitem__, default=top)
    if not largest[top] >= _HUNDREDFOLD * largest[low]:
        return None
    return (
        f"values of channel {top} reach {largest[top]:.3g}, those of channel {low} {largest[low]:.3g}. Cosine and "
        "other metrics over the whole output do not see the smaller ones, and one INT8 scale for all of them erases "
        "them: check the output by slices, and quantise such channels separately"
    )


def polygraphy_missing() -> str:
    """Return why Polygraphy's lint cannot run here; empty if it can."""
    missing = [name for name in ("polygraphy", "onnx_graphsurgeon") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


def polygraphy_lint(subject: Subject, shapes: Mapping[str, Sequence[int]], timeout_s: float) -> Iterator[Finding]:
    """Run `polygraphy check lint` on random inputs of the given shapes. Raises `TimeLimitError`."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
        report = Path(folder) / "lint.json"
        command = ["-c", _POLYGRAPHY, "check", "lint", str(subject.path.resolve()), "-o", str(report)]
        feeds_file = [f"{n}:[{','.join(map(str, s))}]" for n, s in shapes.items() if _PLAIN_NAME.fullmatch(n)]
        process = _run([*command, *(["--input-shapes", *feeds_file] if feeds_file else [])], timeout_s)
        if not report.exists():
            last = (process.stderr.strip() or process.stdout.strip() or "no output").splitlines()[-1]
            yield about("polygraphy", "warning", f"`polygraphy check lint` itself failed: {last}")
            return
        entries: list[dict[str, Any]] = json.loads(report.read_text())["lint_entries"]
    types = {node.name: node.op_type for node in subject.nodes() if node.name}
    exact = _inputs_are_given(subject, shapes)
    with_bodies = {node.name for node in subject.nodes() if any(a.HasField("g") or a.graphs for a in node.attribute)}
    for entry in entries:
        cut_out = entry["source"] == "onnx_checker" or not with_bodies.isdisjoint(entry.get("nodes") or [])
        yield from _polygraphy_findings(entry, types, exact, cut_out)


def _polygraphy_findings(
    entry: dict[str, Any], types: Mapping[str, str], exact: bool, cut_out: bool
) -> Iterator[Finding]:
    if entry["source"] == "onnx_graphsurgeon":
        return  # unused nodes, which `unused_node` also reports
    severity, remark = _severity(entry, exact, cut_out)
    message = one_paragraph(entry["message"]) + remark
    for name in entry.get("nodes") or [""]:
        node = "" if name.startswith("polygraphy_unnamed_node") else name
        yield Finding(severity=severity, check="polygraphy", message=message, node=node, op_type=types.get(node, ""))


def _severity(entry: dict[str, Any], exact: bool, cut_out: bool) -> tuple[Severity, str]:
    """Return the severity of an entry, and a remark on its message."""
    if cut_out:
        # Polygraphy extracts nodes from the graph, whose bodies then miss outer values; `onnx.checker` and
        # `onnxruntime` check the whole model.
        return "info", " (about the node as extracted by Polygraphy)"
    if entry["level"] != "exception":
        return "warning", ""
    if exact:
        return "error", ""
    # Dimensions of 1 are often too small for a valid model.
    return "warning", " (run with free dimensions as 1: give shapes in `inputs:` to be sure)"


def _inputs_are_given(subject: Subject, shapes: Mapping[str, Sequence[int]]) -> bool:
    initialized = {tensor.name for tensor in subject.proto.graph.initializer}
    return all(
        value.name in shapes or value.name in initialized or _is_static(value) for value in subject.proto.graph.input
    )


def _is_static(value: Any) -> bool:  # noqa: ANN401 - a ValueInfoProto
    return all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)


def _run(arguments: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-P", *arguments],  # -P: anybody may put a `json.py` into the folder of temporary files
            capture_output=True,
            text=True,
            cwd=tempfile.gettempdir(),  # shape inference of large models leaves files in the current directory
            timeout=timeout_s,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise TimeLimitError from None
