"""Measure the latency of a model and of each of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from ndld_flow.base.quantities import Fraction, Milliseconds
from ndld_flow.machine.versions import read_version
from ndld_flow.records.profile import Profile
from ndld_flow.runtimes.onnxruntime.provider_options import ProviderOption, options_that_run_code
from ndld_flow.step import Context, DataFile, Foresight, Reads, Result, Returns, Reuse, RunsCode, Step, Turn, metrics
from ndld_flow.store.kinds import Engine, Onnx, ProfileDocument

if TYPE_CHECKING:
    from ndld_flow.measure.profiling_request import ProfilingRequest
    from ndld_flow.measure.stopping import MeasuringPlan
    from ndld_flow.records.build import EngineBackend
    from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
    from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
    from ndld_flow.runtimes.tensorrt.engine.prepare_engine import EngineToRun
    from ndld_flow.runtimes.tensorrt.library import Library

_OF_ONNXRUNTIME = (
    "provider",
    "provider_options",
    "optimization",
    "threads",
    "inter_op_threads",
    "execution",
    "memory_arena",
    "free_dimensions",
)
_OF_ENGINES = (
    "engine",
    "engine_file",
    "trust_engine",
    "library",
    "gpu",
    "refit",
    "optimization_profile",
    "streams",
    "cuda_graph",
    "transfers",
    "spin_wait",
)

_LATENCIES = ("median", "mean", "min", "max", "p90", "p95", "p99", "std")
_LAYERS = "layers are recorded (`layer_passes` above 0)"
_ENGINE = "an engine runs (`backend: tensorrt` or `tensorrt_rtx`), and its clock is read"


def _has_layers(step: ProfileModel) -> bool:
    return step.layer_passes > 0


def _is_engine(step: ProfileModel) -> bool:
    return step.backend != "onnxruntime"


def _has_batch(step: ProfileModel, size: str) -> bool:
    return size.isdecimal() and int(size) in step.batches


class ProfileModel(Step[Onnx, ProfileDocument]):
    """Measure a model's latency and memory, and the time of each of its layers.

    Every run is a separate process that opens the model and measures it; runs of several profiles take turns, so that
    drift of the machine affects them equally. The timing pass and the layer pass are separate sessions, because the
    profiler that times layers slows the model down.
    """

    version: ClassVar[int] = 3
    reuse: ClassVar[Reuse] = Reuse.THIS_HOST
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    reads_first_sample: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics(*(f"latency.{word}" for word in _LATENCIES), "load_ms", unit="ms"),
        *metrics("latency.cov", "latency.runs"),
        *metrics("latency.spread", when="there are enough process runs"),
        *metrics("throughput.median", unit="1/s"),
        *metrics("throughput.items", unit="1/s", when="all inputs have the same first dimension"),
        *metrics("memory.peak_bytes", unit="bytes", when="the system reports it"),
        *metrics("layers.sum", unit="ms", given=_has_layers, when=_LAYERS),
        *metrics("layers.count", "profiler.overhead", given=_has_layers, when=_LAYERS),
        *metrics(
            *(f"tensor_cores.{word}" for word in ("share", "off_share", "unknown_share")),
            given=_is_engine,
            when="an engine's layers report their tactics (`backend: tensorrt` or `tensorrt_rtx`)",
        ),
        *metrics(
            *(f"{name}.median" for name in ("enqueue", "h2d", "compute", "d2h")),
            unit="ms",
            given=_is_engine,
            when=_ENGINE,
        ),
        *metrics("memory.device_bytes", unit="bytes", given=_is_engine, when=_ENGINE),
        *metrics("batch_{size}.latency.median", unit="ms", given=_has_batch, when="`batches` has that size"),
        *metrics("batch_{size}.throughput.median", unit="1/s", given=_has_batch, when="`batches` has that size"),
    )

    backend: Literal["onnxruntime", "tensorrt", "tensorrt_rtx"] = "onnxruntime"
    """The runtime: ONNX Runtime, or an engine of the model in TensorRT or TensorRT-RTX (named by `engine`). Settings
    below that begin with ONNX Runtime or TensorRT are for that runtime only; TensorRT means both."""
    runs: Annotated[int, Field(ge=1)] = 5
    """Least number of process runs: each opens the model in a new process and measures it, in turns with the other
    profiles of the recipe. Passes of one process resemble each other; comparisons count runs."""
    passes: Annotated[int, Field(ge=1)] = 100
    """Least number of measured passes over all runs; each run takes its share."""
    duration: Milliseconds = 2500.0
    """Least time of measured passes in ms over all runs; each run takes its share. Comparisons use the minimum
    latency over half a second, which other load disturbs least."""
    stable: Fraction = 0.03
    """Continue with more runs until the 95 % interval of the median is within this of it (at least 5 runs are
    needed); `0 %` stops after `runs`."""
    budget: Annotated[Milliseconds, Field(gt=0)] = 10_000.0
    """No run starts when loading, warming up and measuring took this long. Each run gets a share and ends with it
    (half of it is for passes, however long loading takes). Recording layers is not counted."""
    warmup_passes: Annotated[int, Field(ge=0)] = 5
    """Least number of warm-up passes of each run."""
    warmup: Milliseconds = 200.0
    """Least time of warming up each run in ms."""
    sleep: Milliseconds = 0.0
    """Pause in ms before each measured pass."""
    layer_passes: Annotated[int, Field(ge=0)] = 20
    """Passes with the profiler of ONNX Runtime or TensorRT on, for the layers; 0 skips the layers."""
    batches: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Batch sweep: also measure these batch sizes. The batch is every input's free first dimension."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of random inputs."""
    lock_clocks: bool = False
    """GPU: lock its clock to the base clock during the measurement; needs root. The clock is unlocked however the
    measurement ends."""
    reuse_on: Literal["this_host", "same_kind"] = "this_host"
    """Hosts where this measurement may be reused: this host, with the same set of CPUs, container limits, GPU, power
    limit and variables; or `same_kind`: also hosts with as many CPUs and GPUs of the same type under the same
    limits, such as the runners of a CI. On a cluster (`--ray`) always `same_kind`."""
    sample_gpu: bool = False
    """GPU: sample its use, clocks, power and copies about ten times a second during the measurement."""
    hide_non_compute: bool = False
    """Hide layers that only move or convert data (reformats, casts, copies) in lists of layers; the profile keeps
    them, and tables in reports show them when their filter is cleared."""

    provider: str = "cpu"
    """ONNX Runtime: execution provider: `cpu`, `cuda`, `tensorrt`, or its full name. A provider that does not load
    is an error."""
    provider_options: Annotated[dict[str, ProviderOption], RunsCode(options_that_run_code)] = Field(default={})
    """ONNX Runtime: options of the provider, such as `device_id`. Options that name libraries or files, and unknown
    options, need a trusted recipe."""
    optimization: Literal["disabled", "basic", "extended", "layout", "all"] = "all"
    """ONNX Runtime: graph optimization level."""
    threads: Annotated[int, Field(ge=0)] = 0
    """ONNX Runtime: threads within an operator; 0 lets ONNX Runtime choose (one for each physical core)."""
    inter_op_threads: Annotated[int, Field(ge=0)] = 0
    """ONNX Runtime: threads between operators, with `execution: parallel`; 0 lets ONNX Runtime choose."""
    execution: Literal["sequential", "parallel"] = "sequential"
    """ONNX Runtime: run operators one after another, or in parallel."""
    memory_arena: bool = True
    """ONNX Runtime: keep memory between passes."""
    free_dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """ONNX Runtime: dimension name -> size, fixed before optimisation, so that shapes are constants."""

    engine: Annotated[str | None, Reads(Engine)] = None
    """TensorRT: the step that builds the engine of the model."""
    engine_file: Annotated[Path | None, DataFile()] = None
    """TensorRT: an existing engine of the same model, instead of `engine`."""
    trust_engine: Annotated[bool, RunsCode()] = False
    """TensorRT: allow code embedded in the engine to run (version compatible engines contain some)."""
    library: Annotated[Path | None, RunsCode()] = None
    """TensorRT: a TensorRT other than the installed one: a virtual environment that has it, or the folder of an
    unpacked TensorRT archive."""
    gpu: Annotated[int, Field(ge=0)] = 0
    """TensorRT: index of the GPU in nvidia-smi."""
    refit: bool = True
    """TensorRT: refit the engine with the model's weights first, where it is refittable and does not have them yet."""
    optimization_profile: Annotated[int, Field(ge=0)] = 0
    """TensorRT: index of the engine's optimization profile, from 0."""
    streams: Annotated[int, Field(ge=1, le=64)] = 1
    """TensorRT: concurrent inferences, each on a CUDA stream of its own; a pass is one of each."""
    cuda_graph: bool = False
    """TensorRT: capture a pass in a CUDA graph and launch the graph."""
    transfers: bool = False
    """TensorRT: include the copies of inputs and outputs in the latency; otherwise they are reported separately."""
    spin_wait: bool = True
    """TensorRT: busy-wait for the GPU, as ONNX Runtime does. Otherwise the CPU sleeps, and the latency includes
    waking it."""

    @model_validator(mode="after")
    def _check_backend(self) -> ProfileModel:
        if self.backend == "onnxruntime":
            self._refuse_others(_OF_ENGINES, "TensorRT", "backend: tensorrt` or `backend: tensorrt_rtx")
        else:
            self._refuse_others(_OF_ONNXRUNTIME, "ONNX Runtime", "backend: onnxruntime")
            self._check_engine()
        if not self._on_gpu and (self.lock_clocks or self.sample_gpu):
            raise ValueError("`lock_clocks` and `sample_gpu` need a GPU to be measured: this step measures the CPU")
        return self

    def _refuse_others(self, names: Sequence[str], library: str, choice: str) -> None:
        fields = type(self).model_fields
        odd = [name for name in names if getattr(self, name) != fields[name].get_default()]
        if odd:
            listed = ", ".join(f"`{name}`" for name in odd)
            raise ValueError(
                f"{listed}: for {library} only, and this step has `backend: {self.backend}`; leave it out, or set "
                f"`{choice}`"
            )

    def _check_engine(self) -> None:
        if self.engine is None and self.engine_file is None:
            raise ValueError(
                f"`backend: {self.backend}` measures an engine: add a step `engine: {{step: build_engine, backend: "
                f"{self.backend}}}` before this one and name it here with `engine: engine`, or give `engine_file`"
            )
        if self.engine is not None and self.engine_file is not None:
            raise ValueError("give either `engine` or `engine_file`")

    @property
    def _on_gpu(self) -> bool:
        return self.backend != "onnxruntime" or self.provider.lower() not in ("cpu", "cpuexecutionprovider")

    @property
    def device(self) -> str:
        """Return the device that is measured and held exclusively: the CPU, or one of a provider's devices."""
        if not self._on_gpu:
            return "cpu"
        return f"gpu-{self.gpu if self.backend != 'onnxruntime' else self.provider_options.get('device_id', 0)}"

    def foresee(self) -> Foresight:
        from ndld_flow.measure.foresight import foresee_profile

        if not self._on_gpu:
            return Foresight()
        return foresee_profile(self.backend, self.provider, self.library)

    def reused_where(self) -> Reuse:
        return Reuse(self.reuse_on)

    def library_versions(self) -> dict[str, str]:
        if self.backend == "onnxruntime":
            return super().library_versions()
        from ndld_flow.runtimes.tensorrt.library import find_library

        found = find_library(self.backend, self.library).version or "not installed"
        return {self.backend: found} | {name: read_version(name) for name in ("numpy", "pillow")}

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        return self.run_together([Turn(self, source, out, context)])[0]

    @classmethod
    def run_together(cls, turns: Sequence[Turn]) -> list[Result]:
        from ndld_flow.measure.profiler import measure_sides
        from ndld_flow.measure.profiling_request import Side

        sides = [
            Side(
                request=turn.step.request(turn.source, turn.context),
                scratch=turn.context.scratch,
                progress=turn.context.progress,
                step=turn.context.name,
            )
            for turn in turns
        ]
        return [_write(turn, *measured) for turn, measured in zip(turns, measure_sides(sides), strict=True)]

    def request(self, source: Onnx, context: Context) -> ProfilingRequest:
        """Return the request to measure the model."""
        from ndld_flow.measure.profiling_request import ProfilingRequest

        session, library = self._session(source, context)
        return ProfilingRequest(
            path=source.path,
            label=source.label,
            digest=source.digest,
            inputs=context.inputs,
            session=session,
            library=library,
            plan=self._measuring_plan(),
            layer_passes=self.layer_passes,
            batches=self.batches,
            seed=self.seed,
            lock_clocks=self.lock_clocks,
            sample_gpu=self.sample_gpu,
            options=self._options(),
        )

    def _session(self, source: Onnx, context: Context) -> tuple[SessionSettings | EngineSession, Library | None]:
        if self.backend == "onnxruntime":
            return self._session_settings(), None
        from ndld_flow.runtimes.tensorrt.engine.prepare_engine import prepare_engine

        return prepare_engine(self._engine_to_run(self.backend, context), source)

    def _options(self) -> dict[str, JsonValue]:
        """Return every setting in effect, without those of other backends."""
        others = (*(_OF_ENGINES if self.backend == "onnxruntime" else _OF_ONNXRUNTIME), "reuse_on")
        options: dict[str, JsonValue] = self.model_dump(mode="json", exclude=set(others))
        return options

    def _engine_to_run(self, backend: EngineBackend, context: Context) -> EngineToRun:
        from ndld_flow.runtimes.tensorrt.engine.prepare_engine import EngineToRun

        engine = context.read("engine") if self.engine is not None else None
        assert engine is None or isinstance(engine, Engine)
        return EngineToRun(
            backend=backend,
            engine=engine,
            file=self.engine_file,
            library=self.library,
            refit=self.refit,
            trust=self.trust_engine,
            gpu=self.gpu,
            optimization_profile=self.optimization_profile,
            streams=self.streams,
            cuda_graph=self.cuda_graph,
            transfers=self.transfers,
            spin_wait=self.spin_wait,
        )

    def _session_settings(self) -> SessionSettings:
        from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

        return SessionSettings(
            provider=self.provider,
            provider_options=self.provider_options,
            optimization=self.optimization,
            threads=self.threads,
            inter_op_threads=self.inter_op_threads,
            execution=self.execution,
            memory_arena=self.memory_arena,
            free_dimensions=self.free_dimensions,
        )

    def _measuring_plan(self) -> MeasuringPlan:
        from ndld_flow.measure.stopping import MeasuringPlan

        return MeasuringPlan(
            runs=self.runs,
            passes=self.passes,
            duration_ms=self.duration,
            stable=self.stable,
            budget_ms=self.budget,
            warmup_passes=self.warmup_passes,
            warmup_ms=self.warmup,
            sleep_ms=self.sleep,
        )


def _write(turn: Turn, profile: Profile, log: str) -> Result:
    from ndld_flow.measure.profile_summary import metrics_of, summarise

    (turn.out / ProfileDocument.main).write_text(profile.to_json(), encoding="utf-8")
    for message in (profile.stopped_because, *profile.notes, *log.splitlines()):
        turn.context.log.info("%s", message)
    return Result(summarise(profile), metrics=metrics_of(profile))
