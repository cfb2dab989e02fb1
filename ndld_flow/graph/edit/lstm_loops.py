"""Loops whose iteration is the step of an LSTM, shown from the data flow of the body, and the LSTM in their place.

i, f, o = sigmoid(x W + h R + b),  g = tanh(x W + h R + b),  c' = f * c + i * g,  h' = o * tanh(c')

Names and the order of nodes, gates and operands do not matter. Weights must be constants. A mask over time, as Keras
has it (where it is false, the states stay as they are), is part of the result. Everything else raises `UnlikeError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.edit.graph_edits import OperationEdits, prune_values
from ndld_flow.graph.edit.loop_bodies import LoopBody, Masked, Origin, Read, UnlikeError, rank_of
from ndld_flow.graph.sanitize.edits import Array, int_attribute, producer_of_type
from ndld_flow.models.nodes import graph_of, is_used

_ACTIVATIONS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "Sigmoid": (),
    "Tanh": (),
    "Relu": (),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
}
"""Operator that is an activation of ONNX's LSTM -> its attributes with their defaults."""


@dataclass(frozen=True)
class Activation:
    """An activation function of an LSTM."""

    name: str
    numbers: tuple[float, ...] = ()
    """Its alpha and beta."""


@dataclass(frozen=True)
class LstmLoop:
    """A Loop that is an LSTM."""

    sequence: Read
    """The input: T x B x D, or B x T x D where the axis is 1."""
    kernel: Array
    """4H x D, as ONNX orders gates: input, output, forget, cell."""
    recurrent: Array
    """4H x H."""
    bias: Array
    """4H."""
    hidden: ir.Value | None
    """Its first hidden state, B x H; None for zeros."""
    cell: ir.Value | None
    activations: tuple[Activation, Activation, Activation]
    """Of the gates, of the cell's input, and of the cell's output."""
    mask: Read | None
    """A mask, T x B x 1."""
    when: bool
    """The value of the mask where steps count."""
    outputs: Mapping[ir.Value, str]
    """A used output of the Loop -> what it is: `sequence`, `sequence or zero`, `hidden` or `cell`."""
    constants: Mapping[ir.Value, ir.Value]
    """A used output of the Loop -> the tensor that it equals, which no iteration changes."""


def match_lstm(body: LoopBody) -> LstmLoop:
    """Return the LSTM that a Loop is. Raises `UnlikeError` with the reason for which it is not shown to be one."""
    masked = [body.masked(body.leaving(state)) for state in body.states]
    new = [body.leaving(state) if kept is None else kept.new for state, kept in zip(body.states, masked, strict=True)]
    reason = UnlikeError("none of its states is the hidden state of an LSTM, o * tanh(c)")
    for hidden in body.states:  # a state that repeats the last output looks like the hidden state, which gates read
        for value, gate in _factors(body, new[hidden]):
            activated = _activated(value)
            if activated is None:
                continue
            source = body.settle(activated[1])
            cell = next((index for index, each in enumerate(new) if each is source), None)
            if cell is None or cell == hidden:
                continue
            try:
                _check_masks(body, masked[hidden], masked[cell], hidden, cell)
                return _Match(body, hidden, cell, masked[hidden], new[hidden], new[cell], gate, activated[0]).lstm()
            except UnlikeError as error:
                reason = error
    raise reason


def _check_masks(body: LoopBody, hidden: Masked | None, cell: Masked | None, state: int, other: int) -> None:
    """Check that there is no mask, or that one keeps both states as they were. Raises `UnlikeError`."""
    if hidden is None and cell is None:
        return
    if hidden is None or cell is None or (hidden.mask, hidden.when) != (cell.mask, cell.when):
        raise UnlikeError("its two states do not have the same mask")
    if hidden.old is not body.entering(state) or cell.old is not body.entering(other):
        raise UnlikeError("where its mask is false, its states do not stay as they are")


