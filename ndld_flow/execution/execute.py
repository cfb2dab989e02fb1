"""Run steps: lock their device, log, build in a temporary folder, check the results and write them to the store."""

from __future__ import annotations

import contextlib
import logging
import numbers
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from ndld_flow.base.declared_metrics import find_unit
from ndld_flow.base.errors import KilledError, NdldFlowError, RequestError, naming_step
from ndld_flow.base.text import short_name
from ndld_flow.base.user_code import unseen_modules, user_imports
from ndld_flow.execution.devices import Claim, DeviceHold, LoadMonitor, announce, holding
from ndld_flow.execution.keys import HIDDEN_VALUES, NEXT_TO, describe_key, make_key
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import ModelSource, RecipeStep
from ndld_flow.recipe.sources import find_model
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.records.measurement import Metric
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.run_record import StepRecord
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.step import Context, Result, Turn
from ndld_flow.store.hidden_credentials import hide_credentials
from ndld_flow.store.kinds import Artifact, Onnx
from ndld_flow.store.store import Store

_NOT_ALONE = "others may have measured on its device at the same time: %s"


def step_logger(name: str) -> logging.Logger:
    """Return the logger of a step, whose lines `running_steps` collects."""
    return logging.getLogger(f"ndld_flow.step.{name}")


@dataclass(frozen=True)
class RunningStep:
    """A running step and its folders."""

    step: RecipeStep
    recipe: str
    store: Store
    folder: Path
    """Its build folder."""
    report: Callable[[str], None]
    """Called with the reason why it waits."""
    faults: list[str] = field(default_factory=list)
    """Reasons why others may have measured at the same time on a device that it locked itself."""


@dataclass(frozen=True)
class StepScope:
    """The logs, the load monitor and the device of running steps."""

    logs: Sequence[Sequence[str]]
    """The lines of each step's log so far."""
    monitor: LoadMonitor | None
    """Observes other steps while a device is measured."""
    hold: DeviceHold

    def concurrent_load(self) -> tuple[str, ...]:
        """Return descriptions of the concurrent steps of a measurement; empty for steps that do not measure."""
        return self.monitor.end() if self.monitor is not None else ()

    def faults(self, step: RunningStep) -> tuple[str, ...]:
        """Return the reasons why others may have measured at the same time on the device of a step."""
        return (*self.hold.faults, *step.faults)


@contextlib.contextmanager
def running_steps(works: Sequence[Work], store: Store, folder: Path) -> Iterator[StepScope]:
    """Lock the device of steps while they build in `folder`, and collect the lines of each step's log.

    Several steps take turns on one device; the first one's `progress` is called when they must wait for it. Raises the
    steps' errors with their names; OutputsError if the disk is full or cannot be written.
    """
    steps, recipe = [work.step for work in works], works[0].recipe
    names, device = [step.name for step in steps], steps[0].step.device
    name = " and ".join(names)
    with contextlib.ExitStack() as stack:
        stack.enter_context(naming_step(name))
        stack.enter_context(explaining_disk("", store.root))
        stack.enter_context(_cleaning_errors(names, folder))
        claim = Claim(f"step {name}{f' of {recipe}' if recipe else ''}", partial(works[0].progress, 0, 0))
        hold = stack.enter_context(holding(device, store, claim))
        logs = [stack.enter_context(_logging(work)) for work in works]
        for fault in hold.faults:
            step_logger(steps[0].name).warning(_NOT_ALONE, fault)
        announce(steps, recipe, folder)
        monitor = LoadMonitor(store, folder) if device else None
        if monitor is not None:
            stack.callback(monitor.end)
        yield StepScope(logs, monitor, hold)


@contextlib.contextmanager
def holding_device(work: RunningStep, device: str) -> Iterator[None]:
    """Lock a device for a step that knows only from its inputs which one it measures.

    Problems with the lock, and other ndld_flow steps that ran on this machine at the same time, are written to its log.
    """
    log = step_logger(work.step.name)
    claim = Claim(f"step {work.step.name}{f' of {work.recipe}' if work.recipe else ''}", work.report)
    with holding(device, work.store, claim) as hold:
        monitor = LoadMonitor(work.store, work.folder)
        try:
            yield
        finally:
            for other in monitor.end():
                log.info("concurrent: %s", other)
            for fault in hold.faults:
                log.warning(_NOT_ALONE, fault)
            work.faults.extend(hold.faults)


@contextlib.contextmanager
def _cleaning_errors(names: Sequence[str], folder: Path) -> Iterator[None]:
    """Remove credentials from the errors of steps, which points of a sweep record, and add the names of the steps.

    The path of the build folder is removed too: the folder no longer exists.
    """
    name = " and ".join(names)
    try:
        yield
    except MemoryError as error:
        text = "it ran out of memory. Free some, raise this process's limit, or reduce the step's data."
        raise KilledError(text, step=name) from error
    except NdldFlowError as error:
        is_named = error.step in (name, *names)  # a comparison of profiles reports the step whose model it measures
        text = hide_credentials(error.message if is_named else str(error))
        text = re.sub(rf"{re.escape(str(folder))}[/\\](\d+[/\\](out[/\\])?)?", "its ", text)
        raise error.with_text(text, error.step if is_named else name) from error


