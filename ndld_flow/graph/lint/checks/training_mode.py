"""Nodes in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.op_signatures import is_op
from ndld_flow.models.type_groups import constant_tensor
from ndld_flow.records.inspection import Finding


class TrainingMode(Check):
    """BatchNormalization and Dropout in training mode: results depend on the batch, or are random."""

    order = 160
    needs_model = True

    def find(self, subject: Subject) -> Iterator[Finding]:
        assert subject.model is not None
        for node in subject.model.graph.all_nodes():
            training = node.attributes.get("training_mode")
            if is_op(node, "BatchNormalization") and training is not None and training.value:
                message = "it is in training mode: it uses the mean and variance of the batch, not those of the model"
                yield self.finding_at(f"{message}; export in inference mode", node.name or "", node.op_type)
            mode = constant_tensor(node.inputs[2]) if is_op(node, "Dropout") and len(node.inputs) > 2 else None
            if mode is not None and mode.numpy().any():
                message = "it is in training mode: it sets random values to 0; export in inference mode"
                yield self.finding_at(message, node.name or "", node.op_type)
