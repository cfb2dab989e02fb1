"""The TensorRT of a required release: installed, of the system's packages, or created in the user's cache folder.

`release: "10.16"` means the first of these:

1. the installed one, or one of the system's packages, if it is of that release;
2. NVIDIA's archive of it that the user has put into `archives/`;
3. a private environment, into which pip installs the release from the index that it is configured for.

`library:` may name an archive, too. Archives and environments are kept under a digest, of the archive's contents or of
what pip is asked for, and are reused by every recipe::

    ~/.cache/ndld_flow/tensorrt/archives/                              archives that the user has put here
    ~/.cache/ndld_flow/tensorrt/tensorrt-10.16.1.11-0123456789abcdef/  a virtual environment, or an unpacked archive
    ~/.cache/ndld_flow/tensorrt/building/, locks/, digests/            work in progress

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
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.machine.hardware import read_hardware
from ndld_flow.runtimes.kept_library import KeptLibrary, find_kept, kept_root, provide_kept
from ndld_flow.runtimes.pip_environment import PipError, create_environment
from ndld_flow.runtimes.tensorrt.library import Library, Supply, find_library, find_of_system, is_of_release
from ndld_flow.runtimes.tensorrt.release_names import known_releases
from ndld_flow.store.digest import DigestMemory, digest_json

ON_PYPI: dict[EngineBackend, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}

_PAGES: dict[EngineBackend, str] = {
    "tensorrt": "https://developer.nvidia.com/tensorrt",
    "tensorrt_rtx": "https://developer.nvidia.com/tensorrt-rtx",
}
_ARCHIVE = re.compile(r"TensorRT(?P<rtx>-RTX)?-(?P<version>\d+(?:\.\d+){2,3})[.-].*\.(?:tar\.gz|tgz|tar\.xz|zip)")
_MACHINES = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64", "sbsa")}
_NEEDED = re.compile(r"(python/[^/]+\.whl|(lib|bin|targets/[^/]+/lib)/.*(?<!\.a)(?<!\.lib))")
"""Members of an archive that building and running engines needs: no samples, headers and static libraries."""
_COMPLETE = "complete.json"
"""Written last into a folder, so that an interrupted one is not used."""
_CONTENTS = "contents"
_KEPT = "tensorrt"
"""The folder of the user's cache."""


def choose_library(backend: EngineBackend | None, release: str, place: Path | None) -> Library:
    """Return the TensorRT that settings choose; it may have to be created by `provide_library`. Reads only metadata.

    Raises BackendError if `place` has nothing that this Python can import.
    """
    if place is not None and place.expanduser().is_file():
        return _from_archive(place.expanduser().absolute(), backend)
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
        source = supply.archive.name if supply.archive is not None else supply.requirement
        raise BackendError(_how_to_get(library, supply, f"{source} did not contain it"))
    return kept


def find_kept_libraries() -> list[KeptLibrary]:
    """Return the environments and unpacked archives in the user's cache folder, unfinished ones included.

    Archives that the user has put there are none of them.
    """
    return find_kept(_KEPT, "tensorrt.*-.*")


# --- looking ---------------------------------------------------------------------------------------------------------


def _find_release(backend: EngineBackend, release: str) -> Library:
    """Return the TensorRT of a release; the installed one, of another release, if that one cannot be created."""
    installed = find_library(backend)
    for library in (installed, *find_of_system(backend)[0]):
        if library.found and is_of_release(library.version, release):
            return library
    version = exact_release(backend, release)
    archives = sorted(_archives(backend, version or release))
    if archives:
        return _from_archive(archives[-1][1], backend)
    if not version:
        return installed
    # NVIDIA's default needs CUDA 13, which needs driver 580.
    major = read_hardware().driver.partition(".")[0]
    distribution = f"{ON_PYPI[backend]}-cu12" if major.isdecimal() and int(major) < 580 else ON_PYPI[backend]
    requirement = f"{distribution}=={version}"
    digest = digest_json([requirement, sys.implementation.cache_tag, sys.platform, platform.machine()])
    supply = Supply(kept_root(_KEPT) / f"{backend}-{version}-{digest[:16]}", requirement)
    return _kept_or_pending(Library(backend, version, None, "private environment", supply=supply))


def _kept_or_pending(library: Library) -> Library:
    assert library.supply is not None
    kept = _open_kept(library, library.supply)
    return kept or replace(library, origin=f"{library.origin}, which the run creates")


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
    return replace(kept, origin=library.origin.removesuffix(", which the run creates"))


def _archives(backend: EngineBackend, release: str) -> Iterator[tuple[list[int], Path]]:
    """Yield the archives of a release that the user has put into the cache folder, with their versions as numbers.

    `release` is exact if it is known, so that another archive of the same minor release changes no key.
    """
    try:
        archives = list((kept_root(_KEPT) / "archives").iterdir())
    except OSError:
        return
    for archive in archives:
        found = _ARCHIVE.fullmatch(archive.name)
        if not found or _backend_of_archive(found) != backend or not _is_for_this_machine(archive.name):
            continue
        if is_of_release(found["version"], ".".join(release.split(".")[:4])):  # without `.post1`
            yield [int(part) for part in found["version"].split(".")], archive


