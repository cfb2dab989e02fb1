"""A run on a terminal: one line for each step, the working ones with a bar."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ndld_flow.cli.wording import describe_end
from ndld_flow.runner.events import (
    Event,
    RunFinished,
    RunStarted,
    Said,
    StepFinished,
    StepProgressed,
    StepStarted,
    StepWaits,
)

MARKS = {"done": ("✓", "green"), "reused": ("=", "green"), "failed": ("✗", "red"), "skipped": ("-", "yellow")}


class LiveDisplay:
    """Listens to a run's events and draws them; finished steps scroll up and stay."""

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
        """Bars of the steps at work; steps that take turns work at the same time."""

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.width = max(len(name) for name in event.steps)
        elif isinstance(event, Said):
            self.console.print(Text(event.text, style="dim"))
        elif isinstance(event, StepWaits):
            self._begin(event.name, event.waits_for)
        elif isinstance(event, StepStarted):
            detail = f" ({event.detail})" if event.detail else ""
            self._begin(event.name, f"{event.reason}{detail}")
        elif isinstance(event, StepProgressed):
            self._advance(event)
        elif isinstance(event, StepFinished):
            self._end(event)
        elif isinstance(event, RunFinished):
            self._conclude(event)

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

    def _end(self, event: StepFinished) -> None:
        self._remove(event.name)
        mark, colour = MARKS[event.outcome]
        seconds = "" if event.outcome in ("reused", "skipped") else f"{event.wall_s:.2f} s"
        line = Text.assemble(
            (f"{mark} ", colour),
            (f"{event.name:<{self.width}}", "bold"),
            (f" {seconds:>9}  ", "dim"),
            event.summary or event.reason,
        )
        self.console.print(line, soft_wrap=True)

    def _conclude(self, event: RunFinished) -> None:
        self.progress.stop()
        head, *rest = describe_end(event)
        self.console.print()
        self.console.print(Text(head, style="bold green" if event.passed else "bold red"), soft_wrap=True)
        for line in rest:
            self.console.print(Text(line), soft_wrap=True)
