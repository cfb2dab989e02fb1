"""Convert trtexec's measurements to a Profile, from its exports, its log, or TREx's folder of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.read.engine_layers import EngineInfo, read_engine_info, split_bindings
from ndld_flow.profiles.read.sources import Source
from ndld_flow.profiles.read.tensorrt_layers import join_layers
from ndld_flow.profiles.read.tensorrt_passes import measured_passes, timeline
from ndld_flow.profiles.read.trex_metadata import DeviceMetadata, read_device, take_metadata
from ndld_flow.profiles.read.trtexec_layer_times import LayerTimes, read_layer_times
from ndld_flow.profiles.read.trtexec_log import TrtexecLog, read_log
from ndld_flow.profiles.read.trtexec_times import Passes, read_times
from ndld_flow.records.machine import Machine
from ndld_flow.records.profile import Profile, TensorInfo

_OPTIONS = ("model_options", "build_options", "system_options", "inference_options")
_Read = TypeVar("_Read")


@dataclass
class _Exports:
    """The contents of the files of one measurement."""

    times: Passes | None = None
    layer_times: LayerTimes | None = None
    engine: EngineInfo | None = None
    log: TrtexecLog = field(default_factory=TrtexecLog)
    device: DeviceMetadata | None = None
    notes: list[str] = field(default_factory=list)


def profile_of_tensorrt(source: Source) -> Profile:
    """Read the files of one measurement. Raises RequestError when they cannot be read or hold no measurement."""
    exports = _read(source)
    passes = measured_passes(exports.times, exports.log)
    layers = join_layers(exports.engine, exports.layer_times)
    if not passes.runs and not layers.layers:
        raise RequestError(_nothing_in(source, exports))
    spans, basis = timeline(passes.median_pass, layers.layers)
    inputs, outputs = _tensors(exports)
    return Profile(
        label=source.label,
        model_digest="",
        backend="tensorrt_rtx" if exports.log.is_rtx else "tensorrt",
        machine=_machine(exports),
        versions=_versions(exports),
        options={name: dict(exports.log.section(name)) for name in _OPTIONS if exports.log.section(name)},
        conditions=_conditions(exports.log),
        inputs=inputs,
        outputs=outputs,
        profiler=_profiler(exports),
        warmup_passes=passes.warmup_passes,
        warmup_ms=passes.warmup_ms,
        runs=passes.runs,
        layers=layers.layers,
        layer_runs=(1,) if exports.layer_times is not None and layers.layers else (),
        timeline=spans,
        timeline_basis=basis,
        notes=(f"read from {_names(source)}", *passes.notes, *layers.notes, *exports.notes),
    )


def _read(source: Source) -> _Exports:
    exports = _Exports()
    for path in source.of("log"):
        exports.log = _merged(exports.log, read_log(path))
    for path in source.of("metadata"):
        _try(exports, path, lambda file: take_metadata(exports.log, file))
    for path in source.of("device"):
        exports.device = _try(exports, path, read_device)
    for path in source.of("times"):
        exports.times = read_times(path)
    for path in source.of("layer times"):
        exports.layer_times = _try(exports, path, read_layer_times)
    for path in source.of("engine"):
        exports.engine = _try(exports, path, read_engine_info)
    exports.notes.extend(_repairs(exports))
    return exports


def _try(exports: _Exports, path: Path, read: Callable[[Path], _Read]) -> _Read | None:
    """Read one file; if it is damaged, add a note and return None, so that the others are still used."""
    try:
        return read(path)
    except ValueError as error:
        exports.notes.append(f"{path.name} could not be read: {error}")
        return None


def _repairs(exports: _Exports) -> list[str]:
    notes = []
    for name, export in (("--exportProfile", exports.layer_times), ("--exportLayerInfo", exports.engine)):
        if export is None:
            continue
        if not export.parsed.is_proper:
            end = ", and it ends early" if export.parsed.is_cut_off else ""
            notes.append(f"{name} is not valid JSON{end}: only the readable part was used")
        if export.unreadable:
            notes.append(f"{export.unreadable} layers of {name} could not be read")
    return notes


def _merged(first: TrtexecLog, second: TrtexecLog) -> TrtexecLog:
    """Return two logs (of the build and of the measurement) as one; the second takes precedence."""
    return TrtexecLog(
        sections={
            name: {**first.section(name), **second.section(name)} for name in {**first.sections, **second.sections}
        },
        version=second.version or first.version,
        is_rtx=first.is_rtx or second.is_rtx,
        command=second.command or first.command,
        started=second.started or first.started,
        inputs=first.inputs | second.inputs,
        outputs=first.outputs | second.outputs,
    )


def _nothing_in(source: Source, exports: _Exports) -> str:
    why = f" ({'; '.join(exports.notes)})" if exports.notes else ""
    return (
        f"{_names(source)}: it holds no pass and no layer{why}; trtexec writes them with --exportTimes, "
        "--exportProfile and --exportLayerInfo"
    )


def _names(source: Source) -> str:
    return ", ".join(path.name for _, path in source.files)


def _profiler(exports: _Exports) -> Literal["on", "off", ""]:
    """Return whether latencies were measured with trtexec's profiler of layers attached.

    It is if trtexec reports layers, unless `--separateProfileRun` is given.
    TREx does not keep reporting options, so that missing layers do not prove that no profiler was attached.
    """
    separate = exports.log.text("inference_options", "Separate profiling").lower()
    reporting = exports.log.section("reporting_options")
    sees_layers = reporting.get("Profile") == "Enabled" or "Export profile to JSON file" in reporting
    if separate == "enabled" or (reporting and not sees_layers):
        return "off"
    return "on" if separate == "disabled" and (sees_layers or exports.layer_times is not None) else ""


def _tensors(exports: _Exports) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Return inputs and outputs from the engine, otherwise from the log, which has only dimensions."""
    inputs, outputs = split_bindings(exports.engine) if exports.engine is not None else ((), ())
    log = exports.log
    return inputs or _from_log(log.inputs), outputs or _from_log(log.outputs)


def _from_log(told: dict[str, tuple[int, ...]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name=name, dtype="", shape=shape) for name, shape in told.items())


def _machine(exports: _Exports) -> Machine:
    """Return the machine: trtexec reports only the GPU."""
    told = exports.log.text("device_information", "Selected Device")
    gpu = told or (exports.device.name if exports.device is not None else "")
    return Machine(system="", architecture="", cpu="", cpu_count=None, memory_bytes=None, gpus=(gpu,) if gpu else ())


def _versions(exports: _Exports) -> dict[str, str]:
    library = "tensorrt-rtx" if exports.log.is_rtx else "tensorrt"
    versions = {library: exports.log.version, "cuda": exports.device.cuda if exports.device is not None else ""}
    return {name: version for name, version in versions.items() if version}


def _conditions(log: TrtexecLog) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {
        "device_information": dict(log.section("device_information")),
        "trtexec_summary": dict(log.section("performance_summary")),
        "command": log.command,
        "started_local_time": log.started,
    }
    return {name: value for name, value in found.items() if value}
