"""Messages between a driver and its workers: tasks and their answers, as JSON, one record per line.

They need no trust: a worker checks that the keys of a task are those of the same steps on its machine.
"""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError

from ndld_flow.base import errors
from ndld_flow.base.errors import BackendError, NdldFlowError, RecipeError, RequestError
from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.execution.keys import HIDDEN_VALUES, describe_key
from ndld_flow.inputs import InputSpec
from ndld_flow.processes.lines import Line
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.records.document import Count, Digest, Record
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.hidden_credentials import remembered_secrets
from ndld_flow.store.kinds import Artifact, known_kinds
from ndld_flow.store.store import Store

NO_ANSWER = "it sent what is no answer of this version of ndld-flow"


class Progressed(Line):
    """Progress of the step at a position in the task."""

    kind: Literal["progressed"] = "progressed"
    index: Count
    done: Count
    total: Count
    what: str


class Logged(Line):
    """A line of the log of the step at a position in the task."""

    kind: Literal["logged"] = "logged"
    index: Count
    text: str


class Waits(Line):
    """Another process is computing the same step, or holds its device."""

    kind: Literal["waits"] = "waits"
    name: str
    holder: str
    """A description of that process."""


class Started(Line):
    """All locks are held: the time limit starts here."""

    kind: Literal["started"] = "started"


class Done(Line):
    """The task is finished."""

    kind: Literal["done"] = "done"
    records: tuple[StepRecord, ...]


def find_error_class(name: str) -> type[NdldFlowError]:
    """Return a class of `ndld_flow.base.errors` by its name. Raises ValueError for any other name."""
    found = getattr(errors, name, None)
    if not isinstance(found, type) or not issubclass(found, NdldFlowError) or found is NdldFlowError:
        raise ValueError("not the name of an error")
    return found


def _check_error_class(name: str) -> str:
    find_error_class(name)
    return name


class Refused(Line):
    """The task, or another request, ended with an error that the user can fix."""

    kind: Literal["refused"] = "refused"
    error: Annotated[str, AfterValidator(_check_error_class)]
    """Name of its class in `ndld_flow.base.errors`."""
    text: str
    step: str = ""


class Failed(Line):
    """The task ended with a bug."""

    kind: Literal["failed"] = "failed"
    error: str
    text: str
    traceback: str


def describe_error(error: BaseException) -> Refused | Failed:
    """Return the message about an error, for a driver that may be another version and lack its class."""
    if not isinstance(error, NdldFlowError):
        return Failed(error=type(error).__name__, text=str(error), traceback=traceback.format_exc())
    if isinstance(error, RecipeError):  # it cannot be created from a string
        known = RequestError.__name__
    else:
        known = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    return Refused(error=known, text=error.message, step=error.step)


class Stopped(Line):
    """The task exceeded its time limit."""

    kind: Literal["stopped"] = "stopped"


class Died(Line):
    """The process that computed the task died."""

    kind: Literal["died"] = "died"
    text: str
    killed: bool
    """True if a signal ended it."""


class Alive(Line):
    """The sender still runs, without news: silence means that it, or the connection to it, has failed."""

    kind: Literal["alive"] = "alive"


News = Progressed | Logged | Waits
"""Reports of a task that has not ended."""
Report = Callable[[News], None]
Answer = Done | Refused | Failed
End = Answer | Stopped | Died
"""The end of a task: the worker's answer, or the worker's own end."""
Message = Annotated[Progressed | Logged | Waits | Started | Done | Refused | Failed, Field(discriminator="kind")]


_MESSAGES: TypeAdapter[Progressed | Logged | Waits | Started | Answer] = TypeAdapter(Message)


def read_message(line: bytes) -> Progressed | Logged | Waits | Started | Answer | None:
    """Return a worker's message; None for other text: a shell on another machine may print a greeting first."""
    try:
        message: Progressed | Logged | Waits | Started | Answer = _MESSAGES.validate_json(line)
    except ValidationError:
        return None
    return message


class ArtifactOrder(Record):
    """An artifact that a step reads."""

    kind: str
    label: str
    digest: Digest
    path: str
    """The main file; relative to the store if it is inside, since the store may have another path on another
    machine."""


class WorkOrder(Record):
    """A step with everything that it needs."""

    name: str
    step: str
    """The step type, as written in the recipe."""
    settings: dict[str, JsonValue]
    reads: dict[str, str]
    parts: KeyParts
    artifacts: dict[str, ArtifactOrder]
    inputs: dict[str, InputSpec]
    inputs_of: tuple[str, ...] = ()
    """The steps that have these inputs, for messages; none if they are the recipe's."""
    recipe: str


class TaskOrder(Line):
    """Steps to compute, their store, and the user's permissions."""

    works: tuple[WorkOrder, ...]
    fresh: bool
    timeout_s: float | None
    held: bool
    store: str
    directory: str
    """The user's current directory, to which the paths of data files in settings are relative."""
    step_files: tuple[str, ...]
    """Python files that define steps, in addition to the built-in and the installed ones."""
    trust: bool
    """True if the user allows these files, and the code that settings name."""
    secrets: Mapping[str, str]
    """Texts that are hidden in logs and records -> the environment variable that they come from."""


