"""New models: valid and empty."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.models.files import MAX_IR_VERSION

NEWEST_OPSET = onnx.defs.onnx_opset_version()
"""Newest version of the default domain that the installed onnx knows."""
_LEAST_IR_VERSION = 8
"""Earlier versions have no local functions, and before 4 every initializer is an input. It allows any opset."""
CONTRIB_DOMAIN = "com.microsoft"


def make_model(opset: int, contrib: bool = False) -> ir.Model:
    """Return a model without nodes, inputs and outputs; `contrib` imports ONNX Runtime's own operators.

    Raises `ModelError` for an unknown opset.
    """
    reject_unknown_opset(opset)
    imports = {"": opset} | ({CONTRIB_DOMAIN: 1} if contrib else {})
    graph = ir.Graph([], [], nodes=[], opset_imports=imports, name="graph")
    return ir.Model(graph, ir_version=max(_LEAST_IR_VERSION, oldest_ir_version(opset)), producer_name="ndld_flow")


def reject_unknown_opset(opset: int) -> None:
    """Raise `ModelError` for an unknown opset."""
    if not 1 <= opset <= NEWEST_OPSET:
        raise ModelError(f"there is no opset {opset}; the installed onnx has 1 to {NEWEST_OPSET}")


def oldest_ir_version(opset: int) -> int:
    """Return the IR version that was introduced with an opset, or the newest that ONNX Runtime loads if it is older."""
    versions = [row[1] for row in onnx.helper.VERSION_TABLE if row[2] >= opset]
    return min(*versions, MAX_IR_VERSION)
