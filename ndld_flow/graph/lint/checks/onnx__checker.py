"""ONNX's own checker."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.errors import ModelError
from ndld_flow.graph.lint.check import Check, Subject, named_node
from ndld_flow.models.files import check_model
from ndld_flow.models.model_defects import examine_model, is_deprecated
from ndld_flow.records.inspection import Finding


class OnnxChecker(Check):
    """Nodes that `onnx.checker` rejects, and the first other mistake that it reports.

    Tensors without a shape, graphs without a name, missing imports, and operators that ONNX does not have or has
    deprecated are reported by checks of their own.
    """

    order = 20
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        try:
            check_model(subject.path)
        except ModelError as error:
            if subject.model is None:
                rejected = str(error).removeprefix(f"{subject.path}: ")
            else:
                examination = examine_model(subject.path)
                rejected = examination.rejected
                for defect in examination.defects:
                    is_own = defect.tensor or defect.is_unknown or is_deprecated(defect.op_type, subject.opset)
                    if not is_own:
                        yield self.finding_at(defect.message, defect.node, defect.op_type)
            if rejected:
                yield self.finding_at(rejected, *named_node(rejected))
