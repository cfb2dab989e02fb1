"""Files of samples: a file, a folder, a glob, or a list of these, as in `data:`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import lazy_pattern, visible_name

VALUE_SUFFIXES = (".npy", ".npz", ".pb")
ANIMATION_SUFFIXES = (".gif", ".webp")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", *ANIMATION_SUFFIXES)
VIDEO_SUFFIXES = (".mp4", ".avi", ".mkv", ".mov", ".webm")
AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".m4a", ".aac", ".aiff")
DECODED_SUFFIXES = (*VIDEO_SUFFIXES, *(suffix for suffix in AUDIO_SUFFIXES if suffix != ".wav"))
"""Suffixes of files that PyAV decodes."""
TEXT_SUFFIXES = (".txt",)
TABLE_SUFFIXES = (".csv",)
_IN_FOLDERS = (*VALUE_SUFFIXES, *IMAGE_SUFFIXES, *VIDEO_SUFFIXES, *AUDIO_SUFFIXES)
"""Suffixes of files that a folder means. A .txt or .csv in it is more often a description than data."""
KNOWN_SUFFIXES = (*_IN_FOLDERS, *TEXT_SUFFIXES, *TABLE_SUFFIXES)

MOST_FILES = 100_000
"""Larger results come from a wrong pattern, such as `/**`."""

_WILD = lazy_pattern(r"[*?\[]")
_NUMBERS = lazy_pattern("([0-9]+)")


@dataclass(frozen=True)
class FoundFile:
    """A file that contains samples."""

    path: Path
    """A file, or a folder that is an ONNX test data set (`input_0.pb`, `input_1.pb`, ...)."""
    label: str
    """Its name; for several files, the path relative to their common folder."""

    @property
    def contents(self) -> dict[str, Path]:
        """Label, folders included -> path, of each file that is read."""
        if self.path.is_dir():
            return {f"{self.label}/{path.name}": path for path in inputs_in_test_set(self.path)}
        return {self.label: self.path}


def find_files(patterns: Sequence[str]) -> tuple[FoundFile, ...]:
    """Return the files of patterns, in their order; those of one folder or glob by name, numbers in them by value.

    Relative paths start at the current directory. A folder means its files of known types, and those of its folders
    that are ONNX test data sets. Hidden files are skipped. A path without wildcards is returned even if the file is
    missing: the reader raises the error. Raises RequestError for a folder or glob without a file, for a path that is
    not a regular file, and for more than `MOST_FILES`.
    """
    paths = [path for pattern in patterns for path in _matches(pattern)]
    _check_count(paths, patterns)
    return tuple(map(FoundFile, paths, _labels(paths)))


def is_several(pattern: str) -> bool:
    """Return whether a pattern is a glob or a folder, which may contain any number of files."""
    return is_glob(pattern) or Path(pattern).is_dir()


def is_glob(pattern: str) -> bool:
    """Return whether a pattern has wildcards and is not the name of an existing file."""
    return _WILD.search(pattern) is not None and not os.path.lexists(pattern)


def absolute_pattern(pattern: str) -> str:
    """Return a pattern that means the same regardless of the current directory."""
    if not is_glob(pattern):
        return str(Path(pattern).absolute())
    if Path(pattern).is_absolute():
        return pattern
    return str(Path(_WILD.sub("[\\g<0>]", str(Path.cwd())), pattern))


def inputs_in_test_set(folder: Path) -> tuple[Path, ...]:
    """Return the inputs of an ONNX test data set, in order; none for another folder."""
    return tuple(sorted(folder.glob("input_[0-9]*.pb"), key=natural_key)) if (folder / "input_0.pb").exists() else ()


def natural_key(path: PurePath) -> list[list[tuple[int, str]]]:
    """Return a sort key that puts `frame9.png` before `frame10.png`."""
    return [
        [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(_NUMBERS.split(part))] for part in path.parts
    ]


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    try:
        if is_glob(pattern):
            return _expand_glob(pattern)
        if _is_file(path) or inputs_in_test_set(path):
            return [path]
        return _folder(path)
    except OSError as error:
        raise RequestError(
            f"{_shown([pattern])} cannot be read: {error.strerror} (current directory: {Path.cwd()})."
        ) from None


def _folder(folder: Path) -> list[Path]:
    paths = (path for path in folder.iterdir() if not path.name.startswith("."))
    entries = [path for path in paths if path.suffix.lower() in _IN_FOLDERS or path.is_dir()]
    files = _without_folders(entries)
    if not files:
        raise RequestError(f"the folder {folder} has no file of a known type: {', '.join(_IN_FOLDERS)}.")
    return files


def _expand_glob(pattern: str) -> list[Path]:
    parts = PurePath(pattern).parts
    first = next(i for i, part in enumerate(parts) if _WILD.search(part))
    rest = [*parts[first:], "*"] if parts[-1] == "**" else parts[first:]
    anchor = Path(*parts[:first])
    hidden = any(part.startswith(".") and part != ".." for part in rest)
    try:
        every = list(islice(_glob_visible(anchor, "/".join(rest), hidden), MOST_FILES + 1))
    except ValueError as error:
        raise RequestError(f"{_shown([pattern])} is an invalid glob: {error}.") from None
    _check_count(every, [pattern])
    files = _without_folders(every)
    if not files:
        raise RequestError(f"no file matches {_shown([pattern])} (looked in {Path.cwd()}).")
    return files


def _glob_visible(anchor: Path, rest: str, hidden: bool) -> Iterator[Path]:
    depth = len(anchor.parts)
    for path in anchor.glob(rest):
        if hidden or not any(part.startswith(".") and part != ".." for part in path.parts[depth:]):
            yield path


def _check_count(paths: Sequence[Path], patterns: Sequence[str]) -> None:
    if len(paths) > MOST_FILES:
        raise RequestError(f"{_shown(patterns)} matches more than {MOST_FILES:,} files. Choose fewer.")


def _without_folders(paths: list[Path]) -> list[Path]:
    return sorted((path for path in paths if _is_file(path) or inputs_in_test_set(path)), key=natural_key)


def _is_file(path: Path) -> bool:
    """Return whether a path is not a folder; a missing path counts as a file: its reader raises the error."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return True
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe would block
        raise RequestError(f"{_shown([str(path)])} is not a regular file.")
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