def _backend_of_archive(found: re.Match[str]) -> EngineBackend:
    return "tensorrt_rtx" if found["rtx"] else "tensorrt"


def _is_for_this_machine(name: str) -> bool:
    """Return whether an archive's name names no other machine or system."""
    words = name.lower()
    named = [machine for machine, aliases in _MACHINES.items() if any(alias in words for alias in aliases)]
    ours = next((each for each, aliases in _MACHINES.items() if platform.machine().lower() in aliases), "")
    return ("windows" in words) == (os.name == "nt") and (not named or ours in named)


def _from_archive(archive: Path, backend: EngineBackend | None) -> Library:
    """Return the TensorRT of an archive by its name, unpacked or not."""
    found = _ARCHIVE.fullmatch(archive.name)
    if found is None:
        raise BackendError(
            f"library {archive}: the name of this archive does not contain its release: keep NVIDIA's, such as "
            f"`{_archive_name('tensorrt', '10.16.1.11')}`, or name the folder of the unpacked archive"
        )
    own = _backend_of_archive(found)
    if backend not in (None, own):
        raise BackendError(f"library {archive} has {TITLES[own]}: set `backend: {own}`, or name another archive")
    try:
        digest = DigestMemory(kept_root(_KEPT) / "digests").digest(archive)
    except OSError as error:
        raise BackendError(f"library {archive} cannot be read: {error.strerror}") from None
    supply = Supply(kept_root(_KEPT) / f"{own}-{found['version']}-{digest[:16]}", archive=archive)
    return _kept_or_pending(Library(own, found["version"], None, f"archive {archive.name}", supply=supply))


# --- creating --------------------------------------------------------------------------------------------------------


def _create(library: Library, supply: Supply, building: Path, report: Callable[[str], None]) -> None:
    """Create a private environment in a folder, or unpack an archive. Raises OSError and BackendError."""
    if supply.archive is not None:
        report(f"unpacking {supply.archive.name}")
        _unpack(supply.archive, building / _CONTENTS)
    else:
        report(f"installing {supply.requirement} into a private environment")
        try:
            create_environment(building / _CONTENTS, [supply.requirement], report)
        except PipError as error:
            raise BackendError(_how_to_get(library, supply, str(error))) from None
    source = supply.requirement or str(supply.archive)
    (building / _COMPLETE).write_text(json.dumps({"source": source, "python": sys.version}), encoding="utf-8")


def _unpack(archive: Path, target: Path) -> None:
    """Unpack what is needed of an archive, without its first folder. Raises BackendError if it is damaged or unsafe."""
    try:
        if archive.suffix == ".zip":
            _unpack_zip(archive, target)
        elif not hasattr(tarfile, "data_filter"):  # the first releases of Python 3.11
            python = platform.python_version()
            raise BackendError(
                f"Python {python} cannot check archives: unpack {archive} and set `library` to its folder"
            )
        else:
            with tarfile.open(archive) as members:
                for member in members:
                    name = member.name.removeprefix("./").partition("/")[2]
                    if _NEEDED.fullmatch(name):
                        # The filter refuses links and paths that lead outside, and devices.
                        members.extract(member.replace(name=name), target, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError) as error:
        raise BackendError(f"{archive} cannot be unpacked ({error}): download it again") from error


def _unpack_zip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            member.filename = member.filename.partition("/")[2]
            if _NEEDED.fullmatch(member.filename) and ".." not in member.filename.split("/"):
                members.extract(member, target)


def _how_to_get(library: Library, supply: Supply, reason: str) -> str:
    """Return why a release could not be created, and exactly what to download and where to put it."""
    title, page = f"{TITLES[library.backend]} {library.version}", _PAGES[library.backend]
    failed = f"pip cannot install {supply.requirement}" if supply.requirement else "its archive cannot be used"
    return (
        f"{title} is not installed, and {failed} ({reason.rstrip('.')}). Let pip reach pypi.org and pypi.nvidia.com, "
        f"or mirrors of them (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf); or download "
        f"`{_archive_name(library.backend, library.version)}` from {page} and put it, as it is, into "
        f"{supply.folder.parent / 'archives'}; or set `library` to an environment that has it"
    )


def _archive_name(backend: EngineBackend, version: str) -> str:
    """Return the name of NVIDIA's archive for this machine, with `*` for the version of CUDA."""
    version = ".".join(version.split(".")[:4])
    machine = platform.machine()
    if backend == "tensorrt_rtx":
        return f"TensorRT-RTX-{version}-{'Windows-amd64-*.zip' if os.name == 'nt' else f'Linux-{machine}-*.tar.gz'}"
    return f"TensorRT-{version}.{'Windows.*.zip' if os.name == 'nt' else f'Linux.{machine}-gnu.*.tar.gz'}"
