"""Reading of the file by this package, ONNX and ONNX Runtime, and the lint of Polygraphy."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.graph.lint.check import Check, Subject, named_node
from ndld_flow.graph.lint.settings import LintSettings
from ndld_flow.machine.operator_libraries import libraries_in_use
from ndld_flow.models.changed_model import UNREGISTERED, examine_model, is_deprecated, runtime_message
from ndld_flow.models.files import check_model
from ndld_flow.records.inspection import Finding, Severity


class ExternalData(Check):
    """Missing, short or forbidden external data, and any other reason why the model cannot be loaded."""

    order = 10
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        if subject.load_error:
            check = self.name if "external data" in subject.load_error else "load"
            yield Finding(severity=self.severity, check=check, message=subject.load_error)


class OnnxChecker(Check):
    """Nodes that `onnx.checker` rejects, and the first other mistake that it reports.

    Tensors without a shape, graphs without a name, missing imports, and operators that ONNX does not have or has
    deprecated are reported by checks of their own.
    """

    order = 20
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        try:
            check_model(subject.path)
        except ModelError as error:
            if subject.model is None:
                rejected = str(error).removeprefix(f"{subject.path}: ")
            else:
                examination = examine_model(subject.path)
                rejected = examination.rejected
                for defect in examination.defects:
                    is_own = defect.tensor or defect.is_unknown or is_deprecated(defect.op_type, subject.opset)
                    if not is_own:
                        yield self.finding_at(defect.message, defect.node, defect.op_type)
            if rejected:
                yield self.finding_at(rejected, *named_node(rejected))


_NO_KERNEL = 2
_NODE = re.compile(r"[Nn]ode:? ?\(?(?:name:)?'?(?P<name>[^\s')]+)")


class Onnxruntime(Check):
    """The reason why ONNX Runtime cannot load the model.

    A missing kernel or plugin is a warning: another device, TensorRT or a library may have it.
    """

    order = 910
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        process = subject.loading
        if process.returncode == 0:
            return
        if process.returncode < 0 or not process.stdout.strip():
            yield self.finding(f"ONNX Runtime crashed while loading it (exit code {process.returncode})")
            return
        message = runtime_message(process.stdout)
        named = {node.name: node for node in subject.nodes() if node.name}
        match = _NODE.search(message)
        node = match["name"] if match else ""
        missing = "" if libraries_in_use() and UNREGISTERED not in message else subject.missing_library(message)
        if process.returncode == _NO_KERNEL or missing:
            needs = f"{missing} needs a plugin or a library" if missing else "on a CPU"
            message = f"not loaded here ({needs}): {message}"
            yield self.finding(message, named.get(node), severity="warning")
        else:
            yield self.finding(message, named.get(node))


# Polygraphy asks whether each input is a tensor of PyTorch, and imports it for that, which takes seconds.
_RUN = "import sys; sys.modules['torch'] = None; from polygraphy.tools import main; sys.exit(main())"

_PLAIN_NAME = re.compile(r"[\w.][\w.:/]*")
_FIRST_IR_VERSION = 4
"""Earlier versions list initializers as inputs, and Polygraphy drops the inputs."""


class Polygraphy(Check):
    """Findings of `polygraphy check lint`, on random inputs of the recipe's shapes."""

    order = 920
    needs_model = True

    def reason_to_skip(self, subject: Subject, settings: LintSettings, large: bool) -> str:
        """Return why it cannot run here. Raises `BackendError` if it is required and not installed."""
        if settings.polygraphy == "never":
            return "not selected"
        if subject.proto.ir_version < _FIRST_IR_VERSION:
            return f"Polygraphy misreads models of IR version {subject.proto.ir_version}"
        if libraries_in_use():
            return "Polygraphy's lint does not load `custom_ops`"
        packages = [name for name in ("polygraphy", "onnx_graphsurgeon") if importlib.util.find_spec(name) is None]
        missing = f"{' and '.join(packages)} not installed" if packages else ""
        if missing and settings.polygraphy == "always":
            raise BackendError(
                f"Polygraphy's lint cannot run: {missing}. Install it with `pip install onnx-graphsurgeon`."
            )
        if not missing and large and settings.polygraphy == "auto":
            return "the model is large: set `polygraphy: always` to run it anyway"
        return missing

    def find(self, subject: Subject) -> Iterator[Finding]:
        shapes = {name: spec.run_shape for name, spec in subject.inputs.items() if spec.run_shape is not None}
        with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
            report = Path(folder) / "lint.json"
            command = ["-c", _RUN, "check", "lint", str(subject.path.resolve()), "-o", str(report)]
            given = [f"{n}:[{','.join(map(str, s))}]" for n, s in shapes.items() if _PLAIN_NAME.fullmatch(n)]
            process = subject.run_python(*command, *(["--input-shapes", *given] if given else []))
            if not report.exists():
                last = (process.stderr.strip() or process.stdout.strip() or "no output").splitlines()[-1]
                yield self.finding(f"`polygraphy check lint` itself failed: {last}")
                return
            entries: list[dict[str, Any]] = json.loads(report.read_text())["lint_entries"]
        types = {node.name: node.op_type for node in subject.nodes() if node.name}
        guess = _guess(subject, shapes)
        # Polygraphy extracts these without outer values, or with omitted outputs as tensors.
        misread = {
            node.name
            for node in subject.nodes()
            if "" in node.output or any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        }
        for entry in entries:
            if entry["source"] == "onnx_graphsurgeon" or entry["message"].startswith("Removing initializer "):
                continue  # `unused_node` and `unused_initializer` report these
            nodes = entry.get("nodes") or [""]
            cut_out = entry["source"] == "onnx_checker" or not misread.isdisjoint(nodes)
            severity, remark = _severity(entry, guess, cut_out)
            named = " ".join([entry["message"], *(types.get(name, "") for name in nodes)])
            has_no_kernel = "Could not find an implementation" in named or subject.missing_library(named)
            if severity == "error" and has_no_kernel:
                severity = "warning"  # as of the check `onnxruntime`
            message = one_paragraph(entry["message"]) + remark
            for name in nodes:
                node = "" if name.startswith("polygraphy_unnamed_node") else name
                op_type = types.get(node, "")
                yield Finding(severity=severity, check=self.name, message=message, node=node, op_type=op_type)


