"""What a step is: a frozen, strict, typed value with one method.

::

    class ConvertFp16(Step[Onnx, Onnx]):
        '''Convert a model to FP16.'''              # what `ndld-flow steps` shows

        libraries = ("onnx", "onnxruntime")           # their versions are part of the key

        keep_io: bool = True
        '''Keep the model's inputs and outputs in fp32.'''   # help, schema and README come from here

        def run(self, source: Onnx, out: Path, context: Context) -> Result:
            ...                                        # read source.path, write out / "model.onnx"

The file name is the word in the recipe. Discovery, help, schema, validation, keys and the contract tests need nothing
else.
"""

from __future__ import annotations

import enum
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel

from ndld_flow.base.declared_metrics import Returns, metrics
from ndld_flow.base.settings import Settings
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.versions import read_version
from ndld_flow.records.graph_change import GraphChange
from ndld_flow.records.metric import Metric
from ndld_flow.store.kinds import (
    AccuracyDocument,
    ActivationsDocument,
    Artifact,
    ComparisonDocument,
    Engine,
    LintDocument,
    Onnx,
    PrecisionDocument,
    ProfileDocument,
)

__all__ = [
    "AccuracyDocument",
    "ActivationsDocument",
    "Artifact",
    "ComparisonDocument",
    "Context",
    "DataFile",
    "Engine",
    "Foresight",
    "Held",
    "LintDocument",
    "Metric",
    "Onnx",
    "PrecisionDocument",
    "ProfileDocument",
    "Reads",
    "Result",
    "Returns",
    "Reuse",
    "RunsCode",
    "SampleData",
    "Step",
    "Turn",
    "metrics",
]

In = TypeVar("In", bound=Artifact)
Out = TypeVar("Out", bound=Artifact)
Mark = TypeVar("Mark")


class Reuse(enum.Enum):
    """Where the result of a step may be used again."""

    ANYWHERE = "anywhere"
    """A pure transform: the same on every machine."""
    THIS_MACHINE = "this_machine"
    """Engines, and numbers that depend on the kind of CPU and GPU: the same on every machine of a kind."""
    THIS_HOST = "this_host"
    """A measurement: for this host, with the same CPUs, limits, GPUs, power limits and variables."""
    SAME_KIND = "same_kind"
    """A measurement that holds for every host of the same kind under the same limits."""
    NEVER = "never"


@dataclass(frozen=True)
class Reads:
    """Marks a setting that names an earlier step (or `source`) whose artifact is read too.

    ``reference: Annotated[str, Reads(Onnx)] = "source"``; `run` gets it by `context.read("reference")`.
    """

    kind: type[Artifact]


@dataclass(frozen=True)
class DataFile:
    """Marks a setting that is a file's path, or several; their contents, not their names, are in the step's key."""


@dataclass(frozen=True)
class SampleData:
    """Marks a setting that is a mapping, input -> `Data`; of those that are files, contents and order are in the step's
    key."""


@dataclass(frozen=True)
class RunsCode:
    """Marks a setting that names code to run, such as a plugin library: a recipe that sets it needs `--trust`."""

    part: Callable[[Any], Any] = lambda value: value
    """What of the setting's value names code; empty where nothing does."""


@dataclass(frozen=True)
class Foresight:
    """What is known of a step before anything runs, from its settings and this machine alone."""

    notes: tuple[str, ...] = ()
    """What it would do here, for `plan`: `TensorRT 10.8: weakly typed; FP16, TF32`."""
    problems: tuple[str, ...] = ()
    """What is wrong with the settings for the libraries they are meant for, each with what to do."""
    lacks: tuple[str, ...] = ()
    """What this machine lacks for it, each with how to get it. A run that needs the step ends with these, and with the
    problems, before it begins."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        return (*self.problems, *self.lacks)

    def of_step(self, name: str) -> Foresight:
        """The same with the step's name in it, where steps can only say `steps.NAME`: they do not know theirs."""
        told = (self.notes, self.problems, self.lacks)
        return Foresight(*(tuple(each.replace("steps.NAME", f"steps.{name}") for each in some) for some in told))


