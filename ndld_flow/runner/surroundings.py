"""What surrounds a step while it works: its log, its device, and its name on what goes wrong."""

from __future__ import annotations

import contextlib
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import KilledError, NdldFlowError
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.runner.beside import Lookout, announce
from ndld_flow.runner.device_locks import Claim, holding
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.store import Store


def step_logger(name: str) -> logging.Logger:
    """The logger of the step with a name, whose lines `working_steps` collects."""
    return logging.getLogger(f"ndld_flow.step.{name}")


@dataclass(frozen=True)
class StepAtWork:
    """A step, and where it works."""

    step: RecipeStep
    recipe: str
    store: Store
    folder: Path
    """Where it builds."""
    tell: Callable[[str], None]
    """Hears what it waits for."""


@dataclass(frozen=True)
class Surroundings:
    """What steps have around them while they work."""

    logs: Sequence[Sequence[str]]
    """The lines of each step's log so far."""
    lookout: Lookout | None
    """Looks who else is at work, where a device is measured."""

    def end_watch(self) -> tuple[str, ...]:
        """What else was at work beside a measurement, in words; nothing of steps that measure nothing."""
        return self.lookout.end() if self.lookout is not None else ()


@contextlib.contextmanager
def working_steps(
    steps: Sequence[RecipeStep], recipe: str, store: Store, folder: Path, tell: Callable[[str], None]
) -> Iterator[Surroundings]:
    """Hold what steps need alone while they build in `folder`, and collect the lines of each one's log.

    Several steps take turns on one device; `tell` says when they must wait for it. Raises what they raise, with their
    names; OutputsError when the disk is full or may not be written.
    """
    name, device = " and ".join(step.name for step in steps), steps[0].step.device
    with contextlib.ExitStack() as stack:
        stack.enter_context(explaining_disk(f"step {name}", store.root))
        stack.enter_context(_naming_step(name, folder))
        claim = Claim(f"step {name}{f' of {recipe}' if recipe else ''}", tell)
        faults = stack.enter_context(holding(device, store, claim))
        logs = [stack.enter_context(_logging(step.name)) for step in steps]
        for fault in faults:
            step_logger(steps[0].name).warning("%s", fault)
        announce(steps, recipe, folder)
        lookout = Lookout(store, folder) if device else None
        if lookout is not None:
            stack.callback(lookout.end)
        yield Surroundings(logs, lookout)


@contextlib.contextmanager
def holding_device(work: StepAtWork, device: str) -> Iterator[None]:
    """Hold a device alone for a step that knows only from what it reads which one it measures.

    Its log gets what was wrong with the lock, and the other work of ndld_flow that ran on this machine meanwhile.
    """
    log = step_logger(work.step.name)
    claim = Claim(f"step {work.step.name}{f' of {work.recipe}' if work.recipe else ''}", work.tell)
    with holding(device, work.store, claim) as faults:
        for fault in faults:
            log.warning("%s", fault)
        lookout = Lookout(work.store, work.folder)
        try:
            yield
        finally:
            for other in lookout.end():
                log.info("concurrent: %s", other)


@contextlib.contextmanager
def _naming_step(name: str, folder: Path) -> Iterator[None]:
    """Let errors say which step it was, and no credentials: points of a sweep keep them.

    What it was building is gone, so its path would only puzzle.
    """
    try:
        yield
    except MemoryError as error:
        raise KilledError(
            f"step {name}: it ran out of memory. Free some, raise this process's limit, or give the step less to hold."
        ) from error
    except NdldFlowError as error:
        text = re.sub(rf"{re.escape(str(folder))}[/\\](\d+[/\\](out[/\\])?)?", "its ", hide_credentials(str(error)))
        raise error.with_text(f"step {name}: {text.removeprefix(f'step {name}: ')}") from error


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.start = time.perf_counter()

    def emit(self, record: logging.LogRecord) -> None:
        seconds = time.perf_counter() - self.start
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        self.lines.append(f"{seconds:8.3f} s  {level}{record.getMessage()}")


@contextlib.contextmanager
def _logging(name: str) -> Iterator[list[str]]:
    """Collect what the step, and Python's warnings during it, have to say."""
    handler = _Lines()
    logger = step_logger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield handler.lines
        finally:
            handler.lines += [f"warning: {note.category.__name__}: {note.message}" for note in caught]
            logger.removeHandler(handler)