@dataclass(frozen=True)
class _Sum:
    """A sum of matrix products with constants."""

    terms: Mapping[str | Read, Array | None]
    """`hidden` or what is read -> the matrix; None for the identity."""
    bias: Array
    """A number for each column, or one for all."""
    width: int

    def columns(self, part: slice) -> _Sum:
        terms = {source: _whole(matrix, self.width)[:, part] for source, matrix in self.terms.items()}
        bias = np.broadcast_to(self.bias, (self.width,))[part]
        return _Sum(terms, bias, bias.size)

    def __add__(self, other: _Sum) -> _Sum:
        width = max(self.width, other.width)
        if any(each.width != width and (each.terms or each.width != 1) for each in (self, other)):
            raise UnlikeError("a gate adds tensors of different sizes")
        terms = dict(self.terms)
        for source, matrix in other.terms.items():
            terms[source] = _whole(terms[source], width) + _whole(matrix, width) if source in terms else matrix
        return _Sum(terms, self.bias + other.bias, width)

    def __matmul__(self, matrix: Array) -> _Sum:
        if matrix.ndim != 2 or matrix.shape[0] != self.width:
            raise UnlikeError("a gate multiplies with something other than a constant matrix")
        terms = {source: matrix if own is None else own @ matrix for source, own in self.terms.items()}
        return _Sum(terms, np.broadcast_to(self.bias, (self.width,)) @ matrix, matrix.shape[1])


_NO_BIAS = np.zeros(1, np.float32)


