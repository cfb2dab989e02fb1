"""Transformer fusions of ONNX Runtime, applied to the edited model.

ONNX Runtime's optimizer runs in a separate process, with this module as its program, because it prints, logs, and
changes `sys.path`. The process reads `source.onnx` and `job.json` from a folder, and writes `result.onnx` or
`error.txt`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ndld_flow.base.errors import KilledError, RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.graph_edits import some_of
from ndld_flow.models.external_data import INLINE_LIMIT_BYTES, replaced_initializers, tensors_of
from ndld_flow.models.files import all_graphs, load_model
from ndld_flow.models.lazy_tensors import SparseInitializer
from ndld_flow.models.nodes import UniqueNames, op_name
from ndld_flow.models.tensor_statistics import same_contents
from ndld_flow.processes.launch import run_worker_module
from ndld_flow.processes.worker import exit_worker, start_worker

_OF_ONNX = frozenset(("LayerNormalization", "RMSNormalization", "Gelu", "RotaryEmbedding", "Attention"))
_CONTRIB = "com.microsoft::"
_OF_ONNXRUNTIME = frozenset(("SimplifiedLayerNormalization",))
"""Operators that ONNX Runtime registers in ONNX's domain."""
_RMS_NORM_OPSET = 23
"""First opset with RMSNormalization, ONNX's own form of SimplifiedLayerNormalization."""

SOURCE, RESULT, JOB, ERROR = "source.onnx", "result.onnx", "job.json", "error.txt"


def fuse_transformer(edited: EditedModel, job: Mapping[str, object]) -> Counter[str]:
    """Run the optimizer with the settings of a job; returns the number of new nodes of each fused operator.

    Raises `RequestError` for a model that is too large or has sparse weights, for a failure of the optimizer, and for
    operators that the model's opset does not have.
    """
    _check_size(edited.model)
    before = _fused_operators(edited.model)
    with (
        tempfile.TemporaryDirectory(prefix="ndld-flow-fusing-") as folder,
        _squares_as_powers(edited.model) as exponent,
    ):
        fused = _run(edited.model, job, Path(folder))
    # Squares that were not fused are written as x * x again.
    value = fused.graph.initializers.pop(exponent, None)
    for use in tuple(value.uses()) if value is not None else ():
        _set_operator(use.node, "Mul", use.node.inputs[0])
    if fused.opset_imports.get("", 0) >= _RMS_NORM_OPSET:
        for node in (node for graph in all_graphs(fused) for node in graph):
            if op_name(node) == "SimplifiedLayerNormalization":
                node.op_type = "RMSNormalization"
    _restore_unchanged(edited.model, fused)
    _check_operators(fused)
    if any(node.domain == "com.microsoft" for graph in all_graphs(fused) for node in graph):
        fused.opset_imports.setdefault("com.microsoft", 1)
    done = _fused_operators(fused) - before
    if done:
        edited.model = fused
    return done


@contextlib.contextmanager
def _squares_as_powers(model: ir.Model) -> Iterator[str]:
    """Replace x * x by Pow(x, 2) in the context where a ReduceMean reads it; yield the name of the exponent.

    ONNX Runtime's fusion of RMSNorm raises a TypeError for x * x, up to 1.31 at least.
    """
    name = UniqueNames(model).value("two")
    exponent = ir.Value(name=name, const_value=ir.tensor(np.float32(2.0), name=name))
    squares = [node for graph in model.graphs() for node in graph if _is_mean_square(node)]
    if squares:
        model.graph.register_initializer(exponent)
    for node in squares:
        _set_operator(node, "Pow", exponent)
    try:
        yield name
    finally:
        for node in squares:
            _set_operator(node, "Mul", node.inputs[0])
        model.graph.initializers.pop(name, None)


def _is_mean_square(node: ir.Node) -> bool:
    """Return whether a node is x * x, read by a ReduceMean."""
    is_square = op_name(node) == "Mul" and node.inputs[0] is node.inputs[1]
    return is_square and any(op_name(use.node) == "ReduceMean" for use in node.outputs[0].uses())


def _set_operator(node: ir.Node, op_type: str, second: ir.Value | None) -> None:
    node.op_type = op_type
    node.replace_input_with(1, second)


