"""How types run through the bodies of If, Loop, Scan and SequenceMap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ndld_flow.models.element_types import carried_into_bodies, subgraphs_of
from ndld_flow.models.value_uses import Use


@dataclass(frozen=True)
class Tie:
    """Places inside and around a control-flow node that are one value in turn."""

    uses: tuple[Use, ...]
    values: tuple[ir.Value, ...]


def _if_ties(node: ir.Node) -> Iterator[Tie]:
    branches = list(subgraphs_of(node))
    for index, value in enumerate(node.outputs):
        yield Tie(tuple(Use(branch, index) for branch in branches), (value,))


def _loop_ties(node: ir.Node) -> Iterator[Tie]:
    """State goes around: what is given, the body's input, the body's output, the result. Scan outputs only leave."""
    body = node.attributes["body"].as_graph()
    inner = [value for value, _ in carried_into_bodies(node)]
    for index in range(len(body.outputs) - 1):
        around = (Use(node, 2 + index),) if index < len(inner) else ()
        yield Tie((*around, Use(body, 1 + index)), (*node.outputs[index : index + 1], *inner[index : index + 1]))


def _scan_ties(node: ir.Node) -> Iterator[Tie]:
    body = node.attributes["body"].as_graph()
    first = len(node.inputs) - len(body.inputs)
    states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
    for index in range(len(body.outputs)):
        around = (Use(node, first + index),) if index < states else ()
        inner = tuple(body.inputs[index : index + 1]) if index < states else ()
        yield Tie((*around, Use(body, index)), (*node.outputs[index : index + 1], *inner))
    for index in range(states, len(body.inputs)):
        yield Tie((Use(node, first + index),), (body.inputs[index],))


def _sequence_map_ties(node: ir.Node) -> Iterator[Tie]:
    body = node.attributes["body"].as_graph()
    for index, value in enumerate(body.inputs):
        yield Tie((Use(node, index),), (value,))
    for index, value in enumerate(node.outputs):
        yield Tie((Use(body, index),), (value,))


CONTROL_FLOW: Mapping[str, Callable[[ir.Node], Iterator[Tie]]] = {
    "If": _if_ties,
    "Loop": _loop_ties,
    "Scan": _scan_ties,
    "SequenceMap": _sequence_map_ties,
}
"""Operator -> the ties of one of its nodes."""
