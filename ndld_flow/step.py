"""The step: a frozen, strict, typed value with one method.

::

    class ConvertFp16(Step[Onnx, Onnx]):
        '''Convert a model to FP16.'''              # shown by `ndld-flow steps`

        libraries = ("onnx", "onnxruntime")           # their versions are part of the key

        keep_io: bool = True
        '''Keep the model's inputs and outputs in fp32.'''   # help, schema and reference come from here

        def run(self, source: Onnx, out: Path, context: Context) -> Result:
            ...                                        # read source.path, write out / "model.onnx"

The file name is the step's name in recipes. Discovery, help, schema, validation, keys and the contract tests need
nothing else.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import BaseModel

from ndld_flow.base.declared_metrics import Returns, metrics
from ndld_flow.base.settings import Settings, fields_of, values_of
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.host import Reuse
from ndld_flow.machine.operator_libraries import using_libraries
from ndld_flow.machine.versions import read_version
from ndld_flow.records.measurement import Metric
from ndld_flow.store.kinds import Artifact

if TYPE_CHECKING:
    import logging

    from ndld_flow.records.model_diff import GraphChange

__all__ = [
    "Context",
    "DataFile",
    "Foresight",
    "Held",
    "Metric",
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


@dataclass(frozen=True)
class Reads:
    """Marks a setting that names an earlier step (or `source`) whose artifact the step reads too.

    ``reference: Annotated[str, Reads(Onnx)] = "source"``; `run` gets it from `context.read("reference")`.
    """

    kind: type[Artifact]


@dataclass(frozen=True)
class DataFile:
    """Marks a setting that holds one or more file paths; the files' contents, not their names, are part of the step's
    key.
    """


@dataclass(frozen=True)
class SampleData:
    """Marks a setting that maps inputs to `Data`; contents and order of files are part of the step's key."""

    replaces_inputs: bool = True
    """Its keys are inputs whose own `data` the step does not read; false for a mapping of other names."""


@dataclass(frozen=True)
class RunsCode:
    """Marks a setting that names code to run, such as a plugin library: a recipe that sets it needs `--trust`."""

    part: Callable[[Any], Any] = lambda value: value
    """Returns the part of the value that names code; empty if it names none."""


@dataclass(frozen=True)
class Foresight:
    """Facts about a step before anything runs, from its settings and this machine alone."""

    notes: tuple[str, ...] = ()
    """Its work on this machine, for `plan`: `TensorRT 10.8: weakly typed; FP16, TF32`."""
    problems: tuple[str, ...] = ()
    """Conflicts of the settings with the chosen libraries, each with a remedy."""
    lacks: tuple[str, ...] = ()
    """Requirements missing on this machine, each with the way to get it. A run that needs the step ends with these
    and the problems before it starts."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        return (*self.problems, *self.lacks)

    def of_step(self, name: str) -> "Foresight":
        """Return the same with `steps.NAME` replaced by the step's name, which steps themselves do not know."""
        groups = (self.notes, self.problems, self.lacks)
        return Foresight(*(tuple(each.replace("steps.NAME", f"steps.{name}") for each in group) for group in groups))


@dataclass(frozen=True)
class Result:
    """The outcome of a step besides the files it wrote."""

    summary: str
    """A summary of one line: `672 -> 326 nodes`."""
    passed: bool = True
    """False: the step failed, and the run ends with exit code 1."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Numbers that gates may name, such as `latency.median` -> 3.2: each in the unit that `returns` declares, or a
    `Metric` with another."""
    change: "GraphChange | None" = None
    """The change of a model; the runner counts nodes and weights where a step leaves it out."""
    inconclusive: bool = False
    """With `passed` False: nothing failed, but a check was undecided; the run ends with exit code 4."""


@dataclass(frozen=True)
class Context:
    """The resources and inputs of a step while it runs."""

    name: str
    """The step's name in the recipe."""
    inputs: Mapping[str, InputSpec]
    """The parts of the recipe's `inputs:` that `used_input` returned."""
    artifacts: Mapping[str, Artifact]
    """Setting marked `Reads` -> artifact of the step that it names."""
    scratch: Path
    """An empty folder on the same disk as the store, removed after the step."""
    log: "logging.Logger"
    """Writes to the step's log, not to the terminal."""
    progress: Callable[[int, int, str], None]
    """Reports progress as `progress(done, total, what)`; a total of 0 means unknown."""
    caches: Path
    """A persistent folder shared by all runs of these outputs, for data that only saves time, such as timing caches."""
    hold_device: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Hold a device, such as `cpu` or `gpu-0`, exclusively within the block: for steps that learn only from their
    input which device they measure. Others set `device`."""

    def read(self, setting: str) -> Artifact:
        """Return the artifact of the step that the setting names."""
        return self.artifacts[setting]

    def log_lines(self, *lines: str) -> None:
        """Write lines to the step's log."""
        for line in lines:
            self.log.info("%s", line)


