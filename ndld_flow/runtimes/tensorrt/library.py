"""Which TensorRT is here: the installed one, another environment's, or an unpacked archive. Never imports it itself."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.records.build import EngineBackend
from ndld_flow.runtimes.tensorrt.library_packages import link_packages, unpack_wheel

BACKENDS: tuple[EngineBackend, ...] = ("tensorrt", "tensorrt_rtx")
"""The one to prefer when both are here comes first."""

SPOKEN: dict[EngineBackend, str] = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
INSTALLING: dict[EngineBackend, str] = {
    "tensorrt": "pip install 'ndld-flow[tensorrt]' (fetched from NVIDIA's own index, pypi.nvidia.com)",
    "tensorrt_rtx": "pip install 'ndld-flow[rtx]' (Linux x86-64, Windows)",
}

_DISTRIBUTIONS: dict[EngineBackend, tuple[str, ...]] = {
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11"),
    "tensorrt_rtx": ("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12"),
}
_SITES = (
    *("Lib/site-packages", "lib64/python3.*/site-packages", "lib/python3.*/site-packages"),
    *("lib/python3/dist-packages", "lib/python3.*/dist-packages", "local/lib/python3.*/dist-packages"),  # Debian's
)
_OUR_PYTHON = f"3.{sys.version_info.minor}"
_EXPECTED = (
    "expected is a virtual or conda environment with TensorRT installed (`lib/python3.X/site-packages/tensorrt`), "
    "or the folder of an unpacked TensorRT archive (`python/tensorrt-*.whl` beside `lib/`)"
)


@dataclass(frozen=True)
class Library:
    """One TensorRT, or that there is none."""

    backend: EngineBackend
    version: str
    """`10.8.0.43`; empty when it is not there or lacks a part."""
    folder: Path | None
    """The site-packages that has it, or the archive's folder."""
    origin: str
    """In words: `installed`, `environment /opt/trt`, `archive /opt/TensorRT-10.8.0.43`."""
    missing: str = ""
    """What is not there and how to get it, as a sentence; empty when it is found."""
    wheel: Path | None = None
    """An archive's wheel for our Python."""
    shared: tuple[Path, ...] = ()
    """Folders with its shared libraries, for the loader of the child process."""

    @property
    def found(self) -> bool:
        return bool(self.version)

    def environment(self, scratch: Path) -> dict[str, str]:
        """Variables that make a child process import this TensorRT and Polygraphy drive it.

        Of another environment the child sees TensorRT and NVIDIA's libraries only. `scratch` is an existing folder
        that must outlive the child. Raises BackendError when an archive's wheel cannot be unpacked.
        """
        variables = {"POLYGRAPHY_USE_TENSORRT_RTX": "1" if self.backend == "tensorrt_rtx" else "0"}
        if self.folder is None or self.origin == "installed":
            return variables
        packages = Path(tempfile.mkdtemp(prefix="library-", dir=scratch))
        if self.wheel is not None:
            unpack_wheel(self.wheel, packages)
        else:
            link_packages(self.folder, packages)
        _keep_ours_out(packages, self.backend)
        loader = "PATH" if os.name == "nt" else "LD_LIBRARY_PATH"
        variables["PYTHONPATH"] = _before([packages], "PYTHONPATH")
        variables[loader] = _before(self.shared, loader)
        return variables


def find_library(backend: EngineBackend | None, place: Path | None = None) -> Library:
    """The TensorRT that is installed, or the one in `place`. Reads metadata only: some milliseconds.

    Without a backend it is TensorRT where that is found, else TensorRT-RTX. When nothing is installed the result says
    what is missing. Raises BackendError when a place has nothing that our Python can import.
    """
    wanted = BACKENDS if backend is None else (backend,)
    if place is None:
        found = [_find_installed(each) for each in wanted]
        return next((library for library in found if library.found), found[0])
    folder = place.expanduser().absolute()
    found = [library for each in wanted if (library := _find_in(folder, each))]
    if not found:
        raise BackendError(_tell_nothing(folder, wanted))
    return next((library for library in found if library.found), found[0])


def find_libraries(place: Path | None = None) -> list[Library]:
    """What there is of each backend: installed, and instead of one of them what `place` has."""
    placed = None if place is None else find_library(None, place)
    return [placed if placed and placed.backend == each else find_library(each) for each in BACKENDS]


def import_bindings(backend: EngineBackend) -> Any:  # noqa: ANN401  # a module without stubs
    """The module `tensorrt` or `tensorrt_rtx`, for child processes: its crash must not be ours.

    Raises BackendError with the loader's reason when it is not there or does not load.
    """
    try:
        module = importlib.import_module(backend)
    except Exception as error:  # it finds and loads libraries while it is imported: all it says is a reason
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackendError(_tell_not_loading(backend, reason)) from error
    if not hasattr(module, "Builder"):
        raise BackendError(_tell_not_loading(backend, f"{module.__name__} has no Builder"))
    return module


def _find_installed(backend: EngineBackend) -> Library:
    version, site, missing = _look_up(backend, None)
    if not version and not missing:
        missing = f"{SPOKEN[backend]} is not installed: {INSTALLING[backend]}"
    return Library(backend, "" if missing else version, site, "installed" if site else "not installed", missing)


def _find_in(place: Path, backend: EngineBackend) -> Library | None:
    if wheels := sorted((place / "python").glob(f"{backend}-*.whl")):
        return _find_in_archive(place, backend, wheels)
    for site in _sites_below(place):
        version, _, missing = _look_up(backend, site)
        if version:
            _refuse_other_python(site, backend, version)
            shared = _shared_below(site, backend)
            return Library(backend, "" if missing else version, site, f"environment {place}", missing, shared=shared)
    return None


