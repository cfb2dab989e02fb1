"""Reader for trtexec's log: options, device, version, and its own summary of the measurement.

Lines look like `[10/01/2024-13:21:44] [I] Compute Capability: 7.5`; a section begins with `=== Device Information ===`
and ends with a line that is not `key: value`. TREx stores the same as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.profiles.read.json_values import text_of
from ndld_flow.profiles.read.text_files import read_lines

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
_STATISTIC = re.compile(r"(min|max|mean|median|percentile\(\d{1,3}(?:\.\d{1,6})?%\)) = ([-+\d.e]{1,30}) ms")
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
    """Read a log of trtexec. Raises RequestError when the file cannot be read."""
    log = TrtexecLog()
    section: dict[str, JsonValue] | None = None
    for raw in read_lines(path):
        line = raw.rstrip()
        prefix = _PREFIX.match(line)
        body = line[prefix.end() :] if prefix else line.strip()
        heading = _HEADING.fullmatch(body)
        if heading:
            section = _open_section(log, heading[1])
            continue
        if section is not None and not _take_pair(log, section, body):
            section = None
        if section is None:
            _take_fact(log, body, prefix[1] if prefix else None)
    return log


def _open_section(log: TrtexecLog, heading: str) -> dict[str, JsonValue] | None:
    name = heading.lower().replace(" ", "_")
    return log.sections.setdefault(name, {}) if name in SECTIONS else None


def _take_pair(log: TrtexecLog, section: dict[str, JsonValue], body: str) -> bool:
    key, colon, value = body.partition(":")
    if not colon or key.startswith(("[", "&", "*")) or len(section) >= _MAX_KEYS:
        return False
    if value.strip():
        section[text_of(key.strip())] = text_of(value.strip())
    if key.startswith(_INFERENCE_SHAPE):
        take_inference_shape(log, value)
    return True


def take_inference_shape(log: TrtexecLog, told: str) -> None:
    """Add the shapes of a line such as `input.1=32x3x224x224`; each input has its own line."""
    found = _SHAPE.fullmatch(told.strip())
    if found and len(log.inputs) < _MAX_KEYS:
        log.inputs[text_of(found[1])] = _dims(found[2])


def _dims(told: str) -> tuple[int, ...]:
    return tuple(int(dim[:12]) for dim in told.split("x"))


def _take_fact(log: TrtexecLog, body: str, stamp: str | None) -> None:
    log.started = log.started or stamp or ""
    if "TensorRT" in body:
        _take_version(log, body)
    elif (found := _BINDING.search(body)) is not None:
        tensors = log.inputs if found[1] == "input" else log.outputs
        if len(tensors) < _MAX_KEYS:
            tensors[text_of(found[2])] = _dims(found[3])


def _take_version(log: TrtexecLog, body: str) -> None:
    log.is_rtx = log.is_rtx or re.search(r"tensorrt[-_ ]rtx", body[:4000], re.IGNORECASE) is not None
    running = _RUNNING.search(body)
    if running:
        log.version = log.version or _spelt(int(running[2]))
        command = _COMMAND.search(body)
        log.command = log.command or (text_of(command[1]) if command else "")
    told = _VERSION.search(body)
    if told:
        log.version = told[1] if "." in told[1] else _spelt(int(told[1]))


def _spelt(number: int) -> str:
    """Convert NV_TENSORRT_VERSION, 8601 -> 8.6.1 and since version 10: 100300 -> 10.3.0."""
    major = 10_000 if number >= 100_000 else 1_000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def statistics_of(value: JsonValue) -> dict[str, float]:
    """Return the numbers of `min = 0.8 ms, max = ...`, or of TREx's list [min, max, mean, median, percentile]."""
    if isinstance(value, str):
        return dict(_statistics(value))
    if isinstance(value, list) and len(value) == 5:
        names = ("min", "max", "mean", "median", "percentile(99%)")
        return {
            name: float(number) for name, number in zip(names, value, strict=True) if isinstance(number, int | float)
        }
    return {}


def _statistics(text: str) -> Iterator[tuple[str, float]]:
    for found in _STATISTIC.finditer(text):
        try:
            number = float(found[2])
        except ValueError:
            continue
        if 0 <= number <= 1e15:
            yield found[1], number
