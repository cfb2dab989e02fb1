"""Is a model that was changed still a model?"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from ndld_flow.backends.models.files import check_model, load_model
from ndld_flow.backends.models.shape_inference import infer_shapes
from ndld_flow.backends.models.sparse_tensors import SparseInitializer
from ndld_flow.errors import ModelError


def check_changed(source: Path, target: Path, model: ir.Model) -> None:
    """Raises `ModelError` when the checker refuses the changed model, which was written to `target`.

    Strict shape inference may refuse it where it refused the source too: some of its rules are wrong, and runtimes take
    such models all the same.
    """
    check_model(target)
    try:
        _check_strictly(target, model)
    except ModelError:
        if _passes_strictly(source):
            raise


def _check_strictly(path: Path, model: ir.Model) -> None:
    if _has_sparse_initializers(model):
        infer_shapes(
            model, strict=True
        )  # the checker's inference knows no sparse initializers, this one sees dense ones
    else:
        check_model(path, full_check=True)


def _passes_strictly(path: Path) -> bool:
    try:
        _check_strictly(path, load_model(path))
    except ModelError:
        return False
    return True


def _has_sparse_initializers(model: ir.Model) -> bool:
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return any(isinstance(value.const_value, SparseInitializer) for value in values)
