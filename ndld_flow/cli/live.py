"""A run on a terminal: one line for each step, with a bar while it runs."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ndld_flow.cli.plain import MARKS as POINT_MARKS
from ndld_flow.cli.plain import describe_end, describe_failure, describe_point, describe_sweep_end
from ndld_flow.runner.events import (
    Event,
    Notice,
    PointFinished,
    RunFailed,
    RunFinished,
    RunStarted,
    StepFinished,
    StepProgressed,
    StepStarted,
    StepWaits,
    SweepFinished,
    SweepStarted,
)

MARKS = {
    "done": ("✓", "green"),
    "reused": ("=", "green"),
    "failed": ("✗", "red"),
    "inconclusive": ("?", "yellow"),
    "skipped": ("-", "yellow"),
}


class LiveDisplay:
    """A listener that draws a run's events; the lines of finished steps stay."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.width = 0
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[name]}", style="bold"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim"),
            console=self.console,
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}
        """Bars of the running steps; steps that take turns run at the same time."""
        self.points: TaskID | None = None
        """The bar of a sweep's points. In a sweep, points get lines, and their steps only bars."""
        self.point_count: int | None = None
        self._listeners: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._begin_run,
            Notice: self._say,
            StepWaits: self._wait,
            StepStarted: self._begin_step,
            StepProgressed: self._advance,
            StepFinished: self._end,
            RunFinished: self._conclude,
            RunFailed: self._fail,
            SweepStarted: self._begin_sweep,
            PointFinished: self._end_point,
            SweepFinished: self._conclude,
        }

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        listener = self._listeners.get(type(event))
        if listener is not None:
            listener(event)

    def _begin_run(self, event: RunStarted) -> None:
        self.width = max(len(name) for name in event.steps)

    def _say(self, event: Notice) -> None:
        self.console.print(Text(event.text, style="dim"))

    def _wait(self, event: StepWaits) -> None:
        self._begin(event.name, f"waits for {event.waits_for}")

    def _begin_step(self, event: StepStarted) -> None:
        detail = f" ({event.detail})" if event.detail else ""
        self._begin(event.name, f"{event.reason}{detail}")

    def _begin(self, name: str, what: str) -> None:
        self._remove(name)
        self.tasks[name] = self.progress.add_task(what, total=None, name=f"{name:<{self.width}}")

    def _advance(self, event: StepProgressed) -> None:
        if event.name in self.tasks:
            task, total = self.tasks[event.name], event.total or None
            self.progress.update(task, completed=event.done, total=total, description=event.what, refresh=False)

    def _remove(self, name: str) -> None:
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))

    def _begin_sweep(self, event: SweepStarted) -> None:
        self.points = self.progress.add_task(event.method, total=event.point_count, name="points")
        self.point_count = event.point_count

    def _end_point(self, event: PointFinished) -> None:
        for name in [name for name in self.tasks if name.endswith(f"#{event.number}")]:
            self._remove(name)
        if self.points is not None and not event.again:
            of = "" if self.point_count is None else f" of {self.point_count}"
            tried = self.progress.tasks[self.progress.task_ids.index(self.points)].completed + 1
            self.progress.update(self.points, completed=tried, description=f"{tried:.0f}{of} tried")
        mark, colour = POINT_MARKS[event.outcome]
        line = Text.assemble((f"{mark} ", colour), (f"{event.number:>4}", "bold"), f"  {describe_point(event)}")
        self.console.print(line, soft_wrap=True)

    def _end(self, event: StepFinished) -> None:
        self._remove(event.name)
        if self.points is not None:
            return
        mark, colour = MARKS[event.outcome]
        seconds = "" if event.outcome in ("reused", "skipped") else f"{event.wall_s:.2f} s"
        line = Text.assemble(
            (f"{mark} ", colour),
            (f"{event.name:<{self.width}}", "bold"),
            (f" {seconds:>9}  ", "dim"),
            event.summary or event.reason,
        )
        self.console.print(line, soft_wrap=True)

    def _fail(self, event: RunFailed) -> None:
        self.progress.stop()
        head, *rest = describe_failure(event)
        self.console.print(Text(head, style="bold red"), soft_wrap=True)
        for line in rest:
            self.console.print(Text(line), soft_wrap=True)

    def _conclude(self, event: RunFinished | SweepFinished) -> None:
        self.progress.stop()
        head, *rest = describe_end(event) if isinstance(event, RunFinished) else describe_sweep_end(event)
        self.console.print()
        colour = "green" if event.passed else "yellow" if event.exit_code == 4 else "red"
        self.console.print(Text(head, style=f"bold {colour}"), soft_wrap=True)
        for line in rest:
            self.console.print(Text(line), soft_wrap=True)
