"""Test of a dynamic batch: a batch of three must give the results of its items alone, on the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.batch_axes import Batch
from ndld_flow.models.declared_inputs import model_inputs
from ndld_flow.models.external_data import INLINE_LIMIT_BYTES, tensors_of
from ndld_flow.models.files import save_model
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.samples.feeds import make_feeds

_ITEMS = 3
_TOLERANCE = {np.dtype(np.float16): 2e-2}
_USUAL_TOLERANCE = 1e-3
"""Relative to the largest value: kernels add in another order for another batch size."""


def try_batch(edited: EditedModel, batch: Batch, axes: Mapping[str, int]) -> None:
    """Compare outputs (name -> axis of items) of a batch of three items with those of each alone.

    What cannot be run is noted. Raises `RequestError` naming the output that differs.
    """
    if sum(tensor.nbytes for tensor in tensors_of(edited.model)) > INLINE_LIMIT_BYTES:
        edited.note("the dynamic batch was not tested because the model is large; compare its outputs in a later step")
        return
    with tempfile.TemporaryDirectory(prefix="ndld-flow-batch-") as folder:
        path = Path(folder) / "model.onnx"
        edited.model.graph.sort()
        save_model(edited.model, path)
        try:
            differing = _differing(path, edited, batch, axes)
        except Exception as error:  # ONNX Runtime's own errors have no common base
            edited.note(f"the dynamic batch was not tested: {one_paragraph(error)[:300]}")
            return
    if differing:
        raise RequestError(
            f"a batch of {_ITEMS} gives other results than its items alone: {differing}. A node of this model mixes "
            "items, fixes their number, or generates random numbers; `try_it: false` skips this test"
        )


def _differing(path: Path, edited: EditedModel, batch: Batch, axes: Mapping[str, int]) -> str:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    specs = [_sized(spec, edited, batch) for spec in model_inputs(path)]
    given = {name: spec.model_copy(update=_FREE) for name, spec in edited.inputs.items() if not spec.data_patterns}
    feeds = {name: feed.values for name, feed in make_feeds(specs, given).items()}
    names = [output.name for output in session.get_outputs()]
    items = []
    for item in range(_ITEMS):
        own = {name: _item(array, batch.axes.get(name), item, batch.size) for name, array in feeds.items()}
        items.append(dict(zip(names, session.run(None, own), strict=True)))
    try:
        together = dict(zip(names, session.run(None, feeds), strict=True))
    except Exception as error:  # ONNX Runtime's own errors have no common base
        return f"it fails ({one_paragraph(error)[:300]})"
    for item, alone in enumerate(items):
        for name, axis in axes.items():
            if not _close(_item(together[name], axis, item, batch.size), alone[name]):
                return f"output {name}, item {item}"
    return ""


_FREE: dict[str, Any] = {"shape": None, "min": None, "opt": None, "max": None}


def _sized(spec: TensorSpec, edited: EditedModel, batch: Batch) -> TensorSpec:
    """Return an input with three times its batch, and the recipe's sizes for other dynamic dimensions."""
    given = edited.inputs.get(spec.name)
    wanted = given.run_shape if given is not None else None
    dims = list(spec.shape or ())
    if wanted is not None and len(wanted) == len(dims):
        dims = [dim if isinstance(dim, int) else size for dim, size in zip(dims, wanted, strict=True)]
    axis = batch.axes.get(spec.name)
    if axis is not None:
        dims[axis] = _ITEMS * batch.size
    return replace(spec, shape=tuple(dims))


def _item(array: Array, axis: int | None, item: int, size: int) -> Array:
    if axis is None:
        return array
    return np.take(array, range(item * size, (item + 1) * size), axis)


def _close(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    largest = float(np.nanmax(np.abs(other), initial=0))
    allowed = _TOLERANCE.get(one.dtype, _USUAL_TOLERANCE) * max(largest, 1e-6)
    return np.allclose(one, other, rtol=0, atol=allowed, equal_nan=True)
