"""What surrounds a step while it works: its log, its device, and its name on what goes wrong."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ndld_flow.artifacts.store import Store
from ndld_flow.errors import RequestError
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.runner.disk import explaining_disk


def step_logger(name: str) -> logging.Logger:
    """The logger of the step with a name, whose lines `working_steps` collects."""
    return logging.getLogger(f"ndld_flow.step.{name}")


@contextlib.contextmanager
def working_steps(
    steps: Sequence[RecipeStep], store: Store, folder: Path, tell: Callable[[str], None]
) -> Iterator[list[list[str]]]:
    """Hold what steps need alone while they build in `folder`, and collect the lines of each one's log.

    Several steps take turns on one device; `tell` says when they must wait for it. Raises what they raise, with their
    names; OutputsError when the disk is full or may not be written.
    """
    name = " and ".join(step.name for step in steps)
    with contextlib.ExitStack() as stack:
        stack.enter_context(explaining_disk(f"step {name}", store.root))
        stack.enter_context(_naming_step(name, folder))
        stack.enter_context(_holding(steps[0].step.device, tell))
        yield [stack.enter_context(_logging(step.name)) for step in steps]


@contextlib.contextmanager
def _naming_step(name: str, folder: Path) -> Iterator[None]:
    """Let errors say which step it was; what it was building is gone, so its path would only puzzle."""
    try:
        yield
    except RequestError as error:
        text = re.sub(rf"{re.escape(str(folder))}[/\\](\d+[/\\](out[/\\])?)?", "its ", str(error))
        raise type(error)(f"step {name}: {text.removeprefix(f'step {name}: ')}") from error


@contextlib.contextmanager
def _holding(device: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold a device alone against all measuring steps of this machine."""
    if not device:
        yield
        return
    from filelock import FileLock

    user = os.environ.get("USER") or os.environ.get("USERNAME") or "anyone"
    name = f"ndld_flow-{user}-{device.replace(os.sep, '-')}.lock"
    lock = FileLock(Path(tempfile.gettempdir()) / name)
    try:
        lock.acquire(blocking=False)
    except TimeoutError:
        tell(f"waits: another measurement holds the {device}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


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
