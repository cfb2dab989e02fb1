"""The protocol of runtimes: whatever runs a model is opened, described, run, timed and closed in the same way.

A runtime is a module or package in this folder that exports `RUNTIME` (`registry.py`). No other code asks which runtime
runs a model. Measuring processes start with this module, so it imports little.

::

    SessionRequest  a model to open and how, outside and inside of a measuring process
    Session         the open model
    Binding         inputs bound to a session: each `run` is one pass
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from ndld_flow.base.errors import BackendError, NdldFlowError, RequestError

if TYPE_CHECKING:  # `plan` imports this module: no numpy
    from ndld_flow.base.settings import Settings
    from ndld_flow.models.tensors import Array, TensorSpec
    from ndld_flow.records.execution import BuiltFile
    from ndld_flow.records.profile import Layer, Roofs, RuntimeTraits, Span
    from ndld_flow.runtimes.environments import Environment

ReportPasses = Callable[[int, int], None]
"""Called as `report(done, total)` between passes."""
SEPARATE_COPIES = (
    "latency is that of the run on the device; copies from and to the host's memory are reported separately"
)
"""Note of a profile whose passes include no copies."""


@dataclass(frozen=True)
class DeviceTimes:
    """Times of one pass in ms by the device's own clock; None for unknown ones."""

    enqueue_ms: float | None = None
    """Time of the host to launch the pass."""
    h2d_ms: float | None = None
    """Copy of the inputs to the device."""
    compute_ms: float | None = None
    d2h_ms: float | None = None
    """Copy of the outputs from the device."""


@dataclass
class Timing:
    """The result of a timing pass; samples in order."""

    latency_ms: list[float] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)
    """Start of each pass, after the start of the first one."""
    h2d_ms: list[float] = field(default_factory=list)
    """Copy of the inputs to the device, before each pass; empty without copies."""
    d2h_ms: list[float] = field(default_factory=list)
    """Copy of the outputs from the device, after each pass; empty without copies."""
    enqueue_ms: list[float] = field(default_factory=list)
    """Time to launch each pass; this and the following are empty if no device reports them."""
    compute_ms: list[float] = field(default_factory=list)
    """Time on the device without copies."""
    warmup_passes: int = 0
    warmup_ms: float = 0.0
    first_pass_ms: float = 0.0
    """Duration of the first warm-up pass; 0 without a warm-up."""
    new_size_ms: list[float] = field(default_factory=list)
    """Duration of the first pass at each further size, if samples of several sizes take turns."""
    began_s: float = 0.0
    """`time.monotonic` at the first measured pass: it is the same clock in all processes."""
    limit_reached: bool = False
    """True if the limit ended it before it had enough passes or time."""

    def add(self, times: DeviceTimes) -> None:
        """Add the known times of one pass, other than its latency."""
        for name in ("enqueue_ms", "h2d_ms", "compute_ms", "d2h_ms"):
            ms = getattr(times, name)
            if ms is not None:
                getattr(self, name).append(ms)


@dataclass(frozen=True)
class SessionFacts:
    """The description of an open model."""

    devices: tuple[str, ...]
    """The execution providers or devices that run it, preferred one first."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of libraries that only the measuring process loads."""
    facts: Mapping[str, int | str | bool] = field(default_factory=dict)
    """Further facts, such as memory in bytes. Two have a meaning for comparisons: `concurrent_inferences`, the number
    of inferences in a pass (1 if it is missing), and `inference_precision`, the types in which layers compute if the
    runtime does not use those of the model."""
    notes: tuple[str, ...] = ()
    """Notes for the record, such as inputs that are cast."""
    device_name: str = ""
    """The name of the device that runs it, such as `NVIDIA H200`; empty if `devices` says it."""


@dataclass(frozen=True)
class RecordingPlan:
    """The extent of a recording of layers."""

    passes: int
    """Number of measured passes; fewer if the runtime's profiler cannot keep all their events."""
    events_per_pass: int | None = None
    """Events of one pass; None if they must be counted in a trial pass."""
    keep_optimized: bool = True
    """Write the optimized model; once is enough for any number of process runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for a process of its own that records the layers; if empty, the process that times passes does."""


@dataclass(frozen=True)
class LayerPass:
    """The results of the layer pass."""

    layers: tuple[Layer, ...] = ()
    pass_ms: tuple[float, ...] = ()
    """Latency of each pass, run after run, with the profiler on."""
    notes: tuple[str, ...] = ()
    layer_runs: tuple[int, ...] = ()
    """Number of passes in each recording."""
    timeline: tuple[Span, ...] = ()
    timeline_basis: str = ""
    waits_for_device: bool = False
    """Each layer waited until the device had computed it: its time includes launching and waiting."""


