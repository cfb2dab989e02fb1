"""The available TensorRT (installed, in another environment, or in an unpacked archive) and its bindings.

Only child processes import the bindings.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import ENGINE_LIBRARIES, TITLES, EngineBackend

Bindings = Any
"""The module `tensorrt` or `tensorrt_rtx`."""
Bound = Any
"""An object of such a module: an IBuilderConfig, an ILayer, ..."""

_PACKAGES = re.compile(
    r"""(tensorrt(_rtx)?(_cu\d+)?(_bindings|_libs)?(\.libs)?|nvidia(_\w+)?)  # packages
        (-[^-]+\.(dist|egg)-info)?""",  # and their metadata
    re.VERBOSE,
)


def link_packages(site: Path, target: Path) -> None:
    """Make only TensorRT and NVIDIA's libraries of a site-packages importable from `target`.

    If symbolic links are not allowed, files are linked or copied.
    """

    def link_or_copy(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    for package in sorted(site.iterdir()):
        if package.is_dir() and _PACKAGES.fullmatch(package.name):
            try:
                (target / package.name).symlink_to(package.resolve(), target_is_directory=True)
            except OSError:  # Windows allows them only to administrators and developers
                shutil.copytree(package, target / package.name, copy_function=link_or_copy)


def unpack_wheel(wheel: Path, target: Path) -> None:
    """Unpack a wheel into `target`. Raises BackendError if it is damaged or a member would land elsewhere."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not (target / name.replace("\\", "/")).resolve().is_relative_to(target.resolve()):
                    raise BackendError(f"{wheel} would write outside its folder ({name!r}): do not use this archive")
            archive.extractall(target)
    except (zipfile.BadZipFile, EOFError) as error:
        raise BackendError(f"{wheel} is damaged ({error}): unpack the archive again") from error


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
    "expected a virtual or conda environment with TensorRT installed (`lib/python3.X/site-packages/tensorrt`), "
    "or the folder of an unpacked TensorRT archive (`python/tensorrt-*.whl` and `lib/`)"
)


_SYSTEM = Path("/")
_SYSTEM_SITES = (
    *("usr/lib/python3/dist-packages", "usr/lib/python3.*/dist-packages", "usr/local/lib/python3.*/dist-packages"),
    *("usr/lib64/python3.*/site-packages", "usr/lib/python3.*/site-packages"),
)
"""Where packages of Debian, Ubuntu and Jetson (`python3-libnvinfer`), and of Red Hat, put the bindings. The loader
finds their libraries by itself."""


@dataclass(frozen=True)
class Supply:
    """How to create a TensorRT in the user's cache folder (`required_library.py`)."""

    folder: Path
    """Where it will be."""
    requirement: str
    """Requirement for pip, such as `tensorrt==10.16.1.11`."""


@dataclass(frozen=True)
class Library:
    """One TensorRT, or the fact that it is missing."""

    backend: EngineBackend
    version: str
    """Version such as `10.8.0.43`; empty if it is missing or incomplete."""
    folder: Path | None
    """The site-packages that contains it, or the archive's folder."""
    origin: str
    """Its origin: `installed`, `environment /opt/trt`, `archive /opt/TensorRT-10.8.0.43`."""
    missing: str = ""
    """A sentence that names the missing part and the way to get it; empty if it is complete."""
    wheel: Path | None = None
    """An archive's wheel for this Python."""
    shared: tuple[Path, ...] = ()
    """Folders of its shared libraries, for the loader of the child process."""
    supply: Supply | None = None
    """How to create it, if only its version is known yet."""

    @property
    def found(self) -> bool:
        return bool(self.version)

    def environment(self, scratch: Path) -> dict[str, str]:
        """Return variables with which a child process imports this TensorRT.

        From another environment the child sees only TensorRT and NVIDIA's libraries. `scratch` is an existing folder
        that must outlive the child. Raises BackendError if an archive's wheel cannot be unpacked.
        """
        assert self.supply is None, "it must be created first, or the child would import the installed one"
        if self.folder is None or self.origin == "installed":
            return {}
        packages = Path(tempfile.mkdtemp(prefix="library-", dir=scratch))
        if self.wheel is not None:
            unpack_wheel(self.wheel, packages)
        else:
            link_packages(self.folder, packages)
        # The bindings would import an installed `tensorrt_libs` of another release.
        libs = packages / f"{self.backend}_libs"
        if not libs.exists():
            libs.mkdir()
            (libs / "__init__.py").write_text('raise ImportError("this TensorRT has its libraries elsewhere")\n')
        loader = "PATH" if os.name == "nt" else "LD_LIBRARY_PATH"
        return {"PYTHONPATH": _before([packages], "PYTHONPATH"), loader: _before(self.shared, loader)}


