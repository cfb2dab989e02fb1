"""Shape inference by onnx and ONNX Runtime that never reads large weights and writes its results into an onnx_ir
model."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, count, product
from math import prod
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import one_paragraph
from ndld_flow.models.element_types import bodies_of, graphs_of
from ndld_flow.models.external_data import MissingTensor, replaced_initializers
from ndld_flow.models.files import MAX_IR_VERSION, innermost, is_of_maps
from ndld_flow.models.foreign_shapes import can_infer, hide_wrong_rules, import_domains, infer_foreign

_MOST_PLACEHOLDERS = 4_000_000
"""Maximum number of elements of vectors without data that nodes read: onnx keeps 70 bytes for each."""
MOST_ELEMENTS = 100_000
"""Maximum number of elements over all values of a model. Shapes have a few per node."""
_SHAPE_ELEMENTS = 16
"""More dimensions than any shape has."""
_UNUSUAL_SIZE = 97
"""The first of the sizes of dynamic dimensions with which inference is tried: none that a model would have recorded."""
_PROPAGATES = frozenset(("Add", "Cast", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"))
"""Operators through which onnx propagates data and whose output is no larger than an input; Concat adds its inputs
up."""


def propagates_little_data(graph: onnx.GraphProto) -> bool:
    """Return whether data propagation would keep few elements in addition to the model.

    onnx keeps each element of a propagated shape as a message: a chain of `Concat(a, a)`, which doubles its input,
    exhausts memory with a few hundred bytes of model. It also keeps one for each element of a vector that is declared,
    or that a node makes, such as ConstantOfShape, although it knows no value.
    """
    lengths, vectors = _known_lengths(graph)
    values = _known_values(graph)
    held = 0
    placeholders: set[str] = set()
    for node in graph.node:
        if node.op_type in _PROPAGATES or node.op_type == "Concat":
            placeholders.update(name for name in node.input if name in vectors)
        length = _length(node, lengths)
        if node.op_type == "Concat":
            held += length
        if (count := _made_length(node, values)) is not None:
            vectors[node.output[0]] = count
        if held > MOST_ELEMENTS or sum(vectors[name] for name in placeholders) > _MOST_PLACEHOLDERS:
            return False
        lengths.update(dict.fromkeys(node.output, length))
        if not all(map(propagates_little_data, bodies_of(node))):
            return False
    return True


def _known_lengths(graph: onnx.GraphProto) -> tuple[dict[str, int], dict[str, int]]:
    """Return the numbers of elements of initializers with data, and those of vectors without."""
    weights = {item.name: item for item in graph.initializer}
    lengths = {name: math.prod(item.dims) for name, item in weights.items() if not uses_external_data(item)}
    vectors = {name: item.dims[0] for name, item in weights.items() if name not in lengths and len(item.dims) == 1}
    for info in (*graph.input, *graph.value_info):
        dims = info.type.tensor_type.shape.dim
        if info.name not in weights and len(dims) == 1:
            vectors[info.name] = dims[0].dim_value
    return lengths, vectors


def _known_values(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Return the integers of small initializers and Constants, and of what Concat makes of them."""
    values: dict[str, tuple[int, ...]] = {}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    held = [(node.output[0], item.t) for node in constants for item in node.attribute if item.HasField("t")]
    for name, tensor in [*((item.name, item) for item in graph.initializer), *held]:
        is_small = math.prod(tensor.dims) <= _SHAPE_ELEMENTS and not uses_external_data(tensor)
        if is_small and tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            with contextlib.suppress(ValueError):  # its data are damaged, which is reported elsewhere
                values[name] = tuple(map(int, onnx.numpy_helper.to_array(tensor).ravel()))
    for node in graph.node:
        joined = [value for name in node.input for value in values.get(name, ())]
        if node.op_type == "Concat" and len(joined) <= _SHAPE_ELEMENTS and all(name in values for name in node.input):
            values[node.output[0]] = tuple(joined)
    return values


