"""The selected checks, run within the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ndld_flow.base.errors import BackendError, ModelError, RequestError
from ndld_flow.graph.lint import graph_checks, library_checks, programs, value_checks
from ndld_flow.graph.lint.settings import LintSettings
from ndld_flow.graph.lint.subject import Subject, about, shortened
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import load_model, read_proto
from ndld_flow.records.inspection import Finding, Findings

Check = Callable[[Subject], Iterator[Finding]]

_OWN_CHECKS: dict[str, Check] = {
    "external_data": library_checks.external_data,
    "onnx.checker": library_checks.onnx_checker,
    "shape_inference": library_checks.shape_inference,
    "versions": graph_checks.versions,
    "unknown_op": graph_checks.unknown_operators,
    "duplicate_name": graph_checks.duplicate_names,
    "missing_name": graph_checks.missing_names,
    "unused_node": graph_checks.unused_nodes,
    "unused_initializer": graph_checks.unused_initializers,
    "unused_input": graph_checks.unused_inputs,
    "dynamic_output": graph_checks.dynamic_outputs,
    "float64": graph_checks.double_precision,
    "nan_inf": value_checks.nonfinite_values,
    "fp16_range": value_checks.half_precision_range,
}
CHECKS = (*_OWN_CHECKS, "onnxruntime", "polygraphy", "channel_scales")
"""Every check, in the order they run: the names of `settings.CheckName`."""
_READ_WEIGHTS = frozenset(("nan_inf", "fp16_range"))
_COSTLY = _READ_WEIGHTS | {"channel_scales"}
_FIRST_IR_POLYGRAPHY_READS = 4
"""Earlier versions list initializers as inputs, and Polygraphy drops the inputs."""
_ORDER = ("error", "warning", "info")


def lint_file(
    path: Path,
    settings: LintSettings,
    inputs: Mapping[str, InputSpec],
    progress: Callable[[int, int, str], None],
) -> Findings:
    """Run the checks, on these inputs where the model runs; the result lists skipped checks with the reason.

    Raises `ModelError` if the file is not an ONNX model, `BackendError` if Polygraphy is required and not installed.
    """
    deadline = time.monotonic() + settings.time_limit / 1000
    subject = _read(path)
    size = _total_bytes(subject)
    findings: list[Finding] = []
    run: list[str] = []
    skipped: dict[str, str] = {}
    for position, name in enumerate(CHECKS):
        progress(position, len(CHECKS), name)
        reason = _reason_to_skip(name, settings, size, subject, deadline)
        if reason:
            skipped[name] = reason
            continue
        try:
            findings += shortened(list(_check(name, inputs, deadline)(subject)))
            run.append(name)
        except programs.TimeLimitError:
            skipped[name] = "the time limit was reached"
            findings.append(about(name, "warning", f"did not end within {settings.time_limit / 1000:g} s"))
        except (ValueError, KeyError, OSError, MemoryError, RequestError, ModelError) as error:
            # A model can be too broken for this check: the others report how.
            skipped[name] = f"{type(error).__name__}: {error}"
    findings.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Findings(findings=tuple(findings), checks_run=tuple(run), checks_skipped=skipped)


def _read(path: Path) -> Subject:
    proto = read_proto(path)
    try:
        return Subject(path, proto, load_model(path))
    except ModelError as error:
        return Subject(path, proto, None, str(error).removeprefix(f"{path}: "))


def _total_bytes(subject: Subject) -> int:
    files = {
        entry.value
        for graph in subject.graphs()
        for t in graph.initializer
        for entry in t.external_data
        if entry.key == "location"
    }
    size = subject.path.stat().st_size
    if subject.model is not None:
        size += sum((subject.path.parent / file).stat().st_size for file in files)
    return size


def _check(name: str, inputs: Mapping[str, InputSpec], deadline: float) -> Check:
    left = max(deadline - time.monotonic(), 0.1)
    if name == "onnxruntime":
        return partial(programs.onnxruntime_loads, timeout_s=left)
    if name == "polygraphy":
        shapes = {input_: spec.run_shape for input_, spec in inputs.items() if spec.run_shape is not None}
        return partial(programs.polygraphy_lint, shapes=shapes, timeout_s=left)
    if name == "channel_scales":
        return partial(programs.channel_scales, inputs=inputs, timeout_s=left)
    return _OWN_CHECKS[name]


def _reason_to_skip(name: str, settings: LintSettings, size: int, subject: Subject, deadline: float) -> str:
    if name in settings.skip or (settings.checks and name not in settings.checks):
        return "not selected"
    if time.monotonic() > deadline:
        return "the time limit was reached"
    if subject.model is None and name in ("shape_inference", *_READ_WEIGHTS, "polygraphy", "channel_scales"):
        return "the model cannot be loaded"
    if name in _COSTLY and size > settings.large_model and name not in settings.checks:
        return "the model is large: name the check in `checks` to run it anyway"
    return _reason_to_skip_polygraphy(settings, size, subject) if name == "polygraphy" else ""


def _reason_to_skip_polygraphy(settings: LintSettings, size: int, subject: Subject) -> str:
    if settings.polygraphy == "never":
        return "not selected"
    if subject.proto.ir_version < _FIRST_IR_POLYGRAPHY_READS:
        return f"Polygraphy misreads models of IR version {subject.proto.ir_version}"
    missing = programs.polygraphy_missing()
    if missing and settings.polygraphy == "always":
        raise BackendError(f"Polygraphy's lint cannot run: {missing}. Install it with `pip install onnx-graphsurgeon`.")
    if not missing and size > settings.large_model and settings.polygraphy == "auto":
        return "the model is large: set `polygraphy: always` to run it anyway"
    return missing
