"""What is different between two models.

::

    found = diff_models(load_model(before), load_model(after))
    found.one_line          # 1 node added, 3 renamed; 2 weights changed
"""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.graph.diff.declared_changes import diff_functions, diff_opsets, diff_texts
from ndld_flow.graph.diff.match_models import match_models
from ndld_flow.graph.diff.node_changes import diff_nodes
from ndld_flow.graph.diff.sides import Sides, side_of
from ndld_flow.graph.diff.value_changes import diff_inputs, diff_outputs, diff_tensors
from ndld_flow.graph.diff.weight_changes import diff_weights
from ndld_flow.records.model_diff import ModelDiff


def diff_models(before: ir.Model, after: ir.Model, *, compare_values: bool = True) -> ModelDiff:
    """What is different in `after`, as seen from `before`.

    A model with the same contents under other names shows as renamed, a node put into an edge as one node. Weights on
    disk are compared in pieces, and not read where both models have the same place of one file. Without
    `compare_values` the values of weights are left out, though some bytes of each are read to recognise it.
    """
    sides = Sides(side_of(before), side_of(after), match_models(before, after))
    return ModelDiff(
        nodes=diff_nodes(sides),
        weights=diff_weights(sides, compare_values),
        inputs=diff_inputs(sides),
        outputs=diff_outputs(sides),
        tensors=diff_tensors(sides),
        functions=diff_functions(sides),
        opsets=diff_opsets(sides),
        texts=diff_texts(before, after),
    )
