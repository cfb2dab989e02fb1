"""The TensorRT of a required release: installed, of the system's packages, or created in the user's cache folder.

`release: "10.16"` means the first of these:

1. the installed one, or one of the system's packages, if it is of that release;
2. a private environment, into which pip installs the release from the index that it is configured for.

Environments are kept under a digest of what pip is asked for, and are reused by every recipe::

    ~/.cache/ndld_flow/tensorrt/tensorrt-10.16.1.11-0123456789abcdef/  a virtual environment
    ~/.cache/ndld_flow/tensorrt/building/, locks/                      work in progress

A plan only looks; the step that needs the release creates it, when it computes. So the version in a step's key must not
depend on what is in the cache, nor on what an index offers today: `10.16` is the newest 10.16 that ndld_flow knows
(`release_names.json`), `10.16.1.11`, and of an unknown release all four numbers are required. The key then names the
exact release before it is installed, machines without it reuse the results of others, and a build by any other release
fails (`engines/building.py`).

Nothing is imported from there into this process. A child process sees the packages of that TensorRT before all others,
and nothing else from its environment (`Library.environment`).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.machine.hardware import read_hardware
from ndld_flow.runtimes.environments import (
    KeptLibrary,
    PipError,
    create_environment,
    find_kept,
    kept_root,
    provide_kept,
)
from ndld_flow.runtimes.tensorrt.library import Library, Supply, find_library, find_of_system, is_of_release
from ndld_flow.runtimes.tensorrt.release_names import known_releases
from ndld_flow.store.digest import digest_json

ON_PYPI: dict[EngineBackend, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}

_PAGES: dict[EngineBackend, str] = {
    "tensorrt": "https://developer.nvidia.com/tensorrt",
    "tensorrt_rtx": "https://developer.nvidia.com/tensorrt-rtx",
}
_COMPLETE = "complete.json"
"""Written last into a folder, so that an interrupted one is not used."""
_CONTENTS = "contents"
_KEPT = "tensorrt"
"""The folder of the user's cache."""
_ORIGIN = "private environment"


def choose_library(backend: EngineBackend | None, release: str, place: Path | None) -> Library:
    """Return the TensorRT that settings choose; it may have to be created by `provide_library`. Reads only metadata.

    Raises BackendError if `place` has nothing that this Python can import.
    """
    if place is not None or not release:
        return find_library(backend, place)
    return _find_release(backend or backend_of(release), release)


def backend_of(release: str) -> EngineBackend:
    """Return the backend of a release: TensorRT-RTX began at 1, TensorRT has reached 10."""
    majors = {known.split(".")[0] for known in known_releases("tensorrt_rtx")}
    return "tensorrt_rtx" if release.split(".", maxsplit=1)[0] in majors else "tensorrt"


def exact_release(backend: EngineBackend, release: str) -> str:
    """Return the newest known release of that number; an unknown one itself if it is complete, else nothing."""
    known = [each for each in known_releases(backend) if is_of_release(each, release)]
    return known[-1] if known else release if release.count(".") == 3 else ""


def describe_other_release(library: Library, release: str) -> str:
    """Return why a library is not of the required release and how to get that; empty if it is."""
    if library.found and is_of_release(library.version, release):
        return ""
    name, whole = TITLES[library.backend], ""
    if not exact_release(library.backend, release):
        whole = f"; ndld_flow does not know this release, so give all four numbers, and it installs {name} when needed"
    version = release if release.count(".") == 3 else f"{release}.*"
    pip = f"`pip install '{ON_PYPI[library.backend]}=={version}'`"
    if not library.found:
        return f"{name} {release} is not installed: {pip}, or set `library` to its folder{whole}"
    where = "is installed" if library.origin == "installed" else f"is in the {library.origin}"
    return (
        f"{name} {release} is required, but {library.version} {where}: {pip} into an environment of its own "
        f"and set `library` to its folder, or change `release`{whole}"
    )


def provide_library(library: Library, report: Callable[[str], None]) -> Library:
    """Return a library that exists, creating it if it does not; `report` is called with the progress.

    Raises BackendError with what to download and where to put it.
    """
    supply = library.supply
    if supply is None:
        return library
    kept = provide_kept(
        supply.folder,
        f"{TITLES[library.backend]} {library.version}",
        lambda: _open_kept(library, supply),
        lambda building: _create(library, supply, building, report),
        report,
    )
    if kept is None:
        raise BackendError(_how_to_get(library, supply, f"{supply.requirement} did not contain it"))
    return kept


def find_kept_libraries() -> list[KeptLibrary]:
    """Return the environments in the user's cache folder, unfinished ones included."""
    return find_kept(_KEPT, "tensorrt.*-.*")


# --- looking ---------------------------------------------------------------------------------------------------------


def _find_release(backend: EngineBackend, release: str) -> Library:
    """Return the TensorRT of a release; the installed one, of another release, if that one cannot be created."""
    installed = find_library(backend)
    for library in (installed, *find_of_system(backend)[0]):
        if library.found and is_of_release(library.version, release):
            return library
    version = exact_release(backend, release)
    if not version:
        return installed
    # NVIDIA's default needs CUDA 13, which needs driver 580.
    major = read_hardware().driver.partition(".")[0]
    distribution = f"{ON_PYPI[backend]}-cu12" if major.isdecimal() and int(major) < 580 else ON_PYPI[backend]
    requirement = f"{distribution}=={version}"
    digest = digest_json([requirement, sys.implementation.cache_tag, sys.platform, platform.machine()])
    supply = Supply(kept_root(_KEPT) / f"{backend}-{version}-{digest[:16]}", requirement)
    pending = Library(backend, version, None, f"{_ORIGIN}, which the run creates", supply=supply)
    return _open_kept(pending, supply) or pending


def _open_kept(library: Library, supply: Supply) -> Library | None:
    """Return the library as it was kept, or None."""
    try:
        (supply.folder / _COMPLETE).read_bytes()  # opened, so that a repeated plan sees that it was created meanwhile
        kept = find_library(library.backend, supply.folder / _CONTENTS)
        with contextlib.suppress(OSError):
            os.utime(supply.folder)  # `gc --libraries` keeps what was used lately
    except (OSError, BackendError):
        return None
    if kept.version != library.version or kept.missing:
        return None
    return replace(kept, origin=_ORIGIN)


# --- creating --------------------------------------------------------------------------------------------------------


def _create(library: Library, supply: Supply, building: Path, report: Callable[[str], None]) -> None:
    """Create a private environment in a folder. Raises OSError and BackendError."""
    report(f"installing {supply.requirement} into a private environment")
    try:
        create_environment(building / _CONTENTS, [supply.requirement], report)
    except PipError as error:
        raise BackendError(_how_to_get(library, supply, str(error))) from None
    written = json.dumps({"source": supply.requirement, "python": sys.version})
    (building / _COMPLETE).write_text(written, encoding="utf-8")


def _how_to_get(library: Library, supply: Supply, reason: str) -> str:
    """Return why a release could not be created, and what to do."""
    return (
        f"{TITLES[library.backend]} {library.version} is not installed, and pip cannot install {supply.requirement} "
        f"({reason.rstrip('.')}). Let pip reach pypi.org and pypi.nvidia.com, or mirrors of them (PIP_INDEX_URL, "
        f"PIP_EXTRA_INDEX_URL, pip.conf); or download its archive from {_PAGES[library.backend]}, unpack it, and set "
        "`library` to that folder, or to an environment that has it"
    )
