"""Private environments of recipes: releases of libraries side by side, created by pip and kept by digest.

`create_environment` and `provide_kept` also serve a required release of TensorRT. A process that measures or runs a
model in an environment sees the environment's packages before all others, so that the named ones are of the named
releases. What they require has the release that is installed here, as far as it is a library of ndld-flow, so that only
the named packages differ. Nothing is imported from there into this process::

    ~/.cache/ndld_flow/environments/0123456789abcdef/   contents/: a virtual environment; lock.json: what pip installed
    ~/.cache/ndld_flow/environments/building/, locks/   work in progress

The lock names every installed package with its version and the digest of its file. Its own digest is a part of the
keys of steps, so a run creates the environments of its recipe before it plans; `plan` only looks.
"""

import atexit
import contextlib
import ensurepip
import json
import os
import platform
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from ndld_flow.base import users
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.settings import Settings
from ndld_flow.machine.versions import installed_versions
from ndld_flow.store.digest import digest_file, digest_json
from ndld_flow.store.files import make_folder, remove_folder
from ndld_flow.store.locks import WAITS, Locks

PIP_TIMEOUT_S = 3600.0
"""TensorRT and CUDA's libraries have several GB."""
_COUNTS_BYTES = "24.1"
"""The first pip that prints its progress as lines."""
_NOT_PIPS = ("PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH")
"""Variables that would install elsewhere, or show the private environment the packages of this one."""


