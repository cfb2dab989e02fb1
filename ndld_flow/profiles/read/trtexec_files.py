"""Read the files that trtexec and TREx write: log, times of passes, times of layers, metadata.

Lines of a log look like `[10/01/2024-13:21:44] [I] Compute Capability: 7.5`; a section begins with
`=== Device Information ===` and ends with a line that is not `key: value`. TREx stores the same as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from ndld_flow.profiles.read.sources import (
    number_of,
    objects_in,
    parse_json,
    plain_json,
    read_lines,
    read_pieces,
    read_whole,
    text_of,
    whole_of,
)

SECTIONS = (
    "model_options",
    "build_options",
    "system_options",
    "inference_options",
    "reporting_options",
    "device_information",
    "performance_summary",
)
"""TREx's names of trtexec's sections (`Model Options` and so on)."""

_PREFIX = re.compile(r".{0,200}?(?:\[(\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\] ?)?\[[VIWE]\] ?")
"""CI systems and other programs add their own prefix to each line."""
_HEADING = re.compile(r"=== (\w[\w /-]{0,60}) ===")
_STATISTIC = re.compile(
    r"(min|max|mean|median|percentile\(\d{1,3}(?:\.\d{1,6})?%\)) = (\d{1,16}(?:\.\d{1,16})?(?:e[-+]?\d\d)?) ms"
)
_VERSION = re.compile(r"TensorRT(?:[- ]RTX)? version: ([\d.]{1,20})", re.IGNORECASE)
_RUNNING = re.compile(r"&&&& RUNNING (\S{1,60}) \[TensorRT\S{0,8} v(\d{4,7})\]")
_COMMAND = re.compile(r"\] # (.{1,4000})")
_BINDING = re.compile(r"Created (input|output) binding for (.{1,2000}) with dimensions (-?\d+(?:x-?\d+){0,15})\s*$")
_INFERENCE_SHAPE = "Input inference shape"
_SHAPE = re.compile(r"(.{1,2000})=(-?\d+(?:x-?\d+){0,15})")
_MAX_KEYS = 200


@dataclass
class TrtexecLog:
    """The contents of a log, or of TREx's JSON of it."""

    sections: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    version: str = ""
    """`8.6.1`."""
    is_rtx: bool = False
    command: str = ""
    started: str = ""
    """Local time of the machine, as in the log; the time zone is not recorded."""
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Dimensions by name, if the log has them."""
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def section(self, name: str) -> Mapping[str, JsonValue]:
        return self.sections.get(name, {})

    def text(self, section: str, key: str) -> str:
        """Return a value as text; empty for none."""
        value = self.section(section).get(key)
        return "" if value is None else str(value)

    @property
    def latency(self) -> dict[str, float]:
        """Return trtexec's own `min`, `max`, `mean`, `median`, `percentile(99%)` of the latency, in ms."""
        return statistics_of(self.section("performance_summary").get("Latency"))


def read_log(path: Path) -> TrtexecLog:
    """Read a log of trtexec. Raises RequestError if the file cannot be read."""
    log = TrtexecLog()
    section: dict[str, JsonValue] | None = None
    for raw in read_lines(path):
        line = raw.rstrip()
        prefix = _PREFIX.match(line)
        body = line[prefix.end() :] if prefix else line.strip()
        heading = _HEADING.fullmatch(body)
        if heading:
            name = heading[1].lower().replace(" ", "_")
            section = log.sections.setdefault(name, {}) if name in SECTIONS else None
            continue
        if section is not None and not _take_pair(log, section, body):
            section = None
        if section is None:
            log.started = log.started or (prefix[1] if prefix else None) or ""
            if "TensorRT" in body:
                _take_version(log, body)
            elif (match := _BINDING.search(body)) is not None:
                tensors = log.inputs if match[1] == "input" else log.outputs
                if len(tensors) < _MAX_KEYS:
                    tensors[text_of(match[2])] = _dims(match[3])
    return log


def _take_pair(log: TrtexecLog, section: dict[str, JsonValue], body: str) -> bool:
    key, colon, value = body.partition(":")
    if not colon or key.startswith(("[", "&", "*")) or len(section) >= _MAX_KEYS:
        return False
    if value.strip():
        section[text_of(key.strip())] = text_of(value.strip())
    if key.startswith(_INFERENCE_SHAPE):
        take_inference_shape(log, value)
    return True


