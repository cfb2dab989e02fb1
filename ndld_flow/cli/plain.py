"""A run or a sweep as plain lines, for logs and pipes; the live display shares the lines of ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from ndld_flow.base.quantities import quantity, seconds, size
from ndld_flow.base.text import shortened, value_text, visible_text
from ndld_flow.cli.options import Loudness
from ndld_flow.cli.terminal import format_end
from ndld_flow.execution import events
from ndld_flow.records.outcomes import ENDINGS

MARKS = {
    "passed": ("✓", "green"),
    "refused": ("✗", "yellow"),
    "inconclusive": ("?", "yellow"),
    "failed": ("✗", "red"),
}
_PLACES = {"not proved": "in the race"}
"""Outcome of a variant -> its meaning as long as the search runs."""
_LONGEST = 160
_REPORT_EVERY_S, _RACE_EVERY_S = 60.0, 20.0
"""Seconds between lines about the progress of a long step, and about that of a race."""


def describe_target(event: events.StepStarted) -> str:
    """Return ` on h100`; empty for a step that runs here."""
    return f" on {event.target}" if event.target else ""


def describe_point(event: events.PointFinished) -> str:
    """Describe a finished point: `speed.threads=2, speed.optimization=all  3.21 ms`."""
    values = visible_text(", ".join(f"{name}={value_text(value)}" for name, value in event.values.items()))
    objectives = ", ".join(quantity(metric.value, metric.unit) for metric in event.objectives.values())
    reason = shortened(visible_text(" ".join(event.reason.split())), _LONGEST)
    parts = [shortened(values, _LONGEST), objectives, reason, "measured again" if event.again else ""]
    return "  ".join(filter(None, parts))


def describe_variant(event: events.VariantTried) -> str:
    """Describe a variant: `INT8: in the race: 1.82x as fast as the source (1.75x to 1.85x), in 2.1 s`."""

    tried = event.variant
    speed = tried.speed if tried.speed and tried.speed.low < tried.speed.high else None  # the source has no interval
    # One that left was measured against the best, in other rounds than those of its ratio to the source.
    is_shown = speed is not None and speed.is_possible and not (tried.outcome == "not the best" and tried.why)
    times = "{} as fast as the source ({})".format(*speed.describe()) if speed is not None and is_shown else ""
    took = f"in {seconds(tried.took_s)}" if tried.took_s else ""
    found = ", ".join(filter(None, [times, *tried.describe_accuracy(), took]))
    why = visible_text(" ".join(tried.why.split()))
    why = why if len(why) <= _LONGEST else f"{why[: _LONGEST - 1]}…"
    name = shortened(visible_text(" ".join(tried.name.split())), _LONGEST)
    place = f"{describe_place(event)} ({why})" if why else describe_place(event)
    return ": ".join(filter(None, [name, place, found]))


def describe_place(event: events.VariantTried) -> str:
    """Return the outcome of a variant as long as the search runs."""
    speed = event.variant.speed
    # Noise can show as slower than the source what is faster than the leader before it.
    leads = event.leads and (speed is None or speed.ratio <= 1)
    return "the best so far" if leads else _PLACES.get(event.variant.outcome, event.variant.outcome)


def describe_step_end(event: events.StepFinished) -> str:
    """Describe the end of a step: `half: done in 0.82 s: fp16: 326 nodes`."""
    if event.outcome == "skipped":
        return f"{event.name}: skipped, {event.reason}"
    reused = event.reason if event.reason.startswith("reused") else "reused"
    how = reused if event.outcome == "reused" else f"{event.outcome} in {event.wall_s:.2f} s"
    if event.outcome in ("failed", "inconclusive") and event.reason == reused:
        how = f"{event.outcome} ({reused})"
    return f"{event.name}: {how}: {event.summary}"


class PrintedSteps:
    """Steps whose end was printed, each with its summary: the recipes of a proof repeat each other's steps."""

    def __init__(self) -> None:
        self._printed: set[tuple[str, str]] = set()

    def add(self, event: events.StepFinished) -> bool:
        """Return whether the end of a step is to be printed, and keep that it is."""
        is_repeated = event.outcome == "reused" and (event.name, event.summary) in self._printed
        self._printed.add((event.name, event.summary))
        return not is_repeated


