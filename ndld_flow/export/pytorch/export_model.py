"""Writes a model as a folder: `model.py`, the operators that it needs, and its weights in safetensors."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.accuracy.agreement import Agreement, find_yardstick
from ndld_flow.accuracy.model_comparison import reduced_precision, storable
from ndld_flow.accuracy.tolerance import SLICE_BOUNDS, Tolerance, outside
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.export.pytorch import run_module
from ndld_flow.export.pytorch.call import is_weight
from ndld_flow.export.pytorch.module_class import ModuleClass, Refusal, Shared, WrittenModule, scope_tree
from ndld_flow.graph.edit.constant_tensors import constant_tensors
from ndld_flow.graph.edit.decomposing import decompose_nodes
from ndld_flow.graph.edit.edit_file import sort_model
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.models.files import load_model
from ndld_flow.models.nodes import constant_tensor, inline_functions, own_subgraphs
from ndld_flow.models.shape_inference import infer_shapes
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.processes.launch import Program, minimal_environment, run_program
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.samples.sample_feeds import Samples

CODE, OPERATORS, WEIGHTS, NAMES = "model.py", "onnx_operators.py", "model.safetensors", "names.json"
_MOST_REFUSALS = 12
_DEEPEST_DEFINITION = 3
"""How often definitions of operators name others that are defined by others."""
_COMPOSITE = (
    "AffineGrid", "Attention", "CenterCropPad", "MeanVarianceNormalization", "NegativeLogLikelihoodLoss",
    "RMSNormalization", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "HammingWindow", "HannWindow", "BlackmanWindow",
)  # fmt: skip
"""Operators that ONNX defines by others, whose code then computes them."""


@dataclass(frozen=True)
class ExportedModule:
    """A model as PyTorch code, before it is written."""

    code: str
    functions: frozenset[str]
    """Functions of `onnx_operators.py` that it calls."""
    weights: Mapping[str, ir.Value | None]
    """Key of the state dict -> constant of the model."""
    constants: frozenset[str]
    """Names of the constants that the model itself has, before functions were inlined."""
    inputs: tuple[str, ...]
    """Names of the model's inputs, in the order of the arguments of `forward`."""
    outputs: tuple[str, ...]
    classes: int
    modules: int
    nodes: int


def export_module(path: Path) -> ExportedModule:
    """Return a model as PyTorch code.

    Raises `RequestError` that names every operator, attribute and type without an equivalent, and `ModelError`.
    """
    model, constants = _prepared(path)
    inputs = [value for value in model.graph.inputs if not is_weight(value)]
    owners = {graph: node for node in model.graph.all_nodes() for _, graph in own_subgraphs(node)}
    shared = Shared(model.opset_imports.get("", 1), owners, constants)
    root = ModuleClass(scope_tree(model.graph), shared, model.graph.outputs, inputs)
    _refuse(path, [*_refused_ends([*inputs, *model.graph.outputs]), *shared.refusals])
    written = WrittenModule(root)
    imported = "\nimport onnx_operators as ops\n" if shared.functions else ""
    code = f"{_HEADER}{imported}\n\n{written.text()}\n{_FOOTER}"
    ast.parse(code)
    return ExportedModule(
        code=code,
        functions=frozenset(shared.functions),
        weights=written.weights(),
        constants=constants,
        inputs=tuple(value.name or "" for value in inputs),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        classes=written.class_count,
        modules=written.module_count,
        nodes=sum(1 for node in model.graph.all_nodes() if node.op_type != "Constant"),
    )


