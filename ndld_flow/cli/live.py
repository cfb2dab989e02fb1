"""A run on a terminal: a line for each finished step, above the running ones with their bars and the remaining time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ndld_flow.base.prompts import drawing
from ndld_flow.base.quantities import counted, rounded_seconds, size
from ndld_flow.base.text import visible_text
from ndld_flow.cli.plain import MARKS as POINT_MARKS
from ndld_flow.cli.plain import (
    PrintedSteps,
    describe_failure,
    describe_fetch,
    describe_place,
    describe_point,
    describe_target,
    print_end,
)
from ndld_flow.execution import events

MARKS = {
    "done": ("✓", "green"),
    "reused": ("=", "green"),
    "failed": ("✗", "red"),
    "inconclusive": ("?", "yellow"),
    "skipped": ("-", "yellow"),
}
_BAR_WIDTH = 20
_LEAST_SUMMARY = 30
"""Columns that a summary needs beside the step's name; in a narrower terminal it begins on the next line."""
_QUIET_S = 0.5
"""Seconds of work without a step before the display names it: a reused run must not flicker."""


@dataclass
class _Task:
    """A running step, or the points of a sweep."""

    what: str
    done: int = 0
    total: int | None = None
    started: float = field(default_factory=time.monotonic)


class LiveDisplay:
    """A listener that draws a run's events; the lines of finished steps stay."""

    def __init__(self, console: Console | None = None, *, verbose: bool = False) -> None:
        self.console = console or Console(highlight=False)
        self._verbose = verbose
        self._spinner = Spinner("dots")
        self._width = 0
        self._steps: tuple[str, ...] = ()
        self._ended: set[str] = set()
        self._printed = PrintedSteps()
        self._tasks: dict[str, _Task] = {}
        """The running steps; steps that take turns run at the same time."""
        self._fetch: _Task | None = None
        self._points: _Task | None = None
        """The points of a sweep, which get lines; their steps only get bars."""
        self._found_points: int | None = None
        """Points that finished before the first step started: their results were stored; None before that step."""
        self._computing = 0.0
        """Time at which the first step of the sweep started."""
        self._last_point = 0.0
        """Time at which the latest point finished."""
        self._variants: dict[str, events.VariantTried] = {}
        """The variants that `optimize` has tried."""
        self._start = self._changed = time.monotonic()
        self._remaining_s: float | None = None
        self._expected_s: float | None = None
        self._ends: float | None = None
        """Time at which the budget of `optimize` ends."""
        self._listeners: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._begin_run,
            events.Notice: self._print_notice,
            events.Fetching: self._show_fetch,
            events.StepWaits: self._wait,
            events.StepStarted: self._begin_step,
            events.StepProgressed: self._advance,
            events.StepLogged: self._print_log,
            events.StepFinished: self._end,
            events.RunFinished: self._conclude,
            events.RunFailed: self._fail,
            events.SweepStarted: self._begin_sweep,
            events.PointFinished: self._end_point,
            events.SweepFinished: self._conclude,
            events.VariantProgressed: self._race,
            events.VariantTried: self._rank_variant,
        }
        self._paused = False
        self._held = contextlib.ExitStack()
        self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        self._held.enter_context(drawing(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._held.close()

    def pause(self) -> None:
        """Remove the drawing, and stop until `resume`."""
        self._paused = self._live.is_started
        self._live.stop()

    def resume(self) -> None:
        """Draw again, unless the run has ended."""
        if self._paused:
            self._live.start()
        self._paused = False

    def _stop(self) -> None:
        self._paused = False
        self._live.stop()

    def refresh(self) -> None:
        """Draw the state now."""
        self._live.refresh()

    def __call__(self, event: events.Event) -> None:
        listener = self._listeners.get(type(event))
        if listener is not None:
            # Lines and the drawing below them are one text, which moves the cursor by the height of the last drawing:
            # the thread that draws must not write between.
            with self._live._lock:
                listener(event)

    def _begin_run(self, event: events.RunStarted) -> None:
        self._steps = event.steps
        self._ended.clear()
        self._width = max(map(cell_len, event.steps))

    def _print_notice(self, event: events.Notice) -> None:
        if event.warning:
            self._print(Text.assemble(("! ", "yellow"), event.text))
        else:
            self.console.print(Text(event.text, style="dim"), soft_wrap=True)

    def _show_fetch(self, event: events.Fetching) -> None:
        if self._fetch is None:
            self.console.print(Text(describe_fetch(event), style="dim"), soft_wrap=True)
            self._fetch = _Task("")
        self._fetch.done, self._fetch.total = event.done_bytes, event.size_bytes
        self._fetch.what = f"{size(event.done_bytes)} fetched"
        if event.finished:
            self._fetch = None
        self._changed = time.monotonic()

    def _print_log(self, event: events.StepLogged) -> None:
        if self._verbose:
            self.console.print(Text.assemble((f"  {event.name}: ", "dim"), event.text), soft_wrap=True)

    def _print(self, summary: Text, start: Text | None = None) -> None:
        """Print text whose lines are wrapped to the right of its start."""
        start = start or Text("")
        width = self.console.width - start.cell_len
        if start.cell_len and width < _LEAST_SUMMARY:
            self.console.print(start)
            start, width = Text("    "), self.console.width - 4
        lines = summary.wrap(self.console, max(width, 1))
        for number, line in enumerate(lines):
            self.console.print(Text.assemble(start if not number else " " * start.cell_len, line), soft_wrap=True)

    def _wait(self, event: events.StepWaits) -> None:
        task = _Task(f"waits for {event.waits_for}")
        before = self._tasks.get(event.name)
        if before is not None and before.what.startswith("waits for "):
            task.started = before.started  # the clock shows the whole wait
        if before is None or before.what != task.what:  # the row may be too narrow for the holder's name
            self.console.print(Text(f"{event.name}: {task.what}", style="dim"), soft_wrap=True)
        self._tasks[event.name] = task

    def _begin_step(self, event: events.StepStarted) -> None:
        detail = f" ({event.detail})" if event.detail else ""
        self._tasks[event.name] = _Task(f"starts{describe_target(event)}: {event.reason}{detail}")
        self._remaining_s, self._expected_s = event.remaining_s, event.expected_s
        self._changed = time.monotonic()
        if self._points is not None and self._found_points is None:
            self._found_points, self._computing = self._points.done, self._changed

    def _advance(self, event: events.StepProgressed) -> None:
        task = self._tasks.get(event.name)
        if task is not None:
            task.what, task.done, task.total = event.what, event.done, event.total or None

    def _begin_sweep(self, event: events.SweepStarted) -> None:
        self._points = _Task(event.method, total=event.point_count)

    def _end_point(self, event: events.PointFinished) -> None:
        for name in [name for name in self._tasks if name.endswith(f"#{event.number}")]:
            self._tasks.pop(name, None)
        if self._points is not None and not event.again:
            self._points.done += 1
            self._last_point = time.monotonic()
            of = "" if self._points.total is None else f" of {self._points.total}"
            self._points.what = f"{self._points.done}{of} tried"
        mark, colour = POINT_MARKS[event.outcome]
        self._print(Text(describe_point(event)), Text.assemble((f"{mark} ", colour), (f"{event.number:>4}  ", "bold")))

    def _race(self, event: events.VariantProgressed) -> None:
        self._changed = time.monotonic()
        self._ends = self._changed + event.left_s
        self._tasks.pop(events.RACE, None)
        if event.doing != "ended":
            variant = " ".join(visible_text(event.variant).split())
            self._tasks[events.RACE] = _Task(f"{event.doing} {variant or 'the fastest variants in turns'}")

    def _rank_variant(self, event: events.VariantTried) -> None:
        for name in [name for name, task in self._tasks.items() if task.what.startswith("waits for ")]:
            self._tasks.pop(name)  # variants are measured only while the device is held
        if event.leads:
            self._variants = {name: each.model_copy(update={"leads": False}) for name, each in self._variants.items()}
        self._variants[event.variant.name] = event
        self._changed = time.monotonic()

    def _end(self, event: events.StepFinished) -> None:
        self._tasks.pop(event.name, None)
        self._ended.add(event.name)
        self._changed = time.monotonic()
        if self._points is not None or not self._printed.add(event):
            return
        mark, colour = MARKS[event.outcome]
        took = "" if event.outcome in ("reused", "skipped") else f"{event.wall_s:.2f} s"
        name = event.name + " " * (self._width - cell_len(event.name))
        self._print(
            Text(event.summary or event.reason),
            Text.assemble((f"{mark} ", colour), (name, "bold"), (f" {took:>9}  ", "dim")),
        )

    def _fail(self, event: events.RunFailed) -> None:
        self._stop()
        head, *rest = describe_failure(event)
        self.console.print(Text(head, style="bold red"), soft_wrap=True)
        for line in rest:
            self.console.print(Text(line), soft_wrap=True)

    def _conclude(self, event: events.RunFinished | events.SweepFinished) -> None:
        self._stop()
        print(flush=True)
        print_end(event)

    def _render(self) -> RenderableType:
        """Return the running steps and the line below them; rich calls this ten times a second."""
        now = time.monotonic()
        running = list(self._tasks.items())
        if self._fetch is not None:
            running.append(("fetching", self._fetch))
        if self._points is not None:
            running.append(("points", self._points))
        rows = Table.grid(padding=(0, 1), expand=False)
        bar_width = _BAR_WIDTH if self.console.width >= 80 else _BAR_WIDTH // 2
        room = self.console.width - 1 - bar_width - len(_clock(0)) - 4  # of the name and the work, beside four gaps
        width = min(max([self._width, *(cell_len(name) for name, _ in running)]), max(16, room // 2))
        rows.add_column(width=1)
        rows.add_column(no_wrap=True, style="bold", width=width, overflow="ellipsis")
        rows.add_column(width=bar_width)
        rows.add_column(no_wrap=True, style="dim", min_width=len(_clock(0)))
        rows.add_column(no_wrap=True, style="dim", overflow="ellipsis", max_width=max(room - width, 8))
        for name, task in running:
            bar = ProgressBar(
                total=task.total, completed=task.done, pulse=task.total is None, animation_time=now - task.started
            )
            rows.add_row(self._spinner, name, bar, _clock(now - task.started), Text(task.what))
        lines: list[RenderableType] = [rows] if running else []
        if self._variants:
            height = self.console.height - len(running) - 3
            lines.insert(0, draw_variants(list(self._variants.values()), self.console.width, height))
        line = " · ".join(self._state(now, tuple(self._tasks)))
        return (
            Group(*lines, Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis")) if line else Group(*lines)
        )

    def _state(self, now: float, running: tuple[str, ...]) -> Iterator[str]:
        """Yield the parts of the line below the steps: `step 3 of 7`, time, remaining time."""
        if self._points is not None:
            yield _clock(now - self._start)
            yield from self._pace(self._points, now)
            return
        if not running:
            if now - self._changed >= _QUIET_S:
                yield from (self._between(), _clock(now - self._start))
            return
        places = [str(index) for index, name in enumerate(self._steps, 1) if name in running]
        if places:
            yield f"step{'s' if len(places) > 1 else ''} {' and '.join(places)} of {len(self._steps)}"
        elif self._variants:
            yield self._tried()
        yield _clock(now - self._start)
        yield self._remaining(now - self._changed)

    def _pace(self, points: _Task, now: float) -> Iterator[str]:
        """Yield the remaining time of a sweep whose number of points is known, once it has computed one.

        It takes the steps that all points share for a part of the first ones, so it is longer than the truth at first.
        """
        computed = points.done - self._found_points if self._found_points is not None else 0
        if not computed or points.total is None or points.done >= points.total:
            return
        each_s = (self._last_point - self._computing) / computed
        left = each_s * (points.total - points.done) - (now - self._last_point)
        yield f"at this pace about {rounded_seconds(left)} left" if left > 0 else "longer than at the pace so far"

    def _between(self) -> str:
        """Return the work between steps."""
        if self._variants and len(self._ended) == len(self._steps):
            return self._tried()
        if not self._steps:
            return "reading the recipe and its models"
        if len(self._ended) == len(self._steps):
            return "deciding the gates and writing the report"
        return "looking for stored results"

    def _tried(self) -> str:
        return f"{counted(sum(event.variant.is_tried for event in self._variants.values()), 'variant')} tried"

    def _remaining(self, since_s: float) -> str:
        """Return the remaining time, which is known if there is a budget or earlier runs did comparable work."""
        if self._ends is not None:
            left = self._ends - time.monotonic()
            return f"at most about {rounded_seconds(left)} left" if left > 0 else "the budget is used up"
        if self._remaining_s is not None:
            left = self._remaining_s - since_s
            return f"about {rounded_seconds(left)} left" if left > 0 else "longer than in earlier runs"
        if self._expected_s is not None and self._expected_s > since_s:
            return f"this step about {rounded_seconds(self._expected_s - since_s)} more, then unknown"
        return "remaining time unknown"


def _clock(elapsed_s: float) -> str:
    minutes, left = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}"


_RANKS = {
    "not proved": 1,
    "delivered": 1,
    "on the front": 1,
    "not the best": 2,
    "the same": 2,
    "not faster": 2,
    "near the bound": 3,
    "not judged": 3,
    "not found": 3,
    "not right on held-out data": 4,
    "not right": 4,
}
"""Outcome -> rank; others, such as `failed`, come last."""
_COLOURS = {1: "green", 3: "yellow", 4: "red"}
_LEADS, _LAST = 0, 5


def _rank(event: events.VariantTried) -> tuple[int, float]:
    """Return the key of the order: the leader, then those that are right, each the fastest first."""
    speed = event.variant.speed
    rank = _LEADS if event.leads else _RANKS.get(event.variant.outcome, _LAST)
    return rank, speed.ratio if speed is not None and speed.is_possible else float("inf")


def draw_variants(variants: Iterable[events.VariantTried], width: int, height: int) -> Table:
    """Return the table for a terminal of this size, with at least two lines; the best variants stay."""
    ordered = sorted(variants, key=_rank)
    room = max(height - 1, 1)
    shown = ordered if len(ordered) <= room else ordered[: max(room - 1, 0)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    table.add_column("  variant", no_wrap=True, overflow="ellipsis", max_width=min(44, max(18, width - 57)))
    table.add_column("vs source", no_wrap=True, justify="right", min_width=len("vs source"))
    table.add_column("accuracy", no_wrap=True, overflow="ellipsis", min_width=14, max_width=24)
    table.add_column("", no_wrap=True, overflow="ellipsis", min_width=len("the best so far"))
    for event in shown:
        rank, _ = _rank(event)
        tried, style = event.variant, "bold" if event.leads else "dim" if rank == _LAST else ""
        times = tried.speed.describe()[0] if tried.speed is not None and tried.speed.is_possible else ""
        name = Text(f"{'▸' if event.leads else ' '} {' '.join(visible_text(tried.name).split())}", style=style)
        place = Text(describe_place(event), style=_COLOURS.get(max(rank, 1), style))
        accuracy = "".join(tried.describe_accuracy()[:1])
        table.add_row(name, Text(times, style=style), Text(accuracy, style=style), place)
    if len(shown) < len(ordered):
        table.add_row(Text(f"  and {len(ordered) - len(shown)} more", style="dim"))
    return table
