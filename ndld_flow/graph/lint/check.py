"""Checks, the model that they check, and the run of the selected ones within the time limit."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import ClassVar

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.graph.lint.settings import BUILT_IN, ENTRY_POINTS, LintSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.operator_libraries import libraries_in_use
from ndld_flow.machine.plugins import find_plugins, load_plugin, plugin_origin
from ndld_flow.models.changed_model import is_plugin
from ndld_flow.models.element_types import bodies_of, graphs_of, nodes_in
from ndld_flow.models.external_files import model_bytes
from ndld_flow.models.files import DEFAULT_DOMAIN, load_model, read_proto
from ndld_flow.models.op_reference import CONTRIB_DOMAINS
from ndld_flow.records.inspection import UNDECIDED, Finding, Findings, Severity

_NODE = re.compile(r"op_type:\s*(?P<op>\w+), node name:\s*(?P<name>[^)]*)\)")
_CHECKED_NODE = re.compile(r"(?:[Nn]ame|node):\s*(?P<name>\S+)\s+OpType:\s*(?P<op>\w+)")


# The model's path is passed as an argument: nothing from outside is interpreted. Without prepacking, which copies
# weights, external data are mapped and never read.
_LOAD = """
import sys
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
options.add_session_config_entry("session.disable_prepacking", "1")
try:
    for library in sys.argv[2:]:
        options.register_custom_ops_library(library)
    ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
except Exception as error:
    print(error)
    sys.exit(2 if type(error).__name__ == "NotImplemented" else 1)
"""


class TimeLimitError(Exception):
    """The time limit was reached."""


@dataclass(frozen=True)
class Subject:
    """One model, exactly as written: nothing repairs it, so that mistakes stay visible."""

    path: Path
    proto: onnx.ModelProto
    model: ir.Model | None
    """None if it cannot be loaded; `load_error` has the reason."""
    load_error: str
    inputs: Mapping[str, InputSpec]
    """The recipe's inputs, for checks that run the model."""
    deadline: float
    """When the checks must end, by `time.monotonic`, in seconds."""

    @property
    def opset(self) -> int:
        """Version of the default domain; 0 if none is imported."""
        return next((o.version for o in self.proto.opset_import if o.domain in ("", DEFAULT_DOMAIN)), 0)

    @cached_property
    def loading(self) -> subprocess.CompletedProcess[str]:
        """Return a process that has loaded the model in ONNX Runtime: exit code 0, or the reason in its output."""
        return self.run_python("-c", _LOAD, str(self.path.resolve()), *libraries_in_use())

    def graphs(self) -> Iterator[onnx.GraphProto]:
        """Yield the main graph and every subgraph in it."""
        return graphs_of(self.proto.graph)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield every node of the main graph, subgraphs and functions."""
        for home in (self.proto.graph, *self.proto.functions):
            yield from nodes_in(home)

    def missing_library(self, message: str) -> str:
        """Return the operator of a plugin or custom library that a runtime's message names, or an empty string."""
        for node in self.nodes():
            is_custom = node.domain not in ("", DEFAULT_DOMAIN, *CONTRIB_DOMAINS)
            if node.op_type in message and (is_custom or is_plugin(node)):
                return node.op_type
        return ""

    def run_python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another Python: the model may crash it, hang it, or exhaust memory. Raises `TimeLimitError`."""
        try:
            return subprocess.run(
                # -P: anybody may put a `json.py` in the temporary folder.
                [sys.executable, "-P", *arguments],
                capture_output=True,
                text=True,
                cwd=tempfile.gettempdir(),  # shape inference of large models leaves files in the current directory
                timeout=max(self.deadline - time.monotonic(), 0.1),
                check=False,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise TimeLimitError from None


class Check:
    """One check of a model; the docstring describes what it finds.

    A subclass in a file of `checks/` has its own name in lower case: `UnusedNode` is `unused_node`.
    """

    name: str
    """The name in recipes, given where it is found."""

    order: ClassVar[int] = 500
    """Position among the checks, which run from low to high; those from 900 on run the model."""
    severity: ClassVar[Severity] = "warning"
    """Usual severity of its findings. `error` is only for what makes a model wrong or unusable; what ONNX Runtime and
    TensorRT load is at most a warning."""
    needs_model: ClassVar[bool] = False
    """It is skipped if the model cannot be loaded."""
    costly: ClassVar[bool] = False
    """It is skipped for large models, unless the settings name it."""

    def find(self, subject: Subject) -> Iterator[Finding]:
        """Yield the findings. Raises `TimeLimitError` at the subject's deadline."""
        raise NotImplementedError

    def reason_to_skip(self, subject: Subject, settings: LintSettings, large: bool) -> str:
        """Return any other reason why it cannot run here, or an empty string. A `large` model exceeds the limit."""
        return ""

    def finding(self, message: str, node: onnx.NodeProto | None = None, severity: Severity | None = None) -> Finding:
        """Return a finding on a node, or on the whole model."""
        where = {"node": node.name, "op_type": node.op_type} if node is not None else {}
        return Finding(severity=severity or self.severity, check=self.name, message=message, **where)

    def finding_at(self, message: str, name: str, op_type: str, severity: Severity | None = None) -> Finding:
        """Return a finding on a node; its name, its type, or both may be empty."""
        return Finding(severity=severity or self.severity, check=self.name, message=message, node=name, op_type=op_type)


