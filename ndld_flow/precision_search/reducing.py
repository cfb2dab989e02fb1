"""A model at reduced precision, with some of its nodes kept: what a precision search tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import onnx_ir as ir

from ndld_flow.models.node_selection import op_name
from ndld_flow.records.precision_search import PrecisionSearch


@dataclass(frozen=True)
class SearchedNode:
    """A node of the model that is searched."""

    position: int
    """In the order of execution, from 0; nodes of bodies are counted behind the node they stand in."""
    name: str
    op_type: str
    outputs: tuple[str, ...]

    @property
    def output(self) -> str:
        """The first output that has a name."""
        return next(filter(None, self.outputs), "")

    @property
    def called(self) -> str:
        """Its name, or what stands for it where it has none."""
        return self.name or f"{self.op_type} -> {self.output}"


class Reducer(Protocol):
    """Writes one model again and again, each time with other nodes kept."""

    @property
    def nodes(self) -> Sequence[SearchedNode]:
        """All nodes, by position."""

    @property
    def candidates(self) -> Sequence[int]:
        """Positions of the nodes that change when nothing is kept, in order."""

    @property
    def always_kept(self) -> Mapping[int, str]:
        """Positions of nodes that could hold the precision and do not -> why."""

    @property
    def settings(self) -> Mapping[str, bool | int | float | str]:
        """What a later step that uses the result has to be set to alike."""

    def write(self, kept: frozenset[int], target: Path) -> None:
        """Write the model to `target` with all candidates but these reduced. Raises `ModelError` where it cannot be."""

    def write_found(self, search: PrecisionSearch, target: Path) -> None:
        """Write the model as the step that uses a search's result writes it."""


def searched_nodes(model: ir.Model) -> tuple[SearchedNode, ...]:
    """All nodes of a model, bodies included."""
    return tuple(
        SearchedNode(position, node.name or "", op_name(node), tuple(value.name or "" for value in node.outputs))
        for position, node in enumerate(model.graph.all_nodes())
    )
