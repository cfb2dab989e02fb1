"""Convert the output of ONNX Runtime's profiler (`SessionOptions.enable_profiling`) to a Profile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.read.json_values import number_of
from ndld_flow.profiles.read.multiply_accumulates import count_macs
from ndld_flow.profiles.read.onnxruntime_events import (
    MAX_EVENTS,
    MeasuredNode,
    MeasuredPasses,
    TypeAndShape,
    read_passes,
)
from ndld_flow.profiles.read.onnxruntime_timeline import read_timeline
from ndld_flow.profiles.read.text_files import check_size, read_ends
from ndld_flow.profiles.read.work_of_layers import tensor_bytes
from ndld_flow.records.latency import LatencySummary
from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES
from ndld_flow.records.machine import Machine
from ndld_flow.records.profile import Layer, LayerRole, Profile, ProfileRun, TensorInfo

_CONTROL = ("If", "Loop", "Scan")
_REFORMATS = ("ReorderInput", "ReorderOutput")
_LOADS = re.compile(r"session_initialization|model_loading\w*")
_MAX_MACS = 10**18


def profile_of_onnxruntime(path: Path, label: str) -> Profile:
    """Read a profile. Raises RequestError when it cannot be read or holds no complete pass."""
    check_size(path)
    measured, warmup = _read(path)
    if not measured.pass_ms:
        raise RequestError(
            f"{path} holds no complete pass: ONNX Runtime writes one event a line, and `model_run` when a pass ends"
        )
    positions = {key: place for place, key in enumerate(measured.nodes)}
    median = LatencySummary.of(measured.pass_ms).median_pass
    layers = tuple(_layer(index, node, len(measured.pass_ms)) for index, node in enumerate(measured.nodes.values()))
    return Profile(
        label=label,
        model_digest="",
        backend="onnxruntime",
        providers=_providers(layers),
        machine=Machine(system="", architecture="", cpu="", cpu_count=None, memory_bytes=None),
        versions={},
        options={},
        inputs=(),
        outputs=(),
        profiler="on",
        warmup_passes=warmup,
        warmup_ms=0.0,
        runs=(_run(path, measured),),
        layers=layers,
        layer_runs=(len(measured.pass_ms),) if layers else (),
        timeline=read_timeline(path, measured.offsets[median], positions),
        timeline_basis=f"pass {median + 1} of {len(measured.pass_ms)}, the median one; profiler on",
        notes=(f"read from {path.name}", *_notes(measured, warmup)),
    )


def _read(path: Path) -> tuple[MeasuredPasses, int]:
    """Return the passes and the number of warm-up passes left out. The first pass allocates memory and is left out if
    there are others.
    """
    try:
        measured = read_passes(path, skip=1)
        return (measured, 1) if measured.pass_ms else (read_passes(path), 0)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RequestError(f"{path} cannot be read as a profile of ONNX Runtime: {error}") from error


def _run(path: Path, measured: MeasuredPasses) -> ProfileRun:
    first = measured.starts_us[0]
    return ProfileRun(
        latency_ms=tuple(measured.pass_ms),
        load_ms=sum(_loads(path)),
        starts_ms=tuple((start - first) / 1e3 for start in measured.starts_us),
    )


def _loads(path: Path) -> Iterator[float]:
    """Yield the time to load the model, which appears once at the top of the file."""
    for line in read_ends(path).splitlines()[:20]:
        if not _LOADS.search(line[:2_000]):
            continue
        try:
            event = json.loads(line.strip().rstrip(","))
        except (ValueError, RecursionError):
            continue
        took = number_of(event.get("dur")) if isinstance(event, dict) else None
        if took is not None and took > 0 and _LOADS.fullmatch(str(event.get("name"))):
            yield took / 1e3


def _providers(layers: Sequence[Layer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layer.provider for layer in layers if layer.provider))


def _layer(index: int, node: MeasuredNode, passes: int) -> Layer:
    inputs, outputs = _tensors(node.inputs), _tensors(node.outputs)
    calls = node.calls / passes
    return Layer(
        index=index,
        name=node.name,
        type=node.op_type,
        provider=node.provider,
        inputs=inputs,
        outputs=outputs,
        depth=node.depth,
        samples_ms=node.self_ms,
        role=_role(node.op_type),
        macs=_macs(node, calls),
        read_bytes=round(tensor_bytes(inputs) * calls),
        written_bytes=round(tensor_bytes(outputs) * calls),
    ).with_arithmetic()


def _macs(node: MeasuredNode, calls: float) -> int | None:
    read, written = ([shape for _, shape in tensors] for tensors in (node.inputs, node.outputs))
    once = count_macs(node.op_type, read, written, {})
    return round(once * calls) if once is not None and once < _MAX_MACS else None


def _role(kind: str) -> LayerRole:
    if kind in _REFORMATS:
        return "reformat"
    if kind in QUANTIZING_TYPES:
        return "quantize"
    if kind == "Cast":
        return "cast"
    if kind.startswith("Memcpy"):
        return "copy"
    return "control" if kind in _CONTROL else "compute"


def _tensors(types: Sequence[TypeAndShape]) -> tuple[TensorInfo, ...]:
    """Return tensors without names: the profile records only types and shapes."""
    return tuple(TensorInfo(name="", dtype=dtype, shape=shape) for dtype, shape in types)


def _notes(measured: MeasuredPasses, warmup: int) -> Iterator[str]:
    yield "latencies were measured with ONNX Runtime's profiler on, which makes small models several times slower"
    if warmup:
        yield "the first pass is left out as warm-up"
    yield "the profile records neither the machine nor the options, nor the model's inputs and outputs"
    if measured.unreadable_lines:
        yield f"{measured.unreadable_lines} lines could not be read"
    if measured.event_count >= MAX_EVENTS:
        yield f"it holds {measured.event_count:,} events: ONNX Runtime silently drops those after {MAX_EVENTS:,}"
