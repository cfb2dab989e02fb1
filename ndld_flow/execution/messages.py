"""Messages between a driver and its workers: tasks and their answers, as JSON, one record per line.

They need no trust: a worker checks that the keys of a task are those of the same steps on its machine. For machines
that do not see this one's files, everything that a task reads becomes an artifact in the store.
"""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError

from ndld_flow.base import errors
from ndld_flow.base.errors import BackendError, NdldFlowError, RecipeError, RequestError
from ndld_flow.base.places import put_value
from ndld_flow.base.text import short_name
from ndld_flow.base.user_code import UserCode, find_code, list_files
from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.execution.keys import HIDDEN_VALUES, describe_key
from ndld_flow.inputs import Data, InputSpec, names_one_file, patterns_of
from ndld_flow.models.external_files import external_files
from ndld_flow.processes.lines import Line
from ndld_flow.recipe.recipe import RecipeStep, name_files
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.records.document import Count, Digest, Record
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord, KeyParts
from ndld_flow.records.run_record import StepRecord
from ndld_flow.step import DataFile, SampleData
from ndld_flow.store.digest import describe_files, describe_folder
from ndld_flow.store.files import copy_file
from ndld_flow.store.found_files import find_files
from ndld_flow.store.hidden_credentials import remembered_secrets
from ndld_flow.store.kinds import Artifact, Onnx, known_kinds
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


@dataclass(frozen=True)
class Transfer:
    """A task as an order that refers only to files in the store."""

    order: TaskOrder
    artifacts: Sequence[ArtifactRecord]
    """All artifacts to which the order refers."""
    originals: Mapping[str, str]
    """Path of a copy in the store -> the path that the user wrote."""

    def restore_names(self, text: str, store: str) -> str:
        """Return a message with the user's own paths instead of those in the copy of the store at `store`."""
        for copied, original in self.originals.items():
            text = text.replace(store + copied.removeprefix(self.order.store), original)
        return text


def transfer_files(task: Task, store: Store, *, trust: bool) -> Transfer:
    """Return a task as an order that refers only to files in the store.

    Models, data files and steps' files outside of the store are copied into it. Raises RequestError for one that cannot
    be read, or has changed.
    """
    collector = _Collector(store)
    works = tuple(replace(work, artifacts=collector.collect_artifacts(work.artifacts)) for work in task.works)
    order = write_order(replace(task, works=works), store, trust=trust)
    transferred = order.model_copy(
        update={
            "works": tuple(
                _transfer_data(each, work, collector) for each, work in zip(order.works, works, strict=True)
            ),
            "step_files": tuple(collector.collect_code(find_code(Path(path))) for path in order.step_files),
        }
    )
    return Transfer(transferred, list(collector.artifacts.values()), collector.originals)