def take_inference_shape(log: TrtexecLog, text: str) -> None:
    """Add the shapes of a line such as `input.1=32x3x224x224`; each input has its own line."""
    match = _SHAPE.fullmatch(text.strip())
    if match and len(log.inputs) < _MAX_KEYS:
        log.inputs[text_of(match[1])] = _dims(match[2])


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(dim[:12]) for dim in text.split("x"))


def _take_version(log: TrtexecLog, body: str) -> None:
    log.is_rtx = log.is_rtx or re.search(r"tensorrt[-_ ]rtx", body[:4000], re.IGNORECASE) is not None
    running = _RUNNING.search(body)
    if running:
        log.version = log.version or _spelt(int(running[2]))
        command = _COMMAND.search(body)
        log.command = log.command or (text_of(command[1]) if command else "")
    match = _VERSION.search(body)
    if match:
        log.version = match[1] if "." in match[1] else _spelt(int(match[1]))


def _spelt(number: int) -> str:
    """Convert NV_TENSORRT_VERSION, 8601 -> 8.6.1 and since version 10: 100300 -> 10.3.0."""
    major = 10_000 if number >= 100_000 else 1_000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def statistics_of(value: JsonValue) -> dict[str, float]:
    """Return the numbers of `min = 0.8 ms, max = ...`, or of TREx's list [min, max, mean, median, percentile]."""
    if isinstance(value, str):
        return {match[1]: number for match in _STATISTIC.finditer(value) if (number := float(match[2])) <= 1e15}
    if isinstance(value, list) and len(value) == 5:
        names = ("min", "max", "mean", "median", "percentile(99%)")
        return {
            name: float(number) for name, number in zip(names, value, strict=True) if isinstance(number, int | float)
        }
    return {}


MAX_PASSES = 1_000_000
_OBJECT = re.compile(r"\{[^{}]*\}")
_MAX_OBJECT = 10_000
DEFAULT_WARMUP_MS = 200.0
"""trtexec's default."""


class Pass(NamedTuple):
    """One pass, in ms; starts are relative to the first pass."""

    enqueue_at: float
    enqueue: float
    h2d_at: float
    h2d: float
    compute_at: float
    compute: float
    d2h_at: float
    d2h: float
    latency: float


@dataclass(frozen=True)
class Passes:
    """The passes of an export."""

    passes: tuple[Pass, ...]
    unreadable: int = 0
    """Objects that are not a complete pass."""
    is_all: bool = True
    """False if there were more passes than the limit."""

    def after_warmup(self, warmup_ms: float) -> tuple[Pass, ...]:
        """Return the passes from the first that begins to compute after `warmup_ms`; all passes if there is none."""
        first = next((at for at, each in enumerate(self.passes) if each.compute_at >= warmup_ms), 0)
        return self.passes[first:]


def read_times(path: Path) -> Passes:
    """Read `--exportTimes` of any length, even if it ends early. Raises RequestError if it cannot be read.

    It is a list of objects, one per pass, with host and device times in ms since the first pass; see `exportJSONTrace`
    in NVIDIA's samples/common/sampleReporting.cpp. Until 8.5 the export includes the warm-up. trtexec's own summary
    counts the passes from the first that begins to compute after the warm-up time; so does `Passes.after_warmup`.
    """
    passes: list[Pass] = []
    unreadable = 0
    for text in _objects(path):
        pass_ = _pass(text)
        if pass_ is None:
            unreadable += 1
        elif len(passes) == MAX_PASSES:
            return Passes(tuple(passes), unreadable, is_all=False)
        else:
            passes.append(pass_)
    return Passes(tuple(passes), unreadable)


def _objects(path: Path) -> Iterator[str]:
    """Yield the text of each object; passes contain no nested braces."""
    rest = ""
    for piece in read_pieces(path):
        text = rest + piece
        end = 0
        for match in _OBJECT.finditer(text):
            end = match.end()
            yield match[0]
        rest = text[end:][-_MAX_OBJECT:]
    if "{" in rest:
        yield rest


