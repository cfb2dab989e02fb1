"""The check of every model that a step writes, and its loading by ONNX Runtime in a process of its own.

A defect of the source that remains is not the step's fault: it is logged. A new one is refused, and so is a model that
ONNX Runtime does not load although it loads the source.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.base.text import one_paragraph
from ndld_flow.machine.operator_libraries import libraries_in_use
from ndld_flow.models.element_types import bodies_of, graphs_of
from ndld_flow.models.files import (
    DEFAULT_DOMAIN,
    OLDEST_OPSET,
    all_graphs,
    check_model,
    lacks_shape,
    load_model,
    model_inputs,
    model_outputs,
    read_proto,
    repairs_of,
)
from ndld_flow.models.op_reference import CONTRIB_DOMAINS, operators
from ndld_flow.models.shape_inference import infer_shapes, light_proto

_ASIDE = "ndld_flow.aside"
"""Domain of nodes that the checker rejects, so that it checks all others."""
_PLUGIN_ATTRIBUTES = frozenset(("plugin_version", "plugin_namespace"))


@dataclass(frozen=True)
class Defect:
    """A defect of a tensor or a node."""

    message: str
    """The defect and, for a tensor, its remedy."""
    tensor: str = ""
    """An input, output or other tensor that is declared without a shape."""
    node: str = ""
    """Name of the node, or its first output."""
    op_type: str = ""
    is_unknown: bool = False
    """True if onnx does not have the operator."""
    is_plugin: bool = False
    """True if the operator is written as TensorRT's plugins are."""

    @property
    def kind(self) -> str:
        """Return a text that is equal for the same defect of a model and of its source."""
        if self.tensor:
            return f"shape of {self.tensor}"
        return f"unknown {self.op_type}" if self.is_unknown else f"rejected {self.op_type}"

    def __str__(self) -> str:
        return self.message if self.tensor else f"node {self.node!r} ({self.op_type}): {self.message}"


@dataclass(frozen=True)
class Examination:
    """The result of ONNX's checker and strict shape inference on a model."""

    defects: tuple[Defect, ...] = ()
    """Defects that runtimes load; the checker passed the rest of the model, or reported `rejected`."""
    rejected: str = ""
    """Message of the checker on the rest of the model; empty if it passed."""
    contradiction: str = ""
    """Message of strict shape inference; empty if it passed. Some of its rules are wrong."""

    @property
    def is_clean(self) -> bool:
        return not (self.defects or self.rejected or self.contradiction)


def examine_model(path: Path) -> Examination:
    """Check a model file. Raises `ModelError` if it cannot be read."""
    try:
        check_model(path, full_check=True)
    except ModelError:
        return _examine_closely(path)
    return Examination()


def _examine_closely(path: Path) -> Examination:
    model = load_model(path)
    defects: tuple[Defect, ...] = ()
    rejected = ""
    try:
        check_model(path)
    except ModelError as error:
        proto = light_proto(model)
        inputs_from_weights(proto)
        defects = tuple(set_defects_aside(proto))
        try:
            onnx.checker.check_model(proto)
        except (onnx.checker.ValidationError, ValueError, RuntimeError) as invalid:
            rejected = f"the ONNX checker rejects it: {one_paragraph(invalid)}"
        if not (rejected or defects or repairs_of(model)):
            rejected = str(error).removeprefix(f"{path}: ")  # in weights, which the proto lacks
    return Examination(defects, rejected, _contradiction(model))


def _contradiction(model: ir.Model) -> str:
    inside = (node for function in model.functions.values() for node in function.all_nodes())
    if any(
        not onnx.defs.has(node.op_type, node.domain) and node.op_identifier() not in model.functions for node in inside
    ):
        return ""  # inference accepts operators that it does not know, except inside functions
    try:
        infer_shapes(model, strict=True)
    except ModelError as error:
        return str(error)
    return ""


def inputs_from_weights(proto: onnx.ModelProto) -> None:
    """Make inputs of the initializers that `light_proto` left without data, so that nothing reads them."""
    declared = {value.name for value in proto.graph.input}
    for graph in graphs_of(proto.graph):
        emptied = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
        for tensor in emptied:
            graph.initializer.remove(tensor)
            if tensor.name not in declared:
                declared.add(tensor.name)
                info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
                proto.graph.input.append(info)


