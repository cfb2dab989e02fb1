"""Is a model that was changed still a model?"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ndld_flow.backends.models.files import check_model
from ndld_flow.backends.models.sparse_tensors import SparseInitializer
from ndld_flow.errors import ModelError


def check_changed(source: Path, target: Path, model: ir.Model) -> None:
    """Raises `ModelError` when the checker refuses the changed model, which was written to `target`.

    Strict shape inference may refuse it where it refused the source too: some of its rules are wrong, and runtimes take
    such models all the same.
    """
    check_model(target)
    if _has_sparse_initializers(model):
        return  # onnx's inference refuses them as such
    try:
        check_model(target, full_check=True)
    except ModelError:
        if _passes_full_check(source):
            raise


def _passes_full_check(path: Path) -> bool:
    try:
        check_model(path, full_check=True)
    except ModelError:
        return False
    return True


def _has_sparse_initializers(model: ir.Model) -> bool:
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return any(isinstance(value.const_value, SparseInitializer) for value in values)