class Binding(Protocol):
    """Inputs bound to a session."""

    def run(self) -> None:
        """Run one pass and nothing else, until its outputs are computed."""

    @property
    def can_copy(self) -> bool:
        """Return True if copies are not part of a pass, and `copy_in` and `copy_out` measure them."""

    def copy_in(self) -> float | None:
        """Copy the inputs to the device once more; return the ms by the device's clock, None if unknown."""

    def copy_out(self) -> float | None:
        """Copy the outputs of the last pass from the device; return the ms by its clock, None if unknown."""

    def device_times(self) -> DeviceTimes:
        """Return the times of the last pass."""

    def outputs(self) -> dict[str, Array | None]:
        """Return the outputs of the last pass by name; None for one that is not a dense tensor on the host."""

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name -> dtype and shape of the outputs of the last pass."""


class HostBinding:
    """The part of a binding whose tensors are in the host's memory: nothing is copied, and no device has a clock.

    A subclass has `run` and `outputs`.
    """

    can_copy = False

    def copy_in(self) -> None:
        """Do nothing: the device's memory is the host's."""

    def copy_out(self) -> None:
        """Do nothing: the device's memory is the host's."""

    def device_times(self) -> DeviceTimes:
        """Return no times."""
        return DeviceTimes()

    def outputs(self) -> dict[str, Array | None]:
        """Return the outputs of the last pass by name; None for one that is not a dense tensor."""
        raise NotImplementedError

    def output_shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return name -> dtype and shape of the tensors among the outputs of the last pass."""
        known = {name: value for name, value in self.outputs().items() if value is not None}
        return {name: (value.dtype.name, tuple(value.shape)) for name, value in known.items()}


class Session(Protocol):
    """An open model."""

    @property
    def load_ms(self) -> float: ...

    @property
    def log(self) -> str:
        """Return the messages of the library so far."""

    def describe(self) -> SessionFacts:
        """Return its inputs, outputs and devices, versions and further facts."""

    def bind(self, feeds: Mapping[str, Array], on_device: bool = False) -> Binding:
        """Bind inputs by name. With `on_device`, outputs stay in the device's memory.

        Raises `RequestError` for inputs that do not fit.
        """

    def close(self) -> None:
        """Release the model and its memory."""


@dataclass(frozen=True)
class RuntimeNames:
    """Names of a runtime in records and messages."""

    backend: str
    """Value of `backend` in recipes and records: `tensorrt_rtx`."""
    library: str
    """`TensorRT`."""
    device: str
    """The requested provider or device: `cpu`."""
    crash_advice: str
    """A sentence without its full stop, for a measuring process that crashed."""


