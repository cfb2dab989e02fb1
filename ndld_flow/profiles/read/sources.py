"""Find the files that belong to a measurement, by their contents rather than their names, and read them.

Nobody vouches for them: oversized or special files are refused, and invalid values dropped.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import first_of

MAX_BYTES = 500_000_000
"""Maximum size of a file that is read in pieces."""
MAX_WHOLE_BYTES = 64_000_000
"""Maximum size of a file that is read as a whole, enough for 50,000 detailed TensorRT layers."""
_HEAD, _TAIL, _PIECE = 1 << 18, 1 << 16, 1 << 20


def read_ends(path: Path) -> str:
    """Return the first 256 KiB and the last 64 KiB, enough to identify a file. Raises RequestError."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(len(head), path.stat().st_size - _TAIL))
            return (head + file.read(_TAIL)).decode(_encoding(head), "replace")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_whole(path: Path) -> str:
    """Return the text of a file. Raises RequestError if it cannot be read or is larger than 64 MB."""
    check_size(path, MAX_WHOLE_BYTES)
    return "".join(read_pieces(path))


def read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file, about 1 MiB at a time. Raises RequestError for one over 500 MB."""
    check_size(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_PIECE)
            decoder = codecs.getincrementaldecoder(_encoding(raw))("replace")
            while raw:
                yield decoder.decode(raw)
                raw = file.read(_PIECE)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; lines over 1 MiB are split. Raises RequestError as `read_pieces` does."""
    rest = ""
    for piece in read_pieces(path):
        *lines, rest = (rest + piece).split("\n")
        yield from lines
        if len(rest) > _PIECE:
            yield rest
            rest = ""
    yield rest


def check_size(path: Path, limit: int = MAX_BYTES) -> None:
    """Raise RequestError if a file is larger than `limit` or inaccessible."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    if size > limit:
        raise RequestError(f"{path} has {size / 1e6:,.0f} MB; the maximum size of a profile is {limit / 1e6:,.0f} MB")


def _encoding(head: bytes) -> str:
    """Return the encoding of a file by its first bytes; PowerShell's `>` writes UTF-16."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _unreadable(path: Path, error: OSError) -> RequestError:
    return RequestError(f"{path} cannot be read: {error.strerror or error}")


_MAX_TEXT = 20_000
_MAX_NUMBER = 1e15
"""Larger values cannot be measurements, and their squares would overflow."""
_MAX_DIMENSIONS = 32
_MAX_ITEMS = 1_000


def text_of(value: object) -> str:
    """Return a text that is valid UTF-8, at most 20,000 characters; empty for anything else."""
    if not isinstance(value, str):
        return ""
    text = value[:_MAX_TEXT]
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def number_of(value: object) -> float | None:
    """Return a finite number of plausible size; None for anything else."""
    # Not isinstance: a bool is not a number here, and this runs for millions of values.
    if (type(value) is float or type(value) is int) and abs(value) <= _MAX_NUMBER:
        return float(value)
    return None


def whole_of(value: object) -> int | None:
    """Return a whole number; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() else None


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers; None for anything else."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    dims = tuple(dim for dim in map(whole_of, value) if dim is not None)
    return dims if len(dims) == len(value) else None


def objects_in(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a list."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))


def plain_json(value: object, depth: int = 0) -> JsonValue:
    """Return a value that fits into a record: bounded, without NaN and infinity."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int | float):
        return value if number_of(value) is not None else None
    if depth > 4:
        return None
    if isinstance(value, list):
        return [plain_json(entry, depth + 1) for entry in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        pairs = list(value.items())[:_MAX_ITEMS]
        return {text_of(str(key)): plain_json(entry, depth + 1) for key, entry in pairs}
    return None


_NO_NUMBER = re.compile(r'(":\s*)-?(?:nan|inf)\b')
"""Values that C++ prints for NaN and infinity, after their keys: names may hold a colon too."""


def parse_json(text: str) -> object:
    """Parse JSON of trtexec, which does not escape control characters in names. NaN and infinity become None.

    Raises ValueError for anything else than an object or a list.
    """
    try:
        try:
            value = _load(text)
        except json.JSONDecodeError:
            value = _load(_NO_NUMBER.sub(r"\1null", text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict | list):
        raise ValueError("it is not JSON: neither an object nor a list")
    return value


def _load(text: str) -> object:
    return json.loads(text, strict=False, parse_constant=lambda _: None)


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
_ENDING = re.compile(rf"(?:^|[._\- ]+)(?:{_WORDS}|{_STAMP})$", re.IGNORECASE)


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
    while (shorter := _ENDING.sub("", name)) != name:
        name = shorter
    return name


def _names(files: Iterable[Path]) -> str:
    return first_of([file.name for file in files], 6)
