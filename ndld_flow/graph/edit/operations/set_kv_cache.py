"""Add the KV cache of a decoder, or remove it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import DimName, NewName, NodeSelect, Select

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.graph_edits import OperationEdits


class SetKvCache(Operation):
    """Add inputs and outputs with the keys and values of earlier tokens to causal attention, or remove them.

    With them a decoder reads one token at a time; without them it reads the whole sequence in one run. It changes
    Attention of opset 23, and GroupQueryAttention and MultiHeadAttention of ONNX Runtime. A cache that Concat joins
    with new keys and values, as PyTorch's exporter writes it, can be removed but not added. Positions that the model
    counts by Range continue after the cached tokens; other positions, masks and lengths must be inputs that cover them.
    A model is refused if tokens affect each other elsewhere than in this attention.

        set_kv_cache: {mode: add, past: "past.{layer}.{part}", present: "present.{layer}.{part}"}

        set_kv_cache: {mode: remove}
    """

    heading = "transformations"
    keeps_outputs = True

    mode: Literal["add", "remove"]
    """`add` the inputs and outputs, or `remove` them."""
    select: Select = NodeSelect(op_type=("Attention", "com.microsoft::*Attention", "Concat"))
    """Attention nodes, and Concat nodes of a cache; other nodes are ignored. They are numbered as layers in the model's
    order."""
    past: NewName = "past_key_values.{layer}.{part}"
    """Names of the added inputs; `{part}` is `key` or `value`."""
    present: NewName = "present.{layer}.{part}"
    """Names of the added outputs."""
    past_dim: DimName = "past_sequence_length"
    """Name of the number of cached tokens."""
    total_dim: DimName = "total_sequence_length"
    """Name of the number of cached and new tokens."""
    unchecked: bool = False
    """Accept what the operation cannot verify: computed masks that cover the cached tokens, attention that only its
    mask makes causal, and operators that combine values of several tokens."""
    allow_empty: bool = False
    """Succeed when there is no attention to change."""

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        for field in ("past", "present"):
            missing = [part for part in ("{layer}", "{part}") if part not in getattr(self, field)]
            if missing:
                raise ValueError(f"`{field}` needs {' and '.join(missing)}, so that each tensor has its own name")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes

        nodes = edited.select_nodes(self.select, allow_empty=True)
        chosen = [node for node in nodes if _ports(node) is not None and node.graph is edited.model.graph]
        edits = OperationEdits(edited)
        if self.mode == "remove":
            chosen = [node for node in chosen if _input(node, _Ports.of(node).past[0]) is not None]
            joined = [node for node in nodes if node.graph is edited.model.graph and _joins_cache(node)]
            names = _remove_caches(edits, chosen) + _remove_joined_caches(edits, joined)
            chosen += joined
        else:
            chosen = self._without_cache(edited, chosen)
            with known_shapes(edited.model):
                caches = [_Cache.of(node) for node in chosen]
            if caches and not self.unchecked:
                _check_independence(caches)
            names = self._add_caches(edited, edits, caches)
        if not chosen and not self.allow_empty:
            condition = "with a cache" if self.mode == "remove" else "without a cache that is causal"
            raise RequestError(
                f"the main graph has no selected attention {condition}; `allow_empty: true` accepts that"
            )
        return f"cache {'removed from' if self.mode == 'remove' else 'added to'} {len(chosen)} nodes: {names} tensors"

    def _without_cache(self, edited: EditedModel, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """Return the causal nodes without a cache. Raises `RequestError` for one that would be wrong with a cache."""
        from ndld_flow.graph.edit.graph_edits import label

        chosen = []
        for node in nodes:
            masks = [mask for mask in (_input(node, index) for index in _Ports.of(node).masks) if mask is not None]
            if _input(node, _Ports.of(node).past[0]) is not None:
                continue
            if not _is_causal(node) and not (masks and self.unchecked):
                edited.note(f"{label(node)} is not causal and gets no cache")
                continue
            if any(not mask.is_graph_input() for mask in masks) and not self.unchecked:
                raise RequestError(
                    f"{label(node)}: its mask is computed, perhaps for the tokens of one run only; make it an input, "
                    "or state with `unchecked: true` that it covers the cached tokens"
                )
            _refuse_unsupported(node)
            chosen.append(node)
        return chosen

    def _add_caches(self, edited: EditedModel, edits: OperationEdits, caches: list[_Cache]) -> int:
        import onnx_ir as ir

        graph = edited.model.graph
        masks, positions = _check_positions(caches)
        for mask in masks:
            self._rename_length(mask, caches)
        tensors = 0
        for layer, cache in enumerate(caches):
            node, ports = cache.node, _Ports.of(cache.node)
            node.resize_inputs(max(len(node.inputs), max(ports.past) + 1))
            node.resize_outputs(max(len(node.outputs), 3))
            for index, (part, width) in enumerate((("key", cache.key_width), ("value", cache.value_width))):
                names = [
                    template.replace("{layer}", str(layer)).replace("{part}", part)
                    for template in (self.past, self.present)
                ]
                past, present = ir.Value(name=names[0]), node.outputs[1 + index]
                _refuse_taken(edited, names[: 1 if present.is_graph_output() else 2])
                for value, dim in ((past, self.past_dim), (present, self.total_dim)):
                    value.type = ir.TensorType(cache.dtype)
                    value.shape = ir.Shape([cache.batch, cache.heads, dim, width])
                node.replace_input_with(ports.past[index], past)
                graph.inputs.append(past)
                if not present.is_graph_output():
                    present.name = names[1]
                    graph.outputs.append(present)
                tensors += 2
        for node in positions:
            first = caches[0].node
            _shift_positions(edits, node, first.inputs[_Ports.of(first).past[0]])
        if positions:
            edited.note(f"positions of {len(positions)} Range nodes continue after the cached tokens")
        return tensors

    def _rename_length(self, mask: ir.Value, caches: list[_Cache]) -> None:
        """Give the last dimension of a mask input the name of all tokens if it had that of new ones."""
        if mask.shape is not None and len(mask.shape) and mask.shape[-1] in {cache.length for cache in caches}:
            mask.shape = type(mask.shape)([*mask.shape[:-1], self.total_dim])


@dataclass(frozen=True)
class _Ports:
    """Indices of an attention operator's inputs."""

    past: tuple[int, int]
    masks: tuple[int, ...]
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, node: ir.Node) -> _Ports:
        ports = _ports(node)
        assert ports is not None
        return ports


