"""Run steps: lock their device, log, build in a temporary folder, check the results and write them to the store."""

from __future__ import annotations

import contextlib
import logging
import numbers
import re
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from ndld_flow.base.errors import KilledError, NdldFlowError, RequestError
from ndld_flow.base.imported_modules import ImportedCode, unseen_modules, use_modules
from ndld_flow.base.text import short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import ModelSource, RecipeStep
from ndld_flow.recipe.sources import find_model
from ndld_flow.records.graph_change import GraphChange
from ndld_flow.records.metric import Metric
from ndld_flow.records.step_record import KeyParts, StepRecord
from ndld_flow.runner.concurrent_load import Lookout, announce
from ndld_flow.runner.device_locks import Claim, holding
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.keys import HIDDEN_VALUES, describe_key, make_key
from ndld_flow.step import Context, Result, Turn
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.kinds import Artifact, Onnx
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


@dataclass(frozen=True)
class Work:
    """A step with all it needs."""

    step: RecipeStep
    parts: KeyParts
    artifacts: Mapping[str, Artifact]
    """What is read (`from`, `reference`, ...) -> the artifact."""
    inputs: Mapping[str, InputSpec]
    progress: Callable[[int, int, str], None]
    recipe: str = ""
    """Whose step it is, for those who wait for it or see it at work."""
    logged: Callable[[str], None] = lambda line: None
    """Gets each line of the step's log as it is written: what is known of a step that never ends well."""

    @property
    def source(self) -> Artifact:
        return self.artifacts[self.step.type.cls.read_key]


@dataclass(frozen=True)
class _Sitting:
    """When steps that took turns, or one, worked."""

    started_at: datetime
    ended_at: datetime
    share_s: float
    beside: tuple[str, ...]


@dataclass(frozen=True)
class _Done:
    """What a step came to, before it is kept."""

    result: Result
    log: Sequence[str]
    """Its lines; keeping may add some."""
    sitting: _Sitting


def execute_steps(
    works: Sequence[Work], store: Store, tell_begin: Callable[[], None] = lambda: None
) -> list[StepRecord]:
    """Run a step, or several that take turns, and keep what they made; `tell_begin` hears when their device is held.

    Those that took turns have the same `started_at` and `ended_at`, and equal shares of the time; waiting for the
    device is not counted. Raises what the steps raise, and OutputsError when the disk is full or may not be written.
    """
    with store.building() as folder:
        wait = partial(works[0].progress, 0, 0)
        turns = [
            _prepare(work, folder / str(place), store, StepAtWork(work.step, work.recipe, store, folder, wait))
            for place, work in enumerate(works)
        ]
        steps = [work.step for work in works]
        with _hearing_logs(works), working_steps(steps, works[0].recipe, store, folder, wait) as around:
            tell_begin()
            use_modules(works[0].step.type.code or ImportedCode(), alone=True)
            before = set(sys.modules)
            started_at, start = datetime.now(UTC), time.perf_counter()
            results = works[0].step.type.cls.run_together(turns)
            took_s = time.perf_counter() - start
            _check_results(works, results)
            for work in works:
                _refuse_changed(work, store)
                _warn_of_unseen(work, before)
            ended_at = started_at + timedelta(seconds=took_s)  # the clock may have been set meanwhile
            sitting = _Sitting(started_at, ended_at, took_s / len(works), around.end_watch())
            records = [
                _keep(work, turn.out, _Done(result, lines, sitting), store)
                for work, turn, result, lines in zip(works, turns, results, around.logs, strict=True)
            ]
            for record in records:
                store.write_record(record)
    return records


def _check_results(works: Sequence[Work], results: object) -> None:
    """Raise RequestError, with the step's name, for what a step must not return: it may be anybody's code."""
    if not isinstance(results, list | tuple) or len(results) != len(works):
        names = ", ".join(work.step.name for work in works)
        raise RequestError(
            f"step {works[0].step.name}: `run_together` returned {_name_value(results)} for the {len(works)} steps "
            f"{names}, and must return a list with a Result for each."
        )
    for work, result in zip(works, results, strict=True):
        wrong = _find_wrong(result)
        if wrong:
            kind = work.step.type
            raise RequestError(f"step {work.step.name}: `{kind.name}` ({kind.origin}) returned {wrong}.")


def _find_wrong(result: object) -> str:
    """Return what is wrong with what a step returned; empty where nothing is."""
    if not isinstance(result, Result):
        return f'{_name_value(result)} instead of a Result: end `run` with `return Result("a line for people")`'
    if not isinstance(result.summary, str):
        return f"a Result whose summary is {_name_value(result.summary)} instead of a text"
    if not isinstance(result.passed, bool):
        return f"a Result whose `passed` is {_name_value(result.passed)} instead of True or False"
    if not isinstance(result.metrics, Mapping):
        return f"a Result whose metrics are {_name_value(result.metrics)} instead of a mapping of names to numbers"
    for name, metric in result.metrics.items():
        if not isinstance(name, str) or not name:
            return f"a metric whose name is {_name_value(name)} instead of a text"
        if not isinstance(metric, Metric | numbers.Real):
            return f"the metric {short_name(name)!r} as {_name_value(metric)} instead of a number"
    return ""