def _made_length(node: onnx.NodeProto, values: dict[str, tuple[int, ...]]) -> int | None:
    """Return the length of the vector that a node makes of known integers; None for other nodes."""
    index = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "Pad": 1}.get(node.op_type)
    if node.op_type == "Range" and all(name in values and len(values[name]) == 1 for name in node.input):
        start, limit, step = (values[name][0] for name in node.input)
        return len(range(start, limit, step)) if step else 0
    if index is None or index >= len(node.input):
        return None
    sizes = values.get(node.input[index], ())
    is_vector = len(sizes) == (2 if node.op_type == "Pad" else 1)
    return max(0, *sizes) if is_vector else None


def _length(node: onnx.NodeProto, lengths: dict[str, int]) -> int:
    """Return the number of known elements of a node's output; 0 if nothing is propagated."""
    if node.op_type == "Shape":
        return _SHAPE_ELEMENTS
    if node.op_type == "Constant":
        return max((math.prod(item.t.dims) for item in node.attribute if item.HasField("t")), default=1)
    read = [lengths.get(name, 0) for name in node.input]
    if node.op_type == "Concat":
        return sum(read)
    return max(read, default=0) if node.op_type in _PROPAGATES else 0


_READ_BYTES = 1024
"""Shapes and axes are small; of larger initializers, inference gets only type and shape."""

_PROPAGATION_BYTES = 1 << 29
"""Memory that data propagation may take: nodes such as ConstantOfShape make vectors of any length of a few bytes."""
_UNPROPAGATED = "Invalid rank for"
"""Message of data propagation on `[160, 1] + [1, 475]`, which it cannot compute. The shapes may well be right."""
_REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError, MemoryError)


def infer_shapes(model: ir.Model, strict: bool = False) -> None:
    """Write inferred shapes and dtypes to every value, subgraphs included; what cannot be inferred stays as it is.

    With `strict`, raises `ModelError` if the model contradicts itself; otherwise such nodes are skipped. Also raises it
    for a model that cannot be serialized.
    """
    inferred = infer_proto(light_proto(model), strict)
    if inferred is not None:
        _write_back(model.graph, inferred.graph)


def infer_proto(proto: onnx.ModelProto, strict: bool = False) -> onnx.ModelProto | None:
    """Return a model with inferred types and shapes; None if inference fails.

    With `strict`, raises `ModelError` instead, and if the model contradicts itself. The given model, made by
    `light_proto`, has no use afterwards.
    """
    # `light_proto` left large initializers without data; with data propagation, inference refuses nodes that compute on
    # one. Tensors that are only declared are accepted.
    for each in graphs_of(proto.graph):
        for tensor in [item for item in each.initializer if item.data_location == onnx.TensorProto.EXTERNAL]:
            each.initializer.remove(tensor)
            each.value_info.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    hide_wrong_rules(proto)
    import_domains(proto)
    data_prop = propagates_little_data(proto.graph)
    try:
        inferred = _infer(proto, strict, data_prop)
    except _REFUSALS as error:
        if strict:
            raise ModelError(f"shape inference fails: {one_paragraph(error)}") from None
        return None
    # Not strict: a contradiction with the shapes behind operators that onnx does not know is no reason to refuse.
    with contextlib.suppress(*_REFUSALS):
        inferred = infer_foreign(inferred, lambda known: _infer(known, False, data_prop))
    return inferred


def _infer(proto: onnx.ModelProto, strict: bool, data_prop: bool) -> onnx.ModelProto:
    if data_prop:
        with contextlib.suppress(MemoryError), _little_memory(_PROPAGATION_BYTES):
            try:
                return onnx.shape_inference.infer_shapes(proto, strict, strict, True)
            except onnx.shape_inference.InferenceError as error:
                if _UNPROPAGATED not in str(error):
                    raise
            onnx.shape_inference.infer_shapes(proto, strict, strict, False)
            return onnx.shape_inference.infer_shapes(proto, False, False, True)
    return onnx.shape_inference.infer_shapes(proto, strict, strict, False)