@dataclass
class _Match:
    """A step that is being shown to be that of an LSTM."""

    body: LoopBody
    hidden: int
    """Number of the state."""
    cell: int
    masked: Masked | None
    """The new hidden state, where it has a mask."""
    new_hidden: ir.Value
    new_cell: ir.Value
    output_gate: ir.Value
    output_activation: Activation
    _sums: dict[ir.Value, _Sum] = field(default_factory=dict)

    def lstm(self) -> LstmLoop:
        gates, kinds = self._gates()
        read = {source for gate in gates for source in gate.terms if isinstance(source, Read)}
        if len(read) != 1:
            raise UnlikeError(f"its gates read {len(read)} sequences, not one")
        (sequence,) = read
        source, axis = sequence.source, sequence.axis
        if rank_of(source) != 3 or axis == 2 or source.dtype != ir.DataType.FLOAT:
            raise UnlikeError("the sequence that it reads is not a tensor of FP32 with three dimensions")
        self.body.iterations_are(self.body.sizes.of(source, axis))
        batch = self.body.sizes.of(source, 1 - axis)
        size = self._size()
        if any(gate.width != size for gate in gates):
            raise UnlikeError("its gates and its hidden state have different sizes")
        depth = next(_whole(gate.terms[sequence], size).shape[0] for gate in gates if sequence in gate.terms)
        masked = self.masked
        if masked is not None:
            sizes, length = self.body.sizes, self.body.sizes.of(sequence.source, sequence.axis)
            known = rank_of(masked.mask.source) == 3 and masked.mask.axis == 0
            if not known or [sizes.of(masked.mask.source, axis) for axis in range(3)] != [length, batch, 1]:
                raise UnlikeError("its mask is not shown to have one value for each step of each item")
        outputs, constants = self._outputs(batch, size)
        return LstmLoop(
            sequence=sequence,
            kernel=_stacked([gate.terms.get(sequence, np.zeros((depth, size))) for gate in gates], size),
            recurrent=_stacked([gate.terms.get("hidden", np.zeros((size, size))) for gate in gates], size),
            bias=np.concatenate([np.broadcast_to(gate.bias, (size,)) for gate in gates]).astype(np.float32),
            hidden=self._initial(self.hidden, batch, size),
            cell=self._initial(self.cell, batch, size),
            activations=(*kinds, self.output_activation),
            mask=None if masked is None else masked.mask,
            when=masked is None or masked.when,
            outputs=outputs,
            constants=constants,
        )

    def _gates(self) -> tuple[list[_Sum], tuple[Activation, Activation]]:
        """Return the sums of the gates, as ONNX orders them, and the activations of gates and of the cell's input."""
        total = producer_of_type(self.new_cell, "Add")
        if total is None or total.inputs[0] is None or total.inputs[1] is None:
            raise UnlikeError("its cell state is not f * c + i * g")
        kept, added = self._halves(self.body.settle(total.inputs[0]), self.body.settle(total.inputs[1]))
        output, forget = self._gate(self.output_gate), self._gate(kept)
        for first, second in added:
            gate, candidate = self._gate(first), self._gate(second)
            if gate[0] == forget[0] == output[0]:
                return [gate[1], output[1], forget[1], candidate[1]], (gate[0], candidate[0])
        raise UnlikeError("its gates have different activations")

    def _halves(self, first: ir.Value, second: ir.Value) -> tuple[ir.Value, list[tuple[ir.Value, ir.Value]]]:
        """Return the factor of the cell state, and the other product's factors in both orders."""
        entering = self.body.entering(self.cell)
        for kept, added in ((first, second), (second, first)):
            for state, gate in _factors(self.body, kept):
                pairs = list(_factors(self.body, added))
                if state is entering and pairs:
                    return gate, pairs
        raise UnlikeError("its cell state is not f * c + i * g")

    def _gate(self, value: ir.Value) -> tuple[Activation, _Sum]:
        """Return the activation of a gate, and the sum to which it is applied, perhaps for several gates at once."""
        activated = _activated(value)
        if activated is not None:
            return activated[0], self._sum(activated[1])
        node = producer_of_type(value, "Split", "Slice")
        if node is None or node.inputs[0] is None:
            raise UnlikeError(f"a gate is computed by {_operator(value)}")
        activation, whole = self._gate(self.body.settle(node.inputs[0]))
        return activation, self._part(node, value, whole)

    def _sum(self, value: ir.Value) -> _Sum:
        """Return a value as a sum of products. Raises `UnlikeError` for anything else."""
        value = self.body.settle(value)
        if value not in self._sums:
            self._sums[value] = self._source(value) or self._computed(value)
        return self._sums[value]

    def _source(self, value: ir.Value) -> _Sum | None:
        """Return a sum of one term: the hidden state, a read sequence, or a constant."""
        if value is self.body.entering(self.cell):
            raise UnlikeError("a gate depends on the cell state (a peephole)")
        array = self.body.array(value)
        if array is not None:
            if array.ndim > 2 or array.size != (array.shape[-1] if array.ndim else 1):
                raise UnlikeError("a gate adds a constant that is not a vector")
            return _Sum({}, array.reshape(-1), array.size)
        read = self.body.read(value)
        hidden = value is self.body.entering(self.hidden)
        if not hidden and read is None:
            return None
        width = value.shape[-1] if value.shape is not None and len(value.shape) == 2 else None
        if not isinstance(width, int):
            raise UnlikeError("the size of what its gates read is unknown")
        return _Sum({"hidden" if read is None else read: None}, _NO_BIAS, width)

    def _computed(self, value: ir.Value) -> _Sum:
        node = producer_of_type(value, "MatMul", "Gemm", "Add", "Split", "Slice")
        if node is None or node.inputs[0] is None:
            raise UnlikeError(f"a gate depends on {_operator(value)}")
        if node.op_type in ("Split", "Slice"):
            return self._part(node, value, self._sum(node.inputs[0]))
        if node.inputs[1] is None:
            raise UnlikeError(f"a gate depends on {_operator(value)}")
        if node.op_type == "Add":
            return self._sum(node.inputs[0]) + self._sum(node.inputs[1])
        matrix = self.body.array(node.inputs[1])
        if matrix is None:
            raise UnlikeError("its weights are not constants, or are too large to be read")
        if node.op_type == "MatMul":
            return self._product(node.inputs[0], matrix)
        return self._gemm(node, node.inputs[0], matrix)

    def _gemm(self, node: ir.Node, source: ir.Value, matrix: Array) -> _Sum:
        factors = [node.attributes[name] for name in ("alpha", "beta") if name in node.attributes]
        plain = all(not factor.is_ref() and factor.as_float() == 1 for factor in factors)
        if int_attribute(node, "transA", 0) != 0 or int_attribute(node, "transB", 0) is None or not plain:
            raise UnlikeError("a gate is a Gemm with a transposed input or with factors")
        result = self._product(source, matrix.T if int_attribute(node, "transB", 0) else matrix)
        added = node.inputs[2] if len(node.inputs) > 2 else None
        return result if added is None else result + self._sum(added)

    def _product(self, value: ir.Value, matrix: Array) -> _Sum:
        """Return the product with a matrix; of tensors side by side, the products with the matrix's parts."""
        value = self.body.settle(value)
        joined = producer_of_type(value, "Concat")
        if joined is None:
            return self._sum(value) @ matrix
        parts = [self._sum(part) for part in joined.inputs if part is not None]
        ends = np.cumsum([part.width for part in parts])
        if int_attribute(joined, "axis", 0) not in (1, -1) or matrix.ndim != 2 or ends[-1] != matrix.shape[0]:
            raise UnlikeError("a gate joins tensors in another way than side by side")
        products = [part @ matrix[end - part.width : end] for part, end in zip(parts, ends, strict=True)]
        return sum(products[1:], products[0])

    def _part(self, node: ir.Node, value: ir.Value, whole: _Sum) -> _Sum:
        """Return the columns that Split or Slice takes."""
        part = self.body.part(node, value, (None, whole.width))
        if part is None:
            raise UnlikeError(f"a gate is a part that is not known, taken by {_operator(value)}")
        return whole.columns(part[1])

    def _size(self) -> int:
        for value in (self.body.entering(self.hidden), self.new_hidden):
            if value.shape is not None and len(value.shape) == 2 and isinstance(value.shape[1], int):
                return value.shape[1]
        raise UnlikeError("the size of its hidden state is unknown")

    def _initial(self, state: int, batch: Origin, size: int) -> ir.Value | None:
        """Return the first value of a state, or None if it is zero. Raises `UnlikeError` for another shape."""
        value = self.body.initial(state)
        if self._is_zero(value, batch, size):
            return None
        if rank_of(value) != 2 or [self.body.sizes.of(value, axis) for axis in range(2)] != [batch, size]:
            raise UnlikeError("its initial state is not shown to have a row for each item of the sequence")
        return value

    def _is_zero(self, value: ir.Value, batch: Origin, size: int) -> bool:
        """Return whether a tensor is zero, and adding it to one of batch x size would not make that larger."""
        rank = rank_of(value)
        if not _is_zero(self.body, value) or rank is None or rank > 2:
            return False
        wanted = (batch, size)[2 - rank :]
        return all(self.body.sizes.of(value, axis) in (1, wanted[axis]) for axis in range(rank))

    def _outputs(self, batch: Origin, size: int) -> tuple[dict[ir.Value, str], dict[ir.Value, ir.Value]]:
        """Return what the used outputs of the Loop are. Raises `UnlikeError` if that is no output of an LSTM."""
        kinds: dict[ir.Value, str] = {}
        constants: dict[ir.Value, ir.Value] = {}
        states = len(self.body.states)
        for index, value in enumerate(self.body.loop.outputs):
            if not is_used(value):
                continue
            if index in (self.hidden, self.cell):
                kinds[value] = "hidden" if index == self.hidden else "cell"
            elif index >= states:
                kinds[value] = self._scanned(self.body.settle(self.body.graph.outputs[1 + index]), batch, size)
            else:
                kept = self.body.settle(self.body.entering(index))
                if kept is self.body.entering(index) or not self.body.edits.may_replace(value, kept):
                    raise UnlikeError(f"the last value of another state is used, {value.name!r}")
                constants[value] = kept
        return kinds, constants

    def _scanned(self, value: ir.Value, batch: Origin, size: int) -> str:
        """Return what the Loop collects: hidden states, or these with zeros where the mask is false."""
        masked, own = self.masked, self.body.masked(value)
        if value is self.body.leaving(self.hidden):
            return "sequence"
        if masked is None and value is self.new_hidden:
            return "sequence"
        same = own is not None and masked is not None and (own.mask, own.when) == (masked.mask, masked.when)
        if own is not None and same and own.new in (self.new_hidden, self.body.leaving(self.hidden)):
            if own.old is self.body.entering(self.hidden) or self._repeats(own, batch, size):
                return "sequence"
            if self._is_zero(own.old, batch, size):
                return "sequence or zero"
        raise UnlikeError("it collects something other than its hidden state")

    def _repeats(self, own: Masked, batch: Origin, size: int) -> bool:
        """Return whether a third state repeats the last output, and begins as the hidden state does, with zero."""
        state = self.body.state_of(own.old)
        if state is None or self.body.masked(self.body.leaving(state)) != own:
            return False
        return all(self._is_zero(self.body.initial(each), batch, size) for each in (state, self.hidden))


