"""Names of nodes and tensors in a model while an operation edits it."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.models.files import all_graphs
from ndld_flow.models.unique_names import identifier


def values_of(graph: ir.Graph) -> list[ir.Value]:
    """Return a graph's own tensors: inputs, initializers, nodes' outputs; each once, in this order."""
    made = (value for node in graph for value in node.outputs)
    return list(dict.fromkeys([*graph.inputs, *graph.initializers.values(), *made]))


class NamesInUse:
    """Finds unused names without searching the model each time.

    A name whose holders were renamed or removed is free again. A name that is given to something without asking here
    must be added to `taken`.
    """

    def __init__(self, model: ir.Model) -> None:
        self._holders: dict[str, list[ir.Node | ir.Value]] = {}
        for graph in all_graphs(model):
            for holder in (*graph, *values_of(graph)):
                if holder.name:
                    self._holders.setdefault(holder.name, []).append(holder)
        self.taken = set(self._holders)
        """Names in use; code that assigns names adds them."""
        self._numbers: dict[str, int] = {}

    def fresh(self, wish: str) -> str:
        """Return an unused C90 identifier, and reserve it: the wish, or `wish_2`, `wish_3`, ..."""
        wish = name = identifier(wish)
        number = self._numbers.get(wish, 1)
        while self._is_taken(name):
            number += 1
            name = f"{wish}_{number}"
        self._numbers[wish] = number
        self.taken.add(name)
        self._holders.pop(name, None)
        return name

    def _is_taken(self, name: str) -> bool:
        if name not in self.taken:
            return False
        holders = self._holders.get(name)
        return holders is None or any(holder.name == name and holder.graph is not None for holder in holders)