@contextlib.contextmanager
def _little_memory(most: int) -> Iterator[None]:
    """Limit what this process takes in the block, which holds Python's lock: a larger request is a MemoryError.

    Nothing is limited on other systems than Linux, where the size of the address space is not known.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = held + most
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(soft, limit), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def light_tensor(value: ir.Value, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a small tensor in memory, and instead of a large one an empty external one, which nothing may read."""
    is_small, name = tensor.nbytes <= _READ_BYTES, value.name or ""
    if is_small and not isinstance(tensor, ir.ExternalTensor):
        return tensor
    if is_small and tensor.dtype != ir.DataType.STRING and not isinstance(tensor, MissingTensor):
        return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)
    return ir.ExternalTensor("", None, None, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def light_proto(
    model: ir.Model, replace: Callable[[ir.Value, ir.TensorProtocol], ir.TensorProtocol] = light_tensor
) -> onnx.ModelProto:
    """Serialize a model with all but small initializers as empty external tensors, or with other replacements.

    Raises `ModelError` if it cannot be serialized.
    """
    kept_ir_version = model.ir_version
    model.ir_version = min(model.ir_version or MAX_IR_VERSION, MAX_IR_VERSION)
    try:
        with replaced_initializers(model, replace):
            return ir.serde.serialize_model(model)
    except ir.serde.SerdeError as error:
        raise ModelError(f"the model cannot be written: {innermost(error)}") from None
    finally:
        model.ir_version = kept_ir_version


def _write_back(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    types = {info.name: info.type for info in (*inferred.value_info, *inferred.output) if info.HasField("type")}
    for node, proto in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            if value.name in types:
                _write_type(value, types[value.name])
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _write_back(node.attributes[attribute.name].as_graph(), attribute.g)


def _write_type(value: ir.Value, inferred: onnx.TypeProto) -> None:
    if not inferred.HasField("tensor_type"):
        if inferred.WhichOneof("value") in ("sequence_type", "optional_type") and not is_of_maps(inferred):
            value.type = ir.serde.deserialize_type_proto_for_type(inferred)
        return
    tensor_type = inferred.tensor_type
    if tensor_type.elem_type:
        value.type = ir.TensorType(ir.DataType(tensor_type.elem_type))
    if tensor_type.HasField("shape"):
        dims = tensor_type.shape.dim
        value.shape = ir.Shape(
            [int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or None for dim in dims]
        )


def drop_stale_sizes(model: ir.Model) -> None:
    """Remove the recorded sizes of computed tensors that inference contradicts, with any sizes of dynamic inputs.

    A size of which inference finds nothing stays, and so do those of outputs and those behind unknown operators.
    """
    graph, sizes = model.graph, defaultdict[str | None, int](count(_UNUSUAL_SIZE).__next__)
    computed = [value for node in graph.all_nodes() for value in node.outputs]
    recorded = {
        value: value.shape
        for value in computed
        if value.shape is not None
        and not value.is_graph_output()
        and (node := value.producer()) is not None
        and can_infer(node)
    }
    if not any(isinstance(dim, int) for shape in recorded.values() for dim in shape):
        return
    known = {value: (value.type, value.shape) for value in (*graph.inputs, *graph.outputs, *computed)}
    for value in graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else sizes[dim.value] for dim in value.shape])
    for value in (*recorded, *graph.outputs):
        value.shape = None
    infer_shapes(model)
    found = {value: value.shape for value in recorded}
    for value, (kept_type, kept_shape) in known.items():
        value.type, value.shape = kept_type, kept_shape
    for value, shape in recorded.items():
        value.shape = _without_stale(shape, found[value])