def _severity(entry: Mapping[str, Any], guess: str, cut_out: bool) -> tuple[Severity, str]:
    """Return the severity of an entry, and a remark on its message."""
    if cut_out:
        # `onnx.checker` and `onnxruntime` check the whole model.
        return "info", " (about the node as extracted by Polygraphy)"
    if entry["level"] != "exception":
        return "warning", ""
    if "No corresponding Numpy type" in entry["message"]:
        return "info", " (Polygraphy cannot read outputs of this type)"
    return ("warning", f" ({guess})") if guess else ("error", "")


_INTEGERS = tuple(
    onnx.TensorProto.DataType.Value(name) for name in ("INT8", "INT16", "INT32", "INT64", "UINT16", "UINT32", "UINT64")
)
"""Not UINT8: any pixels are valid."""


def _guess(subject: Subject, shapes: Mapping[str, Sequence[int]]) -> str:
    """Return the invented property of the inputs that may make a valid model fail; empty if there is none."""
    graph = subject.proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    declared = {value.name: value.type.tensor_type for value in graph.input if value.name not in {*weights, *shapes}}
    if not all(
        type_.HasField("shape") and all(dim.HasField("dim_value") for dim in type_.shape.dim)
        for type_ in declared.values()
    ):
        # Dimensions of 1 are often too small for a valid model.
        return "run with dynamic dimensions as 1: give shapes in `inputs:` to be sure"
    inputs = (value for value in graph.input if value.name not in weights)
    indices = [value.name for value in inputs if value.type.tensor_type.elem_type in _INTEGERS]
    # Sizes, positions, lengths and divisors have few valid values.
    return f"run with random values of {', '.join(map(short_name, indices[:3]))}" if indices else ""
