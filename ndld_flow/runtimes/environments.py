"""Private environments of recipes: releases of libraries side by side, created by pip and kept by digest.

A process that measures or runs a model in an environment sees the environment's packages before all others, so that
the named ones are of the named releases. What they require has the release that is installed here, as far as it is a
library of ndld-flow, so that only the named packages differ. Nothing is imported from there into this process::

    ~/.cache/ndld_flow/environments/0123456789abcdef/   contents/: a virtual environment; lock.json: what pip installed
    ~/.cache/ndld_flow/environments/building/, locks/   work in progress

The lock names every installed package with its version and the digest of its file. Its own digest is a part of the
keys of steps, so a run creates the environments of its recipe before it plans; `plan` only looks.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from ndld_flow.base.errors import BackendError
from ndld_flow.base.settings import Settings
from ndld_flow.machine.versions import installed_versions
from ndld_flow.runtimes.kept_library import KeptLibrary, find_kept, kept_root, provide_kept
from ndld_flow.runtimes.pip_environment import PipError, create_environment
from ndld_flow.store.digest import digest_file, digest_json

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
    for name, version in sorted(installed_versions("ndld-flow").items()):
        if _plain(name) not in named | {"ndld-flow"} and "+" not in version:  # a local version is on no index
            yield f"{name}=={version}\n"


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