def set_defects_aside(proto: onnx.ModelProto) -> Iterator[Defect]:
    """Yield a model's defects, and change it so that the checker passes over them.

    The model has no use afterwards: nodes are in another domain, and tensors without a shape are scalars.
    """
    for value, message in tensors_without_shape(proto.graph):
        value.type.tensor_type.shape.SetInParent()
        yield Defect(message, tensor=value.name)
    for graph in graphs_of(proto.graph):
        del graph.value_info[:]
    yield from _rejected_nodes(proto)


def tensors_without_shape(graph: onnx.GraphProto) -> Iterator[tuple[onnx.ValueInfoProto, str]]:
    """Yield inputs, outputs and other tensors that are declared without a shape, with a message on each.

    The checker rejects them, except for inputs and outputs of subgraphs; runtimes take their rank as unknown.
    """
    inner = [value for each in graphs_of(graph) for value in each.value_info]
    inferred = "`sanitize` gives it one if it can be inferred"
    for what, values, remedy in (
        ("input", graph.input, "`set_shapes` of `edit` gives it one"),
        ("output", graph.output, inferred),
        ("tensor", inner, inferred),
    ):
        for value in values:
            if lacks_shape(value):
                yield value, f"{what} {value.name!r} is declared without a shape; {remedy}"


def _rejected_nodes(proto: onnx.ModelProto) -> Iterator[Defect]:
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    local = {(function.domain, function.name) for function in proto.functions}
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = opsets
    for graph in graphs_of(proto.graph):
        for node in graph.node:
            if (node.domain, node.op_type) in local:
                continue
            defect = _defect_of(node, context, opsets.get(node.domain, 0))
            if defect is not None:
                node.domain = _ASIDE
                yield defect
    if _ASIDE not in opsets:
        proto.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))


def _defect_of(node: onnx.NodeProto, context: onnx.checker.C.CheckerContext, opset: int) -> Defect | None:
    name = node.name or next(iter(node.output), "")
    if node.domain in ("", DEFAULT_DOMAIN) and not onnx.defs.has(node.op_type, opset):
        message = unknown_operator(node, opset)
        return Defect(message, node=name, op_type=node.op_type, is_unknown=True, is_plugin=is_plugin(node))
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    for graph in bodies_of(alone):
        graph.Clear()
        graph.name = "graph"
    try:
        onnx.checker.check_node(alone, context)
    except onnx.checker.ValidationError as error:
        return Defect(one_paragraph(error), node=name, op_type=node.op_type)
    return None


def unknown_operator(node: onnx.NodeProto, opset: int) -> str:
    """Return the message on a node of the default domain that onnx does not know at this opset."""
    if onnx.defs.has(node.op_type):
        return f"ONNX has no operator {node.op_type} at opset {opset}; only some runtimes load the model"
    if is_plugin(node):
        return f"{node.op_type} is a plugin of TensorRT; runtimes without it do not load the model"
    if ("", node.op_type) in operators():
        return f"{node.op_type} is an operator of ONNX Runtime, not of ONNX; other runtimes may not load the model"
    return f"ONNX has no operator {node.op_type} at opset {opset}; only runtimes with a plugin for it load the model"


def is_deprecated(op_type: str, opset: int) -> bool:
    """Return whether an operator of the default domain is deprecated at an opset."""
    return onnx.defs.has(op_type, opset) and onnx.defs.get_schema(op_type, opset).deprecated


def is_plugin(node: onnx.NodeProto) -> bool:
    """Return whether a node of the default domain is written as TensorRT's plugins are."""
    return looks_like_plugin(node.op_type, (attribute.name for attribute in node.attribute))


def looks_like_plugin(op_type: str, attributes: Iterable[str]) -> bool:
    """Return whether an operator of the default domain is named as TensorRT's plugins are, or has their attributes."""
    is_named = op_type.endswith("_TRT") or op_type.startswith("TRT_") or "Plugin" in op_type
    return is_named or not _PLUGIN_ATTRIBUTES.isdisjoint(attributes)


@dataclass(frozen=True)
class LoadFailure:
    """The reason why ONNX Runtime does not load a model."""

    message: str
    only_kernels: bool = False
    """True if the model is valid, and the CPU provider lacks a kernel for a node: a plugin's, or for its type."""
    crashed: bool = False
    """True if the process died."""