class _Lines(logging.Handler):
    """Collects lines with their times, and passes them on as they are written."""

    def __init__(self, logged: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self._logged = logged
        self._start = time.perf_counter()

    def emit(self, record: logging.LogRecord) -> None:
        seconds = time.perf_counter() - self._start
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        line = f"{level}{record.getMessage()}"
        self.lines.append(f"{seconds:8.3f} s  {line}")
        self._logged(line)


@contextlib.contextmanager
def _logging(work: Work) -> Iterator[list[str]]:
    """Collect the log of a step, and Python's warnings during it."""
    handler = _Lines(work.logged)
    logger = step_logger(work.step.name)
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
    """A step with everything that it needs."""

    step: RecipeStep
    parts: KeyParts
    artifacts: Mapping[str, Artifact]
    """Key (`from`, `reference`, ...) -> artifact that is read."""
    inputs: Mapping[str, InputSpec]
    progress: Callable[[int, int, str], None]
    recipe: str = ""
    """Name of the recipe, for processes that wait for the step or see it running."""
    logged: Callable[[str], None] = lambda line: None
    """Called with each line of the step's log as it is written, so that the log of a failed step is known."""

    @property
    def source(self) -> Artifact:
        return self.artifacts[self.step.type.cls.read_key]


@dataclass(frozen=True)
class _Finished:
    """The result of a step before it is stored."""

    result: Result
    log: Sequence[str]
    """Its lines; storing the result may add some."""
    shared_device: tuple[str, ...]
    started_at: datetime
    ended_at: datetime
    share_s: float
    """Its share of the time, if several ran together."""
    concurrent: tuple[str, ...]


def execute_steps(
    works: Sequence[Work], store: Store, report_start: Callable[[], None] = lambda: None
) -> list[StepRecord]:
    """Run a step, or several in turns, and store their results; `report_start` is called when their device is locked.

    Steps that ran in turns have the same `started_at` and `ended_at`, and equal shares of the time; waiting for the
    device is not counted. Raises the steps' errors, and OutputsError if the disk is full or cannot be written.
    """
    with store.building() as folder:
        wait = partial(works[0].progress, 0, 0)
        running = [RunningStep(work.step, work.recipe, store, folder, wait) for work in works]
        turns = [_prepare_turn(work, folder / str(index), store, running[index]) for index, work in enumerate(works)]
        with (
            _naming_artifacts(works, store),
            running_steps(works, store, folder) as scope,
            user_imports(works[0].step.type.code),
        ):
            report_start()
            started_at, start = datetime.now(UTC), time.perf_counter()
            results = works[0].step.type.cls.run_together(turns)
            took_s = time.perf_counter() - start
            _check_results(works, results)
            for work in works:
                _refuse_changed(work, store)
                _warn_of_unseen(work)
            ended_at = started_at + timedelta(seconds=took_s)  # the system clock may have been set in the meantime
            timing = (started_at, ended_at, took_s / len(works), scope.concurrent_load())
            records = [
                _store_result(work, turn.out, _Finished(result, lines, scope.faults(each), *timing), store)
                for work, turn, result, lines, each in zip(works, turns, results, scope.logs, running, strict=True)
            ]
            for record in records:
                store.write_record(record)
    return records


@contextlib.contextmanager
def _naming_artifacts(works: Sequence[Work], store: Store) -> Iterator[None]:
    """Replace paths of the store in errors by the step that produced the artifact: `model.onnx of step half`; and
    places in the recipe's `inputs:` by those of the step's own.
    """
    try:
        yield
    except NdldFlowError as error:
        failed = next((work.step for work in works if work.step.name == error.step), works[0].step)
        text = failed.locate_inputs(error.message)
        for artifact in (artifact for work in works for artifact in work.artifacts.values()):
            if artifact.path.is_relative_to(store.root):
                origin = "the source" if artifact.label == "source" else f"step {artifact.label}"
                text = text.replace(str(artifact.path), f"{artifact.path.name} of {origin}")
        if text == error.message:
            raise
        raise error.with_text(text, error.step) from error


def _check_results(works: Sequence[Work], results: object) -> None:
    """Raise RequestError, with the step's name, for an invalid result: steps may be user code."""
    if not isinstance(results, list | tuple) or len(results) != len(works):
        names = ", ".join(work.step.name for work in works)
        raise RequestError(
            f"`run_together` returned {_name_value(results)} for the {len(works)} steps {names}, and must return a "
            "list with a Result for each.",
            step=works[0].step.name,
        )
    for work, result in zip(works, results, strict=True):
        wrong = _find_wrong(result)
        if wrong:
            kind = work.step.type
            raise RequestError(f"`{kind.name}` ({kind.origin}) returned {wrong}.", step=work.step.name)


def _find_wrong(result: object) -> str:
    """Return what is wrong with a step's result; empty if nothing is."""
    if not isinstance(result, Result):
        return f'{_name_value(result)} instead of a Result: end `run` with `return Result("a summary line")`'
    if not isinstance(result.summary, str):
        return f"a Result whose summary is {_name_value(result.summary)} instead of a string"
    if not isinstance(result.passed, bool):
        return f"a Result whose `passed` is {_name_value(result.passed)} instead of True or False"
    if not isinstance(result.metrics, Mapping):
        return f"a Result whose metrics are {_name_value(result.metrics)} instead of a mapping of names to numbers"
    for name, metric in result.metrics.items():
        if not isinstance(name, str) or not name:
            return f"a metric whose name is {_name_value(name)} instead of a string"
        if not isinstance(metric, Metric | numbers.Real):
            return f"the metric {short_name(name)!r} as {_name_value(metric)} instead of a number"
    return ""


def _name_value(value: object) -> str:
    """Return `None`, `3 (int)`, `'text' (str)`, in a few characters; only the type if `repr` fails."""
    try:
        shown = short_name(repr(value), 80)
    except Exception:  # `repr` may be user code
        shown = "a value"
    return shown if value is None else f"{shown} ({type(value).__name__})"


def _refuse_changed(work: Work, store: Store) -> None:
    """Raise RequestError if a file that a step read has changed since its key was computed.

    It may have changed before the step read it, as the step may have waited for its device.
    """
    digests = {name: artifact.digest for name, artifact in work.artifacts.items()}
    now = describe_key(work.step, digests, work.inputs, store).reads
    before = work.parts.reads
    # A file that has appeared next to its code counts too: it may have come before the step read the folder.
    changed = [name for name in {**before, **now} if name != HIDDEN_VALUES and now.get(name) != before.get(name)]
    changed += [name for name, artifact in work.artifacts.items() if _is_changed_model(artifact, store)]
    if changed:
        own = any(NEXT_TO in name for name in changed)
        hint = " If it writes next to its own file, let it write elsewhere." if own else ""
        raise RequestError(
            f"what it reads changed while it ran: {', '.join(changed)}. Its inputs are unknown, so its result was "
            f"discarded. Run again.{hint}",
            step=work.step.name,
        )


def _warn_of_unseen(work: Work) -> None:
    """Log the modules that the step's code imported but that are not part of its key."""
    unseen = unseen_modules(work.step.code())
    if unseen:
        step_logger(work.step.name).warning(
            "%s: imported from another folder while it ran, so changes to it are not detected: import it at the top "
            "of the file, or run the step with --force after a change",
            ", ".join(unseen),
        )


def _is_changed_model(artifact: Artifact, store: Store) -> bool:
    """Return whether a model outside of the store has changed since the start of the run."""
    if not isinstance(artifact, Onnx) or artifact.path.absolute().is_relative_to(store.root.absolute()):
        return False
    return find_model(ModelSource(source=str(artifact.path)), store, lambda _: None).record.digest != artifact.digest


def _prepare_turn(work: Work, folder: Path, store: Store, at_work: RunningStep) -> Turn:
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


def _store_result(work: Work, out: Path, finished: _Finished, store: Store) -> StepRecord:
    output, result = work.step.type.cls.kinds()[1], finished.result
    if not (out / output.main).is_file():
        raise RequestError(
            f"`{work.step.type.name}` ({work.step.type.origin}) declares the output {output.kind} but wrote no "
            f"{output.main}. Write it to `out / {output.main!r}`.",
            step=work.step.name,
        )
    artifact = store.keep(output.kind, out, step_logger(work.step.name).warning)
    kept = output(store.object_folder(artifact.digest) / output.main, work.step.name, artifact.digest)
    return StepRecord(
        key=make_key(work.parts),
        parts=work.parts,
        parents=work.step.own_reads,
        artifact=artifact,
        passed=result.passed,
        inconclusive=result.inconclusive,
        summary=hide_credentials(result.summary),
        metrics={
            name: metric
            if isinstance(metric, Metric)
            else Metric(value=float(metric), unit=find_unit(name, work.step.type.cls.returns))
            for name, metric in result.metrics.items()
        },
        change=result.change or _describe_change(work, kept),
        log=hide_credentials("\n".join(finished.log)),
        started_at=finished.started_at,
        ended_at=finished.ended_at,
        wall_s=finished.share_s,
        concurrent=finished.concurrent,
        shared_device=finished.shared_device,
    )


def _describe_change(work: Work, output: Artifact) -> GraphChange | None:
    """Return the change of a model by a step that does not describe it itself."""
    if work.step.type.cls.kinds() != (Onnx, Onnx):
        return None
    from ndld_flow.models.files import describe_change

    return describe_change(work.source.path, output.path)
