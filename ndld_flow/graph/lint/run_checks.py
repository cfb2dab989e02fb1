"""Runs the checks that are asked for, within the time that is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from ndld_flow.base.errors import BackendError, ModelError, RequestError
from ndld_flow.graph.lint import graph_checks, library_checks, programs, value_checks
from ndld_flow.graph.lint.subject import Subject, about, shortened
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import load_model, read_proto
from ndld_flow.records.finding import Finding, Findings

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
    "nan_inf": value_checks.odd_values,
    "fp16_range": value_checks.half_precision_range,
}
CHECKS = (*_OWN_CHECKS, "onnxruntime", "polygraphy", "channel_scales")
"""Every check, in the order they run."""
_READ_WEIGHTS = frozenset(("nan_inf", "fp16_range"))
_COSTLY = _READ_WEIGHTS | {"channel_scales"}
_FIRST_IR_POLYGRAPHY_READS = 4
"""Before, initializers had to be inputs, and Polygraphy drops the inputs."""
_ORDER = ("error", "warning", "info")


@dataclass(frozen=True)
class LintOptions:
    """Settings of the step, as plain values."""

    checks: Sequence[str] = ()
    """Only these; empty means all."""
    skip: Sequence[str] = ()
    time_limit_s: float = 60.0
    polygraphy: Literal["auto", "always", "never"] = "auto"
    large_model_bytes: int = 2**30
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    """Input -> the shape and values to run with."""

    @property
    def shapes(self) -> dict[str, Sequence[int]]:
        """Input -> shape to run at."""
        return {name: spec.run_shape for name, spec in self.inputs.items() if spec.run_shape is not None}


def lint_file(path: Path, options: LintOptions, progress: Callable[[int, int, str], None]) -> Findings:
    """Run the checks; those that did not run are told with the reason.

    Raises `ModelError` when there is no ONNX model to look at, and `BackendError` when Polygraphy is asked for and
    not installed.
    """
    deadline = time.monotonic() + options.time_limit_s
    subject = _read(path)
    size = _total_bytes(subject)
    findings: list[Finding] = []
    run: list[str] = []
    skipped: dict[str, str] = {}
    for position, name in enumerate(CHECKS):
        progress(position, len(CHECKS), name)
        reason = _reason_to_skip(name, options, size, subject, deadline)
        if reason:
            skipped[name] = reason
            continue
        try:
            findings += shortened(list(_check(name, options, deadline)(subject)))
            run.append(name)
        except programs.TookTooLongError:
            skipped[name] = "the time limit was reached"
            findings.append(about(name, "warning", f"did not end within {options.time_limit_s:g} s"))
        except (ValueError, KeyError, OSError, MemoryError, RequestError, ModelError) as error:
            # A model can be too broken to be looked at in this way: the other checks say how.
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


def _check(name: str, options: LintOptions, deadline: float) -> Check:
    left = max(deadline - time.monotonic(), 0.1)
    if name == "onnxruntime":
        return partial(programs.onnxruntime_loads, timeout_s=left)
    if name == "polygraphy":
        return partial(programs.polygraphy_lint, shapes=options.shapes, timeout_s=left)
    if name == "channel_scales":
        return partial(programs.channel_scales, inputs=options.inputs, timeout_s=left)
    return _OWN_CHECKS[name]


def _reason_to_skip(name: str, options: LintOptions, size: int, subject: Subject, deadline: float) -> str:
    if name in options.skip or (options.checks and name not in options.checks):
        return "not asked for"
    if time.monotonic() > deadline:
        return "the time limit was reached"
    if subject.model is None and name in ("shape_inference", *_READ_WEIGHTS, "polygraphy", "channel_scales"):
        return "the model cannot be loaded"
    if name in _COSTLY and size > options.large_model_bytes and name not in options.checks:
        return "the model is large: name the check in `checks` to run it all the same"
    return _reason_to_skip_polygraphy(options, size, subject) if name == "polygraphy" else ""


def _reason_to_skip_polygraphy(options: LintOptions, size: int, subject: Subject) -> str:
    if options.polygraphy == "never":
        return "not asked for"
    if subject.proto.ir_version < _FIRST_IR_POLYGRAPHY_READS:
        return f"Polygraphy misreads models of IR version {subject.proto.ir_version}"
    missing = programs.polygraphy_missing()
    if missing and options.polygraphy == "always":
        raise BackendError(f"Polygraphy's lint cannot run: {missing}. Install it with `pip install onnx-graphsurgeon`.")
    if not missing and size > options.large_model_bytes and options.polygraphy == "auto":
        return "the model is large: set `polygraphy: always` to run it all the same"
    return missing