def describe_failure(event: events.RunFailed) -> list[str]:
    """Describe a failed run: outcome, step and report. The error itself is printed last."""
    steps = f" in step {' and '.join(event.steps)}" if event.steps else ""
    return [f"{ENDINGS[event.outcome].headline} {event.run}{steps}", f"report {event.report}"]


def end_lines(event: events.RunFinished | events.SweepFinished, *, quiet: bool = False) -> list[str]:
    """Return the last lines of a run or a sweep: the verdict first, then the report and the results.

    `quiet` leaves only the verdict, what failed or stayed undecided, and the results; the report if there are none.
    """
    lines = _end_of_sweep(event) if isinstance(event, events.SweepFinished) else _end_of_run(event)
    if not quiet:
        return lines
    problems = [line for line in lines[1:] if line.startswith(("and ", "warning "))]
    results = [line for line in lines if line.startswith(("result ", "best "))]
    return [lines[0], *problems, *(results or lines[-1:])]


def _end_of_run(event: events.RunFinished) -> list[str]:
    verdict = [*event.verdict]
    if event.nothing_to_do:
        word = "passed" if event.passed else "was INCONCLUSIVE" if event.exit_code == 4 else "FAILED"
        why = verdict[0].partition(": ")[2] if verdict and not event.passed else ""
        head = f"nothing to do: run {event.run} has all of these results and {word}{why and f': {why}'}"
        verdict = [head, *(line for line in verdict[1:] if line.startswith(("and ", "warning ")))]
    results = (f"result {path} ({words})" for path, words in zip(event.exported, event.shipped, strict=True))
    return [*verdict, f"report {event.report}", *results]


def _end_of_sweep(event: events.SweepFinished) -> list[str]:
    verdict = [*event.verdict]
    if event.nothing_to_do:
        head = f"nothing to do: sweep {event.sweep} has all of these results"
        verdict = [head, event.verdict[0]]
    applied = [f"the best point's recipe: {event.applied}"] if event.applied else []
    return [*verdict, *applied, f"report {event.report}"]


def print_end(
    event: events.RunFinished | events.SweepFinished, *, quiet: bool = False, stream: IO[str] | None = None
) -> None:
    """Print the last lines of a run or a sweep, by default on standard output."""
    undecided = event.exit_code == 4 or (isinstance(event, events.SweepFinished) and event.too_noisy)
    tone = "yellow" if undecided else "green" if event.passed else "red"
    lines = format_end(end_lines(event, quiet=quiet), tone, stream or sys.stdout)
    print("\n".join(lines), file=stream, flush=True)


def _describe_wait(event: events.StepWaits) -> list[str]:
    return [f"{event.name}: waits for {event.waits_for}"]


def _describe_notice(event: events.Notice) -> list[str]:
    return [f"warning: {event.text}" if event.warning else event.text]


def describe_fetch(event: events.Fetching) -> str:
    """Describe the start of a fetch: `fetching https://example.org/m.onnx, 7.21 MiB`."""
    return f"fetching {event.source}, {'of unknown size' if event.size_bytes is None else size(event.size_bytes)}"


_LINES: Mapping[type[events.Event], Callable[[Any], list[str]]] = {
    events.PointFinished: lambda event: [f"point {event.number}: {event.outcome}: {describe_point(event)}"],
    events.VariantTried: lambda event: [describe_variant(event)] if event.variant.outcome != "cannot win" else [],
    events.StepWaits: _describe_wait,
    events.Notice: _describe_notice,
    events.RunFailed: describe_failure,
}
"""events.Event -> its lines, of those that are described alike in runs and in sweeps."""