@dataclass(frozen=True)
class Result:
    """What a step tells about its work besides the files it wrote."""

    summary: str
    """One line for people: `672 -> 326 nodes`."""
    passed: bool = True
    """False: the step failed, and the run ends with exit code 1."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that gates may name: each a `Metric`, such as `latency.median` -> 3.2 ms, or a plain number."""
    change: GraphChange | None = None
    """For steps that change a model; the runner counts nodes and weights where it is not told."""
    inconclusive: bool = False
    """With `passed` False: nothing failed, but a check could not be decided; the run ends with exit code 4."""


@dataclass(frozen=True)
class Context:
    """What a step may use of its surroundings."""

    name: str
    """The step's name in the recipe."""
    inputs: Mapping[str, InputSpec]
    """The recipe's `inputs:`, as far as `used_input` returns them."""
    artifacts: Mapping[str, Artifact]
    """Setting marked `Reads` -> the artifact it names."""
    scratch: Path
    """An empty folder on the same disk as the store, removed after the step."""
    log: logging.Logger
    """Goes to the step's log, not to the terminal."""
    progress: Callable[[int, int, str], None]
    """`progress(done, total, what)`, as often as wanted; total 0 means unknown."""
    caches: Path
    """A folder that lasts, shared by all runs of these outputs: for what only saves time, such as timing caches."""
    hold_device: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Hold a device, such as `cpu` or `gpu-0`, alone within the block: for a step that knows only from what it reads
    which device it measures. Others set `device`."""

    def read(self, setting: str) -> Artifact:
        """The artifact of the step that the setting names."""
        return self.artifacts[setting]


@dataclass(frozen=True)
class Turn:
    """One of the measuring steps that take turns, with all that `run` would get."""

    step: Any
    """The step, of the class whose `run_together` gets it."""
    source: Any
    """The artifact it reads."""
    out: Path
    context: Context


class Step(Settings, Generic[In, Out]):
    """Base of all steps: fields are settings, `run` does the work and nothing else.

    `Step[In, Out]` says which kind is read and which is made.
    """

    version: ClassVar[int] = 1
    """Raise it when the same settings would give another result than before."""
    reuse: ClassVar[Reuse] = Reuse.ANYWHERE
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version is part of the key."""
    read_key: ClassVar[str] = "from"
    """How a recipe calls what this step reads."""
    uses_inputs: ClassVar[bool] = False
    """True when the step reads the recipe's `inputs:`."""
    reads_first_sample: ClassVar[bool] = False
    """True when it reads no more than the first of the files that an input's `data:` means."""
    stops_run: ClassVar[bool] = False
    """True when nothing after this step makes sense once it has failed."""
    reads_through: ClassVar[tuple[str, ...]] = ()
    """Settings marked `Reads`, or `from`: what the steps that they name read is read too, as
    `context.read("base/from")`, so that this step can repeat what they did."""
    returns: ClassVar[tuple[Returns, ...] | None] = None
    """The metrics it returns (`declared_metrics.py`), by which gates are checked before anything runs. None: only the
    run tells, as of a step of a user's that declares nothing."""
    takes_turns: ClassVar[bool] = False
    """True for a measuring step: all of its type that a recipe has on one device go through `run_together`, so that
    the machine's drift hits them alike."""

    @abstractmethod
    def run(self, source: In, out: Path, context: Context) -> Result:
        """Read `source`, write the made kind's files into the empty folder `out`.

        Raises a `RequestError` when the model or the machine cannot do what the settings ask.
        """

    @classmethod
    def run_together(cls, turns: Sequence[Turn]) -> list[Result]:
        """Do several steps of this type; one that takes turns goes round and round them (A B A B ...)."""
        return [turn.step.run(turn.source, turn.out, turn.context) for turn in turns]

    def foresee(self) -> Foresight:
        """What these settings will do on this machine, or why they cannot. Cheap: every plan and run asks."""
        return Foresight()

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        """Return the part of an entry of the recipe's `inputs:` that this step reads with these settings: all of it,
        nothing (None), or such as `spec.shapes`. The step is given no more, and no more of it is in its key.
        """
        return spec if type(self).uses_inputs else None

    def reused_where(self) -> Reuse:
        """Where this step's result may be used again; by default what its class says."""
        return type(self).reuse

    def library_versions(self) -> dict[str, str]:
        """Libraries that shape the result -> their versions; by default those that the class names."""
        return {name: read_version(name) for name in type(self).libraries}

    def passed_variables(self) -> tuple[str, ...]:
        """Return the names of environment variables that shape the result by these settings; none by default."""
        return ()

    @classmethod
    def parts(cls) -> Mapping[str, type[BaseModel]]:
        """What its settings name besides settings, such as operations: `ndld-flow steps STEP.PART` explains one."""
        return {}

    @property
    def device(self) -> str:
        """A device this step measures and must hold alone, such as `cpu`; it may depend on settings."""
        return ""

    @classmethod
    def kinds(cls) -> tuple[type[Artifact], type[Artifact]]:
        """The kind this step reads and the kind it makes, from its header `Step[In, Out]`."""
        for base in cls.__mro__:
            metadata: dict[str, Any] = getattr(base, "__pydantic_generic_metadata__", {})
            if metadata.get("origin") is Step:
                reads, makes = metadata["args"]
                return reads, makes
        raise TypeError(f"{cls.__name__} must inherit from Step[In, Out], such as Step[Onnx, Onnx]")

    @classmethod
    def marked(cls, mark: type[Mark]) -> dict[str, Mark]:
        """Settings annotated with a mark (`Reads`, `DataFile`) -> that mark. Not those of nested settings."""
        return marked_settings(cls, mark)

    def held(self, mark: type[Mark]) -> list[Held[Mark]]:
        """Values of settings that have a mark, nested ones too; those that say nothing are left out."""
        return list(_held_in(self, mark, ()))

    def named_code(self) -> list[Held[RunsCode]]:
        """What of these settings names code to run: only a recipe that is trusted may have any."""
        named = (replace(held, value=held.mark.part(held.value)) for held in self.held(RunsCode))
        return [held for held in named if held.value]


