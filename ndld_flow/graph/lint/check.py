"""Base class of checks, and the model that they check."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import onnx
import onnx_ir as ir

from ndld_flow.graph.lint.settings import LintSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.operator_libraries import libraries_in_use
from ndld_flow.models.files import DEFAULT_DOMAIN
from ndld_flow.models.model_defects import is_plugin
from ndld_flow.models.op_reference import CONTRIB_DOMAINS
from ndld_flow.records.inspection import Finding, Severity

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
        return graphs_in(self.proto.graph)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield every node of the main graph, subgraphs and functions."""
        for graph in self.graphs():
            yield from graph.node
        for function in self.proto.functions:
            for node in function.node:
                yield node
                for graph in subgraphs(node):
                    for inner in graphs_in(graph):
                        yield from inner.node

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


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and every subgraph in it."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_in(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the direct subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tensors that a graph's nodes and outputs read."""
    return {output.name for output in graph.output} | {name for node in graph.node for name in names_read_by(node)}


def names_read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node and its bodies read."""
    yield from (name for name in node.input if name)
    for body in subgraphs(node):
        yield from names_read(body)