def _without_stale(recorded: ir.Shape, found: ir.Shape | None) -> ir.Shape:
    """Return a recorded shape without sizes that differ from those that were found."""
    if found is None:
        return recorded
    if len(recorded) != len(found):
        return ir.Shape([None] * len(found))
    pairs = zip(recorded, found, strict=True)
    return ir.Shape(
        [None if isinstance(dim, int) and isinstance(size, int) and dim != size else dim for dim, size in pairs]
    )


def is_invented_name(dim: object) -> bool:
    """Return whether a dimension has a name that inference invented, such as `unk__7`."""
    return isinstance(dim, ir.SymbolicDim) and str(dim.value).startswith("unk__")


def recorded_dims(shape: ir.Shape | None) -> tuple[int | str | None, ...] | None:
    """Return the dimensions of a shape, with None for those that are unknown or whose name inference invented."""
    if shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None if is_invented_name(dim) else dim.value for dim in shape)


def drop_invented_names(value: ir.Value) -> None:
    """Clear dimensions whose names inference invented."""
    if value.shape is not None and any(is_invented_name(dim) for dim in value.shape):
        value.shape = ir.Shape([None if is_invented_name(dim) else dim for dim in value.shape])


_SIZES = (320, 2, 641, 127, 3, 10007, 449, 1009, 640, 67, 191, 99991, 5003, 30, 960, 401, 2001)
"""A prime number of sizes, so that those of several symbols meet in all combinations."""
_MOST_SYMBOLS = 4
_MOST_NODES = 3_000
"""Larger models keep unknown dimensions: inferring the shapes of more for each size takes several seconds."""
_MOST_TERMS = 3
_DIVISORS = (2, 4, 8, 16, 32, 64)
_NAME = re.compile(r"[A-Za-z_][\w.]*")

Sizes = Mapping[str, int]
_Monomial = tuple[str, ...]


def name_computed_dims(model: ir.Model) -> None:
    """Name unknown dimensions of computed tensors in the main graph by formulas: `past + seq`, `ceil(height/32)`.

    Shape inference computes with numbers, not with names. The inputs get several concrete sizes, and a dimension gets
    the formula that yields its inferred size for all of them; they are more than determine the formula. Sizes from 2
    to 99991 show limits, and sizes next to multiples of 64 show how a quotient is rounded. Shapes must be inferred.
    """
    values = [value for node in model.graph for value in node.outputs if value.name and _unknown(value)]
    named = [dim for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)]
    symbols = list(dict.fromkeys(dim.value for dim in named if dim.value and _NAME.fullmatch(dim.value)))
    if not values or not 0 < len(symbols) <= _MOST_SYMBOLS or len(model.graph) > _MOST_NODES:
        return
    try:
        proto = light_proto(model)
    except ModelError:
        return
    # Each symbol takes all sizes.
    samples = [
        {name: _SIZES[index * (place + 1) % len(_SIZES)] for place, name in enumerate(symbols)}
        for index in range(len(_SIZES))
    ]
    shapes = [_shapes(proto, sizes) for sizes in samples]
    formulas = _Formulas(symbols, samples)
    for value in values:
        seen = [shape.get(value.name or "") for shape in shapes]
        if value.shape is None or any(shape is None or len(shape) != len(value.shape) for shape in seen):
            continue
        dims = list(value.shape)
        for axis in _unknown(value):
            formula = formulas.of(tuple(shape[axis] for shape in seen if shape is not None))
            dims[axis] = ir.SymbolicDim(formula) if formula else dims[axis]
        value.shape = ir.Shape(dims)


def _unknown(value: ir.Value) -> list[int]:
    """Return the axes whose dimension has neither a size nor a plain name of the model."""
    return [
        axis
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
        and (dim.value is None or is_invented_name(dim) or _NAME.fullmatch(dim.value) is None)
    ]


