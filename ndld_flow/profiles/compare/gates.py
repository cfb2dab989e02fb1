"""Gates on comparisons: `latency.median <= +5 %`, `load <= +20 ms`, `model.bytes <= 64 MiB`, `cosine >= 0.999`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import MINUS, apart, parse_bytes, parse_duration_ms, quantity, ratio_change
from ndld_flow.base.text import suggest
from ndld_flow.profiles.compare.intervals import median_interval
from ndld_flow.profiles.compare.measured import FEW_RUNS
from ndld_flow.profiles.compare.verdicts import ASSUMED_SINGLE_RUN
from ndld_flow.records.comparison import ComparedMetric, ComparisonGate, MetricVerdict, ProfileComparison

Outcome = Literal["passed", "failed", "inconclusive", "incomparable"]
Sign = Literal["<=", "<", ">=", ">"]
_SIGNS: dict[str, Sign] = {"<=": "<=", "≤": "<=", "<": "<", ">=": ">=", "≥": ">=", ">": ">"}

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
        return {
            "<=": value <= self.limit,
            "<": value < self.limit,
            ">=": value >= self.limit,
            ">": value > self.limit,
        }[self.sign]


def parse_comparison_gate(text: str) -> ParsedGate:
    """Parse one gate. `+5 %` and `-10 %` are relative to the base, `+0.5 ms` is a difference to it, `20 ms` is an
    absolute limit. Raises RequestError with the problem.
    """
    match = _GATE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise RequestError(f"gate `{_short(text)}` is not valid: {_EXAMPLE}")
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


def decide(gate: ParsedGate, profile: ProfileComparison) -> Iterator[ComparisonGate]:
    """Yield the gate's result for every candidate of a profile comparison; none if no profile has the metric."""
    metric = next((metric for metric in profile.metrics if metric.metric == gate.metric), None)
    if metric is None:
        return
    for candidate in range(1, len(profile.subjects)):
        outcome, why = _decide(gate, profile, metric, candidate)
        yield ComparisonGate(gate=gate.text, name=profile.name, candidate=candidate, outcome=outcome, why=why)


def _decide(
    gate: ParsedGate, profile: ProfileComparison, metric: ComparedMetric, candidate: int
) -> tuple[Outcome, str]:
    value = metric.values[candidate]
    if value is None:
        return "incomparable", f"it has no {metric.metric}"
    if gate.kind == "value":
        low, high = _value_interval(metric, candidate, value)
        text, _ = apart((value, gate.limit), metric.unit)
        return _outcome(gate, low, value, high), f"{text}{_between(low, high, metric.unit)}"
    wanted = (metric.metric, 0, candidate)
    verdict = next((each for each in profile.verdicts if (each.metric, each.base, each.candidate) == wanted), None)
    if verdict is None:
        return "incomparable", f"the base has no {metric.metric}"
    if verdict.verdict == "incomparable":
        return "incomparable", verdict.why
    if verdict.identical:
        difference = 1.0 if gate.kind == "ratio" else 0.0
        return _outcome(gate, difference, difference, difference), verdict.why
    ends = _assumed_ends(verdict)
    if gate.kind == "ratio":
        spread = f"{_change(verdict.low, gate)} to {_change(verdict.high, gate)}"
        text = f"{_change(verdict.ratio, gate)} ({spread if verdict.interval_is_known else _NO_INTERVAL})"
        return _outcome(gate, ends[0], verdict.ratio, ends[1]), text
    base = metric.values[0]
    assert base is not None  # the verdict compares against it
    low, middle, high = (base * (ratio - 1) for ratio in (ends[0], verdict.ratio, ends[1]))
    text = _signed(middle, gate.limit, metric.unit)
    spread = _between(low, high, metric.unit) if verdict.interval_is_known else f" ({_NO_INTERVAL})"
    return _outcome(gate, low, middle, high), f"{text}{spread}"


_NO_INTERVAL = "single runs: no interval"


def _assumed_ends(verdict: MetricVerdict) -> tuple[float, float]:
    """Return the interval of a ratio; for single runs, the assumed one."""
    if verdict.interval_is_known or verdict.clock:
        return verdict.low, verdict.high
    return verdict.ratio / (1 + ASSUMED_SINGLE_RUN), verdict.ratio * (1 + ASSUMED_SINGLE_RUN)


def _outcome(gate: ParsedGate, low: float, value: float, high: float) -> Outcome:
    """Return the outcome; it is decided if both ends of the interval are on the same side of the limit."""
    ends = {gate.holds(low), gate.holds(value), gate.holds(high)}
    if len(ends) > 1:
        return "inconclusive"
    return "passed" if ends == {True} else "failed"


def _value_interval(metric: ComparedMetric, candidate: int, value: float) -> tuple[float, float]:
    runs = metric.runs[candidate] if metric.runs else ()
    if not runs:
        return value, value
    low, high = median_interval(runs)
    if len(runs) >= FEW_RUNS:
        return low, high
    factor = math.exp(math.log1p(ASSUMED_SINGLE_RUN) / math.sqrt(2 * len(runs)))
    return min(low, value / factor), max(high, value * factor)


def _amount(text: str, amount: str) -> tuple[float, str]:
    """Return a value and its unit."""
    if _NUMBER.fullmatch(amount) and math.isfinite(float(amount)):
        return float(amount), ""
    read, unit = (parse_bytes, "bytes") if amount.lower().rstrip("ytes").endswith("b") else (parse_duration_ms, "ms")
    try:
        return read(amount), unit
    except ValueError:
        raise RequestError(
            f"gate `{text}`: `{_short(amount)}` is not a limit; write it as `+5 %`, `20 ms`, `64 MiB` or a plain number"
        ) from None


def _between(low: float, high: float, unit: str) -> str:
    return "" if low == high else f" (between {quantity(low, unit)} and {quantity(high, unit)})"


def _change(ratio: float, gate: ParsedGate) -> str:
    """Return a change with enough digits to differ from the limit: `+5.04 %` rather than `+5.0 %` for a limit of
    5 %."""
    text = ratio_change(ratio)
    if text != ratio_change(gate.limit) or ratio == gate.limit:
        return text
    return _signed((ratio - 1) * 100, (gate.limit - 1) * 100, "%")


def _signed(value: float, limit: float, unit: str) -> str:
    amount, _ = apart((abs(value), abs(limit)), unit)
    return f"{'+' if value >= 0 else MINUS}{amount}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
