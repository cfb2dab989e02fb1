"""Reader for `trtexec --exportTimes`: the start and end of each pass.

A list of objects, one a pass, of host and device times in ms since the first pass of all; see `exportJSONTrace` in
NVIDIA's samples/common/sampleReporting.cpp. Until 8.5 the export includes the warm-up. trtexec's own summary counts the
passes from the first that begins to compute after the warm-up time; so does `Passes.after_warmup`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ndld_flow.profiles.read.json_values import number_of
from ndld_flow.profiles.read.text_files import read_pieces

MAX_PASSES = 1_000_000
_OBJECT = re.compile(r"\{[^{}]*\}")
_FIELD = re.compile(r'"(\w{1,40})"\s*:\s*([-+\w.]{1,40})')
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
        first = next((at for at, one in enumerate(self.passes) if one.compute_at >= warmup_ms), 0)
        return self.passes[first:]


def read_times(path: Path) -> Passes:
    """Read an export of any length, even if damaged or reformatted. Raises RequestError when the file cannot be
    read."""
    passes: list[Pass] = []
    unreadable = 0
    for text in _objects(path):
        one = _pass(_fields(text))
        if one is None:
            unreadable += 1
        elif len(passes) == MAX_PASSES:
            return Passes(tuple(passes), unreadable, is_all=False)
        else:
            passes.append(one)
    return Passes(tuple(passes), unreadable)


def _objects(path: Path) -> Iterator[str]:
    """Yield the text of each object; passes contain no nested braces."""
    rest = ""
    for piece in read_pieces(path):
        text = rest + piece
        end = 0
        for found in _OBJECT.finditer(text):
            end = found.end()
            yield found[0]
        rest = text[end:][-_MAX_OBJECT:]
    if "{" in rest:
        yield rest


def _fields(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {name: _number(value) for name, value in _FIELD.findall(text)}
    return found if isinstance(found, dict) else {}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _pass(fields: Mapping[str, object]) -> Pass | None:
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
