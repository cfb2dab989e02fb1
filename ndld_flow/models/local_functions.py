"""Inlining of local functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PreconditionError
from onnx_ir.passes.common import InlinePass, NameFixPass

from ndld_flow.base.errors import ModelError


def inline_functions(model: ir.Model, where: object) -> int:
    """Inline all local functions in place and return their number. Names stay unique in the model.

    Raises `ModelError` if that is impossible: they call each other in a cycle, need another opset than the model, or
    have graphs as attributes. `where` names the model in the message.
    """
    count = len(model.functions)
    if not count:
        return 0
    try:
        InlinePass()(model)
        NameFixPass()(model)
    except (ValueError, PreconditionError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ModelError(f"{where}: its local functions cannot be inlined: {reason}") from None
    model.functions.clear()
    return count
