"""Measure a model's latency, and what each of its layers takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.artifacts.kinds import Onnx, ProfileDocument
from ndld_flow.quantities import milliseconds
from ndld_flow.records.metric import Metric
from ndld_flow.records.profile import Profile
from ndld_flow.step import Context, Result, Reuse, Step
from ndld_flow.units import Milliseconds

if TYPE_CHECKING:
    from ndld_flow.backends.measuring.timing_pass import TimingPlan
    from ndld_flow.backends.running.onnxruntime_session import SessionSettings


class ProfileModel(Step[Onnx, ProfileDocument]):
    """Measure a model's latency and memory, and what each of its layers takes.

    The timing pass and the layer pass are separate sessions: the profiler that sees layers slows the model down.
    """

    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True

    backend: Literal["onnxruntime"] = "onnxruntime"
    """What runs the model."""
    provider: str = "cpu"
    """Execution provider: `cpu`, `cuda`, `tensorrt`, or ONNX Runtime's full name. It is an error when it does not
    really load."""
    provider_options: dict[str, str | int | float | bool] = Field(default={})
    """Options of the provider, such as `device_id`."""
    passes: Annotated[int, Field(ge=1)] = 100
    """Measured passes, at least; the median pass is what is reported."""
    duration: Milliseconds = 0.0
    """Measure at least so long: more passes are added until it is over."""
    time_limit: Milliseconds = 0.0
    """Stop measuring after so long even when passes are left, warm-up not counted; 0 for no limit."""
    warmup_passes: Annotated[int, Field(ge=0)] = 5
    """Passes before the measured ones, at least."""
    warmup: Milliseconds = 200.0
    """Warm up at least so long."""
    sleep: Milliseconds = 0.0
    """Rest before each measured pass."""
    layer_passes: Annotated[int, Field(ge=0)] = 20
    """Passes with ONNX Runtime's profiler on, for the layers; 0 leaves the layers out."""
    batches: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Batch sweep: measure these batch sizes too. The batch is every input's free first dimension."""
    optimization: Literal["disabled", "basic", "extended", "layout", "all"] = "all"
    """Graph optimization level of ONNX Runtime."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads within an operator; 0 leaves it to ONNX Runtime (one for each physical core)."""
    inter_op_threads: Annotated[int, Field(ge=0)] = 0
    """Threads between operators, with `execution: parallel`; 0 leaves it to ONNX Runtime."""
    execution: Literal["sequential", "parallel"] = "sequential"
    """Whether operators run one after another."""
    memory_arena: bool = True
    """Let ONNX Runtime keep memory between passes."""
    free_dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    """Dimension name -> size: fixed before optimising, so that shapes are constants."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of random inputs."""

    @property
    def device(self) -> str:
        """What is measured and must be held alone: the CPU, or one of a provider's devices."""
        if self.provider.lower() in ("cpu", "cpuexecutionprovider"):
            return "cpu"
        return f"gpu-{self.provider_options.get('device_id', 0)}"

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.backends.measuring.onnxruntime_profiler import ProfilingRequest, profile_model

        request = ProfilingRequest(
            path=source.path,
            label=source.label,
            digest=source.digest,
            inputs=context.inputs,
            session=self._session_settings(),
            timing=self._timing_plan(),
            layer_passes=self.layer_passes,
            batches=self.batches,
            seed=self.seed,
            options=self.model_dump(mode="json"),
        )
        profile, log = profile_model(request, context.scratch, context.progress)
        (out / ProfileDocument.main).write_text(profile.to_json(), encoding="utf-8")
        for said in (*profile.notes, *log.splitlines()):
            context.log.info("%s", said)
        return Result(_summary(profile), metrics=_metrics(profile))

    def _session_settings(self) -> SessionSettings:
        from ndld_flow.backends.running.onnxruntime_session import SessionSettings

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

    def _timing_plan(self) -> TimingPlan:
        from ndld_flow.backends.measuring.timing_pass import TimingPlan

        return TimingPlan(
            passes=self.passes,
            duration_ms=self.duration,
            time_limit_ms=self.time_limit,
            warmup_passes=self.warmup_passes,
            warmup_ms=self.warmup,
            sleep_ms=self.sleep,
        )


def _metrics(profile: Profile) -> dict[str, Metric]:
    latency = profile.latency
    found = {
        f"latency.{word}": Metric(value=getattr(latency, f"{word}_ms"), unit="ms")
        for word in ("median", "mean", "min", "max", "p90", "p95", "p99", "std")
    }
    found["latency.cov"] = Metric(value=latency.cov)
    found["throughput.median"] = Metric(value=latency.throughput_per_s, unit="1/s")
    found["load_ms"] = Metric(value=profile.runs[0].load_ms, unit="ms")
    if profile.peak_memory_bytes:
        found["memory.peak_bytes"] = Metric(value=profile.peak_memory_bytes, unit="bytes")
    if profile.layers:
        found["layers.sum"] = Metric(value=profile.layers_sum_ms, unit="ms")
        found["layers.count"] = Metric(value=len(profile.layers))
        found["profiler.overhead"] = Metric(value=profile.profiler_overhead)
    for point in profile.batches:
        found[f"batch_{point.batch}.latency.median"] = Metric(value=point.latency.median_ms, unit="ms")
        found[f"batch_{point.batch}.throughput.median"] = Metric(value=point.items_per_s, unit="1/s")
    return found


def _summary(profile: Profile) -> str:
    latency = profile.latency
    provider = profile.providers[0].removesuffix("ExecutionProvider")
    times = f"median {milliseconds(latency.median_ms)}, p99 {milliseconds(latency.p99_ms)}"
    told = f"{times} over {latency.sample_count} passes on {provider}"
    if profile.stopped_because == "time limit reached":
        told += " (time limit reached)"
    return f"{told}, {len(profile.layers)} layers" if profile.layers else told
