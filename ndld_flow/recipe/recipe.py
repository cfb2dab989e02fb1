"""Checked recipes, which the runner executes."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, JsonValue, SerializerFunctionWrapHandler, field_serializer, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.places import put_value, take_value
from ndld_flow.base.settings import Settings, values_of
from ndld_flow.base.text import lazy_pattern
from ndld_flow.base.user_code import UserCode, find_code
from ndld_flow.inputs import Data, InputSpec, InputSpecs, patterns_of, without_names
from ndld_flow.recipe.gates import Gate
from ndld_flow.recipe.step_types import StepType
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.recipe.targets import HERE, Needs, Target
from ndld_flow.records.document import is_inner_path
from ndld_flow.runtimes.environments import Environment, EnvironmentSetting
from ndld_flow.runtimes.one_runtime import CustomOperator, OneRuntime, OperatorName
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.step import DataFile, Held, Reads, Reuse, RunsCode, SampleData, Step
from ndld_flow.store.kinds import Onnx

TRITON = "triton"
"""The key of `export:` whose value is a folder."""
SOURCE = "source"
"""The name by which steps read the recipe's model."""
NEW = "new:"
"""Prefix of the source of a new, empty model."""


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ModelSource(Settings):
    """The source of the recipe's model."""

    synonyms: ClassVar[Mapping[str, str]] = dict.fromkeys(("path", "file", "url", "location", "onnx"), "source")

    source: str = Field(min_length=1)
    """A path; `package:NAME/path` inside an installed package; `pypi:NAME==VERSION/path` inside a wheel; a URL; or
    `new:20`, an empty model of opset 20 for the step `edit` to fill, `new:20+contrib` with ONNX Runtime's operators."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """Digest of the model file. A model that is fetched must have one; a file that differs is rejected."""
    files: dict[str, Sha256] = {}
    """External data of a model that is fetched: the name in the model -> SHA-256, such as `{model.onnx_data: 9f86...}`.
    Each file is fetched from the model's own folder; one with another digest is rejected."""
    blake3: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """Digest of the model with its external data, as run records show it."""

    @property
    def is_fetched(self) -> bool:
        """True if the model is fetched, and kept in the store."""
        return self.source.startswith("pypi:") or "://" in self.source

    @property
    def is_local(self) -> bool:
        """True if the source is a path on this machine."""
        return not self.is_fetched and not self.source.startswith(("package:", NEW))

    @model_validator(mode="after")
    def _check_digest(self) -> "ModelSource":
        if self.is_fetched and self.sha256 is None and self.blake3 is None:
            raise ValueError(
                "a model that is fetched needs its `sha256:` (on a command line, `model.sha256=...`); `sha256sum` "
                "prints that of a copy that you trust"
            )
        if self.files and not self.is_fetched:
            raise ValueError("`files` is for a model that is fetched: other models are read with the data next to them")
        for name in self.files:
            if not is_inner_path(name) or PurePosixPath(name).as_posix().casefold() == Onnx.main:
                raise ValueError(f"`files`: {name!r} is no name of a data file in the model's folder")
        return self

    def __hash__(self) -> int:
        return hash((self.source, self.sha256, self.blake3, tuple(self.files.items())))