@dataclass(frozen=True)
class Turn:
    """One of the measuring steps that take turns, with the arguments of its `run`."""

    step: Any
    """The step, of the class whose `run_together` is called."""
    source: Any
    """The artifact it reads."""
    out: Path
    context: Context


class Step(Settings, Generic[In, Out]):
    """Base class of all steps: its fields are settings, `run` does the work.

    `Step[In, Out]` names the kinds of artifact that are read and written.
    """

    version: ClassVar[int] = 1
    """Increase it when the same settings would give a different result than before."""
    reuse: ClassVar[Reuse] = Reuse.ANYWHERE
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions whose version is part of the key."""
    also_called: ClassVar[tuple[str, ...]] = ()
    """Words of other tools for such a step, in small letters and digits only, for the hint of an unknown type."""
    read_key: ClassVar[str] = "from"
    """The recipe key that names the artifact read."""
    uses_inputs: ClassVar[bool] = False
    """True if the step reads the recipe's `inputs:`, or its own."""
    keeps_inputs: ClassVar[bool] = False
    """True if the model that it produces has the inputs of the one that it reads, under the same names."""
    sets_shapes: ClassVar[bool] = False
    """True if its `inputs:` are the shapes that its result is to accept, whatever those of the model are."""
    runs_sequences: ClassVar[bool] = False
    """True if it runs inputs with `from:` step by step; other steps that read their values are refused."""
    stops_run: ClassVar[bool] = False
    """True if later steps are pointless after this one has failed."""
    retries_undecided: ClassVar[bool] = False
    """True if an inconclusive result is computed again, because it depends on the time that the step had."""
    adds_no_quantization: ClassVar[bool] = False
    """True for a step on models whose result has QuantizeLinear nodes only if its source has."""
    reads_through: ClassVar[tuple[str, ...]] = ()
    """Settings marked `Reads`, or `from`, whose steps' own inputs are read too, as `context.read("base/from")`, so
    that this step can repeat their work."""
    returns: ClassVar[tuple[Returns, ...] | None] = None
    """The metrics it returns (`declared_metrics.py`), against which gates are checked before anything runs. None:
    known only after a run, as for a user's step that declares none."""
    takes_turns: ClassVar[bool] = False
    """True for a measuring step: all steps of its type on one device run through `run_together`, so that drift of
    the machine affects them equally."""

    @abstractmethod
    def run(self, source: In, out: Path, context: Context) -> Result:
        """Read `source` and write the files of the output kind into the empty folder `out`.

        Raises a `RequestError` if the model or the machine does not support the settings.
        """

    @classmethod
    def run_together(cls, turns: Sequence[Turn]) -> list[Result]:
        """Run several steps of this type; a step that takes turns cycles through them (A B A B ...).

        An error of one of them has its name: `RequestError("...", step=turn.context.name)`.
        """
        results = []
        for turn in turns:
            with using_libraries(turn.step.operator_libraries):
                results.append(turn.step.run(turn.source, turn.out, turn.context))
        return results

    @property
    def operator_libraries(self) -> tuple[str, ...]:
        """Return absolute paths of libraries with custom operators, which ONNX Runtime loads to examine models."""
        return ()

    def foresee(self) -> Foresight:
        """Return notes on the work on this machine, or obstacles. It must be cheap: every plan and run calls it."""
        return Foresight()

    def foresee_model(self, model: Path, requested: frozenset[str]) -> tuple[str, ...]:
        """Return problems with the model that this step will read, each with a remedy; it must be cheap as well.

        `requested` are the precisions that steps which have not run yet will request of its nodes.
        It is called if `examines_model` is true and the model is known before the run; steps with
        `adds_no_quantization` may still change it.
        """
        return ()

    @property
    def requested_precisions(self) -> frozenset[str]:
        """Return the precisions that the step requests of nodes, in metadata that engines obey; it must be cheap."""
        return frozenset()

    @property
    def keeps_values(self) -> bool:
        """Return True if the outputs of its model have the values of those that it reads, but for rounding."""
        return False

    def after(self, between: "Sequence[Step[Any, Any]]") -> Self:
        """Return the step with what follows from the steps between its `reference` and what it reads."""
        return self

    def for_engine(self) -> Self:
        """Return the step for a recipe that builds an engine of its result, or of what others make of that."""
        return self

    @property
    def calibrates(self) -> bool:
        """Return True if its result is fitted to its samples, so that a check needs others."""
        return False

    @property
    def examines_model(self) -> bool:
        """Return whether `foresee_model` finds problems with these settings."""
        return False

    @property
    def for_inspection(self) -> bool:
        """Return True if its result only serves to inspect it, and is not exported; it may depend on settings."""
        return False

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        """Return the part of an entry of the recipe's `inputs:` that this step reads with these settings.

        It may be all of it, nothing (None), or a part such as `spec.shapes`. The step gets only that, and only that is
        part of its key.
        """
        return spec if type(self).uses_inputs else None

    @classmethod
    def may_read_inputs(cls) -> bool:
        """Return True if the step reads inputs, with some of its settings at least."""
        return cls.uses_inputs or cls.used_input is not Step.used_input

    def reused_where(self) -> Reuse:
        """Return where this step's result may be reused; by default the class's `reuse`."""
        return type(self).reuse

    def library_versions(self) -> dict[str, str]:
        """Return libraries that determine the result -> their versions; by default those of the class."""
        return {name: read_version(name) for name in type(self).libraries}

    def samples_read(self) -> int | None:
        """Return how many of the files that an input's `data:` names it reads, the first ones; None for all."""
        return None

    def passed_variables(self) -> tuple[str, ...]:
        """Return the names of environment variables that determine the result with these settings; none by default."""
        return ()

    @classmethod
    def parts(cls) -> Mapping[str, type[BaseModel]]:
        """Return named parts of its settings, such as operations, which `ndld-flow steps STEP.PART` explains."""
        return {}

    @property
    def device(self) -> str:
        """Return the device that this step measures and holds exclusively, such as `cpu`; it may depend on settings."""
        return ""

    @classmethod
    def kinds(cls) -> tuple[type[Artifact], type[Artifact]]:
        """Return the kinds read and written, from the header `Step[In, Out]`."""
        for base in cls.__mro__:
            metadata: dict[str, Any] = getattr(base, "__pydantic_generic_metadata__", {})
            if metadata.get("origin") is Step:
                reads, writes = metadata["args"]
                return reads, writes
        raise TypeError(f"{cls.__name__} must inherit from Step[In, Out], such as Step[Onnx, Onnx]")

    @classmethod
    def marked(cls, mark: type[Mark]) -> dict[str, Mark]:
        """Return settings annotated with a mark (`Reads`, `DataFile`) -> that mark, without those of nested
        settings.
        """
        return marked_settings(cls, mark)

    def held(self, mark: type[Mark]) -> "list[Held[Mark]]":
        """Return the values of settings that have a mark, nested ones included, except unset ones."""
        return list(_held_in(self, mark, ()))

    def named_code(self) -> "list[Held[RunsCode]]":
        """Return the settings that name code to run, which needs a trusted recipe."""
        named = (replace(held, value=held.mark.part(held.value)) for held in self.held(RunsCode))
        return [held for held in named if held.value]