def _name_value(value: object) -> str:
    """`None`, `3 (int)`, `'text' (str)`, in a few characters; what cannot be shown by its type alone."""
    try:
        shown = short_name(repr(value), 80)
    except Exception:  # it is whoever wrote the step who wrote its `repr`
        shown = "a value"
    return shown if value is None else f"{shown} ({type(value).__name__})"


def _refuse_changed(work: Work, store: Store) -> None:
    """Raise RequestError where a file that a step read is no longer what its key says.

    It may have changed before the step read it, as the step may have waited for its device.
    """
    digests = {name: artifact.digest for name, artifact in work.artifacts.items()}
    now = describe_key(work.step, digests, work.inputs, store).reads
    changed = [name for name, digest in work.parts.reads.items() if name != HIDDEN_VALUES and now.get(name) != digest]
    changed += [name for name, artifact in work.artifacts.items() if _is_changed_model(artifact, store)]
    if changed:
        raise RequestError(
            f"step {work.step.name}: {', '.join(changed)} changed while it worked, so it is unknown what it read. Its "
            "result is not kept: run again."
        )


def _warn_of_unseen(work: Work, before: Collection[str]) -> None:
    """Log the modules that the step's code imported and that are not in its key."""
    code = work.step.imported()
    unseen = unseen_modules(before, code.values()) if code else []
    if unseen:
        step_logger(work.step.name).warning(
            "%s: imported in a way that the source does not show, so that a change in it is not noticed: import it by "
            "its name, or run the step again with --force after a change",
            ", ".join(unseen),
        )


def _is_changed_model(artifact: Artifact, store: Store) -> bool:
    """Return whether a model that lies outside of the store has other contents than at the start of the run."""
    if not isinstance(artifact, Onnx) or artifact.path.absolute().is_relative_to(store.root.absolute()):
        return False
    return find_model(ModelSource(source=str(artifact.path)), store, lambda _: None).record.digest != artifact.digest


@contextlib.contextmanager
def _hearing_logs(works: Sequence[Work]) -> Iterator[None]:
    """Pass each line of the steps' logs on as it is written."""
    with contextlib.ExitStack() as stack:
        for work in works:
            logger, passing = step_logger(work.step.name), _PassingOn(work.logged)
            logger.addHandler(passing)
            stack.callback(logger.removeHandler, passing)
        yield


class _PassingOn(logging.Handler):
    def __init__(self, logged: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        self._logged(f"{level}{record.getMessage()}")


def _prepare(work: Work, folder: Path, store: Store, at_work: StepAtWork) -> Turn:
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    scratch.mkdir()
    context = Context(
        name=work.step.name,
        inputs=work.step.used_inputs(work.inputs),
        artifacts=work.artifacts,
        scratch=scratch,
        log=step_logger(work.step.name),
        progress=work.progress,
        caches=store.caches,
        hold_device=partial(holding_device, at_work),
    )
    return Turn(work.step.step, work.source, out, context)


def _keep(work: Work, out: Path, done: _Done, store: Store) -> StepRecord:
    made, result = work.step.type.cls.kinds()[1], done.result
    if not (out / made.main).is_file():
        raise RequestError(
            f"step {work.step.name}: `{work.step.type.name}` ({work.step.type.origin}) says it makes "
            f"{made.kind} but wrote no {made.main}. Write it to `out / {made.main!r}`."
        )
    artifact = store.keep(made.kind, out, step_logger(work.step.name).warning)
    kept = made(store.object_folder(artifact.digest) / made.main, work.step.name, artifact.digest)
    return StepRecord(
        key=make_key(work.parts),
        parts=work.parts,
        parents=work.step.own_reads,
        artifact=artifact,
        passed=result.passed,
        inconclusive=result.inconclusive,
        summary=hide_credentials(result.summary),
        metrics={
            name: metric if isinstance(metric, Metric) else Metric(value=float(metric))
            for name, metric in result.metrics.items()
        },
        change=result.change or _describe_change(work, kept),
        log=hide_credentials("\n".join(done.log)),
        started_at=done.sitting.started_at,
        ended_at=done.sitting.ended_at,
        wall_s=done.sitting.share_s,
        beside=done.sitting.beside,
    )


def _describe_change(work: Work, made: Artifact) -> GraphChange | None:
    """What a step that changes a model did to it, where the step does not tell by itself."""
    if work.step.type.cls.kinds() != (Onnx, Onnx):
        return None
    from ndld_flow.models.files import describe_change

    return describe_change(work.source.path, made.path)