class SessionRequest(ABC):
    """A model to open and how: a frozen dataclass of plain values, which a measuring process reads from JSON."""

    runtime: ClassVar[str]
    """Name of the runtime's module in `ndld_flow.runtimes`, or of the entry point of a package."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Distributions that run the model, the library itself first."""

    @abstractmethod
    def names(self) -> RuntimeNames:
        """Return the runtime's names."""

    @property
    def needs_process(self) -> bool:
        """Return whether sessions that compute values run in a process of their own (`session_process.py`): the library
        may be one of another environment, or crash."""
        return False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the request with the values of the settings that it has under the same names."""
        names = type(settings).model_fields.keys() & getattr(cls, "__dataclass_fields__", {}).keys()
        return cls(**{name: getattr(settings, name) for name in names})

    def in_environment(self, environment: Environment | None) -> Self:
        """Return the request for processes that see the packages of an environment.

        Raises RequestError for a runtime that finds its library by other means, and BackendError.
        """
        if environment is None:
            return self
        raise RequestError(
            f"`environment` applies to ONNX Runtime and OpenVINO, and not to {self.names().library}: set `release` or "
            "`library` of the step that builds the engine"
        )

    # In the process that measures:

    @abstractmethod
    def open(self, model: Path) -> Session:
        """Open the model, or what was built from it.

        Raises `BackendError` if a library or device is missing, `ModelError` if the model is refused.
        """

    def open_changed(self, model: Path, changed: bytes) -> Session:
        """Open a changed model, as bytes, whose external data are in the folder of `model`. Raises as `open` does.

        By default it is written to a file with a copy of its external data, which is deleted when it is open.
        """
        import tempfile

        if self.built_file() is not None:
            raise RequestError(f"{self.names().library} runs {self.built_file()}, whose tensors cannot be changed.")
        from ndld_flow.models.files import save_changed

        with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
            path = Path(folder) / model.name
            save_changed(changed, model, path)
            try:
                return self.open(path)
            except NdldFlowError as error:
                error.args = (str(error).replace(str(path), str(model)),)
                raise

    def brief(self) -> Self:
        """Return the request for a session that runs only a few times, which is worth little preparation."""
        return self

    def timed(self) -> Self:
        """Return the request for a session whose passes are timed: its threads wait as they do by default."""
        return self

    def in_turns(self) -> Self:
        """Return the request for a session whose passes are timed, and alternate with those of another model: its
        threads leave the CPUs when a pass ends."""
        return self

    def unfused(self) -> Self:
        """Return the request for a session that computes each node on its own, if the runtime can."""
        return self

    def in_floats(self) -> Self:
        """Return the request for a session that computes what is between Q/DQ pairs in floats, if the runtime can."""
        return self

    def record_layers(
        self, model: Path, feeds: Mapping[str, Array], plan: RecordingPlan, folder: Path, report: ReportPasses
    ) -> Path | None:
        """Run passes with the runtime's profiler on, in a separate session; return the recording in `folder`.

        None for a runtime that times no layers.
        """
        return None

    # Outside of it:

    def to_json(self) -> dict[str, Any]:
        """Return the values that `Runtime.read_request` (`registry.py`) reads; paths may stay paths."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every request is a dataclass

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Return variables with which a process finds the library; valid as long as `folder` exists."""
        return {}

    def measured_gpu(self) -> int | None:
        """Return the index of the GPU that runs the model; None for the CPU.

        Raises `BackendError` for a device that the library does not know.
        """
        return None

    def declared_inputs(self, model: Path) -> tuple[TensorSpec, ...]:
        """Return the model's inputs, with the dimensions that the request fixes."""
        from ndld_flow.models.files import model_inputs

        return model_inputs(model)

    def built_file(self) -> Path | None:
        """Return the file that runs instead of the model, such as an engine."""
        return None

    def with_inner_outputs(self, tensors: Sequence[str]) -> Self:
        """Return the request for a built file that may have these tensors of the model as outputs, for inspection."""
        return self

    def with_debug_tensors(self) -> Self | None:
        """Return a request whose session has the debug tensors of a built file among its outputs; None without any."""
        return None

    def describe_built_file(self) -> BuiltFile | None:
        """Return the record of `built_file`."""
        return None

    def refuse_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise `RequestError` for shapes of inputs that the built file is known not to accept, before it is open."""
        return

    def library_versions(self, reported: Mapping[str, str]) -> dict[str, str]:
        """Return the versions of the runtime's libraries; `reported` are those of `SessionFacts`."""
        from ndld_flow.machine.versions import read_version

        installed = {name: read_version(name) for name in self.libraries}
        return installed | {name.replace("_", "-"): version for name, version in reported.items()}

    def traits(self, devices: Sequence[str]) -> RuntimeTraits:
        """Return the facts by which profiles are compared and judged; `devices` are those of `SessionFacts`."""
        from ndld_flow.records.profile import RuntimeTraits

        return RuntimeTraits(library=next(iter(self.libraries), ""), on_gpu=self.measured_gpu() is not None)

    def notes(self, facts: SessionFacts, *, copied: bool) -> Iterator[str]:
        """Yield sentences on the meaning of the measurement; `copied` when copies were measured separately."""
        yield from ()

    def plan_recording(self, model: Path, passes: int) -> RecordingPlan:
        """Return the plan of the recording of each process run."""
        return RecordingPlan(passes)

    def read_layers(
        self, model: Path, recordings: Sequence[Path], plan: RecordingPlan, timings: Sequence[Timing]
    ) -> LayerPass:
        """Return the layers that process runs recorded, one recording each, which are deleted."""
        return LayerPass()

    def executed_graph(self, recordings: Sequence[Path]) -> Path | None:
        """Return the ONNX file of the graph that ran, which a recording has left; None if the runtime writes none."""
        return None

    def measure_roofs(self, layers: Sequence[Layer]) -> Roofs | None:
        """Return the peak performance of the device; None if it cannot be measured."""
        return None


@dataclass(frozen=True)
class PrivatePackages(SessionRequest):
    """A request whose library may come from a private environment (`environments.py`)."""

    site: str = field(default="", kw_only=True)
    """The environment's site-packages; empty for the installed library."""

    @property
    def needs_process(self) -> bool:
        return bool(self.site) or super().needs_process

    def in_environment(self, environment: Environment | None) -> Self:
        if environment is None:
            return self
        from ndld_flow.runtimes.environments import find_environment

        kept = find_environment(environment)
        if kept is None:
            raise BackendError(f"the environment {environment.label} was removed while the run used it: run again")
        return replace(self, site=str(kept.site))

    def environment(self, folder: Path) -> Mapping[str, str]:
        before = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        return {"PYTHONPATH": os.pathsep.join([self.site, *before])} if self.site else {}

    def library_versions(self, reported: Mapping[str, str]) -> dict[str, str]:
        return self.private_versions(*self.libraries) or super().library_versions(reported)

    def check_imported(self, module: str) -> None:
        """Raise BackendError if the library was imported from elsewhere than the environment: it would be another."""
        place = getattr(sys.modules[module], "__file__", None) or ""
        if self.site and not Path(place).is_relative_to(self.site):
            raise BackendError(f"{module} was imported from {place}, and not from the environment in {self.site}.")

    def private_versions(self, *names: str) -> dict[str, str]:
        """Return the versions of the environment's distributions among these names; empty without an environment."""
        from importlib.metadata import distributions

        found = {each.metadata["Name"]: each.version for each in distributions(path=[self.site])} if self.site else {}
        return {name: found[name] for name in names if name in found}