class PipError(Exception):
    """pip could not install or fetch something; the text is its last error."""

    def __init__(self, reason: str, lines: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.lines = lines
        """All that it printed."""


def create_environment(
    target: Path, requirements: Sequence[str], report: Callable[[str], None], options: Sequence[str] = ()
) -> None:
    """Create a virtual environment with pip, and let that install requirements; `report` is called with its output.

    An environment of its own, because NVIDIA's packages of older releases call pip again while they are installed:
    with `--target` that would install into ours. Raises PipError.
    """
    with _noting(report) as note:
        install = [_make_environment(target, note), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        _run([*install, *options, "--", *requirements], note)


def ask_pip(arguments: Sequence[str], report: Callable[[str], None]) -> None:
    """Run pip, which installs nothing; `report` is called with each line of its output. Raises PipError.

    Lines `Progress 1 of 3` count the bytes of a large file, if pip can print them.
    """
    from packaging.version import Version  # not for runs without environments

    with tempfile.TemporaryDirectory(prefix="ndld-flow-pip-") as folder, _noting(report) as note:
        if find_spec("pip"):
            python, release = sys.executable, version("pip")
        else:  # such as in an environment of uv's
            python, release = _make_environment(Path(folder), note), ensurepip.version()
        bar = "raw" if Version(release) >= Version(_COUNTS_BYTES) else "off"
        _run([python, "-m", "pip", *arguments, "--progress-bar", bar], note)


def _make_environment(folder: Path, note: Callable[[str], None]) -> str:
    """Make a virtual environment with pip; return its Python."""
    _run([sys.executable, "-m", "venv", str(folder)], note)
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def _run(command: Sequence[str], note: Callable[[str], None]) -> None:
    from ndld_flow.processes.launch import Program, run_program

    # Ours, with the index of this Python's own pip.conf.
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_PIPS}
    own = Path(sys.prefix, "pip.ini" if os.name == "nt" else "pip.conf")
    if own.is_file():
        ours.setdefault("PIP_CONFIG_FILE", str(own))
    # Without the current directory on its path, where a file `pip.py` could be.
    ours |= {"PYTHONSAFEPATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run_program(Program(command, ours, PIP_TIMEOUT_S), note)


@contextlib.contextmanager
def _noting(report: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yield a function that notes and reports a line. Raises PipError where a program fails, with the last error that
    is in its lines by then."""
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        report(line)

    try:
        yield note
    except RequestError as error:
        reasons = [line for line in lines if line.startswith("ERROR: ")] or [error.message]
        raise PipError(reasons[-1].removeprefix("ERROR: "), lines) from None


BUILDING = "building"
"""Folder next to the libraries for unfinished ones."""
_LEASES = contextlib.ExitStack()
"""Leases of the libraries that this process uses, until it ends."""
_LEASED: set[Path] = set()
Found = TypeVar("Found")


@dataclass(frozen=True)
class KeptLibrary:
    """A folder with a library, or an unfinished one."""

    folder: Path
    locks: Locks
    """The lock with the folder's name is held while the library is created."""
    label: str = ""
    """Its description in lists; empty if the folder's name suffices."""

    @property
    def used_at(self) -> float:
        """Return the time of its last use, in seconds since 1970; raises OSError if it is gone."""
        return self.folder.stat().st_mtime

    @property
    def size_bytes(self) -> int:
        """Return the size of its files."""
        size, waiting = 0, [str(self.folder)]
        while waiting:  # a library may have 10,000 files
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    with contextlib.suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_size
        return size

    @property
    def in_use(self) -> bool:
        """Return whether a process holds a lease of it (`Locks.lease`), whose kind is the folder's name."""
        return bool(self.locks.leased(self.folder.name))

    def remove(self) -> None:
        """Remove it unless it is in use; a process that is creating it is waited for. Raises OSError."""
        with self.locks.hold(self.folder.name):
            if self.in_use:
                return
            aside = self.folder
            if aside.parent.name != BUILDING:
                # Whatever a killed process leaves there is removed with the unfinished ones.
                aside = aside.parent / BUILDING / aside.name
                remove_folder(aside)
                make_folder(aside.parent)
                self.folder.rename(aside)
            remove_folder(aside)


def kept_root(name: str) -> Path:
    """Return a folder of the user's cache for libraries. Raises BackendError if there is no home folder."""
    try:
        return users.cache_folder() / name
    except RuntimeError as error:
        raise BackendError(f"there is no folder for {name} ({error}): set XDG_CACHE_HOME") from None


def find_kept(name: str, own: str, label: Callable[[Path], str] = lambda folder: "") -> list[KeptLibrary]:
    """Return the libraries in a folder of the user's cache whose names match `own`, unfinished ones included."""
    try:
        root = kept_root(name)
    except BackendError:
        return []
    if not os.access(root, os.R_OK | os.X_OK):  # absent, or of another user whose HOME this process inherited
        return []
    folders = [path for path in (*root.glob("*/"), *root.glob(f"{BUILDING}/*/")) if re.fullmatch(own, path.name)]
    return [KeptLibrary(folder, Locks(root / "locks"), label(folder)) for folder in sorted(folders)]


def provide_kept(
    folder: Path,
    title: str,
    find: Callable[[], Found | None],
    create: Callable[[Path], None],
    report: Callable[[str], None],
) -> Found | None:
    """Return what `find` finds in a folder of the cache, after `create` has filled it if it found nothing.

    The folder is locked meanwhile, and this process keeps a lease of it until it ends. `create` gets an empty folder
    that takes its place at the end, unless that fails. Raises BackendError if the folder cannot be written.
    """
    locks = Locks(folder.parent / "locks")
    try:
        with locks.hold(folder.name, lambda holder: report(f"{WAITS}{holder}, which creates {title}"), title):
            kept = find()
            if kept is None:
                with _created_aside(folder) as building:
                    create(building)
                kept = find()
            if folder not in _LEASED:
                if not _LEASED:
                    atexit.register(_LEASES.close)  # while modules that release locks still exist
                _LEASES.enter_context(locks.lease(folder.name, uuid.uuid4().hex[:12]))
                _LEASED.add(folder)
            with contextlib.suppress(OSError):
                os.utime(folder)  # `gc --libraries` keeps what was used lately
    except OSError as error:
        raise BackendError(
            f"{title} cannot be kept in {folder.parent} ({error.strerror or error}): free or repair it"
        ) from None
    return kept


@contextlib.contextmanager
def _created_aside(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` at the end, unless the block fails. The caller holds its lock."""
    building = folder.parent / BUILDING / folder.name
    remove_folder(building)  # of a killed process
    make_folder(building)
    try:
        yield building
    except BaseException:
        remove_folder(building)
        raise
    remove_folder(folder)
    building.rename(folder)  # nothing uses an environment's own programs, which the new place would break


_KEPT, _CONTENTS, _LOCK = "environments", "contents", "lock.json"
_SITES = ("lib/python3.*/site-packages", "Lib/site-packages")


def _check_release(text: str) -> str:
    from packaging.version import InvalidVersion, Version  # not for plans without environments

    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is no exact release, such as 1.27.0: ranges and URLs are not allowed") from None
    return text


PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=100)]
Release = Annotated[str, Field(max_length=100), AfterValidator(_check_release)]


class Environment(Settings):
    """A private environment: `{onnxruntime: 1.27.0}`, or the folder of an existing virtual environment."""

    packages: dict[PackageName, Release] = {}
    """Package -> its exact release, which pip installs from the index that it is configured for."""
    folder: str = ""
    """Folder of a virtual environment that has the packages, created by other means, for this version of Python."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:  # noqa: ANN401 - plain data
        if isinstance(value, str):
            return {"folder": value}
        if isinstance(value, dict) and not value.keys() & {"packages", "folder"}:
            return {"packages": value}
        return value

    @field_validator("folder")
    @classmethod
    def _make_absolute(cls, folder: str) -> str:
        return str(Path(folder).expanduser().absolute()) if folder else ""

    @model_validator(mode="after")
    def _check_given(self) -> "Environment":
        if bool(self.packages) == bool(self.folder):
            raise ValueError("an environment has packages, such as `{onnxruntime: 1.27.0}`, or is a folder")
        return self

    @property
    def requirements(self) -> list[str]:
        return [f"{name}=={release}" for name, release in sorted(self.packages.items())]

    @property
    def label(self) -> str:
        """Return `onnxruntime 1.27.0`, or the folder."""
        return ", ".join(each.replace("==", " ") for each in self.requirements) or self.folder


EnvironmentSetting = Annotated[
    Environment,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
            ]
        }
    ),
]
"""An environment in a recipe, in any of its forms."""


def name_code(environment: Environment | None) -> str:
    """Return what of an environment is code, for the check of trust; empty for none."""
    if environment is None:
        return ""
    return environment.folder or f"pip installs {' and '.join(environment.requirements)}"


@dataclass(frozen=True)
class KeptEnvironment:
    """An environment that exists."""

    site: Path
    """Its site-packages, absolute."""
    lock: Mapping[str, Mapping[str, str]]
    """Package -> `version` and `sha256` of what was installed."""

    @property
    def digest(self) -> str:
        return digest_json(dict(sorted((name, dict(entry)) for name, entry in self.lock.items())))[:16]


def find_environment(environment: Environment) -> KeptEnvironment | None:
    """Return an environment if it exists. Reads only metadata. Raises BackendError for a folder that is none."""
    if environment.folder:
        return _open_folder(Path(environment.folder))
    folder = _folder_of(environment)
    try:
        lock = json.loads((folder / _LOCK).read_text(encoding="utf-8"))["packages"]
        site = _site_of(folder / _CONTENTS)
    except (OSError, ValueError, KeyError):
        return None
    return None if site is None else KeptEnvironment(site, lock)


def provide_environment(environment: Environment, report: Callable[[str], None]) -> KeptEnvironment:
    """Return an environment that exists, creating it if it does not, and hold its lease until this process ends.

    `report` is called with the progress. Raises BackendError with what to do.
    """
    if environment.folder:
        return _open_folder(Path(environment.folder))
    kept = provide_kept(
        _folder_of(environment),
        f"the environment {environment.label}",
        lambda: find_environment(environment),
        lambda building: _create(environment, building, report),
        report,
    )
    if kept is None:
        raise BackendError(f"the environment {environment.label} was created, and has no packages: run again")
    return kept


def versions_in_key(environment: Environment | None) -> dict[str, str]:
    """Return what a key contains of an environment: the versions of its named packages, and the digest of its lock."""
    if environment is None:
        return {}
    kept = find_environment(environment)
    if kept is None:
        return {"environment": "not created", **environment.packages}
    named = {_plain(name) for name in environment.packages} or kept.lock.keys()
    versions = {name: entry["version"] for name, entry in kept.lock.items() if name in named}
    return {"environment": kept.digest, **versions}


def describe_environment(environment: Environment | None) -> tuple[str, ...]:
    """Return the note of a plan on a step's environment; none without one."""
    if environment is None:
        return ()
    exists = environment.folder or find_environment(environment) is not None
    return (f"environment {environment.label}{'' if exists else ', which the run creates with pip'}",)


def find_kept_environments() -> list[KeptLibrary]:
    """Return the environments in the user's cache folder, unfinished ones included."""
    return find_kept(_KEPT, "[0-9a-f]{16}", _label_of)


def _label_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / _LOCK).read_text(encoding="utf-8"))["label"])
    except (OSError, ValueError, KeyError):
        return "unfinished environment"


def _folder_of(environment: Environment) -> Path:
    place = [str(sys.implementation.cache_tag), sys.platform, platform.machine()]
    return kept_root(_KEPT) / digest_json([*environment.requirements, *place])[:16]


def _site_of(folder: Path) -> Path | None:
    """Return the site-packages of a virtual environment, if it is one of this version of Python."""
    ours = f"python3.{sys.version_info.minor}"
    found = [site for pattern in _SITES for site in folder.glob(pattern)]
    return next((site for site in found if os.name == "nt" or site.parent.name == ours), None)


def _open_folder(folder: Path) -> KeptEnvironment:
    site = _site_of(folder)
    if site is None:
        raise BackendError(
            f"environment {folder}: there is no virtual environment of Python 3.{sys.version_info.minor} there. Create "
            f"it with `{sys.executable} -m venv {folder}`, and install the packages with its pip"
        )
    return KeptEnvironment(site, _read_installed(site, {}))


# --- creating --------------------------------------------------------------------------------------------------------


def _create(environment: Environment, building: Path, report: Callable[[str], None]) -> None:
    """Create an environment in a folder. Raises OSError and BackendError."""
    constraints, installed = building / "constraints.txt", building / "report.json"
    constraints.write_text("".join(_constraints(environment)), encoding="utf-8")
    report(f"creating the environment {environment.label}")
    options = ["-c", str(constraints), "--report", str(installed)]
    try:
        create_environment(building / _CONTENTS, environment.requirements, lambda line: None, options)
    except PipError as error:
        wanted, reason = " ".join(environment.requirements), str(error).rstrip(".")
        raise BackendError(
            f"the environment {environment.label} cannot be created: pip cannot install {wanted} ({reason}). Check the "
            "release, let pip reach its index or a mirror of it (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf), name the "
            "release of a package that conflicts in the environment too, or name the folder of a virtual environment "
            "that has the packages, instead of releases"
        ) from None
    hashes = {}
    for each in json.loads(installed.read_text(encoding="utf-8")).get("install", ()):
        found = each.get("download_info", {}).get("archive_info", {}).get("hashes", {})
        if "sha256" in found:
            hashes[_plain(each["metadata"]["name"])] = found["sha256"]
    site = _site_of(building / _CONTENTS)
    lock = {} if site is None else _read_installed(site, hashes)
    values = {"label": environment.label, "packages": lock, "python": sys.version}
    (building / _LOCK).write_text(json.dumps(values, indent=1), encoding="utf-8")


def _constraints(environment: Environment) -> Iterator[str]:
    """Yield the releases of ndld-flow's libraries here, as constraints of pip, without the named packages."""
    named = {_plain(name) for name in environment.packages}
    if any(name.startswith("onnxruntime") for name in named):
        named |= {"onnxruntime", "onnxruntime-gpu"}  # they contain the same modules: only one of them is installed
    for name, installed in sorted(installed_versions("ndld-flow").items()):
        if _plain(name) not in named | {"ndld-flow"} and "+" not in installed:  # a local version is on no index
            yield f"{name}=={installed}\n"


def _read_installed(site: Path, hashes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the packages in a folder with their versions and the digest of their files.

    Without a digest of the installed file, it is that of the list of files, which has a digest of each.
    """
    lock = {}
    for found in distributions(path=[str(site)]):
        name = _plain(found.metadata["Name"])
        record = site / f"{found.metadata['Name'].replace('-', '_')}-{found.version}.dist-info" / "RECORD"
        if name in ("pip", "setuptools", "wheel"):
            continue
        entry = {"version": found.version}
        if name in hashes:
            entry["sha256"] = hashes[name]
        elif record.is_file():
            entry["record"] = digest_file(record)
        lock[name] = entry
    return dict(sorted(lock.items()))


def _plain(name: str) -> str:
    """Return a package's name as indexes compare them (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
