"""Checks by onnx itself: its checker and strict shape inference."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.subject import Subject, about
from ndld_flow.models.files import check_model
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.records.inspection import Finding

_NODE = re.compile(r"op_type:\s*(?P<op>\w+), node name:\s*(?P<name>[^)]*)\)")
_CHECKED_NODE = re.compile(r"(?:[Nn]ame|node):\s*(?P<name>\S+)\s+OpType:\s*(?P<op>\w+)")


def onnx_checker(subject: Subject) -> Iterator[Finding]:
    """Run onnx.checker on the file."""
    try:
        check_model(subject.path)
    except ModelError as error:
        yield finding_of("onnx.checker", str(error).removeprefix(f"{subject.path}: "))


def shape_inference(subject: Subject) -> Iterator[Finding]:
    """Run strict shape inference, which finds contradictions in the model."""
    if subject.model is None:
        return
    try:
        infer_shapes(subject.model, strict=True)
    except ModelError as error:
        yield finding_of("shape_inference", str(error))


def external_data(subject: Subject) -> Iterator[Finding]:
    """Report missing, short or forbidden external data, and any other reason why the model cannot be loaded."""
    if subject.load_error:
        yield about("external_data" if "external data" in subject.load_error else "load", "error", subject.load_error)


def finding_of(check: str, message: str) -> Finding:
    """Return an error with the node that its message names."""
    match = _NODE.search(message) or _CHECKED_NODE.search(message)
    node, op_type = (match["name"].strip(), match["op"]) if match else ("", "")
    return Finding(severity="error", check=check, message=message, node=node, op_type=op_type)