class _Loader:
    """A process that loads one model after the other: a start for each would take longer than most models."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def pid(self) -> int:
        """The process that loads; 0 if there is none."""
        return 0 if self._process is None else self._process.pid

    def load(self, model: str | bytes, optimize: bool) -> LoadFailure | None:
        """Return the failure of loading a file or a serialized model. Raises `BackendError` for a library."""
        data = model if isinstance(model, bytes) else b""
        path = "" if isinstance(model, bytes) else str(Path(model).absolute())
        request = {"path": path, "bytes": len(data), "optimize": optimize, "libraries": libraries_in_use()}
        message = json.dumps(request).encode() + b"\n" + data
        with self._lock:
            # A process that died may have been ended from outside, or by an earlier model: only a new one proves it.
            line, death = self._ask(message)
            if not line:
                line, death = self._ask(message)
        if not line:
            return LoadFailure(f"it crashes ({death})", crashed=True)
        reply: dict[str, Any] = json.loads(line)
        if reply["library"]:
            raise BackendError(reply["library"])
        return None if reply["failure"] is None else LoadFailure(**reply["failure"])

    def _ask(self, message: bytes) -> tuple[bytes, str]:
        """Return the answer; if there is none, the way in which the process ended."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(message)
            process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return line, ""
        code = _close(process)
        return line, signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """End the process of this process; a fork has a copy of its parent's."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            _close(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process.returncode = 0  # the process of the one that was forked, which ends it
            self._process = None
        if self._process is not None and self._process.poll() is not None:
            _close(self._process)
            self._process = None
        if self._process is None:
            command = [sys.executable, "-P", "-m", "ndld_flow.processes.load_server"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._owner = os.getpid()
        return self._process


def _close(process: subprocess.Popen[bytes]) -> int:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()
    return process.wait()


LOADER = _Loader()
atexit.register(LOADER.close)

_LIGHT_BYTES = 2**25
"""Larger files are loaded without their weights, in a fraction of the time and memory."""
_LAYOUT = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
"""The prefix of ONNX Runtime's messages."""
UNREGISTERED = "is not a registered function/op"
"""Part of ONNX Runtime's message on an operator that needs a library or a plugin."""
_LISTED = 5
"""Maximum number of defects in the log; a broken exporter repeats one at every node."""


def check_changed_model(
    source: Path,
    target: Path,
    log: logging.Logger,
    model: ir.Model | None = None,
    *,
    new_types: bool = False,
    strict: bool = True,
) -> None:
    """Raise `ModelError` if the model in `target`, made from `source`, has a defect that its source does not have.

    The ONNX checker and strict shape inference examine it, and ONNX Runtime loads it if it loads the source, with and
    without optimizations. Defects that the source has too are logged as warnings. `model` is the content of `target`,
    where it is in memory. `new_types` is for a step that changes element types: ONNX Runtime may have no kernel for
    them on a CPU. Without `strict`, new contradictions between shapes are logged too: some rules of strict inference
    are wrong, and other programs do not know them.
    """
    failure = load_failure(target, model)
    _compare_defects(source, target, failure is None or failure.only_kernels, strict, log)
    is_optimized = failure is None
    if is_optimized:
        failure = load_failure(target, model, optimize=True)
    if failure is None:
        return
    model = model or load_model(target)
    is_old = model.opset_imports.get("", OLDEST_OPSET) < OLDEST_OPSET
    has_plugins = not libraries_in_use() or UNREGISTERED in failure.message
    has_plugins = has_plugins and not _foreign_operators(model) <= _foreign_operators(load_model(source))
    if is_old or (failure.only_kernels and new_types) or has_plugins:
        log.warning("ONNX Runtime does not load the result on this machine: %s", failure.message)
        return
    before = load_failure(source, optimize=is_optimized)
    if failure.crashed and not (before is not None and before.crashed):
        place = _place_of_crash(target, is_optimized)
        raise ModelError(
            f"{target}: ONNX Runtime loads its source, but not the result: {failure.message}{place}. "
            "Leave this node as it was."
        )
    if before is None or (before.only_kernels and not failure.only_kernels):
        raise ModelError(f"{target}: ONNX Runtime loads its source, but not the result: {failure.message}")
    log.warning("ONNX Runtime does not load the source either: %s", before.message)


