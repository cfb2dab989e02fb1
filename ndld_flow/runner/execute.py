"""Do one step's work: build aside, check, put into the store, write its record."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ndld_flow.artifacts.kinds import Artifact
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import NdldFlowError, OutputsError, RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.step_record import KeyParts, StepRecord
from ndld_flow.runner.keys import make_key
from ndld_flow.step import Context, Result

FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
ALMOST_NOTHING_BYTES = 2**20


@dataclass(frozen=True)
class Work:
    """A step with all it needs."""

    step: RecipeStep
    parts: KeyParts
    artifacts: Mapping[str, Artifact]
    """What is read (`from`, `reference`, ...) -> the artifact."""
    inputs: Mapping[str, InputSpec]
    progress: Callable[[int, int, str], None]


def execute_step(work: Work, store: Store) -> StepRecord:
    """Run a step and keep what it made.

    Raises what the step raises, and OutputsError when the disk is full or may not be written.
    """
    started_at, start = datetime.now(UTC), time.perf_counter()
    with store.building() as folder:
        out, scratch = folder / "out", folder / "scratch"
        out.mkdir()
        scratch.mkdir()
        with (
            _explaining_disk(work.step.name, store),
            _naming_step(work.step.name, folder),
            _holding(work.step.step.device),
            _logging(work) as lines,
        ):
            result = _run(work, out, scratch)
            artifact = store.keep(work.step.type.cls.kinds()[1].kind, out)
            record = StepRecord(
                key=make_key(work.parts),
                parts=work.parts,
                parents=dict(work.step.reads),
                artifact=artifact,
                passed=result.passed,
                summary=result.summary,
                metrics=dict(result.metrics),
                change=result.change,
                log="\n".join(lines),
                started_at=started_at,
                wall_s=time.perf_counter() - start,
            )
            store.write_record(record)
    return record


def _run(work: Work, out: Path, scratch: Path) -> Result:
    cls = work.step.type.cls
    context = Context(
        name=work.step.name,
        inputs=work.inputs,
        artifacts=work.artifacts,
        scratch=scratch,
        log=logging.getLogger(f"ndld_flow.step.{work.step.name}"),
        progress=work.progress,
    )
    result = work.step.step.run(work.artifacts[cls.read_key], out, context)
    main = cls.kinds()[1].main
    if not (out / main).is_file():
        raise RequestError(
            f"step {work.step.name}: `{work.step.type.name}` ({work.step.type.origin}) says it makes "
            f"{cls.kinds()[1].kind} but wrote no {main}. Write it to `out / {main!r}`."
        )
    return result


@contextlib.contextmanager
def _naming_step(name: str, folder: Path) -> Iterator[None]:
    """Let a step's errors say which step it was; what it was building is gone, so its path would only puzzle."""
    try:
        yield
    except RequestError as error:
        text = str(error).replace(f"{folder / 'out'}{os.sep}", "its ").replace(f"{folder}{os.sep}", "")
        raise type(error)(f"step {name}: {text.removeprefix(f'step {name}: ')}") from error


@contextlib.contextmanager
def _explaining_disk(name: str, store: Store) -> Iterator[None]:
    """Turn a full or read-only disk into words. Libraries hide its errno, so the free space is asked too."""
    try:
        yield
    except NdldFlowError as error:
        if _is_full(store):
            raise _full(name, store) from error
        raise
    except OSError as error:
        if error.errno in FULL_DISK or _is_full(store):
            raise _full(name, store) from error
        if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise OutputsError(
                f"step {name}: {error.filename or store.root} cannot be written: {error.strerror}. "
                "Choose another folder with --outputs."
            ) from error
        raise
    except Exception as error:
        if _is_full(store):
            raise _full(name, store) from error
        raise


def _is_full(store: Store) -> bool:
    return shutil.disk_usage(store.root).free < ALMOST_NOTHING_BYTES


def _full(name: str, store: Store) -> OutputsError:
    return OutputsError(
        f"step {name}: the disk of {store.root} is full. What was finished is kept; free some space "
        "(`ndld-flow gc` removes what no run needs) and run again."
    )


@contextlib.contextmanager
def _holding(device: str) -> Iterator[None]:
    """Hold a device alone against all measuring steps of this machine."""
    if not device:
        yield
        return
    from filelock import FileLock

    user = os.environ.get("USER") or os.environ.get("USERNAME") or "anyone"
    name = f"ndld_flow-{user}-{device.replace(os.sep, '-')}.lock"
    with FileLock(Path(tempfile.gettempdir()) / name):
        yield


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
def _logging(work: Work) -> Iterator[list[str]]:
    """Collect what the step, and Python's warnings during it, have to say."""
    handler = _Lines()
    logger = logging.getLogger(f"ndld_flow.step.{work.step.name}")
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