def _is_zero(body: LoopBody, value: ir.Value) -> bool:
    """Return whether all elements of a tensor are zero, as far as its producers show."""
    while True:
        value = body.settle(value)
        array = body.edits.array(value)
        if array is not None:
            return not array.any()
        node = producer_of_type(value, "ConstantOfShape", "Expand", "Cast", "Unsqueeze", "Squeeze")
        if node is None or node.inputs[0] is None:
            return False
        if node.op_type == "ConstantOfShape":
            given = node.attributes.get("value")
            return given is None or not (given.is_ref() or given.as_tensor().numpy().any())
        value = node.inputs[0]


def _factors(body: LoopBody, value: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the two factors of a product, in both orders."""
    node = producer_of_type(value, "Mul")
    if node is not None and node.inputs[0] is not None and node.inputs[1] is not None:
        first, second = body.settle(node.inputs[0]), body.settle(node.inputs[1])
        yield first, second
        yield second, first


def _activated(value: ir.Value) -> tuple[Activation, ir.Value] | None:
    """Return the activation that computes a value, and its input."""
    node = producer_of_type(value, *_ACTIVATIONS)
    if node is None or node.inputs[0] is None:
        return None
    given = [(node.attributes.get(name), default) for name, default in _ACTIVATIONS[node.op_type]]
    if any(attribute is not None and attribute.is_ref() for attribute, _ in given):
        return None
    numbers = tuple(default if attribute is None else attribute.as_float() for attribute, default in given)
    return Activation(node.op_type, numbers), node.inputs[0]


def _whole(matrix: Array | None, width: int) -> Array:
    return np.eye(width, dtype=np.float32) if matrix is None else matrix


def _stacked(matrices: Sequence[Array | None], size: int) -> Array:
    """Return the transposed matrices, one below the other."""
    return np.concatenate([_whole(matrix, size).T for matrix in matrices]).astype(np.float32)


def _operator(value: ir.Value) -> str:
    node = value.producer()
    return f"an input, {value.name!r}" if node is None else node.op_type


FIRST_OPSET = 11
"""The first that has all operators which are written here."""
_WITH_AXES_AS_INPUT = 13


def replace_by_lstm(edits: OperationEdits, loop: ir.Node, found: LstmLoop) -> None:
    """Replace a Loop by the LSTM that it is, and remove what only the Loop needed."""
    writer = _Masked(edits, loop, found) if found.mask is not None else _Writer(edits, loop, found)
    taken: set[ir.Value] = set()
    for old, kind in found.outputs.items():
        new = writer.output(kind)
        new = writer.put("Identity", new) if new in taken else new
        taken.add(new)
        edits.take_over(new, old)
    for old, kept in found.constants.items():
        edits.replace(old, kept)
    prune_values(loop.outputs)


@dataclass
class _Writer:
    """Writes the nodes of an LSTM before the Loop that they replace."""

    edits: OperationEdits
    loop: ir.Node
    found: LstmLoop
    _constants: dict[tuple[str, bytes], ir.Value] = field(default_factory=dict)

    def put(
        self, op_type: str, *inputs: ir.Value | None, **attributes: int | list[int] | list[str] | list[float]
    ) -> ir.Value:
        """Insert a node; returns its output."""
        wish = f"{self.loop.name or 'lstm'}_{op_type}"
        return self.edits.put_for(self.loop, op_type, inputs, attributes, wish)

    def constant(self, array: Array | int | np.float32, wish: str) -> ir.Value:
        """Add a constant; a name stands for one shape."""
        array = np.asarray(array)
        key = (wish, array.tobytes())
        if key not in self._constants:
            name = f"{self.loop.name or 'lstm'}_{wish}"
            self._constants[key] = self.edits.add_initializer(graph_of(self.loop), array, name)
        return self._constants[key]

    def output(self, kind: str) -> ir.Value:
        """Return what the Loop returned: `sequence`, `hidden` or `cell`."""
        index, axis = {"sequence": (0, 1), "hidden": (1, 0), "cell": (2, 0)}[kind]
        return self.squeeze(self.lstm[index], axis)

    @cached_property
    def sequence(self) -> ir.Value:
        """Return the input, T x B x D."""
        read = self.found.sequence
        return self.put("Transpose", read.source, perm=[1, 0, 2]) if read.axis == 1 else read.source

    @cached_property
    def lstm(self) -> tuple[ir.Value, ...]:
        """Return the outputs of the LSTM: T x 1 x B x H, and twice 1 x B x H."""
        return self.write_lstm(self.sequence, None)

    def write_lstm(self, sequence: ir.Value, lengths: ir.Value | None) -> tuple[ir.Value, ...]:
        found = self.found
        bias = np.concatenate([found.bias, np.zeros_like(found.bias)])
        weights = {"W": found.kernel, "R": found.recurrent, "B": bias}
        states = [None if state is None else self.unsqueeze(state, 0) for state in (found.hidden, found.cell)]
        inputs = [
            sequence,
            *(self.constant(array[np.newaxis], name) for name, array in weights.items()),
            lengths,
            *states,
        ]
        first = self.put("LSTM", *inputs, **self._attributes())
        node = first.producer()
        assert node is not None
        node.resize_outputs(3)
        for index, name in ((1, "Y_h"), (2, "Y_c")):
            node.outputs[index].name = self.edits.new_name(f"{first.name}_{name}")
        return tuple(node.outputs)

    def _attributes(self) -> dict[str, int | list[str] | list[float]]:
        activations = self.found.activations
        attributes: dict[str, int | list[str] | list[float]] = {"hidden_size": self.found.recurrent.shape[1]}
        if [each.name for each in activations] != ["Sigmoid", "Tanh", "Tanh"]:
            attributes["activations"] = [each.name for each in activations]
        for index, name in enumerate(("activation_alpha", "activation_beta")):
            numbers = [each.numbers[index] for each in activations if each.numbers]
            if numbers:
                attributes[name] = numbers
        return attributes

    def squeeze(self, value: ir.Value, axis: int) -> ir.Value:
        return self._with_axis("Squeeze", value, axis)

    def unsqueeze(self, value: ir.Value, axis: int) -> ir.Value:
        return self._with_axis("Unsqueeze", value, axis)

    def _with_axis(self, op_type: str, value: ir.Value, axis: int) -> ir.Value:
        if self.edits.opset_of(self.loop) < _WITH_AXES_AS_INPUT:
            return self.put(op_type, value, axes=[axis])
        return self.put(op_type, value, self.constant(np.array([axis], np.int64), "axes"))


@dataclass
class _Masked(_Writer):
    """Writes an LSTM with a mask, which need not end with zeros.

    ONNX has no mask, but lengths: the steps that count are moved to the front of each item, and the results back.
    """

    def output(self, kind: str) -> ir.Value:
        if kind == "cell":
            last, first = self.squeeze(self.lstm[2], 0), self.found.cell
            some = self.put("Greater", self.unsqueeze(self.lengths, 1), self.constant(0, "zero"))
            return self.put("Where", some, last, self.constant(np.float32(0), "start") if first is None else first)
        if kind == "hidden":
            return self.put("Gather", self._since_start, self._rows(self.lengths))
        if kind == "sequence":
            return self.put("Gather", self._since_start, self._rows(self.counts))
        spread = self.put("Gather", self._flat_output, self._rows(self._places))
        return self.put("Where", self.unsqueeze(self.counting, 2), spread, self.constant(np.float32(0), "start"))

    @cached_property
    def counting(self) -> ir.Value:
        """Return whether a step counts, T x B."""
        assert self.found.mask is not None
        mask = self.squeeze(self.found.mask.source, 2)
        return mask if self.found.when else self.put("Not", mask)

    @cached_property
    def counts(self) -> ir.Value:
        """Return how many steps up to this one count, T x B."""
        numbers = self.put("Cast", self.counting, to=ir.DataType.INT64.value)
        return self.put("CumSum", numbers, self.constant(0, "first_axis"))

    @cached_property
    def lengths(self) -> ir.Value:
        """Return how many steps of each item count."""
        return self.put("Gather", self.counts, self.constant(-1, "last"))

    @cached_property
    def lstm(self) -> tuple[ir.Value, ...]:
        order = self.put("ScatterElements", self.counts, self._places, self._steps, axis=0)
        moved = self.put("Gather", self._flat(self.sequence, self.found.kernel.shape[1]), self._rows(order))
        return self.write_lstm(moved, self.put("Cast", self.lengths, to=ir.DataType.INT32.value))

    @cached_property
    def _shape(self) -> ir.Value:
        return self.put("Shape", self.counting)

    @cached_property
    def _items(self) -> ir.Value:
        """Return the number of items."""
        return self.put("Gather", self._shape, self.constant(1, "second"))

    @cached_property
    def _steps(self) -> ir.Value:
        """Return the number of each step, T x B."""
        return self._numbered(self._shape)

    def _numbered(self, shape: ir.Value) -> ir.Value:
        """Return 0, 1, 2, ... along the first axis of a shape, which inference finds again, unlike that of Range."""
        ones = self.put("Expand", self.constant(1, "one"), shape)
        return self.put("Sub", self.put("CumSum", ones, self.constant(0, "first_axis")), self.constant(1, "one"))

    @cached_property
    def _places(self) -> ir.Value:
        """Return the place to which each step moves, T x B: those that do not count are behind the others."""
        among = self.put("Sub", self.counts, self.constant(1, "one"))
        behind = self.put("Sub", self.put("Add", self._steps, self.lengths), self.counts)
        return self.put("Where", self.counting, among, behind)

    @cached_property
    def _item_numbers(self) -> ir.Value:
        return self._numbered(self.unsqueeze(self._items, 0))

    @cached_property
    def _flat_output(self) -> ir.Value:
        return self._flat(self.lstm[0], self.found.recurrent.shape[1])

    @cached_property
    def _since_start(self) -> ir.Value:
        """Return the hidden states of all places, after those at the start, in rows of one item."""
        size = self.found.recurrent.shape[1]
        start = self.found.hidden
        if start is None:
            items = self.unsqueeze(self._items, 0)
            shape = self.put("Concat", items, self.constant(np.array([size], np.int64), "size"), axis=0)
            start = self.put("Expand", self.constant(np.float32(0), "start"), shape)
        return self.put("Concat", start, self._flat_output, axis=0)

    def _flat(self, value: ir.Value, size: int) -> ir.Value:
        """Return a tensor as rows: those of all items at the first step, at the second, ..."""
        return self.put("Reshape", value, self.constant(np.array([-1, size], np.int64), "rows"))

    def _rows(self, places: ir.Value) -> ir.Value:
        """Return the rows of places, T x B or B."""
        return self.put("Add", self.put("Mul", places, self._items), self._item_numbers)
