"""The TensorRT that settings require, and the way to install it. Imports no TensorRT."""

from __future__ import annotations

from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.records.build import EngineBackend
from ndld_flow.runtimes.tensorrt.library import INSTALLING, TITLES, Library, find_library
from ndld_flow.runtimes.tensorrt.release_names import known_releases

_ON_PYPI: dict[EngineBackend, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}


def choose_library(settings: BuildSettings) -> Library:
    """Return the library to build with. Raises BackendError when the folder of `library` has none."""
    return find_library(settings.backend or _backend_of(settings.release), settings.library)


def describe_missing(settings: BuildSettings, library: Library) -> str:
    """Return why a library is not the required one and how to get that; empty when it is."""
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
        return f"{name} {settings.release} is not installed: {pip}, or name the folder of one in `library`"
    where = "is installed" if library.origin == "installed" else f"is in the {library.origin}"
    return (
        f"{name} {settings.release} is asked for, and {library.version} {where}: {pip} into an environment of its own "
        "and name its folder in `library`, or change `release`"
    )


def is_of_release(version: str, release: str) -> bool:
    """Return True for `10.8.0.43` where `10.8` is required."""
    wanted = release.split(".")
    return version.split(".")[: len(wanted)] == wanted


def _backend_of(release: str) -> EngineBackend | None:
    """Return the backend of a release: TensorRT-RTX counts its releases from 1, TensorRT has reached 10."""
    if not release:
        return None
    majors = {known.split(".")[0] for known in known_releases("tensorrt_rtx")}
    return "tensorrt_rtx" if release.split(".", maxsplit=1)[0] in majors else "tensorrt"