@dataclass(frozen=True)
class Held(Generic[Mark]):
    """The value of a setting that has a mark."""

    place: tuple[str | int, ...]
    """Path of the setting in the step: `("operations", 3, "merge_model", "model")`."""
    mark: Mark
    value: Any
    """Never None, and never the setting's default."""

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.place))


def marked_settings(model: type[BaseModel], mark: type[Mark]) -> dict[str, Mark]:
    """Return the settings of a model annotated with a mark -> that mark."""
    return {name: found for name, marks in _annotations(model).items() for found in marks if isinstance(found, mark)}


@cache
def _annotations(model: type[BaseModel]) -> dict[str, list[object]]:
    """Return the settings of a model whose annotations have metadata -> those."""
    found = {
        name: [*info.metadata, *(each for argument in get_args(info.annotation) for each in get_args(argument))]
        for name, info in fields_of(model).items()
    }
    return {name: marks for name, marks in found.items() if marks}


_PLAIN = (str, int, float, type(None))
"""Most values, which hold no other."""


def _held_in(value: object, mark: type[Mark], place: tuple[str | int, ...]) -> Iterator[Held[Mark]]:
    if isinstance(value, BaseModel):
        marked = marked_settings(type(value), mark)
        for name, info, inner in values_of(value):
            if name in marked:
                if inner is not None and inner != info.default:
                    yield Held((*place, name), marked[name], inner)
            elif not isinstance(inner, _PLAIN):
                yield from _held_in(inner, mark, (*place, name))
        return
    for key, inner in _parts(value):
        yield from _held_in(inner, mark, (*place, key))


def _parts(value: object) -> Iterator[tuple[str | int, object]]:
    """Yield the items of a list or the values of a mapping, with their keys."""
    if isinstance(value, tuple | list):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), inner) for key, inner in value.items())
