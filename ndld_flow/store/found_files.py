"""The files that `data:` means: a file, a folder, a glob, or a list of these."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import visible_name

VALUE_SUFFIXES = (".npy", ".npz", ".pb")
ANIMATION_SUFFIXES = (".gif", ".webp")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", *ANIMATION_SUFFIXES)
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv", ".mov", ".webm")
KNOWN_SUFFIXES = (*VALUE_SUFFIXES, *IMAGE_SUFFIXES, *VIDEO_SUFFIXES)

MOST_FILES = 100_000
"""More are a pattern that nobody meant, such as `/**`."""

_WILD = re.compile(r"[*?\[]")
_NUMBERS = re.compile("([0-9]+)")


@dataclass(frozen=True)
class FoundFile:
    """One of the files that give samples."""

    path: Path
    """A file, or a folder that is an ONNX test data set (`input_0.pb`, `input_1.pb`, ...)."""
    label: str
    """Its name; of several files, what follows the folder that all of them lie in."""

    @property
    def contents(self) -> dict[str, Path]:
        """What each file that is read is to be called, folders included -> where it lies."""
        if self.path.is_dir():
            return {f"{self.label}/{path.name}": path for path in inputs_in_test_set(self.path)}
        return {self.label: self.path}


def find_files(patterns: Sequence[str]) -> tuple[FoundFile, ...]:
    """The files that patterns mean, in their order; those of one folder or glob by name, numbers in them by value.

    Relative ones start where the user stands. Of a folder, the files of known types in it; folders in it count only
    where they are ONNX test data sets. Hidden files are left out. A path without wildcards is returned even if there
    is no such file: who reads it says so. Raises RequestError for a folder or glob without a file, for what is no
    regular file, and for more than `MOST_FILES`.
    """
    paths = [path for pattern in patterns for path in _matches(pattern)]
    _check_count(paths, patterns)
    return tuple(map(FoundFile, paths, _labels(paths)))


def is_several(pattern: str) -> bool:
    """Whether a pattern is a glob or a folder, which may be any number of files."""
    return is_glob(pattern) or Path(pattern).is_dir()


def is_glob(pattern: str) -> bool:
    """Whether a pattern has wildcards; a file whose name has such characters is that file."""
    return _WILD.search(pattern) is not None and not os.path.lexists(pattern)


def absolute_pattern(pattern: str) -> str:
    """The pattern for whoever stands elsewhere."""
    if not is_glob(pattern):
        return str(Path(pattern).absolute())
    if Path(pattern).is_absolute():
        return pattern
    return str(Path(_WILD.sub("[\\g<0>]", str(Path.cwd())), pattern))


def inputs_in_test_set(folder: Path) -> tuple[Path, ...]:
    """The inputs of an ONNX test data set, in their order; none of another folder."""
    return tuple(sorted(folder.glob("input_[0-9]*.pb"), key=natural_key)) if (folder / "input_0.pb").exists() else ()


def natural_key(path: PurePath) -> list[list[tuple[int, str]]]:
    """Sorts `frame9.png` before `frame10.png`."""
    return [
        [(int(piece), "") if i % 2 else (0, piece) for i, piece in enumerate(_NUMBERS.split(part))]
        for part in path.parts
    ]


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    try:
        if is_glob(pattern):
            return _globbed(pattern)
        if _is_file(path) or inputs_in_test_set(path):
            return [path]
        return _folder(path)
    except OSError as error:
        raise RequestError(f"{_shown([pattern])} cannot be read: {error.strerror} (stood in {Path.cwd()}).") from None


def _folder(folder: Path) -> list[Path]:
    paths = (path for path in folder.iterdir() if not path.name.startswith("."))
    found = [path for path in paths if path.suffix.lower() in KNOWN_SUFFIXES or path.is_dir()]
    files = _without_folders(found)
    if not files:
        raise RequestError(f"the folder {folder} holds no file of a known type: {', '.join(KNOWN_SUFFIXES)}.")
    return files


def _globbed(pattern: str) -> list[Path]:
    parts = PurePath(pattern).parts
    first = next(i for i, part in enumerate(parts) if _WILD.search(part))
    rest = [*parts[first:], "*"] if parts[-1] == "**" else parts[first:]
    anchor = Path(*parts[:first])
    hidden = any(part.startswith(".") and part != ".." for part in rest)
    try:
        every = list(islice(_visible(anchor, "/".join(rest), hidden), MOST_FILES + 1))
    except ValueError as error:
        raise RequestError(f"{_shown([pattern])} is no glob: {error}.") from None
    _check_count(every, [pattern])
    files = _without_folders(every)
    if not files:
        raise RequestError(f"no file matches {_shown([pattern])} (looked in {Path.cwd()}).")
    return files


def _visible(anchor: Path, rest: str, hidden: bool) -> Iterator[Path]:
    depth = len(anchor.parts)
    for path in anchor.glob(rest):
        if hidden or not any(part.startswith(".") and part != ".." for part in path.parts[depth:]):
            yield path


def _check_count(paths: Sequence[Path], patterns: Sequence[str]) -> None:
    if len(paths) > MOST_FILES:
        raise RequestError(f"{_shown(patterns)} is more than {MOST_FILES:,} files. Name fewer.")


def _without_folders(paths: list[Path]) -> list[Path]:
    return sorted((path for path in paths if _is_file(path) or inputs_in_test_set(path)), key=natural_key)


def _is_file(path: Path) -> bool:
    """Whether it is no folder; what is not there counts as a file, which whoever reads it misses."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return True
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would hang whoever reads it
        raise RequestError(f"{_shown([str(path)])} is no regular file.")
    return not stat.S_ISDIR(mode)


def _labels(paths: Sequence[Path]) -> list[str]:
    if not paths:
        return []
    absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - pathlib's keeps `..`
    try:
        common = os.path.commonpath({os.path.dirname(path) for path in absolute})  # noqa: PTH120
    except ValueError:  # several drives
        return [f"{i}/{visible_name(path.name)}" for i, path in enumerate(paths)]
    return [visible_name(path[len(common) :].lstrip(os.sep).replace(os.sep, "/")) for path in absolute]


def _shown(patterns: Sequence[str]) -> str:
    return ", ".join(visible_name(pattern) for pattern in patterns[:3]) + (", ..." if len(patterns) > 3 else "")
