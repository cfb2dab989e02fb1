"""Find the files that belong to a measurement, by their contents rather than their names."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import first_of
from ndld_flow.profiles.read.untrusted_files import read_ends

Kind = Literal["profile", "build", "trtexec", "trex", "onnxruntime"]
Part = Literal["profile", "build", "onnxruntime", "times", "layer times", "engine", "log", "metadata", "device"]

FORMATS = (
    "a profile.json or build.json of ndld-flow; trtexec's --exportTimes, --exportProfile and --exportLayerInfo, and "
    "its log; the output of TensorRT's engine inspector (.trt.json); a folder of TREx; ONNX Runtime's profile"
)

_SUFFIXES = (".json", ".txt", ".log", ".out")
_MAX_FILES = 1_000
_JSON = re.compile(r'\s*(?:\{|\[\s*(?:[{\]"]|\Z))')
_LOG = re.compile(
    r"=== (?:Performance summary|Device Information|(?:Model|Build|Inference) Options) ===|&&&& RUNNING \w"
)
_MARKS: tuple[tuple[Part, tuple[tuple[str, ...], ...]], ...] = (
    ("build", (('"model_digest"',), ('"backend"',), ('"built_at"',))),
    ("profile", (('"model_digest"',), ('"backend"',), ('"runs"', '"layers"'))),
    ("times", (('"startComputeMs"', '"latencyMs"'),)),
    ("layer times", (('"averageMs"', '"timeMs"'),)),
    ("onnxruntime", (('"cat"',), ('"model_run"', "_kernel_time", '"session_initialization"', '"model_loading'))),
    ("engine", (('"Layers"',), ('"Bindings"', '"I/O Tensors"', '"LayerType"', '"Name"'))),
    ("metadata", (('"performance_summary"', '"model_options"', '"build_options"', '"inference_options"'),)),
    ("device", (('"ComputeCapability"',), ('"Name"',))),
)
"""Part -> tuples of words. A file is the first part for which it contains a word of every tuple."""
_ALONE: dict[Part, Kind] = {"profile": "profile", "build": "build", "onnxruntime": "onnxruntime"}
"""Parts that describe a measurement completely."""
_ONE_OF_EACH: tuple[Part, ...] = ("times", "layer times", "engine")
_WORDS = (
    "json|txt|log|out|times?|timings?|profil(?:e|es|ing)|prof|layers?|layer_?info|info|graph|metadata|meta|build|"
    "device|engine|plan|onnx|trtexec|trt|exports?|exported|perf|latency|inference"
)
_STAMP = r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(?:_\d+)?"
"""Timestamp that ONNX Runtime adds to a profile's name."""
_TAIL = re.compile(rf"(?:^|[._\- ]+)(?:{_WORDS}|{_STAMP})$", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """The files of one measurement."""

    kind: Kind
    label: str
    files: tuple[tuple[Part, Path], ...]

    def of(self, *parts: Part) -> tuple[Path, ...]:
        return tuple(path for part, path in self.files if part in parts)


def part_of(path: Path) -> Part | None:
    """Return the kind of a file; None if it is unknown. Raises RequestError if it cannot be read."""
    text = read_ends(path)
    if not _JSON.match(text):
        return "log" if _LOG.search(text) else None
    for part, words in _MARKS:
        if part in ("times", "layer times") and not text.lstrip().startswith("["):
            continue  # an engine may have a layer of any name
        if all(any(word in text for word in either) for either in words):
            return part
    return None


def find_source(path: Path) -> Source:
    """Return the files to read for a file or a folder. Raises RequestError, which states the problem and the supported
    formats.
    """
    if path.is_dir():
        return _of_folder(path)
    if not path.exists():
        raise RequestError(f"{path} does not exist; supported formats: {FORMATS}")
    part = part_of(path) if path.is_file() else None
    if part is None:
        raise RequestError(f"{path} is not a profile in a supported format; supported formats: {FORMATS}")
    if part in ("profile", "build", "onnxruntime"):
        return Source(part, _prefix(path) or path.stem, ((part, path),))
    siblings = {file: kind for file, kind in _parts_in(path.parent).items() if kind not in _ALONE}
    files = _group_of(path, siblings | {path: part})
    return _tensorrt(_prefix(path) or path.absolute().parent.name or path.stem, files)


def _of_folder(folder: Path) -> Source:
    parts = _parts_in(folder)
    label = folder.absolute().name
    own = [file for file, part in parts.items() if part in ("profile", "build")]
    if folder / "profile.json" in own:
        return Source("profile", label, (("profile", folder / "profile.json"),))
    if folder / "build.json" in own:  # its inputs are in the same folder
        return Source("build", label, (("build", folder / "build.json"),))
    exports = {file: part for file, part in parts.items() if part not in _ALONE}
    passes = [file for file, part in parts.items() if part == "onnxruntime"]
    if len(own) + len(passes) + (1 if exports else 0) > 1:
        raise RequestError(f"{folder} contains several profiles ({_names([*own, *passes, *exports])}); give one file")
    if exports:
        return _tensorrt(label, _group(folder, exports))
    for file in (*own, *passes):
        return Source(_ALONE[parts[file]], label, ((parts[file], file),))
    raise RequestError(f"{folder} contains no profile in a supported format; supported formats: {FORMATS}")


def _tensorrt(label: str, files: Mapping[Path, Part]) -> Source:
    kind: Kind = "trex" if {"metadata", "device"} & set(files.values()) else "trtexec"
    return Source(kind, label, tuple((part, file) for file, part in files.items()))


def _parts_in(folder: Path) -> dict[Path, Part]:
    try:
        files = sorted(islice((file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES), _MAX_FILES))
    except OSError as error:
        raise RequestError(f"{folder} cannot be read: {error.strerror or error}") from error
    parts: dict[Path, Part] = {}
    for file in files:
        with contextlib.suppress(RequestError):  # unrelated files in the folder may be unreadable
            part = part_of(file) if file.is_file() else None
            if part is not None:
                parts[file] = part
    return parts


def _group(folder: Path, parts: Mapping[Path, Part]) -> Mapping[Path, Part]:
    """Return all files of a folder if they can belong to one model."""
    if not _doubled(parts):
        return parts
    groups = _by_prefix(parts)
    if len(groups) == 1:
        raise RequestError(f"{folder} holds several exports of one kind ({_names(_doubled(parts))}); give one file")
    example = next(iter(groups[min(groups)]))
    raise RequestError(
        f"{folder} holds the exports of several models ({', '.join(sorted(groups))}); give one file of the "
        f"model you mean, such as {example.name}"
    )


def _group_of(path: Path, parts: Mapping[Path, Part]) -> Mapping[Path, Part]:
    """Return the files that belong to the given one."""
    if not _doubled(parts):
        return parts
    near = _by_prefix(parts)[_prefix(path)]
    without = {file: part for file, part in near.items() if file == path or part != near[path]}
    if _doubled(without):
        raise RequestError(
            f"several exports of one kind are next to {path.name} ({_names(_doubled(without))}); put those of one "
            "measurement into a folder of their own"
        )
    return without


def _doubled(parts: Mapping[Path, Part]) -> list[Path]:
    """Return the files of kinds that should occur once but occur several times."""
    listed = list(parts.values())
    return [file for file, part in parts.items() if part in _ONE_OF_EACH and listed.count(part) > 1]


def _by_prefix(parts: Mapping[Path, Part]) -> dict[str, dict[Path, Part]]:
    groups: dict[str, dict[Path, Part]] = defaultdict(dict)
    for file, part in parts.items():
        groups[_prefix(file)][file] = part
    return groups


def _prefix(path: Path) -> str:
    """Return a file's name without the words for its kind: `resnet.onnx.engine.timing.json` -> `resnet`."""
    name, shorter = path.name, ""
    while (shorter := _TAIL.sub("", name)) != name:
        name = shorter
    return name


def _names(files: Iterable[Path]) -> str:
    return first_of([file.name for file in files], 6)