def find_library(backend: EngineBackend | None, place: Path | None = None) -> Library:
    """Return the installed TensorRT, or that of the system's packages, or the one in `place`.

    It reads only metadata, in milliseconds.

    Without a backend it is TensorRT if that is found, else TensorRT-RTX. If nothing is installed, the result names what
    is missing. Raises BackendError if `place` has nothing that this Python can import.
    """
    wanted = tuple(ENGINE_LIBRARIES) if backend is None else (backend,)
    if place is None:
        libraries = []
        for each in wanted:
            version, site, missing = _look_up(each, None)
            if not version and not missing:
                of_system, others = find_of_system(each)
                libraries += of_system
                hints = "".join(f"; {other}" for other in others)
                missing = f"{TITLES[each]} is not installed: {how_to_install(each)}{hints}"
            origin = "installed" if site else "not installed"
            libraries.append(Library(each, "" if missing else version, site, origin, missing))
        return next((library for library in libraries if library.found), libraries[0])
    folder = place.expanduser().absolute()
    libraries = [library for each in wanted if (library := _find_in(folder, each))]
    if not libraries:
        raise BackendError(_nothing_found(folder, wanted))
    return next((library for library in libraries if library.found), libraries[0])


def find_of_system(backend: EngineBackend) -> tuple[list[Library], list[str]]:
    """Return the complete TensorRTs in the system's packages that this Python does not see, such as from a virtual
    environment, and the reasons why it cannot import others.
    """
    found: list[Library] = []
    unusable: list[str] = []
    for place in (site for pattern in _SYSTEM_SITES for site in sorted(_SYSTEM.glob(pattern)) if site.is_dir()):
        version, site, missing = _look_up(backend, place)
        if not version or missing or str(place) in sys.path:
            continue
        try:
            _refuse_other_python(place, backend, version)
        except BackendError as error:
            unusable.append(str(error))
        else:
            found.append(Library(backend, version, site, f"system {place}"))
    return found, unusable


def is_of_release(version: str, release: str) -> bool:
    """Return True for `10.8.0.43` where `10.8` is required."""
    wanted = release.split(".")
    return version.split(".")[: len(wanted)] == wanted


def find_libraries(place: Path | None = None) -> list[Library]:
    """Return each backend as installed; one of them is replaced by the one in `place`."""
    placed = None if place is None else find_library(None, place)
    return [placed if placed and placed.backend == each else find_library(each) for each in ENGINE_LIBRARIES]


def import_bindings(backend: EngineBackend) -> Any:  # noqa: ANN401  # a module without stubs
    """Return the module `tensorrt` or `tensorrt_rtx`. Only for child processes: it may crash its process.

    Raises BackendError with the loader's reason if it is missing or does not load.
    """
    try:
        module = importlib.import_module(backend)
    except Exception as error:  # the import loads libraries, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackendError(_not_loading(backend, reason)) from error
    if not hasattr(module, "Builder"):
        raise BackendError(_not_loading(backend, f"{module.__name__} has no Builder"))
    return module


def make_logger(trt: Bindings, take: Callable[[str, str], None]) -> Bound:
    """Return an ILogger of these bindings that gives each message to `take`, with the name of its severity."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # the bindings require this explicit call

        def log(self, severity: Bound, message: str) -> None:
            take(severity.name, message)

    return Logger()


def _find_in(place: Path, backend: EngineBackend) -> Library | None:
    if wheels := sorted((place / "python").glob(f"{backend}-*.whl")):
        return _find_in_archive(place, backend, wheels)
    sites = {site.resolve(): site for pattern in _SITES for site in sorted(place.glob(pattern)) if site.is_dir()}
    ours_first = sorted([place, *sites.values()], key=lambda site: f"python{_OUR_PYTHON}" not in site.parts)
    for site in ours_first:
        version, _, missing = _look_up(backend, site)
        if version:
            _refuse_other_python(site, backend, version)
            places = [site / f"{backend}_libs", *sorted(site.glob("nvidia/*/lib")), *sorted(site.glob("nvidia/*/bin"))]
            shared = tuple(folder for folder in places if folder.is_dir())
            return Library(backend, "" if missing else version, site, f"environment {place}", missing, shared=shared)
    return None


def _look_up(backend: EngineBackend, site: Path | None) -> tuple[str, Path | None, str]:
    """Return version, site-packages and the missing parts of a backend installed by pip or a system's packages."""
    path = sys.path if site is None else [str(site)]
    known = [each for name in _DISTRIBUTIONS[backend] for each in distributions(name=name, path=path)]
    if not known:
        return "", None, ""
    version, names = known[0].version, {each.metadata["Name"] for each in known}
    needed = [backend, f"{backend}_bindings"] if any("cu1" in name for name in names) else [backend]
    # A folder of that name is not enough: the module must be importable.
    specs = {name: PathFinder.find_spec(name, path) for name in needed}
    absent = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    missing = ""
    if absent:
        missing = (
            f"{TITLES[backend]} {version} is installed without its parts ({', '.join(absent)}), which the stub on PyPI "
            f"should have fetched: {how_to_install(backend)}"
        )
    return version, Path(str(known[0].locate_file(""))), missing