class RecipeFile(Settings):
    """A recipe's top level."""

    synonyms: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("services", "jobs", "stages", "tasks", "pipeline", "passes", "pass_flows"), "steps"),
        **dict.fromkeys(("onnx", "model_path", "model_file", "input_model", "network"), "model"),
        **dict.fromkeys(("assertions", "conditions", "checks", "thresholds"), "gates"),
        **dict.fromkeys(("shapes", "input_shapes", "data", "dataset"), "inputs"),
        **dict.fromkeys(("hosts", "machines", "systems"), "targets"),
    }

    name: str = Field(default="", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=100)
    """Name of the runs' folder; default: the file's name."""
    description: str = ""
    """A sentence for the report."""
    model: ModelSource
    """The model to work on: a path or URL, or a mapping with `source:` and `sha256:`."""
    models: dict[str, ModelSource] = {}
    """More models that steps may read by name, such as the one that is shipped today: `baseline: shipped.onnx`."""
    inputs: InputSpecs = {}
    """Shapes and values of the model's inputs, for every step that runs it. A step that runs a model with other inputs
    has `inputs:` of its own."""
    runtime: Annotated[RuntimeSettings | None, OneRuntime(engines=False, with_default=True)] = None
    """The runtime of steps that measure, compare or inspect models and choose none themselves (`backend`, `runtime`,
    `provider`): `openvino`, or its settings as in `profile`, such as `{backend: openvino, threads: 2}`.
    References, calibration and the emulation of fp16 and bf16 stay in ONNX Runtime."""
    custom_operators: dict[OperatorName, CustomOperator] = {}
    """Operator, such as `com.acme::Scaled` -> its library for ONNX Runtime, and its TensorRT plugin. Steps that run,
    examine or build models load them unless they have `custom_ops` or `plugins` of their own."""
    environments: dict[str, EnvironmentSetting] = {}
    """Private environments, by name, with releases of libraries that steps run in: `{now: {onnxruntime: 1.27.0}, next:
    {onnxruntime: 1.31.1}}`, or the folder of an existing virtual environment. A step selects one with `environment:
    NAME`. pip creates them when a run first needs them, only with `--trust`."""
    targets: dict[str, Target] = {}
    """Other machines, by name, on which steps with `on: NAME` run: `{h100: ssh://user@host}`. Those of a recipe are
    used only with `--trust`; those of the user's settings always."""
    needs: dict[str, Needs] = {}
    """Resources that steps need on the machines of a cluster (`--ray`): `{speed: {gpus: 1, device: A100}}`."""
    steps_from: list[str] = []
    """Python files with steps of your own, relative to the recipe. They run only with `--trust`."""
    steps: dict[str, dict[str, JsonValue]] = Field(min_length=1)
    """The steps in order. Overrides, gates and `from:` refer to a step by its name."""
    gates: list[str] = []
    """Conditions that must hold: `speed.latency.median <= 1.05 * base.latency.median`; also against earlier runs, as
    `speed.latency.median <= history.best + 3 %`."""
    export: dict[str, str] = {}
    """Models and engines to write when the run passes: path -> step, such as `{dist/model.onnx: half}`. `triton:
    FOLDER` writes the last model or engine as a model repository of Triton Inference Server. Paths are relative to the
    current directory, and inside it. A record is written next to each."""
    sweep: SweepSection | None = None
    """Run the recipe many times with different settings, and find the best."""

    @field_serializer("runtime", mode="wrap")
    def _write_runtime(self, runtime: Any, write: SerializerFunctionWrapHandler) -> Any:  # noqa: ANN401 - plain data
        """Return the runtime's settings with its name, which is a default value too; without others, the name."""
        if runtime is None:
            return None
        named = {"backend": runtime.backend, **write(runtime)}
        return runtime.backend if len(named) == 1 else named


_OVERRIDES = lazy_pattern(r"'(inputs(?:\.[^']*|)=[^']*)'")
_PLACES = lazy_pattern(r"^inputs(?=: |\.\S+\.from: )|(?<=`)inputs(?=\.[^`]+\.data`)")
"""Places in messages: `inputs.x.from: ...` of a state, and `inputs.x.data` of a value to give."""