def _look_up(backend: EngineBackend, site: Path | None) -> tuple[str, Path | None, str]:
    """Version, site-packages and what is missing of a backend that pip or a system's packages installed."""
    path = sys.path if site is None else [str(site)]
    known = [found for name in _DISTRIBUTIONS[backend] for found in distributions(name=name, path=path)]
    if not known:
        return "", None, ""
    version, names = known[0].version, {found.metadata["Name"] for found in known}
    needed = [backend, f"{backend}_bindings"] if any("cu1" in name for name in names) else [backend]
    absent = [name for name in needed if not _can_import(name, path)]
    missing = ""
    if absent:
        missing = (
            f"{SPOKEN[backend]} {version} is installed without its parts ({', '.join(absent)}), which the stub on PyPI "
            f"should have fetched: {INSTALLING[backend]}"
        )
    return version, Path(str(known[0].locate_file(""))), missing


def _can_import(name: str, path: list[str]) -> bool:
    """Whether there is a module to import, not only a folder of that name."""
    spec = PathFinder.find_spec(name, path)
    return spec is not None and spec.origin is not None


def _find_in_archive(place: Path, backend: EngineBackend, wheels: list[Path]) -> Library:
    ours = [wheel for wheel in wheels if f"-cp3{sys.version_info.minor}-" in wheel.name]
    if not ours:
        tags = sorted({f"3.{minor}" for wheel in wheels for minor in re.findall(r"-cp3(\d+)-", wheel.name)})
        raise BackendError(_tell_other_python(f"archive {place}", ", ".join(tags) or "another version"))
    folders = [place / "lib", place / "bin", *sorted(place.glob("targets/*/lib"))]
    shared = tuple(folder for folder in folders if any(folder.glob(_shared_pattern(backend))))
    if not shared:
        names = f"{_shared_pattern(backend)} in `lib/` or `targets/*/lib/`"
        raise BackendError(f"archive {place} has no {names}: unpack the whole archive")
    version = re.match(r"[\d.]*", ours[-1].name.partition("-")[2])
    origin = f"archive {place}"
    return Library(backend, version[0] if version else "", place, origin, wheel=ours[-1], shared=shared)


def _sites_below(place: Path) -> list[Path]:
    """Every site-packages below an environment, those of our Python first."""
    found = {site.resolve(): site for pattern in _SITES for site in sorted(place.glob(pattern)) if site.is_dir()}
    return sorted([place, *found.values()], key=lambda site: f"python{_OUR_PYTHON}" not in site.parts)


def _refuse_other_python(site: Path, backend: EngineBackend, version: str) -> None:
    """Bindings are compiled for one minor version of Python; the folder's name or the wheel's tag tells which."""
    named = [part.removeprefix("python") for part in site.parts if re.fullmatch(r"python3\.\d+", part)]
    tags = "\n".join(path.read_text(encoding="utf-8") for path in site.glob(f"{backend}*-{version}.dist-info/WHEEL"))
    tagged = [f"3.{minor}" for minor in re.findall(r"^Tag: cp3(\d+)-(?!abi3)", tags, re.MULTILINE)]
    pythons = tagged or named
    if pythons and _OUR_PYTHON not in pythons:
        raise BackendError(_tell_other_python(f"{SPOKEN[backend]} {version} in {site}", ", ".join(pythons)))


def _shared_below(site: Path, backend: EngineBackend) -> tuple[Path, ...]:
    found = [site / f"{backend}_libs", *sorted(site.glob("nvidia/*/lib")), *sorted(site.glob("nvidia/*/bin"))]
    return tuple(folder for folder in found if folder.is_dir())


def _shared_pattern(backend: EngineBackend) -> str:
    name = "nvinfer" if backend == "tensorrt" else "tensorrt_rtx"
    return f"{name}*.dll" if os.name == "nt" else f"lib{name}.so*"


def _keep_ours_out(packages: Path, backend: EngineBackend) -> None:
    """The bindings import `tensorrt_libs` where it is found: an installed one would load libraries of its release."""
    libs = packages / f"{backend}_libs"
    if not libs.exists():
        libs.mkdir()
        (libs / "__init__.py").write_text('raise ImportError("this TensorRT has its libraries elsewhere")\n')


def _before(folders: Iterable[Path], variable: str) -> str:
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(variable, "")])])


def _tell_nothing(folder: Path, wanted: tuple[EngineBackend, ...]) -> str:
    if not folder.is_dir():
        return f"library {folder}: no such folder; {_EXPECTED}"
    others = [library for each in BACKENDS if each not in wanted and (library := _find_in(folder, each))]
    for other in others:
        return (
            f"{other.origin} has {SPOKEN[other.backend]} {other.version}, not {SPOKEN[wanted[0]]}: "
            f"set `backend: {other.backend}`, or name another folder"
        )
    return f"library {folder} has no {' or '.join(SPOKEN[each] for each in wanted)}: {_EXPECTED}"


def _tell_other_python(what: str, pythons: str) -> str:
    return f"{what} is for Python {pythons}, and this is Python {_OUR_PYTHON}: run ndld-flow with that Python"


def _tell_not_loading(backend: EngineBackend, reason: str) -> str:
    advice = f"{INSTALLING[backend]}; `ndld-flow doctor` says what else is missing"
    return f"{SPOKEN[backend]} does not load ({reason}): {advice}"