def _find_in_archive(place: Path, backend: EngineBackend, wheels: list[Path]) -> Library:
    ours = [wheel for wheel in wheels if f"-cp3{sys.version_info.minor}-" in wheel.name]
    if not ours:
        tags = sorted({f"3.{minor}" for wheel in wheels for minor in re.findall(r"-cp3(\d+)-", wheel.name)})
        raise BackendError(_other_python(f"archive {place}", ", ".join(tags) or "another version"))
    folders = [place / "lib", place / "bin", *sorted(place.glob("targets/*/lib"))]
    shared = tuple(folder for folder in folders if any(folder.glob(_shared_pattern(backend))))
    if not shared:
        names = f"{_shared_pattern(backend)} in `lib/` or `targets/*/lib/`"
        raise BackendError(f"archive {place} has no {names}: unpack the whole archive")
    version = re.match(r"[\d.]*", ours[-1].name.partition("-")[2])
    origin = f"archive {place}"
    return Library(backend, version[0] if version else "", place, origin, wheel=ours[-1], shared=shared)


def _refuse_other_python(site: Path, backend: EngineBackend, version: str) -> None:
    """Reject bindings compiled for another minor version of Python, by the folder's name or the wheel's tag."""
    named = [part.removeprefix("python") for part in site.parts if re.fullmatch(r"python3\.\d+", part)]
    tags = "\n".join(path.read_text(encoding="utf-8") for path in site.glob(f"{backend}*-{version}.dist-info/WHEEL"))
    tagged = [f"3.{minor}" for minor in re.findall(r"^Tag: cp3(\d+)-(?!abi3)", tags, re.MULTILINE)]
    pythons = tagged or named
    if pythons and _OUR_PYTHON not in pythons:
        raise BackendError(_other_python(f"{TITLES[backend]} {version} in {site}", ", ".join(pythons)))


def _shared_pattern(backend: EngineBackend) -> str:
    name = ENGINE_LIBRARIES[backend].shared_library
    return f"{name}*.dll" if os.name == "nt" else f"lib{name}.so*"


def _before(folders: Iterable[Path], variable: str) -> str:
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get(variable, "")])])


def _nothing_found(folder: Path, wanted: tuple[EngineBackend, ...]) -> str:
    if not folder.is_dir():
        return f"library {folder}: no such folder; {_EXPECTED}"
    others = [library for each in ENGINE_LIBRARIES if each not in wanted and (library := _find_in(folder, each))]
    for other in others:
        return (
            f"{other.origin} has {TITLES[other.backend]} {other.version}, not {TITLES[wanted[0]]}: "
            f"set `backend: {other.backend}`, or name another folder"
        )
    return f"library {folder} has no {' or '.join(TITLES[each] for each in wanted)}: {_EXPECTED}"


def _other_python(what: str, pythons: str) -> str:
    return f"{what} is for Python {pythons}, and this is Python {_OUR_PYTHON}: run ndld-flow with that Python"


def how_to_install(backend: EngineBackend) -> str:
    """Return the command that installs a library, and where it comes from or runs."""
    library = ENGINE_LIBRARIES[backend]
    return f"{library.extra.command} ({library.origin})"


def _not_loading(backend: EngineBackend, reason: str) -> str:
    advice = f"{how_to_install(backend)}; `ndld-flow doctor` lists what else is missing"
    return f"{TITLES[backend]} does not load ({reason}): {advice}"