@dataclass
class _Collector:
    """Collects the artifacts that a task reads, in the store."""

    store: Store
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict)
    """By digest."""
    originals: dict[str, str] = field(default_factory=dict)

    def collect_artifacts(self, artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
        return {name: self._collect_artifact(artifact) for name, artifact in artifacts.items()}

    def collect_file(self, path: Path, beside: Mapping[str, Path] = {}) -> str:
        """Return the path of a file in the store, kept with further files next to it."""
        record = self._keep("file", {**beside, path.name: path.absolute()})
        copied = str(self.store.object_folder(record.digest).absolute() / path.name)
        self.originals[copied] = str(path)
        return copied

    def collect_code(self, code: UserCode) -> str:
        """Return the path of a user's Python file in the store, with its folder and the modules from elsewhere."""
        files = list_files(code.path)
        for name, module in code.elsewhere.items():
            place = name.replace(".", "/")
            files[f"{place}/__init__.py" if module.name == "__init__.py" else f"{place}{module.suffix}"] = module
        return self.collect_file(code.path, files)

    def collect_samples(self, data: Data) -> Data:
        """Return the same data with all files in the store, in folders that keep their labels."""
        patterns = patterns_of(data)
        if not patterns:
            return data
        if isinstance(data, str) and names_one_file(data):
            return self.collect_file(Path(data))
        files = find_files(patterns)
        record = self._keep("files", {name: path for file in files for name, path in file.contents.items()})
        folder = self.store.object_folder(record.digest).absolute()
        self.originals |= {str(folder / name): str(path) for file in files for name, path in file.contents.items()}
        return tuple(str(folder / file.label) for file in files)

    def _collect_artifact(self, artifact: Artifact) -> Artifact:
        if artifact.path.absolute().is_relative_to(self.store.root.absolute()):
            self._add(describe_folder(artifact.kind, artifact.folder, self.store.digests.digest))
            return artifact
        names = {Onnx.main: artifact.path} | {
            PurePosixPath(name).as_posix(): artifact.folder / name for name in external_files(artifact.path)
        }
        record = self._keep(artifact.kind, names)
        if record.digest != artifact.digest:
            raise RequestError(f"model {artifact.path}: it changed during the run. Run again.")
        return replace(artifact, path=self.store.object_folder(record.digest) / Onnx.main)

    def _keep(self, kind: str, paths: Mapping[str, Path]) -> ArtifactRecord:
        """Store files as an artifact, given their names in it, unless the store has it."""
        try:
            record = describe_files(
                kind,
                (
                    ArtifactFile(path=name, digest=self.store.digests.digest(path), size_bytes=path.stat().st_size)
                    for name, path in paths.items()
                ),
            )
            if not self.store.is_intact(record):
                with self.store.building() as folder:
                    for name, path in paths.items():
                        copy_file(path, folder / "carried" / name)
                    record = self.store.keep(kind, folder / "carried")
        except ValueError:
            names = ", ".join(map(short_name, list(paths)[:3]))
            raise RequestError(
                f"the files {names} cannot be sent: a name has a backslash or a drive, is too long, or is that of a "
                "folder of another. Rename them."
            ) from None
        except FileNotFoundError as error:
            raise RequestError(f"the file {error.filename} no longer exists: it did when the run started.") from None
        self._add(record)
        return record

    def _add(self, record: ArtifactRecord) -> None:
        self.artifacts[record.digest] = record


def _transfer_data(order: WorkOrder, work: Work, collector: _Collector) -> WorkOrder:
    """Return the order of a step with its data files in the store."""
    settings: dict[str, JsonValue] = order.model_dump(mode="json")["settings"]
    codes = work.step.code()
    for held in work.step.step.held(DataFile):
        transferred = [
            collector.collect_code(codes[name]) if name in codes else collector.collect_file(Path(path))
            for name, path in name_files(held).items()
        ]
        put_value(settings, held.place, transferred if isinstance(held.value, tuple) else transferred[0])
    for samples in work.step.step.held(SampleData):
        transferred_data = {name: collector.collect_samples(data) for name, data in samples.value.items()}
        put_value(settings, samples.place, transferred_data)
    inputs = {}
    for name, spec in work.step.used_inputs(order.inputs).items():
        tokenizer = None if spec.tokenizer is None else collector.collect_file(Path(spec.tokenizer))
        changed = {"data": collector.collect_samples(spec.data), "tokenizer": tokenizer}
        inputs[name] = spec.model_copy(update=changed)
    return order.model_copy(update={"settings": settings, "inputs": inputs})


def move_order(line: str, store: Store) -> TaskOrder:
    """Return the order of a line with the paths in its own store replaced by those in another one."""
    order = TaskOrder.from_line(line)
    return TaskOrder.from_line(json.dumps(_replace_start(json.loads(line), order.store, str(store.root))))


def _replace_start(value: JsonValue, old: str, new: str) -> JsonValue:
    if isinstance(value, dict):
        return {name: _replace_start(inner, old, new) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replace_start(inner, old, new) for inner in value]
    if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
        return new + value[len(old) :]
    return value