def named_node(message: str) -> tuple[str, str]:
    """Return the name and the type of the node that a message of onnx names; empty strings if it names none."""
    match = _NODE.search(message) or _CHECKED_NODE.search(message)
    return (match["name"].strip(), match["op"]) if match else ("", "")


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tensors that a graph's nodes and outputs read."""
    return {output.name for output in graph.output} | {name for node in graph.node for name in names_read_by(node)}


def names_read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its bodies read."""
    yield from (name for name in node.input if name)
    for body in bodies_of(node):
        yield from names_read(body)


_SEVERITIES = ("error", "warning", "info")
_MOST_OF_A_CHECK = 50
"""Maximum number of findings listed per check; a broken exporter repeats a mistake at every node."""


@cache
def all_checks() -> tuple[Check, ...]:
    """Return every check, in the order they run."""
    instances = [_named(name, pkgutil.resolve_name(found)) for name, found in BUILT_IN.items()]
    for point in find_plugins(ENTRY_POINTS).values():
        if point.name in BUILT_IN:
            continue
        cls = load_plugin(point)
        if not (inspect.isclass(cls) and issubclass(cls, Check)):
            raise RequestError(f"{plugin_origin(point)}: {point.value} is no subclass of Check.")
        instances.append(_named(point.name, cls))
    return tuple(sorted(instances, key=lambda check: (check.order, check.name)))


def _named(name: str, cls: type[Check]) -> Check:
    check = cls()
    check.name = name
    return check


def lint_file(
    path: Path, settings: LintSettings, inputs: Mapping[str, InputSpec], progress: Callable[[int, int, str], None]
) -> Findings:
    """Run the checks, on these inputs if the model runs; the result lists skipped and undecided checks with the reason.

    Raises `ModelError` if the file is not an ONNX model, `BackendError` if Polygraphy is required and not installed.
    """
    subject = _read(path, inputs, time.monotonic() + settings.time_limit / 1000)
    # Only a model that can be loaded is known to have its external data.
    size = path.stat().st_size if subject.model is None else model_bytes(path)
    findings: list[Finding] = []
    run: list[str] = []
    skipped: dict[str, str] = {}
    for position, check in enumerate(all_checks()):
        progress(position, len(all_checks()), check.name)
        reason = _reason_to_skip(check, settings, subject, size > settings.large_model)
        if reason:
            skipped[check.name] = reason
            continue
        try:
            if time.monotonic() > subject.deadline:
                raise TimeLimitError
            findings += _shortened(list(check.find(subject)))
            run.append(check.name)
        except TimeLimitError:
            skipped[check.name] = f"{UNDECIDED}the time limit of {seconds(settings.time_limit / 1000)} was reached"
        except (ValueError, KeyError, OSError, MemoryError, RequestError, ModelError) as error:
            # A model can be too broken for this check: the others report how.
            skipped[check.name] = f"{UNDECIDED}{type(error).__name__}: {error}"
    findings.sort(key=lambda finding: _SEVERITIES.index(finding.severity))
    return Findings(findings=tuple(findings), checks_run=tuple(run), checks_skipped=skipped)


def _read(path: Path, inputs: Mapping[str, InputSpec], deadline: float) -> Subject:
    proto = read_proto(path)
    try:
        return Subject(path, proto, load_model(path), "", inputs, deadline)
    except ModelError as error:
        return Subject(path, proto, None, str(error).removeprefix(f"{path}: "), inputs, deadline)


def _reason_to_skip(check: Check, settings: LintSettings, subject: Subject, large: bool) -> str:
    if check.name in settings.skip or (settings.checks and check.name not in settings.checks):
        return "not selected"
    if check.needs_model and subject.model is None:
        return "the model cannot be loaded"
    if check.costly and large and check.name not in settings.checks:
        return "the model is large: name the check in `checks` to run it anyway"
    return check.reason_to_skip(subject, settings, large)


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Return the first findings of a check, and one that counts the rest."""
    kept = list(findings[:_MOST_OF_A_CHECK])
    more = len(findings) - len(kept)
    if more > 0:
        last = findings[-1]
        kept.append(Finding(severity=last.severity, check=last.check, message=f"... and {more} more like these"))
    return kept
