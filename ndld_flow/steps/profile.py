"""Measure a model's latency, and what each of its layers takes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.artifacts.kinds import Onnx, ProfileDocument
from ndld_flow.inputs import InputSpec
from ndld_flow.quantities import milliseconds
from ndld_flow.records.metric import Metric
from ndld_flow.records.profile import Profile
from ndld_flow.step import Context, Result, Reuse, Step, Turn
from ndld_flow.units import Fraction, Milliseconds

if TYPE_CHECKING:
    from ndld_flow.backends.measuring.profiling_request import ProfilingRequest
    from ndld_flow.backends.measuring.stopping import MeasuringPlan
    from ndld_flow.backends.running.onnxruntime_session import SessionSettings


class ProfileModel(Step[Onnx, ProfileDocument]):
    """Measure a model's latency and memory, and what each of its layers takes.

    Every run is a process of its own that opens the model and measures it; those of several profiles take turns, so
    that the machine's drift hits them alike. The timing pass and the layer pass are separate sessions: the profiler
    that sees layers slows the model down.
    """

    version: ClassVar[int] = 2
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True

    backend: Literal["onnxruntime"] = "onnxruntime"
    """What runs the model."""
    provider: str = "cpu"
    """Execution provider: `cpu`, `cuda`, `tensorrt`, or ONNX Runtime's full name. It is an error when it does not
    really load."""
    provider_options: dict[str, str | int | float | bool] = Field(default={})
    """Options of the provider, such as `device_id`."""
    runs: Annotated[int, Field(ge=1)] = 5
    """Process runs, at least: the model is opened in a fresh process and measured anew, in turns with the other
    profiles of the recipe. Passes of one process resemble each other; runs are what comparisons count."""
    passes: Annotated[int, Field(ge=1)] = 100
    """Measured passes, at least, over all runs; each takes its share."""
    duration: Milliseconds = 2500.0
    """Measure at least so long, over all runs; each takes its share. The quickest pass of half a second is what others'
    work on the machine disturbs least, so comparisons decide by it."""
    stable: Fraction = 0.03
    """Go on with more runs until the 95 % interval of the median is within this of it (at least 5 runs are needed to
    tell); `0 %` stops after `runs`."""
    budget: Annotated[Milliseconds, Field(gt=0)] = 10_000.0
    """No run begins when loading, warming up and measuring took so long. Each run has a share of it, and ends with it
    (half of it is for passes, however long loading takes). Recording layers is not counted."""
    warmup_passes: Annotated[int, Field(ge=0)] = 5
    """Passes before the measured ones of each run, at least."""
    warmup: Milliseconds = 200.0
    """Warm up each run at least so long."""
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
        return self.run_together([Turn(self, source, out, context)])[0]

    @classmethod
    def run_together(cls, turns: Sequence[Turn]) -> list[Result]:
        from ndld_flow.backends.measuring.onnxruntime_profiler import measure_sides
        from ndld_flow.backends.measuring.profiling_request import Side

        several = len(turns) > 1
        sides = [
            Side(
                request=turn.step.request(turn.source, turn.context.inputs),
                scratch=turn.context.scratch,
                progress=turn.context.progress,
                called=f"step {turn.context.name}" if several else "",
            )
            for turn in turns
        ]
        return [_write(turn, *measured) for turn, measured in zip(turns, measure_sides(sides), strict=True)]

    def request(self, source: Onnx, inputs: Mapping[str, InputSpec]) -> ProfilingRequest:
        """What the backend is asked to measure."""
        from ndld_flow.backends.measuring.profiling_request import ProfilingRequest

        return ProfilingRequest(
            path=source.path,
            label=source.label,
            digest=source.digest,
            inputs=inputs,
            session=self._session_settings(),
            plan=self._measuring_plan(),
            layer_passes=self.layer_passes,
            batches=self.batches,
            seed=self.seed,
            options=self.model_dump(mode="json"),
        )

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

    def _measuring_plan(self) -> MeasuringPlan:
        from ndld_flow.backends.measuring.stopping import MeasuringPlan

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
    (turn.out / ProfileDocument.main).write_text(profile.to_json(), encoding="utf-8")
    for said in (profile.stopped_because, *profile.notes, *log.splitlines()):
        turn.context.log.info("%s", said)
    reached = _spread(profile)
    return Result(_summary(profile, reached), metrics=_metrics(profile, reached))


def _spread(profile: Profile) -> float | None:
    from ndld_flow.backends.measuring.stopping import spread

    return spread([run.median_ms for run in profile.runs])


def _metrics(profile: Profile, spread: float | None) -> dict[str, Metric]:
    latency = profile.latency
    found = {
        f"latency.{word}": Metric(value=getattr(latency, f"{word}_ms"), unit="ms")
        for word in ("median", "mean", "min", "max", "p90", "p95", "p99", "std")
    }
    found["latency.cov"] = Metric(value=latency.cov)
    found["throughput.median"] = Metric(value=latency.throughput_per_s, unit="1/s")
    found["latency.runs"] = Metric(value=len(profile.runs))
    if spread is not None:
        found["latency.spread"] = Metric(value=spread)
    found["load_ms"] = Metric(value=statistics.median(run.load_ms for run in profile.runs), unit="ms")
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


def _summary(profile: Profile, spread: float | None) -> str:
    from ndld_flow.backends.measuring.stopping import spread_text

    latency, runs = profile.latency, len(profile.runs)
    provider = profile.providers[0].removesuffix("ExecutionProvider")
    within = "" if spread is None else f" {spread_text(spread)}"
    told = f"median {milliseconds(latency.median_ms)}{within} over {runs} run{'' if runs == 1 else 's'}"
    told += f" ({latency.sample_count} pass{'' if latency.sample_count == 1 else 'es'}) on {provider}"
    if profile.stopped_because.startswith("budget"):
        told += ", budget used"
    return f"{told}, {len(profile.layers)} layers" if profile.layers else told
