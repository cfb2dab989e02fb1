"""Validity check of a model that was changed."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.models.files import check_model, load_model
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.sparse_tensors import SparseInitializer


def check_changed_model(source: Path, target: Path, model: ir.Model) -> None:
    """Raise `ModelError` if the checker rejects the changed model, which was written to `target`.

    Strict shape inference may reject it if it rejects the source too: some of its rules are wrong, and runtimes accept
    such models.
    """
    if _has_foreign_functions(model) or _has_sparse_initializers(model):
        check_model(target)  # for all other models the strict check covers it
    try:
        _check_strictly(target, model)
    except ModelError:
        check_model(target)
        if _passes_strictly(source):
            raise


def _check_strictly(path: Path, model: ir.Model) -> None:
    if _has_foreign_functions(model):
        return  # inference accepts operators that it does not know, except inside functions
    if _has_sparse_initializers(model):
        infer_shapes(model, strict=True)  # the checker's inference does not support them; this one sees dense ones
    else:
        check_model(path, full_check=True)


def _passes_strictly(path: Path) -> bool:
    try:
        _check_strictly(path, load_model(path))
    except ModelError:
        return False
    return True


def _has_foreign_functions(model: ir.Model) -> bool:
    """Return whether local functions use operators that onnx does not know, such as those of ONNX Runtime."""
    nodes = (node for function in model.functions.values() for node in function.all_nodes())
    return any(
        not onnx.defs.has(node.op_type, node.domain) and node.op_identifier() not in model.functions for node in nodes
    )


def _has_sparse_initializers(model: ir.Model) -> bool:
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return any(isinstance(value.const_value, SparseInitializer) for value in values)