def write_module(module: ExportedModule, folder: Path) -> None:
    """Write the files of a module; weights are copied from where the model has them."""
    from safetensors.numpy import save_file

    (folder / CODE).write_text(module.code, encoding="utf-8")
    (folder / OPERATORS).write_text(operators_text(module.functions), encoding="utf-8")
    counter = np.zeros((), np.int64)  # keys without a weight are counters
    tensors = {key: constant_tensor(value) for key, value in module.weights.items()}
    arrays = {
        key: counter if tensor is None else np.asarray(tensor.numpy(), order="C") for key, tensor in tensors.items()
    }
    # One buffer for two keys would be one tensor for some readers.
    arrays = {key: array.copy() if array.base is not None else array for key, array in arrays.items()}
    save_file(arrays, folder / WEIGHTS)
    own = {key: value.name if value is not None else None for key, value in module.weights.items()}
    names = {key: name if name in module.constants else None for key, name in own.items()}
    document = {"inputs": module.inputs, "outputs": module.outputs, "weights": names}
    (folder / NAMES).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _prepared(path: Path) -> tuple[ir.Model, frozenset[str]]:
    """Load a model, with local functions and composite operators replaced by their nodes, sorted, and with types.

    Returns also the names of the constants that it had in one graph only.
    """
    model = load_model(path)
    counts = Counter(held.name for held in constant_tensors(model))
    inline_functions(model, path)
    infer_shapes(model)
    for _ in range(_DEEPEST_DEFINITION):
        composites = [node for node in model.graph.all_nodes() if not node.domain and node.op_type in _COMPOSITE]
        for node in composites:
            # One that cannot be replaced stays, and is refused with all others that have no code.
            with contextlib.suppress(RequestError):
                decompose_nodes(EditedModel(model, path), [node])
        if composites:
            infer_shapes(model)
    sort_model(model)
    return model, frozenset(name for name, count in counts.items() if name and count == 1)


def _refused_ends(values: Sequence[ir.Value]) -> Iterable[Refusal]:
    """Yield inputs and outputs that are not tensors."""
    for value in values:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            yield Refusal("", value.name or "", f"the type {value.type}")
        elif value.dtype == ir.DataType.STRING:
            yield Refusal("", value.name or "", "strings")


def _refuse(path: Path, refusals: Sequence[Refusal]) -> None:
    """Raise a `RequestError` with every kind of refusal, its first node, and how many others it has."""
    if not refusals:
        return
    ordered = sorted(refusals, key=lambda each: (each.op, each.reason))
    lines = []
    for (op, reason), group in groupby(ordered, key=lambda each: (each.op, each.reason)):
        nodes = list(group)
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        what = f"{op} with {reason}" if op and reason else op or reason
        lines.append(f"{what} ({short_name(nodes[0].node)}{more})")
    hidden = f"; and {counted(len(lines) - _MOST_REFUSALS, 'more kind')}" if len(lines) > _MOST_REFUSALS else ""
    raise RequestError(
        f"{path}: no PyTorch code for {counted(len(lines), 'kind')} of nodes: "
        f"{'; '.join(lines[:_MOST_REFUSALS])}{hidden}. "
        f"`sanitize` may fold or replace some; `extract` of `edit` exports a part, and `set_opset` raises an opset."
    )


_HEADER = '''"""A network written by ndld-flow from an ONNX model. `load_model` returns it with its weights.

The keys of its state dict are those of `model.safetensors`; `names.json` has the ONNX names of weights, inputs and
outputs. Save trained weights by `safetensors.torch.save_file(model.state_dict(), path)`: `import_weights` of ndld-flow
writes them into the ONNX model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
'''

_FOOTER = '''

def load_model(weights: Path | str = Path(__file__).with_name("model.safetensors")) -> Model:
    """Return the network with weights, ready for inference; call `train()` on it before training."""
    model = Model()
    model.load_state_dict(load_file(weights))
    return model.eval()
'''