def _check_size(model: ir.Model) -> None:
    tensors = list(tensors_of(model))
    if any(isinstance(tensor, SparseInitializer) for tensor in tensors):
        raise RequestError("ONNX Runtime's optimizer does not support sparse initializers: use `make_dense` first")
    size = sum(tensor.nbytes for tensor in tensors if tensor.dtype != ir.DataType.STRING)
    if size > INLINE_LIMIT_BYTES:
        raise RequestError(
            f"the weights are {size / 2**30:.1f} GiB, and ONNX Runtime's optimizer takes models of at most "
            f"{INLINE_LIMIT_BYTES / 2**30:.1f} GiB: `extract` parts of it and fuse those, or run its command line in a "
            "step `run_tool`"
        )


def _run(model: ir.Model, job: Mapping[str, object], folder: Path) -> ir.Model:
    (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
    _write_whole(model, folder / SOURCE)
    ended = run_worker_module(__name__, folder, lambda *_: None)
    error, result = folder / ERROR, folder / RESULT
    if error.exists():
        reason = " ".join(error.read_text(encoding="utf-8").split())[:300]
        raise RequestError(f"ONNX Runtime's optimizer failed on this model: {reason}")
    if not result.exists():
        if not ended.signal_name:
            raise ended.died("fusing")
        raise KilledError(f"ONNX Runtime's optimizer was killed by {ended.signal_name}, possibly for lack of memory")
    fused = load_model(result)
    for graph in fused.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):  # the file is deleted with the folder
                value.const_value = ir.Tensor(value.const_value.numpy().copy(), name=value.name)
    return fused


def _write_whole(model: ir.Model, path: Path) -> None:
    """Write the model with all weights inside."""

    def read(value: ir.Value, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        is_outside = isinstance(tensor, ir.ExternalTensor)
        return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=value.name) if is_outside else tensor

    with replaced_initializers(model, read):
        path.write_bytes(ir.serde.serialize_model(model).SerializeToString())


def _restore_unchanged(old: ir.Model, fused: ir.Model) -> None:
    """Restore the producer, the IR version, and the external tensors of weights that did not change."""
    fused.producer_name, fused.producer_version = old.producer_name, old.producer_version
    fused.ir_version = old.ir_version
    for name, value in old.graph.initializers.items():
        copy = fused.graph.initializers.get(name)
        if copy is None or copy.const_value is None or not isinstance(value.const_value, ir.ExternalTensor):
            continue
        if same_contents(value.const_value, copy.const_value):
            copy.const_value = value.const_value


def _fused_operators(model: ir.Model) -> Counter[str]:
    names = (op_name(node) for graph in all_graphs(model) for node in graph)
    fused = _OF_ONNX | _OF_ONNXRUNTIME
    return Counter(name.removeprefix(_CONTRIB) for name in names if name.startswith(_CONTRIB) or name in fused)


def _check_operators(model: ir.Model) -> None:
    """Raise `RequestError` for operators in ONNX's domain that ONNX Runtime does not load at the model's opset."""
    opset = model.opset_imports.get("", 0)
    used = {node.op_type for graph in model.graphs() for node in graph if node.domain == ""}
    unknown = sorted(name for name in used - _OF_ONNXRUNTIME if not onnx.defs.has(name, opset, ""))
    if unknown:
        later = [name for name in unknown if onnx.defs.has(name)]
        advice = "convert the model to opset 17 or newer first, or " if later else ""
        raise RequestError(
            f"the fusions produce {some_of(unknown)}, which ONNX does not have at opset {opset}: {advice}exclude them "
            "with `without: [layer_norm]`"
        )


def main(folder: Path) -> None:
    """Run the job in the folder."""
    start_worker()
    try:
        _fuse(folder, json.loads((folder / JOB).read_text(encoding="utf-8")))
    except Exception as error:  # errors of the library; the parent process reports them
        (folder / ERROR).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    exit_worker()


def _fuse(folder: Path, job: dict[str, Any]) -> None:
    from onnxruntime.transformers import optimizer

    options = optimizer.FusionOptions(job["model_type"])
    for name, value in job["options"].items():
        setattr(options, name, value)
    mask = {"raw": 2, "none": 3, "right_padded": 0}[job["mask"]]
    options.attention_mask_format = mask
    model = onnx.load(folder / SOURCE)
    fused = optimizer.optimize_by_fusion(
        model,
        job["model_type"],
        num_heads=job["num_heads"],
        hidden_size=job["hidden_size"],
        optimization_options=options,
    )
    onnx.save(fused.model, folder / RESULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
