"""Element types, weights, and ranges of values."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ndld_flow.accuracy.slices import channel_magnitudes
from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.element_types import infer_types, is_op, tensor_of
from ndld_flow.models.external_data import tensors_of
from ndld_flow.models.files import model_inputs
from ndld_flow.models.lazy_tensors import SparseInitializer, byte_pieces
from ndld_flow.models.nodes import fixed_tensor
from ndld_flow.models.streaming_statistics import Extremes
from ndld_flow.models.tensors import Array
from ndld_flow.records.inspection import Finding
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings

_PIECE_BYTES = 2**24
_FLOATS: dict[ir.DataType, str] = {ir.DataType.FLOAT: "<f4", ir.DataType.DOUBLE: "<f8", ir.DataType.FLOAT16: "<f2"}


def _float_tensors(subject: Subject) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield every dense float initializer and Constant of a model that can be loaded, with a label for messages.

    Attributes of other nodes are theirs: NaN separates the sets of a TreeEnsemble.
    """
    assert subject.model is not None
    attributes = {
        id(attribute.as_tensor())
        for node in subject.model.graph.all_nodes()
        for attribute in node.attributes.values()
        if node.op_type != "Constant" and attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()
    }
    for tensor in tensors_of(subject.model):
        if tensor.dtype in _FLOATS and not isinstance(tensor, SparseInitializer) and id(tensor) not in attributes:
            yield f"initializer {tensor.name!r}" if tensor.name else "a Constant", tensor


def _pieces_of(tensor: ir.TensorProtocol) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of a float tensor, flat and in order."""
    for piece in byte_pieces(tensor, _PIECE_BYTES):
        yield np.frombuffer(piece, dtype=_FLOATS[tensor.dtype])


def _extremes(tensor: ir.TensorProtocol) -> Extremes:
    values = Extremes()
    for piece in _pieces_of(tensor):
        values.add(piece)
    return values


_DOUBLE = onnx.TensorProto.DOUBLE


class Float64(Check):
    """float64 in inputs, outputs, initializers and Casts: slow everywhere, unsupported by TensorRT."""

    order = 120

    def find(self, subject: Subject) -> Iterator[Finding]:
        graph = subject.proto.graph
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == _DOUBLE:
                yield self.finding(f"{value.name!r} is float64, which TensorRT does not support")
        for body in subject.graphs():
            for tensor in body.initializer:
                if tensor.data_type == _DOUBLE:
                    yield self.finding(f"initializer {tensor.name!r} is float64")
            for node in body.node:
                if node.op_type == "Cast" and any(a.name == "to" and a.i == _DOUBLE for a in node.attribute):
                    yield self.finding("casts to float64", node)


class NanInf(Check):
    """NaN and infinity in initializers and Constants."""

    order = 130
    severity = "error"
    needs_model = True
    costly = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        for label, tensor in _float_tensors(subject):
            values = _extremes(tensor)
            if values.nans:
                yield self.finding(f"{label} has {values.nans} NaNs in {tensor.size} values")
            if values.infinities:
                message = f"{label} has {values.infinities} infinities in {tensor.size} values"
                # Attention masks contain minus infinity on purpose.
                yield self.finding(message, severity="warning")


_FP16_MAX = 65504.0
_FP16_TINY = 2.0**-25
"""Values below this round to zero in fp16."""
_SCALAR_SIZE = 16
"""Largest tensor that counts as a constant such as an epsilon, whose loss turns a division into infinity."""


class Fp16Range(Check):
    """Values that fp16 cannot represent."""

    order = 140
    needs_model = True
    costly = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        for label, tensor in _float_tensors(subject):
            if tensor.dtype == ir.DataType.FLOAT16:
                continue
            values = _extremes(tensor)
            if values.largest_abs > _FP16_MAX:
                yield self.finding(f"{label} reaches {values.largest_abs:.4g}: infinity in fp16")
            if tensor.size <= _SCALAR_SIZE:
                small = [v for piece in _pieces_of(tensor) for v in piece.tolist() if 0 < abs(v) < _FP16_TINY]
                if small:
                    yield self.finding(f"{label} is {small[0]:.4g}: zero in fp16")


_HALF = tensor_of(ir.DataType.FLOAT16)


class Fp16Squares(Check):
    """Means of squares in fp16, as in LayerNormalization: values from 256 on overflow."""

    order = 150
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        types = infer_types(subject.model)
        for node in subject.model.graph.all_nodes():
            source = node.inputs[0] if node.inputs else None
            if source is None or types.get(source) != _HALF:
                continue
            square = source.producer()
            if is_op(node, "ReduceMean", "ReduceSum") and square is not None and _is_square(square):
                message = "it averages squares in fp16, which overflow from values of 256 on"
                yield self.finding_at(f"{message}; keep them in fp32", square.name or "", square.op_type)
            stash = node.attributes.get("stash_type")
            if is_op(node, "LayerNormalization") and stash is not None and stash.value == ir.DataType.FLOAT16:
                message = "it computes the variance in fp16 (`stash_type`), which overflows from values of 256 on"
                yield self.finding_at(message, node.name or "", node.op_type)


def _is_square(node: ir.Node) -> bool:
    if is_op(node, "Mul"):
        return node.inputs[0] is node.inputs[1]
    exponent = fixed_tensor(node.inputs[1]) if is_op(node, "Pow") else None
    return exponent is not None and exponent.size == 1 and float(exponent.numpy().reshape(-1)[0]) == 2


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
_HUNDREDFOLD = 100.0


class ChannelScales(Check):
    """Outputs whose channels differ in range by a factor of 100 or more, on random values of the recipe's shapes.

    It finds nothing if the model does not run: other checks report that.
    """

    order = 930
    severity = "info"
    needs_model = True
    costly = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        samples = make_samples(model_inputs(subject.path), subject.inputs, SampleSettings(), subject.path.name)
        feeds = next(iter(samples)).arrays
        if any(values.dtype.isbuiltin != 1 or values.dtype.hasobject for values in feeds.values()):
            return
        with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
            feeds_file, outputs_file = Path(folder, "feeds.npz"), Path(folder, "outputs.npz")
            np.savez(feeds_file, allow_pickle=False, **feeds)
            process = subject.run_python("-c", _RUN, str(subject.path.resolve()), str(feeds_file), str(outputs_file))
            if process.returncode:
                return
            with np.load(outputs_file, allow_pickle=False) as arrays:
                outputs: list[Array] = [arrays[name] for name in arrays.files]
        for value, array in zip(subject.proto.graph.output, outputs, strict=True):
            largest = channel_magnitudes(array) if array.dtype.kind == "f" else None
            if largest is not None and (message := _scale_difference(largest)) is not None:
                yield self.finding(f"output {value.name!r}: {message}")


def _scale_difference(largest: Sequence[float]) -> str | None:
    """Return a sentence on the channels with the largest and the smallest values; None if they differ by a factor of
    less than 100."""
    top = max(range(len(largest)), key=largest.__getitem__)
    low = min((i for i in range(len(largest)) if largest[i] > 0), key=largest.__getitem__, default=top)
    if not largest[top] >= _HUNDREDFOLD * largest[low]:
        return None
    return (
        f"values of channel {top} reach {largest[top]:.3g}, those of channel {low} only {largest[low]:.3g}. Cosine and "
        "other metrics over the whole output do not see the smaller ones, and one INT8 scale for all of them erases "
        "them: check the output by slices, and quantize such channels separately"
    )