@dataclass(frozen=True)
class Held(Generic[Mark]):
    """The value of a setting that has a mark."""

    place: tuple[str | int, ...]
    """Where it stands in the step's settings: `("operations", 3, "merge_model", "model")`."""
    mark: Mark
    value: Any
    """Never None, and never the setting's default."""

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.place))


def marked_settings(model: type[BaseModel], mark: type[Mark]) -> dict[str, Mark]:
    """Settings of a model annotated with a mark -> that mark."""
    return {name: found for name, marks in _annotations(model).items() for found in marks if isinstance(found, mark)}


@cache
def _annotations(model: type[BaseModel]) -> dict[str, list[object]]:
    """Settings of a model -> what their annotations hold besides types."""
    return {
        name: [*info.metadata, *(each for argument in get_args(info.annotation) for each in get_args(argument))]
        for name, info in model.model_fields.items()
    }


def _held_in(value: object, mark: type[Mark], place: tuple[str | int, ...]) -> Iterator[Held[Mark]]:
    if isinstance(value, BaseModel):
        marked = marked_settings(type(value), mark)
        for name, info in type(value).model_fields.items():
            inner = getattr(value, name)
            if name not in marked:
                yield from _held_in(inner, mark, (*place, name))
            elif inner is not None and inner != info.default:
                yield Held((*place, name), marked[name], inner)
    for key, inner in _parts(value):
        yield from _held_in(inner, mark, (*place, key))


def _parts(value: object) -> Iterator[tuple[str | int, object]]:
    """The items of a list, or the values of a mapping."""
    if isinstance(value, tuple | list):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), inner) for key, inner in value.items())
