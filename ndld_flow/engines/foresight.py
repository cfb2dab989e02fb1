"""The TensorRT that settings require, and a forecast of the build on this machine: its effect, or its obstacles.

Computed from the settings, the machine and the library's version; imports no TensorRT, since every plan and run calls
it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.text import short_name
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.typing_modes import decide_typing
from ndld_flow.engines.unsupported_settings import refuse_settings
from ndld_flow.machine.description import describe_machine, has_nvidia_gpu
from ndld_flow.records.build import EngineBackend
from ndld_flow.runtimes.tensorrt.library import INSTALLING, TITLES, Library, find_library
from ndld_flow.runtimes.tensorrt.release_names import (
    Names,
    known_releases,
    names_of_release,
    release_title,
    short_release,
)
from ndld_flow.step import Foresight

_ON_PYPI: dict[EngineBackend, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}


def choose_library(settings: BuildSettings) -> Library:
    """Return the library to build with. Raises BackendError if the folder of `library` has none."""
    return find_library(settings.backend or _backend_of(settings.release), settings.library)


def describe_missing(settings: BuildSettings, library: Library) -> str:
    """Return why a library is not the required one and how to install that; empty if it is."""
    if not settings.release:
        if library.found:
            return ""
        if settings.backend is None and library.origin == "not installed":
            rtx = INSTALLING["tensorrt_rtx"]
            return f"{library.missing}; or TensorRT-RTX, which builds without a GPU too: {rtx}"
        return library.missing
    if library.found and is_of_release(library.version, settings.release):
        return ""
    version = settings.release if settings.release.count(".") == 3 else f"{settings.release}.*"
    pip = f"`pip install '{_ON_PYPI[library.backend]}=={version}'`"
    name = TITLES[library.backend]
    if not library.found:
        return f"{name} {settings.release} is not installed: {pip}, or set `library` to its folder"
    where = "is installed" if library.origin == "installed" else f"is in the {library.origin}"
    return (
        f"{name} {settings.release} is required, but {library.version} {where}: {pip} into an environment of its own "
        "and set `library` to its folder, or change `release`"
    )


def is_of_release(version: str, release: str) -> bool:
    """Return True for `10.8.0.43` where `10.8` is required."""
    wanted = release.split(".")
    return version.split(".")[: len(wanted)] == wanted


def _backend_of(release: str) -> EngineBackend | None:
    """Return the backend of a release: TensorRT-RTX began at 1, TensorRT has reached 10."""
    if not release:
        return None
    majors = {known.split(".")[0] for known in known_releases("tensorrt_rtx")}
    return "tensorrt_rtx" if release.split(".", maxsplit=1)[0] in majors else "tensorrt"


def foresee_build(settings: BuildSettings) -> Foresight:
    """Return the effect of these settings in the required or installed release, and the requirements missing on this
    machine.
    """
    problems = tuple(_missing_files(settings))
    try:
        library = choose_library(settings)
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
    return Foresight((*_notes(settings, names, library, release),), problems, lacks)


def foresee_ranges(settings: BuildSettings, model: Path) -> tuple[str, ...]:
    """Return the problem of a weakly typed INT8 build without ranges of tensors; empty if there is none.

    TensorRT notices it only after minutes: "Calibration failure occurred with no scaling factors detected".
    """
    from ndld_flow.models.external_files import mentions

    if not settings.int8 or settings.calibration_cache is not None or settings.placeholder_ranges:
        return ()
    try:
        library = choose_library(settings)
        release = settings.release if describe_missing(settings, library) else library.version
        names = names_of_release(library.backend, release) if release else None
    except RequestError:  # `foresee_build` reports it
        return ()
    if names is None or decide_typing(settings, names).strongly_typed or mentions(model, b"QuantizeLinear"):
        return ()
    return (
        f"`int8: true`: {release_title(names)} needs the ranges of tensors for INT8, and nothing gives them: the model "
        "has no Q/DQ nodes (QuantizeLinear, DequantizeLinear). Add a step `quantize` with `target: tensorrt`, or set "
        "`calibration_cache`; `placeholder_ranges: true` is only for measuring speed",
    )


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
    if backend == "tensorrt_rtx":
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
    named = {"calibration_cache": settings.calibration_cache, "timing_cache_file": settings.timing_cache_file}
    named |= {f"plugins[{index}]": path for index, path in enumerate(settings.plugins)}
    for setting, path in named.items():
        if path is not None and not path.is_file():
            yield f"`{setting}`: no file {short_name(str(path))}; paths are relative to the current directory"


def _missing_hardware(settings: BuildSettings, library: Library) -> Iterator[str]:
    if not library.found and settings.backend is None and not settings.release:
        return  # the requirements depend on which of the two it will be
    machine = describe_machine()
    if not has_nvidia_gpu():
        if library.backend == "tensorrt":
            yield (
                "TensorRT needs an NVIDIA GPU to build, and this machine has none; `backend: tensorrt_rtx` builds "
                "without one"
            )
        elif settings.weights != "fixed":  # compiling such an engine calls CUDA; others are compiled without it
            yield f"`weights: {settings.weights}`: TensorRT-RTX needs an NVIDIA GPU for that, and this machine has none"
    elif machine.gpus and settings.gpu >= len(machine.gpus):
        yield f"`gpu: {settings.gpu}`: GPUs are counted from 0, and this machine has {len(machine.gpus)}"
    if settings.advanced.dla_core is not None and machine.architecture.lower() not in ("aarch64", "arm64"):
        yield f"`advanced.dla_core: {settings.advanced.dla_core}`: this machine ({machine.architecture}) has no DLA"
    is_linux_x86 = machine.system.startswith("Linux") and machine.architecture == "x86_64"
    if settings.advanced.runtime_platform == "windows_amd64" and not is_linux_x86:
        yield "`advanced.runtime_platform: windows_amd64`: such engines are built only on Linux x86-64"