class PlainLines:
    """Prints one line for each event that a reader of a log needs, and one each minute for the progress of a long step.

    Lines are not wrapped, so that a log can be searched. They go to `stream`, by default standard output.
    """

    def __init__(self, loudness: Loudness = "normal", stream: IO[str] | None = None) -> None:
        self._loudness, self._stream = loudness, stream
        self._sweeps = False
        self._places: dict[str, str] = {}
        """Step -> its position, `3 of 7`."""
        self._reported_s: dict[str, float] = {}
        """Step -> the time of its latest line (monotonic seconds)."""
        self._printed = PrintedSteps()
        self._fetched = ""
        """The source that is fetched, whose line is printed."""

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.RunFinished | events.SweepFinished):
            print_end(event, quiet=self._loudness == "quiet", stream=self._stream)
            return
        lines = self._problems(event) if self._loudness == "quiet" else self._describe(event)
        if lines:
            print("\n".join(lines), file=self._stream, flush=True)

    def _problems(self, event: events.Event) -> list[str]:
        if isinstance(event, events.Notice):
            return _describe_notice(event) if event.warning or event.waits else []
        if isinstance(event, events.StepWaits):
            return _describe_wait(event)
        if isinstance(event, events.StepFinished):
            return [] if event.outcome in ("done", "reused") or self._sweeps else [describe_step_end(event)]
        if isinstance(event, events.SweepStarted):
            self._sweeps = True
        return describe_failure(event) if isinstance(event, events.RunFailed) else []

    def _describe(self, event: events.Event) -> list[str]:
        if isinstance(event, events.SweepStarted):
            self._sweeps = True
            count = "" if event.point_count is None else f" of at most {event.point_count} points"
            return [f"{event.recipe}: sweep{count}, {event.method}"]
        if isinstance(event, events.Fetching):
            before, self._fetched = self._fetched, "" if event.finished else event.source
            return [] if before else [describe_fetch(event)]
        if isinstance(event, events.StepLogged):
            return [f"{event.name}: {event.text}"] if self._loudness == "verbose" else []
        if isinstance(event, events.VariantProgressed):
            return self._describe_race(event)
        if describe := _LINES.get(type(event)):
            return describe(event)
        return [] if self._sweeps else self._describe_step(event)  # a sweep may have thousands of steps

    def _describe_race(self, event: events.VariantProgressed) -> list[str]:
        """Return a line when the race first judges a model, the source, and then at most one in twenty seconds."""
        now_s, name = time.monotonic(), events.RACE
        is_first = name not in self._reported_s and event.doing == "judging"
        if event.doing == "ended" or not (is_first or now_s - self._reported_s.get(name, now_s) >= _RACE_EVERY_S):
            return []
        self._reported_s[name] = now_s
        return [f"{name}: {event.doing} {visible_text(event.variant) or 'the fastest variants in turns'}"]

    def _describe_step(self, event: events.Event) -> list[str]:
        if isinstance(event, events.RunStarted):
            self._places = {name: f"{index} of {len(event.steps)}" for index, name in enumerate(event.steps, 1)}
        elif isinstance(event, events.StepStarted):
            detail = f" ({event.detail})" if event.detail else ""
            lasts = f", about {seconds(event.expected_s)}" if event.expected_s is not None else ""
            self._reported_s[event.name] = time.monotonic()
            return [
                f"step {self._places[event.name]}, {event.name}: {event.step} starts{describe_target(event)}, "
                f"{event.reason}{detail}{lasts}"
            ]
        elif isinstance(event, events.StepFinished):
            return [describe_step_end(event)] if self._printed.add(event) else []
        elif isinstance(event, events.StepProgressed):
            now_s = time.monotonic()
            if now_s - self._reported_s.get(event.name, now_s) >= _REPORT_EVERY_S:
                self._reported_s[event.name] = now_s
                return [f"{event.name}: {event.what}"]
        return []