_PORTS = {
    ("", "Attention"): _Ports((4, 5), (3,)),
    ("com.microsoft", "GroupQueryAttention"): _Ports((3, 4), (10,), (5, 6)),
    ("com.microsoft", "MultiHeadAttention"): _Ports((6, 7), (4, 5)),
}


def _ports(node: ir.Node) -> _Ports | None:
    return _PORTS.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _integer(node: ir.Node, name: str, default: int = 0) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _is_causal(node: ir.Node) -> bool:
    if node.op_type == "GroupQueryAttention":
        return _integer(node, "causal", 1) != 0
    return _integer(node, "is_causal" if node.op_type == "Attention" else "unidirectional") != 0


def _refuse_unsupported(node: ir.Node) -> None:
    from ndld_flow.graph.edit.graph_edits import label

    if node.op_type == "Attention" and _input(node, 6) is not None:
        raise RequestError(f"{label(node)}: its cache is outside the operator (`nonpad_kv_seqlen`)")
    if node.op_type == "MultiHeadAttention" and (_input(node, 1) is None or _input(node, 2) is None):
        raise RequestError(f"{label(node)}: ONNX Runtime has no cache for query, key and value in one packed tensor")


Dim = int | str | None


@dataclass(frozen=True)
class _Cache:
    """Form of the cache of one attention node."""

    node: ir.Node
    dtype: ir.DataType
    batch: Dim
    length: object
    """The dimension of the new tokens."""
    heads: int
    key_width: int
    value_width: int

    @classmethod
    def of(cls, node: ir.Node) -> _Cache:
        """Return the form of a node's cache. Raises `RequestError` if its number of heads or widths are unknown."""
        from ndld_flow.graph.edit.graph_edits import label

        query, key, value = (_input(node, index) for index in range(3))
        shapes = [None if item is None or item.shape is None else list(item.shape) for item in (query, key, value)]
        heads = _integer(node, "kv_num_heads") or _integer(node, "num_heads")
        if node.op_type == "Attention" and shapes[1] is not None and len(shapes[1]) == 4:
            heads = shapes[1][1] if isinstance(shapes[1][1], int) else 0
        widths = cls._widths(node, shapes, heads)
        if query is None or query.dtype is None or shapes[0] is None or not heads or widths is None:
            raise RequestError(
                f"{label(node)}: the type, the number of heads or the width of its keys is not known; declare the "
                "shapes of its inputs with `set_shapes`"
            )
        batch = shapes[0][0] if isinstance(shapes[0][0], int) else shapes[0][0].value
        return cls(node, query.dtype, batch, shapes[0][-2], heads, *widths)

    @staticmethod
    def _widths(node: ir.Node, shapes: list[list[int | ir.SymbolicDim] | None], heads: int) -> tuple[int, int] | None:
        """Return the widths of a head's keys and values."""
        query, key, value = ([] if shape is None else shape for shape in shapes)
        if not key and query and node.op_type == "GroupQueryAttention":  # query, key and value in one
            count = _integer(node, "num_heads") + 2 * heads
            return (query[-1] // count,) * 2 if isinstance(query[-1], int) else None
        if not key or not value or not isinstance(key[-1], int) or not isinstance(value[-1], int) or not heads:
            return None
        return (key[-1], value[-1]) if len(key) == 4 else (key[-1] // heads, value[-1] // heads)


def _refuse_taken(edited: EditedModel, names: Iterable[str]) -> None:
    taken = edited.names()
    for name in names:
        if name in taken:
            raise RequestError(f"there is already a tensor {name!r}; choose other names with `past` and `present`")
        taken.add(name)


def _sources(values: Iterable[ir.Value | None]) -> Iterator[ir.Value]:
    """Yield the values from which others are computed, themselves included; of attention, not through masks."""
    waiting, seen = [value for value in values if value is not None], set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        yield value
        node = value.producer()
        if node is not None:
            read = node.inputs[:3] if _ports(node) is not None else node.inputs
            waiting += [item for item in read if item is not None]


def _check_positions(caches: Collection[_Cache]) -> tuple[list[ir.Value], list[ir.Node]]:
    """Return the inputs with masks, and the Range nodes that count positions.

    Raises `RequestError` where positions or lengths would start again with each run.
    """
    from ndld_flow.graph.edit.graph_edits import label
    from ndld_flow.models.op_signatures import is_op

    tokens = list(_sources(value for cache in caches for value in cache.node.inputs[:3]))
    lengths = [_input(cache.node, i) for cache in caches for i in _Ports.of(cache.node).lengths]
    masks = [_input(cache.node, i) for cache in caches for i in _Ports.of(cache.node).masks]
    read = {value for value in tokens if value.is_graph_input() and not value.is_initializer()}
    of_lengths = [value for value in _sources(lengths) if value.is_graph_input() and not value.is_initializer()]
    if shared := read.intersection(of_lengths):
        name = next(iter(shared)).name
        raise RequestError(
            f"the model computes the length of the sequence from {name!r}, which has only new tokens; compute it from "
            "an input with all tokens, such as an attention mask"
        )
    producers = [node for value in tokens if (node := value.producer()) is not None]
    for node in dict.fromkeys(producers):
        index = {"com.microsoft": 1, "": 3}.get(node.domain) if node.op_type == "RotaryEmbedding" else None
        position = None if index is None else _input(node, index)
        if position is not None and _is_constant(position):
            raise RequestError(f"{label(node)}: its positions are constant; make {position.name!r} an input first")
    counting = [node for node in dict.fromkeys(producers) if is_op(node, "Range") and _reads_shape(node)]
    of_masks = {value.producer() for value in _sources([*masks, *lengths])}
    for node in counting:
        if node in of_masks:
            raise RequestError(f"{label(node)} counts positions and is part of a mask; make the mask an input first")
    inputs = [value for value in _sources([*masks, *lengths]) if value.is_graph_input() and value not in read]
    return inputs, counting


_COMBINING = frozenset(
    ("AveragePool", "Conv", "CumSum", "GRU", "LSTM", "LinearAttention", "Loop", "MaxPool", "NonZero", "RNN", "Scan")
)
"""Operators that combine values of several tokens or count them, as exporters of decoders use them."""
_PRODUCTS = frozenset(("Einsum", "FusedMatMul", "MatMul"))
"""Operators that combine tokens if both operands depend on them, as in attention that is not fused."""


def _check_independence(caches: Iterable[_Cache]) -> None:
    """Raise `RequestError` if tokens affect each other elsewhere than in attention with a cache."""
    from ndld_flow.graph.edit.graph_edits import label

    cached = {cache.node for cache in caches}
    graph = next(iter(cached)).graph
    for node in graph or ():
        if node not in cached and _combines_tokens(node):
            raise RequestError(
                f"{label(node)} may combine values of several tokens, and a cache would hide the earlier ones from it; "
                "`unchecked: true` accepts it"
            )


def _combines_tokens(node: ir.Node) -> bool:
    if node.op_type == "Slice":
        return _is_constant_part(node)
    if node.op_type in _COMBINING:
        return any(_data_inputs(value) for value in node.inputs)
    if node.op_type in _PRODUCTS:
        return sum(bool(_data_inputs(value)) for value in node.inputs) > 1
    if node.op_type.endswith("Attention"):
        # Cross-attention reads keys that do not depend on the tokens.
        query, key = (_data_inputs(_input(node, index)) for index in range(2))
        return not key or key >= query
    return False


def _is_constant_part(node: ir.Node) -> bool:
    """Return whether a Slice takes as many rows of a table as there are tokens."""
    table = node.inputs[0]
    return table is not None and _is_constant(table) and _reads_shape(node)


def _data_inputs(value: ir.Value | None) -> set[ir.Value]:
    """Return the inputs of the model on whose values, not only shapes, a value depends."""
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if item is None or item in seen:
            continue
        seen.add(item)
        node = item.producer()
        if node is not None and node.op_type not in ("Shape", "Size"):
            waiting += node.inputs
    return {item for item in seen if item.is_graph_input() and not item.is_initializer()}


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _reads_shape(node: ir.Node) -> bool:
    producers = (value.producer() for value in _sources(node.inputs))
    return any(producer is not None and producer.op_type == "Shape" for producer in producers)


def _shift_positions(edits: OperationEdits, node: ir.Node, past: ir.Value | None) -> None:
    """Start a Range after the cached tokens."""
    import numpy as np
    import onnx_ir as ir

    start, limit, *_ = node.inputs
    assert start is not None and limit is not None and past is not None and isinstance(node.graph, ir.Graph)
    dtype = next((value.dtype for value in (start, limit, *node.outputs) if value.dtype is not None), ir.DataType.INT64)
    axis = edits.add_initializer(node.graph, np.array(2, np.int64), "cached_axis")
    shape = edits.put_before(node, "Shape", [past], wish="cached_shape")
    length = edits.put_before(node, "Gather", [shape, axis], {"axis": 0}, wish="cached_length")
    if dtype != ir.DataType.INT64:
        length = edits.put_before(node, "Cast", [length], {"to": dtype.value}, wish="cached_length_cast")
    for index, value in enumerate((start, limit)):
        node.replace_input_with(index, edits.put_before(node, "Add", [value, length], wish=f"position_{index}"))


def _remove_caches(edits: OperationEdits, nodes: Iterable[ir.Node]) -> int:
    """Remove the cache of nodes with its inputs and outputs; return the number of these.

    Raises `RequestError` for a cache that is not an input.
    """
    import onnx_ir as ir

    removed = 0
    for node in nodes:
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        for place, index in enumerate(_Ports.of(node).past):
            removed += _remove_past(edits, node, index) + _remove_present(edits, graph, node, 1 + place)
        if not any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            node.resize_outputs(1)
        while node.inputs[-1] is None:
            node.resize_inputs(len(node.inputs) - 1)
    return removed


_PASSING = frozenset(("Cast", "Expand", "Identity", "Mul", "Reshape", "Tile", "Transpose", "Unsqueeze"))
"""Operators between the joined keys or values and attention: scaling, repetition for groups of heads, transposition."""


def _joins_cache(node: ir.Node) -> bool:
    """Return whether a Concat joins keys or values of earlier tokens, from an input, with new ones, into an output."""
    from ndld_flow.models.op_signatures import is_op

    if not is_op(node, "Concat") or len(node.inputs) != 2:
        return False
    past, present = node.inputs[0], node.outputs[0]
    while past is not None and is_op(past.producer(), "Cast", "Identity"):
        producer = past.producer()
        past = producer.inputs[0] if producer is not None else None
    if past is None or not past.is_graph_input() or past.is_initializer() or past.shape is None or len(past.shape) != 4:
        return False
    casts = [user.outputs[0] for user, _ in present.uses() if is_op(user, "Cast", "Identity")]
    return any(value.is_graph_output() for value in (present, *casts))


def _check_readers(joining: ir.Node) -> None:
    """Raise `RequestError` if more than attention reads joined values: a convolution would miss its history."""
    from ndld_flow.graph.edit.graph_edits import label

    waiting = [joining.outputs[0]]
    while waiting:
        for user, _ in waiting.pop().uses():
            is_linear = user.op_type in _PRODUCTS and any(value and _is_constant(value) for value in user.inputs)
            if user.op_type in _PASSING or is_linear:
                waiting += user.outputs
            elif user.op_type not in (*_PRODUCTS, "Shape", "Size") and not user.op_type.endswith("Attention"):
                raise RequestError(
                    f"{label(joining)} joins an input with new values, and {label(user)} reads them, which is no "
                    "attention and needs its history; leave the node out by `select`"
                )


def _remove_joined_caches(edits: OperationEdits, nodes: Iterable[ir.Node]) -> int:
    """Replace Concat nodes by their new keys or values; return the number of removed inputs and outputs."""
    import onnx_ir as ir

    removed = 0
    for node in nodes:
        graph, new = node.graph, node.inputs[1]
        assert isinstance(graph, ir.Graph) and new is not None
        _check_readers(node)
        removed += _remove_present(edits, graph, node, 0) + _remove_past(edits, node, 0)
        node.outputs[0].replace_all_uses_with(new)
        edits.remove(node)
    return removed


def _remove_past(edits: OperationEdits, node: ir.Node, index: int) -> int:
    """Remove the input with past keys or values, through the Cast that reads it after a conversion."""
    from ndld_flow.graph.edit.graph_edits import label
    from ndld_flow.models.op_signatures import is_op

    past = _input(node, index)
    node.replace_input_with(index, None)
    while past is not None and not past.is_graph_input():
        producer = past.producer()
        if not is_op(producer, "Cast", "Identity") or producer is None:
            raise RequestError(f"{label(node)}: its past keys or values are computed and no input")
        source = producer.inputs[0]
        if not past.uses():
            edits.remove(producer)
        past = source
    if past is None or past.graph is None:
        return 0
    graph = past.graph
    if past.uses():
        past.replace_all_uses_with(_empty_cache(edits, graph, past))
    graph.inputs.remove(past)
    return 1


def _empty_cache(edits: OperationEdits, graph: ir.Graph, past: ir.Value) -> ir.Value:
    """Return an empty cache for other readers of a removed input, such as those of its length."""
    import numpy as np
    import onnx_ir as ir

    shape = list(past.shape or ())
    batch = next(
        (
            value
            for value in graph.inputs
            if value is not past and value.shape is not None and len(value.shape) and len(value.shape) != 4
            if shape and value.shape[0] == shape[0]
        ),
        None,
    )
    if len(shape) != 4 or not isinstance(shape[1], int) or not isinstance(shape[3], int) or batch is None:
        raise RequestError(f"{past.name!r} has other readers than attention, and its shape is not known")
    first = graph[0]
    size = edits.put_before(first, "Shape", [batch], wish="batch_shape")
    zero = edits.ints(graph, [0], "batch_axis")
    count = edits.put_before(first, "Gather", [size, zero], {"axis": 0}, wish="batch_size")
    rest = edits.ints(graph, [shape[1], 0, shape[3]], "empty_dims")
    dims = edits.put_before(first, "Concat", [count, rest], {"axis": 0}, wish="empty_shape")
    dtype = past.dtype or ir.DataType.FLOAT
    fill = {"value": ir.Tensor(np.zeros(1, dtype.numpy()))}
    return edits.put_before(first, "ConstantOfShape", [dims], fill, wish="empty_cache")


def _remove_present(edits: OperationEdits, graph: ir.Graph, node: ir.Node, index: int) -> int:
    """Remove the output with present keys or values, through the Cast that a conversion added."""
    from ndld_flow.models.op_signatures import is_op

    if index >= len(node.outputs):
        return 0
    present = node.outputs[index]
    readers = [use.node for use in present.uses()]
    casts = [reader for reader in readers if is_op(reader, "Cast", "Identity") and reader.outputs[0].is_graph_output()]
    outputs = {present, *(cast.outputs[0] for cast in casts)}
    removed = [value for value in graph.outputs if value in outputs]
    graph.outputs[:] = [value for value in graph.outputs if value not in outputs]
    for cast in casts:
        if not cast.outputs[0].uses():
            edits.remove(cast)
    return len(removed)