def operators_text(functions: Iterable[str]) -> str:
    """Return `onnx_operators.py` with these functions and what they call."""
    source = Path(__file__).with_name(OPERATORS).read_text(encoding="utf-8")
    tree = ast.parse(source)
    named: dict[str, ast.stmt] = {}
    start: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            named[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            named[statement.targets[0].id] = statement
        else:
            start.append(statement)
    needed, waiting = set[str](), list(functions)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [node.id for node in ast.walk(named[name]) if isinstance(node, ast.Name) and node.id in named]
    kept = [ast.get_source_segment(source, statement) or "" for name, statement in named.items() if name in needed]
    # Without the docstring, which is for its authors.
    imports = [ast.get_source_segment(source, each) or "" for each in start[1:]]
    heading = '"""Operators of ONNX that PyTorch lacks or defines differently, as functions of tensors."""'
    return "\n\n\n".join(["\n".join([f"{heading}\n", *imports]), *kept]) + "\n"


_BOUNDS = {"slice_rms": 0.01, "slice_max": 0.02, "position_rms": 0.04}
"""Bounds of float32: a fifth of those for lossless changes. Rounding is a hundred times below them."""


@dataclass(frozen=True)
class OutputDistance:
    """How far an output of the module is from ONNX Runtime's."""

    name: str
    metrics: Mapping[str, float]
    failures: tuple[str, ...]
    """A sentence for each bound that does not hold."""
    is_constant: bool
    """ONNX Runtime's output has one value only, so that the agreement is weak evidence."""


@dataclass(frozen=True)
class ModuleCheck:
    """Where the module, its inputs and its outputs are."""

    model: Path
    folder: Path
    """Folder of the module."""
    scratch: Path
    timeout_s: float


def compare_module(
    exported: ExportedModule, check: ModuleCheck, samples: Samples, report: Callable[[str], None]
) -> list[OutputDistance]:
    """Run the module and the model on samples; returns how far apart each output is.

    Raises `RequestError` if the module does not run, or returns another number of outputs.
    """
    feeds, ours, theirs = (check.scratch / name for name in ("feeds", "onnxruntime", "pytorch"))
    for folder in (feeds, ours, theirs):
        folder.mkdir()
    session = open_model(check.model, SessionSettings())
    dtypes: list[str] = []
    for number, sample in enumerate(samples):
        arrays = sample.arrays
        binding = session.bind(arrays)
        binding.run()
        outputs = binding.outputs()
        ordered = [arrays[name] for name in exported.inputs]
        dtypes = [array.dtype.name for array in ordered]
        _save(feeds / f"{number}.npz", "input", ordered)
        _save(ours / f"{number}.npz", "output", [_tensor(name, outputs[name]) for name in exported.outputs])
    (feeds / "dtypes.json").write_text(json.dumps(dtypes))
    program = Program(
        command=[
            sys.executable,
            "-I",
            "-B",
            str(Path(run_module.__file__)),
            str(check.folder),
            str(feeds),
            str(theirs),
        ],
        environment=minimal_environment(check.scratch),
        timeout_s=check.timeout_s,
    )
    try:
        run_program(program, report)
    except RequestError as error:
        raise RequestError(f"the written module does not run: {error}") from None
    bounds = dict(SLICE_BOUNDS["default"] if reduced_precision(check.model) else _BOUNDS)
    count = len(samples)
    return [
        _distance(name, partial(_arrays, ours, number, count), partial(_arrays, theirs, number, count), bounds)
        for number, name in enumerate(exported.outputs)
    ]


def _save(path: Path, word: str, arrays: list[Array]) -> None:
    np.savez(path, **{f"{word}_{number}": storable(array) for number, array in enumerate(arrays)})  # type: ignore[arg-type]


def _tensor(name: str, array: Array | None) -> Array:
    if array is None:
        raise ModelError(f"output {short_name(name)} is not a tensor")
    return array


def _arrays(folder: Path, number: int, count: int) -> Iterator[Array]:
    """Yield one output, sample by sample."""
    for sample in range(count):
        with np.load(folder / f"{sample}.npz", allow_pickle=False) as arrays:
            if f"output_{number}" not in arrays:
                raise RequestError(f"the written module returns {len(arrays.files)} outputs, not all of the model's")
            yield arrays[f"output_{number}"]


def _distance(
    name: str, ours: Callable[[], Iterator[Array]], theirs: Callable[[], Iterator[Array]], bounds: dict[str, float]
) -> OutputDistance:
    yardstick = find_yardstick(ours)
    agreement = Agreement(yardstick=yardstick)
    for sample, (r, c) in enumerate(zip(ours(), theirs(), strict=True)):
        if r.shape != c.shape or r.dtype != c.dtype:
            found, wanted = (f"{array.dtype.name} {shape_text(array.shape)}" for array in (c, r))
            return OutputDistance(name, {}, (f"it is {found}, and {wanted} in ONNX Runtime (sample {sample})",), False)
        agreement.add(r, c, f"sample {sample}")
    metrics = agreement.metrics()
    own = bounds if yardstick.kind == "numbers" else Tolerance().bounds(yardstick.kind)
    failures = outside(metrics, own, agreement.worst_slices())
    if agreement.nonfinite:
        failures.append(f"{agreement.nonfinite} elements are NaN or infinite in one of both only")
    return OutputDistance(name, metrics, tuple(failures), agreement.is_weak_evidence)