def _pass(text: str) -> Pass | None:
    try:
        fields: dict[str, object] = json.loads(text)
    except ValueError:
        return None
    known = [value for value in map(number_of, map(fields.get, _NAMES)) if value is not None]
    if len(known) < len(_NAMES) or known[-1] <= 0:
        return None
    begin, end, *rest = known
    return Pass(begin, max(0.0, end - begin), *rest)


_NAMES = (
    "startEnqMs",
    "endEnqMs",
    "startH2dMs",
    "h2dMs",
    "startComputeMs",
    "computeMs",
    "startD2hMs",
    "d2hMs",
    "latencyMs",
)
"""In the order of `Pass`."""


@dataclass(frozen=True)
class LayerTime:
    """One row: a layer, in execution order."""

    name: str
    ms: float
    """The median over the passes, or the mean if there is no median."""


@dataclass(frozen=True)
class ExportedTimes:
    """The rows of an export."""

    rows: tuple[LayerTime, ...]
    pass_count: int
    """Number of passes; 0 if not recorded."""
    are_medians: bool
    unreadable: int
    """Rows without a layer or a time."""


def read_layer_times(path: Path) -> ExportedTimes:
    """Read `--exportProfile`. Raises RequestError if the file cannot be read, ValueError if it is not JSON.

    `[{"count": N}, {"name", "timeMs" (sum over N passes), "averageMs", "medianMs", "percentage"}, ...]`; before 8.4
    without the median. Names are not escaped and may repeat.
    """
    entries = list(objects_in(parse_json(read_whole(path))))
    heads = [entry for entry in entries if "count" in entry and "name" not in entry]
    count = max([0, *(whole_of(head["count"]) or 0 for head in heads)])
    rows = [entry for entry in entries if entry not in heads]
    layers = [row for row in (_row(entry, count) for entry in rows) if row is not None]
    return ExportedTimes(
        rows=tuple(layers),
        pass_count=count,
        are_medians=any("medianMs" in row for row in rows),
        unreadable=len(rows) - len(layers),
    )


def _row(entry: Mapping[str, object], count: int) -> LayerTime | None:
    name = text_of(entry.get("name"))
    total = number_of(entry.get("timeMs"))
    candidates = (
        number_of(entry.get("medianMs")),
        number_of(entry.get("averageMs")),
        None if total is None else total / max(count, 1),
    )
    ms = next((value for value in candidates if value is not None), None)
    return LayerTime(name, ms) if name and ms is not None and ms >= 0 else None


@dataclass(frozen=True)
class DeviceMetadata:
    """The device as CUDA describes it."""

    name: str
    cuda: str
    """Version of CUDA's driver interface, `11.6`; empty if not recorded."""
    properties: dict[str, JsonValue] = field(default_factory=dict)
    """Properties by CUDA's names, without limits of surfaces and textures."""


def take_metadata(log: TrtexecLog, path: Path) -> None:
    """Add the sections of `*.build.metadata.json` or `*.profile.metadata.json` to a log.

    Raises RequestError if the file cannot be read, ValueError if it is not JSON.
    """
    document = parse_json(read_whole(path))
    for name in SECTIONS:
        section = document.get(name) if isinstance(document, dict) else None
        if isinstance(section, dict):
            log.sections.setdefault(name, {}).update(
                {text_of(str(key)): plain_json(value) for key, value in list(section.items())[:200]}
            )
    take_inference_shape(log, log.text("inference_options", "Input inference shape"))


def read_device(path: Path) -> DeviceMetadata:
    """Read `*.engine.metadata.json`. Raises RequestError if it cannot be read, ValueError if it is not JSON."""
    document = parse_json(read_whole(path))
    first = next(objects_in(document if isinstance(document, list) else [document]), {})
    version = first.get("CUDA_VERSION")
    parts = [str(part) for part in map(whole_of, version if isinstance(version, list) else []) if part is not None]
    properties = {
        text_of(str(name)): plain_json(value)
        for name, value in list(first.items())[:_MAX_KEYS]
        if name not in ("Name", "CUDA_VERSION") and not str(name).startswith("MAXIMUM_")
    }
    return DeviceMetadata(text_of(first.get("Name")), ".".join(parts[:2]), properties)
