"""An LSTM, and the nodes around it, in the place of a Loop that is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ndld_flow.graph.edit.graph_edits import OperationEdits, graph_of
from ndld_flow.graph.edit.lstm_loops import LstmLoop
from ndld_flow.graph.edit.wiring import prune_values
from ndld_flow.graph.sanitize.edits import Array

FIRST_OPSET = 11
"""The first that has all operators which are written here."""
_WITH_AXES_AS_INPUT = 13


def replace_by_lstm(edits: OperationEdits, loop: ir.Node, found: LstmLoop) -> None:
    """Replace a Loop by the LSTM that it is, and remove what only the Loop needed."""
    writer = _Masked(edits, loop, found) if found.mask is not None else _Writer(edits, loop, found)
    made: set[ir.Value] = set()
    for old, kind in found.outputs.items():
        new = writer.output(kind)
        new = writer.put("Identity", new) if new in made else new
        made.add(new)
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
        place, axis = {"sequence": (0, 1), "hidden": (1, 0), "cell": (2, 0)}[kind]
        return self.squeeze(self.lstm[place], axis)

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
        for place, name in ((1, "Y_h"), (2, "Y_c")):
            node.outputs[place].name = self.edits.new_name(f"{first.name}_{name}")
        return tuple(node.outputs)

    def _attributes(self) -> dict[str, int | list[str] | list[float]]:
        activations = self.found.activations
        attributes: dict[str, int | list[str] | list[float]] = {"hidden_size": self.found.recurrent.shape[1]}
        if [each.name for each in activations] != ["Sigmoid", "Tanh", "Tanh"]:
            attributes["activations"] = [each.name for each in activations]
        for place, name in enumerate(("activation_alpha", "activation_beta")):
            numbers = [each.numbers[place] for each in activations if each.numbers]
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
        steps = self.put("Gather", self._shape, self.constant(0, "zero"))
        numbers = self.put("Range", self.constant(0, "zero"), steps, self.constant(1, "one"))
        return self.put("Expand", self.unsqueeze(numbers, 1), self._shape)

    @cached_property
    def _places(self) -> ir.Value:
        """Return the place to which each step moves, T x B: those that do not count are behind the others."""
        among = self.put("Sub", self.counts, self.constant(1, "one"))
        behind = self.put("Sub", self.put("Add", self._steps, self.lengths), self.counts)
        return self.put("Where", self.counting, among, behind)

    @cached_property
    def _item_numbers(self) -> ir.Value:
        return self.put("Range", self.constant(0, "zero"), self._items, self.constant(1, "one"))

    @cached_property
    def _flat_output(self) -> ir.Value:
        return self._flat(self.lstm[0], self.found.recurrent.shape[1])

    @cached_property
    def _since_start(self) -> ir.Value:
        """Return the hidden states of all places, after those at the start, in rows of one item."""
        size = self.found.recurrent.shape[1]
        start = self.found.hidden
        if start is None:
            one = self.put("Reshape", self._items, self.constant(np.array([1], np.int64), "ones"))
            shape = self.put("Concat", one, self.constant(np.array([size], np.int64), "size"), axis=0)
            start = self.put("Expand", self.constant(np.float32(0), "start"), shape)
        return self.put("Concat", start, self._flat_output, axis=0)

    def _flat(self, value: ir.Value, size: int) -> ir.Value:
        """Return a tensor as rows: those of all items at the first step, at the second, ..."""
        return self.put("Reshape", value, self.constant(np.array([-1, size], np.int64), "rows"))

    def _rows(self, places: ir.Value) -> ir.Value:
        """Return the rows of places, T x B or B."""
        return self.put("Add", self.put("Mul", places, self._items), self._item_numbers)
