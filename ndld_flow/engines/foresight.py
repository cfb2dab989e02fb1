"""The TensorRT that settings require, and a forecast of the build on this machine: its effect, or its obstacles.

Computed from the settings, the machine and the library's version; imports no TensorRT, since every plan and run calls
it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import ENGINE_LIBRARIES, TITLES, EngineBackend
from ndld_flow.base.text import short_name
from ndld_flow.engines.build_settings import BuildSettings, decide_typing
from ndld_flow.engines.unsupported_settings import refuse_settings
from ndld_flow.machine.description import describe_machine, has_nvidia_gpu
from ndld_flow.precision.constraints.constraints import requested_precisions as read_requested
from ndld_flow.runtimes.tensorrt.library import Library, how_to_install, is_of_release
from ndld_flow.runtimes.tensorrt.release_names import (
    Names,
    names_of_release,
    release_title,
    short_release,
)
from ndld_flow.runtimes.tensorrt.required_library import choose_library, describe_other_release
from ndld_flow.step import Foresight


def find_build_library(settings: BuildSettings) -> Library:
    """Return the library to build with, which may have to be created. Raises BackendError if `library` has none."""
    return choose_library(settings.backend, settings.release, settings.library)


def describe_missing(settings: BuildSettings, library: Library) -> str:
    """Return why a library is not the required one and how to install that; empty if it is."""
    if not settings.release:
        if library.found:
            return ""
        if settings.backend is None and library.origin == "not installed":
            rtx = how_to_install("tensorrt_rtx")
            return f"{library.missing}; or TensorRT-RTX, which builds without a GPU too: {rtx}"
        return library.missing
    return describe_other_release(library, settings.release)


def foresee_build(settings: BuildSettings) -> Foresight:
    """Return the effect of these settings in the required or installed release, and the requirements missing on this
    machine.
    """
    problems = tuple(_missing_files(settings))
    try:
        library = find_build_library(settings)
    except BackendError as error:  # the folder that `library` names has nothing usable
        return Foresight(problems=problems, lacks=(str(error),))
    missing = describe_missing(settings, library)
    release = settings.release if missing else library.version
    lacks = (*filter(None, [missing]), *_missing_hardware(settings, library))
    if not release:
        return Foresight(problems=problems, lacks=lacks)
    try:
        names = names_of_release(library.backend, release)
    except RequestError as error:  # older than what is supported
        return Foresight(problems=(*problems, str(error)))
    problems += refuse_settings(settings, names)
    if settings.lock is not None and settings.lock.is_file():
        from ndld_flow.engines.engine_lock import lock_problems

        problems += lock_problems(settings, settings.lock, library.version)
    return Foresight((*_notes(settings, names, library, release),), problems, lacks)


def foresee_ranges(settings: BuildSettings, model: Path, requested: frozenset[str]) -> tuple[str, ...]:
    """Return the problem of a weakly typed INT8 build without ranges of tensors; empty if there is none.

    INT8 is allowed by the settings, or by a precision constraint of a node: `requested` are those that are not in the
    model yet.
    TensorRT notices it only after minutes: "Calibration failure occurred with no scaling factors detected".
    """
    from ndld_flow.models.external_files import mentions

    if settings.calibration_cache is not None or settings.placeholder_ranges:
        return ()
    cause = "`int8: true`" if settings.int8 else _int8_constraint(settings, model, requested)
    if not cause:
        return ()
    try:
        library = find_build_library(settings)
        release = settings.release if describe_missing(settings, library) else library.version
        names = names_of_release(library.backend, release) if release else None
    except RequestError:  # `foresee_build` reports it
        return ()
    if names is None or decide_typing(settings, names).strongly_typed or mentions(model, b"QuantizeLinear"):
        return ()
    return (
        f"{cause}: {release_title(names)} needs the ranges of tensors for INT8, and nothing gives them: the model "
        "has no Q/DQ nodes (QuantizeLinear, DequantizeLinear). Add a step `quantize` with `target: tensorrt`, or set "
        f"{'' if settings.int8 else '`int8: true` and '}`calibration_cache`; `placeholder_ranges: true` is only for "
        "measuring speed",
    )


def _int8_constraint(settings: BuildSettings, model: Path, requested: frozenset[str]) -> str:
    """Return the precision constraint that allows INT8; empty if none does."""
    if settings.typing not in ("obey", "prefer"):
        return ""
    if "int8" in requested:
        return f"`typing: {settings.typing}` with nodes constrained to int8"
    try:
        node = next((node for node, precision in read_requested(model).items() if precision == "int8"), None)
    except RequestError:  # the step that reads the model reports it
        return ""
    return "" if node is None else f"`typing: {settings.typing}` with node {short_name(node)!r} constrained to int8"


def _notes(settings: BuildSettings, names: Names, library: Library, release: str) -> Iterator[str]:
    title = f"{TITLES[names.backend]} {short_release(release)}"
    where = "" if library.origin in ("installed", "not installed") else f" ({short_name(library.origin)})"
    parts = [decide_typing(settings, names).description]
    if len(settings.profiles) > 1:
        parts.append(f"{len(settings.profiles)} optimization profiles")
    if settings.batch is not None:
        parts.append(f"batch {settings.batch.min} to {settings.batch.max}, optimized for {settings.batch.opt}")
    parts.append(_target(settings, names.backend))
    yield f"{title}{where}: {'; '.join(parts)}"
    if not is_of_release(names.release, short_release(release)):
        yield f"{title} is unknown to ndld_flow: its settings are checked as those of {release_title(names)}"


def _target(settings: BuildSettings, backend: EngineBackend) -> str:
    if ENGINE_LIBRARIES[backend].compiles_on_load:
        listed = ", ".join(settings.compute_capabilities)
        return f"for SM {listed}" if listed else "for every RTX GPU since Ampere"
    this_gpu = f"this machine's GPU {settings.gpu}" if settings.gpu else "this machine's GPU"
    kind = {
        "none": this_gpu,
        "ampere_plus": "Ampere and later GPUs",
        "same_compute_capability": f"GPUs like {this_gpu}",
    }
    system = " on Windows" if settings.advanced.runtime_platform == "windows_amd64" else ""
    return f"for {kind[settings.hardware_compatibility]}{system}"


def _missing_files(settings: BuildSettings) -> Iterator[str]:
    named = {name: getattr(settings, name) for name in ("calibration_cache", "timing_cache_file", "lock")}
    named |= {f"plugins[{index}]": path for index, path in enumerate(settings.plugins)}
    for setting, path in named.items():
        if path is not None and not path.is_file():
            yield f"`{setting}`: no file {short_name(str(path))}; paths are relative to the current directory"


def _missing_hardware(settings: BuildSettings, library: Library) -> Iterator[str]:
    if not library.found and settings.backend is None and not settings.release:
        return  # the requirements depend on which of the two it will be
    machine = describe_machine()
    if not has_nvidia_gpu():
        yield from _missing_gpu(settings, library.backend)
    elif machine.gpus and settings.gpu >= len(machine.gpus):
        yield f"`gpu: {settings.gpu}`: GPUs are counted from 0, and this machine has {len(machine.gpus)}"
    if settings.advanced.dla_core is not None and machine.architecture.lower() not in ("aarch64", "arm64"):
        yield f"`advanced.dla_core: {settings.advanced.dla_core}`: this machine ({machine.architecture}) has no DLA"
    is_linux_x86 = machine.system.startswith("Linux") and machine.architecture == "x86_64"
    if settings.advanced.runtime_platform == "windows_amd64" and not is_linux_x86:
        yield "`advanced.runtime_platform: windows_amd64`: such engines are built only on Linux x86-64"


def _missing_gpu(settings: BuildSettings, backend: EngineBackend) -> Iterator[str]:
    title = TITLES[backend]
    if not ENGINE_LIBRARIES[backend].compiles_on_load:
        yield (
            f"{title} needs an NVIDIA GPU to build, and this machine has none; `backend: tensorrt_rtx` builds "
            "without one"
        )
        return
    if settings.weights != "fixed":  # compiling such an engine calls CUDA; others are compiled without it
        yield f"`weights: {settings.weights}`: {title} needs an NVIDIA GPU for that, and this machine has none"
    if settings.gpu:
        yield f"`gpu: {settings.gpu}`: this machine has no NVIDIA GPU, and {title} builds without one: remove it"
