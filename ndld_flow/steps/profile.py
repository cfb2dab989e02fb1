"""Measure the latency of a model and of each of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Fraction, Milliseconds
from ndld_flow.base.settings import FlatUnion
from ndld_flow.machine.versions import read_version
from ndld_flow.runtimes.environments import EnvironmentSetting, describe_environment, name_code, versions_in_key
from ndld_flow.runtimes.registry import find_settings, plugin_versions
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.step import Context, Foresight, Result, Returns, Reuse, RunsCode, Step, Turn, metrics
from ndld_flow.store.kinds import Onnx, ProfileDocument

if TYPE_CHECKING:
    from ndld_flow.measure.process_runs import ProfilingRequest
    from ndld_flow.records.profile import Profile

_LATENCIES = ("median", "mean", "min", "max", "p90", "p95", "p99", "std")
_LAYERS = "layers are recorded (`layer_passes` above 0)"
_ENGINE = "an engine runs (`backend: tensorrt` or `tensorrt_rtx`), and its clock is read"
_RUNTIMES = FlatUnion("backend", find_settings)


def _has_layers(step: ProfileModel) -> bool:
    return step.layer_passes > 0


def _has_device_times(step: ProfileModel) -> bool:
    return step.runtime.reports_device_times


def _has_batch(step: ProfileModel, size: str) -> bool:
    return size.isdecimal() and int(size) in step.batches


class ProfileModel(Step[Onnx, ProfileDocument]):
    """Measure a model's latency and memory, and the time of each of its layers.

    Every run is a separate process that opens the model and measures it; runs of several profiles take turns, so that
    the machine's drift affects all of them equally. The timing pass and the layer pass are separate sessions, because
    the profiler that times layers slows the model down.
    """

    also_called: ClassVar[tuple[str, ...]] = ("benchmark", "bench", "measure", "latency", "perf", "timing")
    synonyms: ClassVar[Mapping[str, str]] = {
        "runtime": "backend",
        "providers": "provider",
        "iterations": "passes",
        "iters": "passes",
        "repeat": "passes",
        "repetitions": "passes",
        "num_runs": "passes",
        "warmUpIterations": "warmup_passes",
        "warmup_runs": "warmup_passes",
        "warmup_ms": "warmup",
        "warmup_s": "warmup",
        "sleepTime": "sleep",
        "batch_size": "batches",
    }

    version: ClassVar[int] = 9
    reuse: ClassVar[Reuse] = Reuse.THIS_HOST
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics(*(f"latency.{word}" for word in _LATENCIES), "load_ms", unit="ms"),
        *metrics("new_size_ms", unit="ms", given=lambda step: step.samples > 1, when="`samples` have several sizes"),
        *metrics("latency.cov", "latency.runs"),
        *metrics("latency.spread", when="there are enough process runs"),
        *metrics(
            *(
                f"{place}.latency.{word}"
                for place in ("first_step", "later_steps")
                for word in ("median", "min", "p95")
            ),
            unit="ms",
            when="a sequence runs (an input has `from:`)",
        ),
        *metrics("throughput.median", unit="1/s"),
        *metrics("throughput.items", unit="1/s", when="all inputs have the same first dimension"),
        *metrics("memory.peak_bytes", unit="bytes", when="the system reports it"),
        *metrics("model_bytes", unit="bytes"),
        *metrics("items_per_pass"),
        *metrics("layers.sum", unit="ms", given=_has_layers, when=_LAYERS),
        *metrics("layers.count", "profiler.overhead", given=_has_layers, when=_LAYERS),
        *metrics(
            *(f"tensor_cores.{word}" for word in ("share", "off_share", "unknown_share")),
            given=lambda step: step.runtime.reports_tactics,
            when="an engine's layers report their tactics (`backend: tensorrt` or `tensorrt_rtx`)",
        ),
        *metrics(
            *(f"{name}.median" for name in ("enqueue", "h2d", "compute", "d2h")),
            unit="ms",
            given=_has_device_times,
            when=_ENGINE,
        ),
        *metrics("memory.device_bytes", unit="bytes", given=_has_device_times, when=_ENGINE),
        *metrics("batch_{size}.latency.median", unit="ms", given=_has_batch, when="`batches` has that size"),
        *metrics("batch_{size}.throughput.median", unit="1/s", given=_has_batch, when="`batches` has that size"),
    )

    runs: Annotated[int, Field(ge=1)] = 5
    """Minimum number of process runs: each opens the model in a new process and measures it, in turns with the other
    profiles of the recipe. Passes of one process are correlated, so that comparisons count runs."""
    passes: Annotated[int, Field(ge=1)] = 100
    """Minimum number of measured passes of all runs together; each run takes its share."""
    duration: Milliseconds = 2500.0
    """Minimum time of the measured passes of all runs together, in ms without a unit; each run takes its share.
    Comparisons use the minimum latency over half a second, which is disturbed least by other load."""
    stable: Fraction = 0.03
    """Continue with more runs until the 95 % confidence interval of the median is within this share of it (at least 5
    runs are needed); `0 %` stops after `runs`."""
    budget: Annotated[Milliseconds, Field(gt=0)] = 10_000.0
    """No further run starts once loading, warming up and measuring have taken this long. Each run gets a share of it
    and ends when that is used up (half of it is for passes, however long loading takes). Recording layers does not
    count."""
    warmup_passes: Annotated[int, Field(ge=0)] = 5
    """Minimum number of warm-up passes of each run."""
    warmup: Milliseconds = 200.0
    """Minimum time of the warm-up passes of each run, in ms without a unit."""
    sleep: Milliseconds = 0.0
    """Pause before each measured pass, in ms without a unit."""
    layer_passes: Annotated[int, Field(ge=0)] = 20
    """Number of passes with the profiler of ONNX Runtime or TensorRT, which times the layers; 0 records no layers."""
    batches: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Batch sweep: also measure these batch sizes. The batch is the dynamic first dimension of every input."""
    samples: Annotated[int, Field(ge=1)] = 1
    """Number of samples of the data that passes run in turn, for data of several sizes: a runtime may have to adapt to
    each new size. Layers are those of the first."""
    steps: Annotated[int, Field(ge=2)] | None = None
    """Number of steps of a sequence, for models with states (`inputs: {state: {from: stateN}}`), by default as many as
    the data has. Each pass is the next step; the first steps (prefill) and the later ones (decoding) have metrics of
    their own, and a process run ends with a whole sequence if its share of the budget allows it."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of random inputs."""
    lock_clocks: bool = False
    """GPU: lock its clock to the base clock during the measurement; needs root. The clock is always unlocked
    afterwards, even if the measurement fails, unless `restore_clocks` is given."""
    restore_clocks: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    """GPU: the lock that an administrator has set (`nvidia-smi --lock-gpu-clocks=MIN,MAX`), such as `[1200, 1200]`, to
    be set again after `lock_clocks`: NVIDIA's tools set and remove a lock, but none reads it."""
    reuse_on: Literal["this_host", "same_kind"] = "this_host"
    """Hosts where this measurement may be reused: this host, with the same set of CPUs, container limits, GPU, power
    limit and environment variables; or `same_kind`: also hosts with as many CPUs and GPUs of the same type under the
    same limits, such as CI runners. On a cluster (`--ray`) always `same_kind`."""
    sample_gpu: bool = False
    """GPU: sample its utilization, clocks, power and copies during the measurement, up to 20 times per second."""
    hide_non_compute: bool = False
    """Hide layers that only move or convert data (reformats, casts, copies) in lists of layers; the profile keeps
    them, and tables in reports show them when their filter is cleared."""

    environment: Annotated[EnvironmentSetting | None, RunsCode(name_code)] = None
    """The private environment of the runtime: a name in the recipe's `environments:`, or its packages, such as
    `{onnxruntime: 1.27.0}`. Profiles in different environments take turns too. It needs a trusted recipe."""
    runtime: Annotated[RuntimeSettings, _RUNTIMES] = Field(default_factory=_RUNTIMES.default)
    """Settings of the runtime that `backend` names, which a recipe writes among the others."""

    @model_validator(mode="after")
    def _check_device(self) -> ProfileModel:
        if self.device == "cpu" and (self.lock_clocks or self.sample_gpu):
            raise ValueError("`lock_clocks` and `sample_gpu` need a GPU, but this step measures on the CPU")
        if self.restore_clocks is not None and not self.lock_clocks:
            raise ValueError("`restore_clocks` needs `lock_clocks: true`: without it, the clock is left as it is")
        if self.restore_clocks is not None and self.restore_clocks[0] > self.restore_clocks[1]:
            raise ValueError("`restore_clocks`: the first number is the lower one")
        return self

    @model_serializer(mode="wrap")
    def _write_flat(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        """Return the settings as they are in a recipe."""
        values = write(self)
        chosen = values.pop("runtime")
        return {"backend": chosen.pop("backend"), **values, **chosen}

    @property
    def device(self) -> str:
        """Return the device that is measured, and held exclusively: the CPU, or a device of the provider."""
        return self.runtime.device

    def foresee(self) -> Foresight:
        seen = self.runtime.foresee()
        return replace(seen, notes=(*describe_environment(self.environment), *seen.notes))

    def reused_where(self) -> Reuse:
        return Reuse(self.reuse_on)

    def samples_read(self) -> int:
        return self.samples

    def library_versions(self) -> dict[str, str]:
        own = {name: read_version(name) for name in type(self).libraries}
        versions = self.runtime.library_versions() | own | plugin_versions(self.runtime)
        return versions | versions_in_key(self.environment)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        return self.run_together([Turn(self, source, out, context)])[0]

    @classmethod
    def run_together(cls, turns: Sequence[Turn]) -> list[Result]:
        from ndld_flow.measure.process_runs import Side
        from ndld_flow.measure.profiler import measure_sides

        sides = [
            Side(
                request=turn.step.request(turn.source, turn.context),
                scratch=turn.context.scratch,
                progress=turn.context.progress,
                step=turn.context.name,
                graph=turn.out / ProfileDocument.graph if turn.step.environment is not None else None,
            )
            for turn in turns
        ]
        return [_write(turn, *measured) for turn, measured in zip(turns, measure_sides(sides), strict=True)]

    def request(self, source: Onnx, context: Context) -> ProfilingRequest:
        """Return the request to measure the model."""
        from ndld_flow.measure.process_runs import MeasuringPlan, ProfilingRequest

        session = self.runtime.request(source, context.read)
        built = session.describe_built_file()
        if built is not None and built.marked:
            raise RequestError(
                f"{built.name} has tensors marked as outputs for inspection (`mark_outputs`), and fuses layers "
                "differently from an engine that is shipped: measure one without them."
            )
        return ProfilingRequest(
            path=source.path,
            label=source.label,
            digest=source.digest,
            inputs=context.inputs,
            session=session.in_environment(self.environment),
            plan=MeasuringPlan(
                runs=self.runs,
                passes=self.passes,
                duration_ms=self.duration,
                stable=self.stable,
                budget_ms=self.budget,
                warmup_passes=self.warmup_passes,
                warmup_ms=self.warmup,
                sleep_ms=self.sleep,
            ),
            layer_passes=self.layer_passes,
            batches=self.batches,
            seed=self.seed,
            samples=self.samples,
            steps=self.steps,
            lock_clocks=self.lock_clocks,
            restore_clocks=self.restore_clocks,
            sample_gpu=self.sample_gpu,
            options=self.model_dump(mode="json", exclude={"reuse_on", "restore_clocks"}),
        )


def _write(turn: Turn, profile: Profile, log: str) -> Result:
    from ndld_flow.measure.profiler import metrics_of, summarize
    from ndld_flow.models.external_files import model_bytes
    from ndld_flow.samples.feeds import make_feeds
    from ndld_flow.samples.images import write_received_images

    profile.write(turn.out)
    # If some of its data are files, the images that the model received are read again and written.
    request = turn.step.request(turn.source, turn.context)
    if any(spec.data_patterns for spec in request.inputs.values()):
        specs = request.session.declared_inputs(request.path)
        write_received_images(make_feeds(specs, request.inputs, request.seed, request.label), turn.out)
    described = (f"input {tensor.name}: {tensor.data}" for tensor in profile.inputs)
    turn.context.log_lines(*described, profile.stopped_because, *profile.notes, *log.splitlines())
    metrics = {**metrics_of(profile), "model_bytes": model_bytes(turn.source.path)}
    return Result(summarize(profile), metrics=metrics)