def _shapes(proto: onnx.ModelProto, sizes: Sizes) -> dict[str, list[int | None]]:
    """Return the inferred shapes for concrete sizes; of recorded shapes only those of inputs are used."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    inferred = infer_proto(model)
    if inferred is None:
        return {}
    return {
        info.name: [dim.dim_value if dim.HasField("dim_value") else None for dim in info.type.tensor_type.shape.dim]
        for info in (*inferred.graph.value_info, *inferred.graph.output)
        if info.type.tensor_type.HasField("shape")
    }


class _Formulas:
    """Finds the formula of a dimension from its sizes for all samples."""

    def __init__(self, symbols: Sequence[str], samples: Sequence[Sizes]) -> None:
        monomials: list[_Monomial] = [(), *((name,) for name in symbols), *combinations(symbols, 2)]
        self._basis = {
            "*".join(names): [prod(sample[name] for name in names) for sample in samples] for names in monomials
        }
        self._rounded = [
            {
                f"{word}({name}/{divisor})": [(sample[name] + offset) // divisor for sample in samples]
                for divisor in _DIVISORS
                for word, offset in (("ceil", divisor - 1), ("floor", 0))
            }
            for name in symbols
        ]
        self._known: dict[tuple[int | None, ...], str] = {}

    def of(self, sizes: tuple[int | None, ...]) -> str:
        """Return the formula that yields these sizes; empty if none does."""
        if sizes not in self._known:
            given = [size for size in sizes if size is not None]
            found = len(given) == len(sizes) and len(set(given)) > 1
            self._known[sizes] = (self._polynomial(given) or self._quotient(given)) if found else ""
        return self._known[sizes]

    def _polynomial(self, sizes: Sequence[int]) -> str:
        for chosen in (*([name] for name in self._basis if name), list(self._basis)):
            coefficients = _solve(list(zip(*(self._basis[name] for name in chosen), strict=True)), sizes)
            if coefficients is not None and sum(map(bool, coefficients)) <= _MOST_TERMS:
                return _text(chosen, coefficients)
        return ""

    def _quotient(self, sizes: Sequence[int]) -> str:
        """Return a formula with one rounded quotient, or with the product of two."""
        ones = [1] * len(sizes)
        for quotients in self._rounded:
            for name, column in quotients.items():
                coefficients = _solve(list(zip(column, ones, strict=True)), sizes)
                if coefficients is not None:
                    return _text([name, ""], coefficients)
        for first, second in combinations(self._rounded, 2):
            for (name, column), (other, others) in product(first.items(), second.items()):
                factor = sizes[0] // (column[0] * others[0]) if column[0] * others[0] else 0
                if factor and all(factor * a * b == size for a, b, size in zip(column, others, sizes, strict=True)):
                    return _text([f"{name}*{other}"], [factor])
        return ""


def _solve(rows: Sequence[Sequence[int]], results: Sequence[int]) -> list[int] | None:
    """Return the only integers x with rows * x = results, in exact arithmetic; None if there are none."""
    width = len(rows[0])
    matrix = [[*map(Fraction, row), Fraction(result)] for row, result in zip(rows, results, strict=True)]
    for column in range(width):
        pivot = next((index for index in range(column, len(matrix)) if matrix[index][column]), None)
        if pivot is None:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        matrix[column] = [item / matrix[column][column] for item in matrix[column]]
        for index, row in enumerate(matrix):
            if index != column and row[column]:
                matrix[index] = [a - row[column] * b for a, b in zip(row, matrix[column], strict=True)]
    if any(row[-1] for row in matrix[width:]) or any(row[-1].denominator != 1 for row in matrix[:width]):
        return None
    return [int(row[-1]) for row in matrix[:width]]


def _text(names: Sequence[str], coefficients: Sequence[int]) -> str:
    """Return `2*seq + 1`: the constant last, and no negative term first if another can be."""
    terms = [(factor, name) for name, factor in zip(names, coefficients, strict=True) if factor]
    terms.sort(key=lambda term: (not term[1], term[0] < 0))
    text = ""
    for factor, name in terms:
        size = abs(factor)
        written = str(size) if not name else name if size == 1 else f"{size}*{name}"
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {written}" if text else (f"-{written}" if sign == "-" else written)
    return text