def _compare_defects(source: Path, target: Path, is_loaded: bool, strict: bool, log: logging.Logger) -> None:
    """Raise `ModelError` for a new defect, and log those of the source that remain."""
    after = examine_model(target)
    if after.is_clean:
        return
    before = examine_model(source)
    old = {defect.kind for defect in before.defects}
    new = [defect for defect in after.defects if defect.kind not in old and not _may_appear(defect, source, is_loaded)]
    if new:
        raise ModelError(f"{target}: {new[0]}")
    if after.rejected and not before.rejected:
        raise ModelError(f"{target}: {after.rejected}")
    if after.contradiction and not before.contradiction and strict:
        raise ModelError(f"{target}: {after.contradiction}")
    for defect in after.defects[:_LISTED]:
        log.warning("%s", defect)
    if len(after.defects) > _LISTED:
        log.warning("%d more defects like these; `lint` lists them", len(after.defects) - _LISTED)
    for message in filter(None, (before.rejected, before.contradiction or after.contradiction)):
        log.warning("%s: %s", "the result" if message == after.contradiction else "the source", message)


def _may_appear(defect: Defect, source: Path, is_loaded: bool) -> bool:
    """Return whether an operation may add a defect: a runtime's operator, or a new tensor of unknown rank."""
    if defect.is_unknown:
        return is_loaded or defect.is_plugin
    if defect.tensor:
        return all(value.name != defect.tensor for value in (*model_inputs(source), *model_outputs(source)))
    return False


def _foreign_operators(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return the operators of a model that need a library or a plugin."""
    return {
        node.op_identifier()
        for graph in all_graphs(model)
        for node in graph
        if node.op_identifier() not in model.functions
        and (
            node.domain not in CONTRIB_DOMAINS and (node.domain, node.op_type) not in operators()
            if node.domain
            else looks_like_plugin(node.op_type, node.attributes)
        )
    }


def load_failure(path: Path, model: ir.Model | None = None, *, optimize: bool = False) -> LoadFailure | None:
    """Return the reason why ONNX Runtime does not load a model file, or None if it does.

    Nothing is packed, so external data are mapped and not read. From a large file only the graph is loaded, unless that
    fails. With `optimize` the graph is optimized as by default, which infers more shapes. A crash ends only the process
    that loads the model. Raises `ModelError` if the file cannot be read.
    """
    if path.stat().st_size > _LIGHT_BYTES:
        proto = light_proto(model or load_model(path))
        inputs_from_weights(proto)
        if _try_to_load(proto.SerializeToString(), optimize) is None:
            return None
    return _try_to_load(str(path), optimize)


def _try_to_load(model: str | bytes, optimize: bool) -> LoadFailure | None:
    failure = LOADER.load(model, optimize)
    return None if failure is None else replace(failure, message=runtime_message(failure.message))


def _place_of_crash(path: Path, optimize: bool) -> str:
    """Return ` at MatMul 'name'`: the last node of the shortest beginning of a model that crashes; empty if unknown."""
    proto = read_proto(path)
    nodes, least, crashing = list(proto.graph.node), 0, len(proto.graph.node)
    part = path.with_name(f"{path.stem}_part.onnx")  # beside the data files, to which its weights refer
    try:
        while crashing - least > 1:
            middle = (least + crashing) // 2
            onnx.save(_beginning(proto, nodes[:middle]), part)
            failure = LOADER.load(str(part), optimize)
            least, crashing = (least, middle) if failure is not None and failure.crashed else (middle, crashing)
    finally:
        part.unlink(missing_ok=True)
    return f" at {nodes[crashing - 1].op_type} {nodes[crashing - 1].name!r}" if nodes else ""


def _beginning(proto: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """Return a model of the first nodes of a sorted one, with all results that none of them reads as outputs."""
    part = onnx.ModelProto()
    part.CopyFrom(proto)
    del part.graph.node[:]
    del part.graph.output[:]
    part.graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    last = dict.fromkeys(name for node in nodes for name in node.output if name and name not in read)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in last)
    return part


def runtime_message(text: str) -> str:
    """Return a message of ONNX Runtime on one line, without its code and the model's path."""
    return one_paragraph(_LAYOUT.sub("", text))