@dataclass(frozen=True)
class RecipeStep:
    """One step of a recipe with its settings."""

    name: str
    type: StepType
    step: Step[Any, Any]
    reads: dict[str, str]
    """`from`, or another setting that names a step -> name of the step (or `source`) whose artifact is read;
    `base/from` is the artifact that the step named by `base` reads."""
    inputs: Mapping[str, InputSpec] | None = None
    """The step's own `inputs:`, which it reads instead of the recipe's."""
    inputs_of: tuple[str, ...] = ()
    """The step that has these inputs; several if it repeats the work of steps that share them."""
    on: str = ""
    """The target on which it runs; empty for this machine, or where `--on` sends it."""
    inherited: frozenset[str] = frozenset()
    """Settings that come from the recipe's `runtime:`, or would if it had them."""
    hidden: Mapping[str, JsonValue] = field(default_factory=dict)
    """Settings with credentials, as they are shown: as in the recipe, since a checked value may have another form."""

    def locate_inputs(self, message: str) -> str:
        """Return a message about its inputs with their place, `steps.half.inputs`, instead of the recipe's.

        Overrides, `'inputs.x.shape=[1,4]'`, are repeated for each step that shares them.
        """
        if not self.inputs_of:
            return message
        places = [f"steps.{owner}." for owner in self.inputs_of]
        message = message.replace("the recipe's `inputs:`", " and ".join(f"`{place}inputs:`" for place in places))
        message = _OVERRIDES.sub(lambda found: " ".join(f"'{place}{found[1]}'" for place in places), message)
        return _PLACES.sub(lambda found: places[0] + found[0], message)

    @property
    def target(self) -> str:
        """Return the name of the target on which it runs; empty for this machine."""
        return "" if self.on == HERE else self.on

    @property
    def environments(self) -> list[Environment]:
        """Return the private environments in which its runtimes run."""
        return [held.value for held in self.step.held(RunsCode) if isinstance(held.value, Environment)]

    @property
    def own_reads(self) -> dict[str, str]:
        """Steps that its own settings name, without those read through other steps."""
        return {key: name for key, name in self.reads.items() if "/" not in key}

    @property
    def settings(self) -> dict[str, JsonValue]:
        """Every setting that determines the result, defaults included, without the steps that it reads."""
        values: dict[str, JsonValue] = self.step.model_dump(mode="json")
        for mark in (DataFile, Reads):
            for held in self.step.held(mark):
                take_value(values, held.place)
        for samples in self.step.held(SampleData):
            put_value(values, samples.place, {name: without_names(data) for name, data in samples.value.items()})
        return {name: value for name, value in values.items() if name not in self.reads}

    @property
    def data_files(self) -> dict[str, str]:
        """Paths of settings marked `DataFile`, by setting; several paths of one setting are `NAME.0`, `NAME.1`."""
        return {name: path for held in self.step.held(DataFile) for name, path in name_files(held).items()}

    @property
    def other_files(self) -> dict[str, str]:
        """Files that settings name without the mark `DataFile`: in a `Path`, or in options for libraries. Not only
        their names but also their contents are part of the key, so that a user's step without the mark is never stale.
        """
        marked = [held.place for held in self.step.held(DataFile)]
        paths = {
            ".".join(map(str, place)): str(value)
            for place, value in _walk(self.step, ())
            if isinstance(value, Path) and not any(place[: len(known)] == known for known in marked)
        }
        for held in self.step.held(RunsCode):
            for name, value in held.value.items() if isinstance(held.value, Mapping) else ():
                paths |= {f"{held.dotted}.{name}.{i}": part for i, part in enumerate(str(value).split(";"))}
        # A `Path` would raise for a text that is too long, or not a path.
        return {name: path for name, path in paths.items() if os.path.isfile(path)}  # noqa: PTH113

    def code(self) -> dict[str, UserCode]:
        """Return its own file and that of each setting that names Python code, by the name of the step or setting.

        Finding these imports them, so other settings do not count: without `--trust` they may name any file. Raises
        RequestError if two of them import different modules by one name: a process has only one.
        """
        codes = {self.type.name: self.type.code} if self.type.code is not None else {}
        trusted = {held.place for held in self.step.named_code()}
        for held in self.step.held(DataFile):
            for name, path in name_files(held).items() if held.place in trusted else ():
                if path.endswith(".py"):
                    codes[name] = find_code(Path(path))
        for first, second in combinations(codes, 2):
            module = codes[first].conflict_with(codes[second])
            if module:
                raise RequestError(
                    f"steps.{self.name}: `{first}` and `{second}` import different modules by the name {module!r}, and "
                    "Python can have only one at a time. Rename one of the two."
                )
        return codes

    @property
    def sample_data(self) -> dict[str, Data]:
        """Files of the step's own samples, by `data.INPUT`, for inputs whose samples come from files."""
        return {
            f"{held.dotted}.{name}": data
            for held in self.step.held(SampleData)
            for name, data in held.value.items()
            if patterns_of(data)
        }

    def used_inputs(self, inputs: Mapping[str, InputSpec]) -> dict[str, InputSpec]:
        """Return the part of the step's own `inputs:`, or of the recipe's, that it reads: without data that it
        replaces.
        """
        if self.inputs is not None:
            inputs = self.inputs
        own = (held for held in self.step.held(SampleData) if held.mark.replaces_inputs)
        replaced = {name for held in own for name in held.value}
        used = {name: part for name, spec in inputs.items() if (part := self.step.used_input(spec)) is not None}
        return {
            name: part.model_copy(update={"data": "random"}) if name in replaced else part
            for name, part in used.items()
        }


def _walk(value: object, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    """Yield every leaf value inside settings, with its place."""
    if isinstance(value, BaseModel):
        inner: Iterable[tuple[str | int, object]] = ((name, each) for name, _, each in values_of(value))
    elif isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, tuple | list):
        inner = enumerate(value)
    else:
        yield place, value
        return
    for name, each in inner:
        yield from _walk(each, (*place, name))


def name_files(held: Held[DataFile]) -> dict[str, str]:
    """Return the paths of a setting by its name; several are `NAME.0`, `NAME.1`."""
    if isinstance(held.value, tuple):
        return {f"{held.dotted}.{index}": str(path) for index, path in enumerate(held.value)}
    return {held.dotted: str(held.value)}


@dataclass(frozen=True)
class Recipe:
    """A checked recipe."""

    name: str
    path: Path
    file: RecipeFile
    steps: tuple[RecipeStep, ...]
    gates: tuple[Gate, ...]
    written: Mapping[str, Any] = field(default_factory=dict)
    """Its values with `${...}` as written."""
    where: Callable[[str], str] = field(default=str, compare=False, repr=False)
    """Dotted path -> `file:line` or `override "..."`."""

    def sent_to(self, target: str) -> "Recipe":
        """Return it with the steps that need a device on a target, as `--on` asks; unless they have `on:`."""
        if not target:
            return self
        return replace(
            self,
            steps=tuple(
                step if step.on or step.step.reused_where() is Reuse.ANYWHERE else replace(step, on=target)
                for step in self.steps
            ),
        )

    @property
    def models(self) -> dict[str, ModelSource]:
        """All models by name, `source` first."""
        return {SOURCE: self.file.model, **self.file.models}