def write_order(task: Task, store: Store, *, trust: bool) -> TaskOrder:
    """Return a task as an order that `read_order` turns back into a task, here or elsewhere."""
    origins = (Path(work.step.type.origin) for work in task.works)
    return TaskOrder(
        works=tuple(
            WorkOrder(
                name=work.step.name,
                step=work.step.type.name,
                settings=work.step.step.model_dump(mode="json"),
                reads=work.step.reads,
                parts=work.parts,
                artifacts={key: _write_artifact(artifact, store) for key, artifact in work.artifacts.items()},
                inputs=dict(work.inputs),
                inputs_of=work.step.inputs_of,
                recipe=work.recipe,
            )
            for work in task.works
        ),
        fresh=task.fresh,
        timeout_s=task.timeout_s,
        held=task.held,
        store=str(store.root.absolute()),
        directory=str(Path.cwd()),
        step_files=tuple(dict.fromkeys(str(path) for path in origins if path.is_absolute())),
        trust=trust,
        secrets=remembered_secrets(),
    )


def _write_artifact(artifact: Artifact, store: Store) -> ArtifactOrder:
    path, root = artifact.path.absolute(), store.root.absolute()
    place = path.relative_to(root) if path.is_relative_to(root) else path
    return ArtifactOrder(kind=artifact.kind, label=artifact.label, digest=artifact.digest, path=place.as_posix())


def read_order(
    order: TaskOrder,
    store: Store,
    progress: Callable[[int, int, int, str], None],
    log: Callable[[int, str], None] = lambda index, line: None,
) -> Task:
    """Return the task of an order, after checking that its keys are those of the same steps on this machine.

    `progress(index, done, total, what)` and `log(index, line)` are called for the step at a position in the task.
    The current directory must be the order's `directory`. Raises RequestError for steps that are missing or not
    allowed, and BackendError if their keys differ here: another version of a library, another machine.
    """
    if order.step_files and not order.trust:
        raise RequestError(
            f"these steps come from {', '.join(order.step_files)}: read that code, then allow it with --trust."
        )
    types = StepTypes(tuple(Path(file) for file in order.step_files))
    works = [
        replace(_read_work(work, types, store, partial(progress, index), trust=order.trust), logged=partial(log, index))
        for index, work in enumerate(order.works)
    ]
    return Task(tuple(works), order.fresh, order.timeout_s, order.held)


def _read_work(
    order: WorkOrder, types: StepTypes, store: Store, progress: Callable[[int, int, str], None], *, trust: bool
) -> Work:
    step_type = types.find(order.step)
    if step_type is None:
        raise BackendError(
            f"{_here()} has no step type {order.step!r}. Install the package that defines it there.", step=order.name
        )
    settings = step_type.cls.model_validate_json(json.dumps(order.settings))
    step = RecipeStep(order.name, step_type, settings, order.reads, inputs_of=order.inputs_of)
    if not trust and step.step.named_code():
        raise RequestError("it runs code that the recipe names; allow it with --trust.", step=order.name)
    kinds = {kind.kind: kind for kind in known_kinds()}
    artifacts = {
        key: kinds.get(each.kind, step_type.cls.kinds()[0])(store.root / each.path, each.label, each.digest)
        for key, each in order.artifacts.items()
    }
    digests = {key: artifact.digest for key, artifact in artifacts.items()}
    _check_key(order, describe_key(step, digests, order.inputs, store))
    return Work(step, order.parts, artifacts, order.inputs, progress, order.recipe)


def _check_key(order: WorkOrder, here: KeyParts) -> None:
    """Raise BackendError if the step has another key here: a result must never be stored under a wrong key."""
    if HIDDEN_VALUES in order.parts.reads:
        # Another store has another salt, and another machine other secrets. The order has the true values.
        hidden = {HIDDEN_VALUES: order.parts.reads[HIDDEN_VALUES]}
        shown = {"settings": order.parts.settings, "inputs": order.parts.inputs}
        here = here.model_copy(update={"reads": here.reads | hidden, **shown})
    differing = _differences(order.parts.model_copy(update={"together": ()}), here)
    if differing:
        raise BackendError(
            f"{_here()} would not compute what was planned: {'; '.join(differing)}. Install the same versions "
            "and files there, or plan on a machine of that kind.",
            step=order.name,
        )


def _differences(asked: KeyParts, here: KeyParts) -> Sequence[str]:
    single = {
        "the step's version": (asked.version, here.version),
        **_changed(asked.libraries, here.libraries),
        "the machine": (asked.machine, here.machine),
    }
    reasons = [
        *(
            f"{name} is {mine or 'none'} instead of {meant or 'none'}"
            for name, (meant, mine) in single.items()
            if meant != mine
        ),
        *(f"its input `{name}` has other contents" for name in _changed(asked.reads, here.reads)),
        *(f"its setting `{name}` differs" for name in _changed(asked.settings, here.settings)),
        *(f"the input `{name}` differs" for name in _changed(asked.inputs, here.inputs)),
    ]
    return reasons or (["its key has other parts"] if asked != here else [])


def _changed(asked: Mapping[str, object], here: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    names = dict.fromkeys([*asked, *here])
    return {name: (asked.get(name), here.get(name)) for name in names if asked.get(name) != here.get(name)}


def _here() -> str:
    return f"the worker on {platform.node() or 'this machine'}"
