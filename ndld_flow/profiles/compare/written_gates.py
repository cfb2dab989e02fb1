"""Gates on comparisons as recipes write them, and the metrics of a profile. Every plan of a comparison imports this."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import MINUS, parse_bytes, parse_duration_ms
from ndld_flow.base.text import short_name, suggest
from ndld_flow.records.measurement import STATISTICS

if TYPE_CHECKING:
    from ndld_flow.records.comparison import ProfileComparison

COMPARED = {word: reduce for word, reduce in STATISTICS.items() if word != "max"}
TENSOR_CORES = ("tensor_cores.share", "tensor_cores.off_share", "tensor_cores.unknown_share")
PHASES = ("enqueue", "h2d", "compute", "d2h")


def unit_of_runs(metric: str) -> str:
    """Return the unit of a metric of process runs."""
    return {"throughput": "1/s", "memory.peak": "bytes"}.get(metric, "ms")


_RUN_METRICS = (
    *(f"latency.{word}" for word in COMPARED),
    "throughput",
    *(f"{phase}.median" for phase in PHASES),
    "load",
    "memory.peak",
    "layers.sum",
)
PROFILE_METRICS = {**{name: unit_of_runs(name) for name in _RUN_METRICS}, **dict.fromkeys(TENSOR_CORES, "")}
"""Metric of a single profile -> unit."""

Sign = Literal["<=", "<", ">=", ">"]
_SIGNS: dict[str, Sign] = {"<=": "<=", "≤": "<=", "<": "<", ">=": ">=", "≥": ">=", ">": ">"}

_HOLDS: Mapping[Sign, Callable[[float, float], bool]] = {"<=": le, "<": lt, ">=": ge, ">": gt}

_GATE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>|≤|≥)\s*([+\-\u2212]?)\s*([^\s+\-\u2212<>=].*?)\s*", re.DOTALL)
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE]-?\d+)?")
_LONGEST = 200
_PERCENT = re.compile(r"(\d+\.?\d*|\.\d+)\s*%")
_EXAMPLE = "write a metric, one of <= < >= >, and a limit, such as `latency.median <= +5 %` or `latency.min <= 20 ms`"


@dataclass(frozen=True)
class ParsedGate:
    """A parsed gate."""

    text: str
    metric: str
    sign: Sign
    limit: float
    """The ratio of candidate to base, their difference, or a value, in the metric's unit."""
    kind: Literal["ratio", "difference", "value"]
    unit: str
    """`ms`, `bytes`, or empty for a plain number."""

    def holds(self, value: float) -> bool:
        return _HOLDS[self.sign](value, self.limit)


def parse_comparison_gate(text: str) -> ParsedGate:
    """Parse one gate. `+5 %` and `-10 %` are relative to the base, `+0.5 ms` is a difference to it, `20 ms` is an
    absolute limit. Raises RequestError with the problem.
    """
    match = _GATE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise RequestError(f"gate `{short_name(text)}` is not valid: {_EXAMPLE}")
    metric, sign, plus_minus, amount = match.groups()
    factor = -1 if plus_minus in ("-", MINUS) else 1
    if "%" in amount:
        percent = _PERCENT.fullmatch(amount)
        if percent is None or not plus_minus:
            hint = f"`+{amount}`" if percent else "`+5 %`"
            raise RequestError(f"gate `{text}`: a percentage is relative to the base and needs a sign: write {hint}")
        ratio = 1 + factor * float(percent[1]) / 100
        return ParsedGate(text.strip(), metric, _SIGNS[sign], ratio, "ratio", "")
    value, unit = _amount(text, amount)
    return ParsedGate(text.strip(), metric, _SIGNS[sign], factor * value, "difference" if plus_minus else "value", unit)


def parse_comparison_gates(texts: Sequence[str]) -> list[ParsedGate]:
    """Parse several gates. Raises RequestError, which lists all invalid ones."""
    gates, wrong = [], []
    for text in texts:
        try:
            gates.append(parse_comparison_gate(text))
        except RequestError as error:
            wrong.append(str(error))
    if wrong:
        raise RequestError("\n".join(wrong))
    return gates


def check_names(gates: Sequence[ParsedGate], deciding: str, profiles: Sequence[ProfileComparison]) -> None:
    """Raise RequestError for unknown metrics and for limits in a different unit than the metric's."""
    units = {metric.metric: metric.unit for profile in profiles for metric in profile.metrics}
    if deciding not in units and units:
        raise RequestError(
            "\n".join([f"no profile has the metric `{deciding}`; {suggest(deciding, units)}", *_unknown(gates, units)])
        )
    check_known(gates, units)


def check_known(gates: Sequence[ParsedGate], units: Mapping[str, str]) -> None:
    """Raise RequestError for gates on metrics that are not in `units`, and for limits in a different unit."""
    wrong = _unknown(gates, units)
    if wrong:
        raise RequestError("\n".join(wrong))


def _unknown(gates: Sequence[ParsedGate], units: Mapping[str, str]) -> list[str]:
    wrong = []
    for gate in gates:
        if gate.metric not in units:
            wrong.append(
                f"gate `{gate.text}`: no profile has the metric `{gate.metric}`; {suggest(gate.metric, units)}"
            )
        elif gate.unit and gate.unit != units[gate.metric]:
            wrong.append(
                f"gate `{gate.text}`: {gate.metric} is in {units[gate.metric] or 'no unit'}, not in {gate.unit}"
            )
    return wrong


def _amount(text: str, amount: str) -> tuple[float, str]:
    """Return a value and its unit."""
    if _NUMBER.fullmatch(amount) and math.isfinite(float(amount)):
        return float(amount), ""
    read, unit = (parse_bytes, "bytes") if amount.lower().rstrip("ytes").endswith("b") else (parse_duration_ms, "ms")
    try:
        return read(amount), unit
    except ValueError:
        raise RequestError(
            f"gate `{text}`: `{short_name(amount)}` is not a limit; write it as `+5 %`, `20 ms`, `64 MiB` or a plain "
            "number"
        ) from None
