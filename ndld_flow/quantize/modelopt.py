"""Quantization by NVIDIA ModelOpt, which needs older libraries and so runs in its own environment."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.model_tool import move_model
from ndld_flow.models.element_types import is_op
from ndld_flow.models.external_files import external_files, model_bytes
from ndld_flow.models.files import describe_change, load_model, save_model
from ndld_flow.models.nodes import UniqueNames
from ndld_flow.models.tensors import Array
from ndld_flow.precision.constraints.rules import first_output
from ndld_flow.precision.fp16.convert import prepare
from ndld_flow.processes.launch import Program, minimal_environment, run_program
from ndld_flow.quantize.calibration import Workspace
from ndld_flow.quantize.prepared_model import QuantizableNode, SkippedLayer, excluded_outputs
from ndld_flow.quantize.quantize_file import Quantization, QuantizeInputs, check_quantized, found_outputs, skip_notes
from ndld_flow.quantize.settings import WEIGHTED_OP_TYPES, ModelOpt, QuantizeSettings, SkipReason, find_interpreter
from ndld_flow.samples.sample_feeds import Samples
from ndld_flow.store.kinds import Onnx

_METHODS = {"minmax": "max", "entropy": "entropy"}
"""`method` -> its name in ModelOpt."""


@dataclass(frozen=True)
class Settings:
    """Settings of the quantization and of ModelOpt."""

    how: QuantizeSettings
    """`method`, `op_types` and `exclude` are passed to ModelOpt."""
    modelopt: ModelOpt


def quantize_by_modelopt(
    source: Path,
    out: Path,
    settings: Settings,
    data: QuantizeInputs,
    workspace: Workspace,
    on_line: Callable[[str], None],
) -> Quantization:
    """Write `source`, quantized by ModelOpt, to the folder `out`; `on_line` gets each line that it prints.

    It runs without a shell, on the CPU, in a process group that has ended afterwards. Raises `RequestError` if it fails
    or takes too long or if samples differ in shape, `ModelError` if its output is not a valid model.
    """
    how, modelopt = settings.how, settings.modelopt
    python = find_interpreter(modelopt.python)
    if python is None:
        raise BackendError(f"`modelopt.python`: no program {str(modelopt.python)!r} was found")
    workspace.progress(0, 0, "preparing")
    named, quantized = workspace.scratch / "named.onnx", workspace.scratch / "made"
    excluded, notes = _write_named(source, named, how, data)
    quantized.mkdir()
    command = [
        *_command(python, named, quantized / Onnx.main, modelopt),
        *([] if modelopt.format == "int4" else ["--calibration_method", _METHODS[how.method]]),
        *(["--op_types_to_quantize", *how.op_types] if how.op_types else []),
        # ModelOpt's regular expressions match a prefix.
        *(["--nodes_to_exclude", *(f"{re.escape(name)}$" for name in excluded)] if excluded else []),
    ]
    if data.samples is not None:
        command += _calibration_options(data.samples, workspace.scratch / "calibration.npz")
        notes += data.samples.notes
    environment = minimal_environment(workspace.scratch, ("LD_LIBRARY_PATH",))
    run_program(Program(command, environment, modelopt.timeout / 1e3, workspace.scratch), on_line)
    move_model(source, quantized / Onnx.main, out, "modelopt", workspace.log)
    count = len(data.samples) if data.samples is not None else 0
    description = f"ModelOpt {modelopt.format} on {counted(count, 'sample')}"
    return replace(_quantization(source, out / Onnx.main, how, excluded, notes), description=description)


def _write_named(
    source: Path, target: Path, how: QuantizeSettings, data: QuantizeInputs
) -> tuple[list[str], list[str]]:
    """Write the model with every node named and weights as initializers. Returns names of excluded nodes, and notes."""
    model = load_model(source)
    notes = prepare(model, source)
    excluded = excluded_outputs(model, how) | found_outputs(source, data.search)
    LiftConstantsToInitializersPass(lift_all_constants=False)(model)  # ModelOpt supports no other weights
    UniqueNames(model).name_all(model)
    save_model(model, target)
    return [node.name or "" for node in model.graph.all_nodes() if first_output(node) in excluded], notes


def _quantization(
    source: Path, quantized: Path, settings: QuantizeSettings, excluded: Collection[str], notes: Sequence[str]
) -> Quantization:
    model = load_model(quantized)
    layers = [node for node in model.graph if is_op(node, *WEIGHTED_OP_TYPES)]
    nodes = tuple(
        QuantizableNode(first_output(node), node.name or "", node.op_type, (), (), (), follows=False)
        for node in layers
        if _is_quantized(node)
    )
    left = [node for node in layers if not _is_quantized(node)]
    reasons: list[SkipReason] = ["excluded" if node.name in excluded else "unknown" for node in left]
    skipped = tuple(
        SkippedLayer(first_output(node), node.name or "", node.op_type, reason)
        for node, reason in zip(left, reasons, strict=True)
    )
    check_quantized(nodes, skipped, settings)
    change = describe_change(source, quantized).model_copy(update={"notes": (*notes, *skip_notes(skipped))})
    return Quantization(change, nodes, len(layers), skipped, (), "", model_bytes(source), model_bytes(quantized))


def _command(python: str, source: Path, target: Path, modelopt: ModelOpt) -> list[str]:
    """Return the command without the options for excluded nodes and calibration data."""
    outside = ["--use_external_data_format"] if external_files(source) else []
    places = ["--onnx_path", str(source.absolute()), "--output_path", str(target.absolute())]
    formats = ["--quantize_mode", modelopt.format, "--high_precision_dtype", modelopt.high_precision]
    return [python, "-m", "modelopt.onnx.quantization", *places, *formats, *outside, "--calibration_eps", "cpu"]


def _calibration_options(samples: Samples, path: Path) -> list[str]:
    """Write samples as one array for each input, which ModelOpt splits by the shape of a sample."""
    rows: dict[str, list[Array]] = {}
    for sample in samples:
        for name, feed in sample.feeds.items():
            rows.setdefault(name, []).append(feed.values)
    for name, arrays in rows.items():
        shapes = sorted({each.shape for each in arrays})
        if len(shapes) > 1 or not shapes[0]:
            shapes_text = " and ".join(str(list(shape)) for shape in shapes[:2])
            raise RequestError(
                f"ModelOpt needs samples of one shape with a batch, and input {name!r} has {shapes_text}: set a shape "
                "in `inputs:` that fits all samples."
            )
    # Not by numpy.savez: it refuses names that are its own parameters, such as `file`.
    with zipfile.ZipFile(path, "w") as archive:
        for name, arrays in rows.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.concatenate(arrays), allow_pickle=False)
    shapes_of_one = ",".join(f"{name}:{'x'.join(map(str, arrays[0].shape))}" for name, arrays in rows.items())
    return ["--calibration_data_path", str(path), "--calibration_shapes", shapes_of_one]


def _is_quantized(node: ir.Node) -> bool:
    """Return whether an input is dequantized, perhaps transposed, reshaped or cast afterwards."""
    producers: list[ir.Node | None] = [value.producer() for value in node.inputs if value is not None]
    while producers:
        producer = producers.pop()
        if is_op(producer, "DequantizeLinear"):
            return True
        if producer is not None and is_op(producer, "Cast", "Reshape", "Transpose") and producer.inputs[0]:
            producers.append(producer.inputs[0].producer())
    return False
