"""Rules on the cost of starting layers."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import count, milliseconds, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import Subject, layers_word

START_CPU_MS = 0.0002
"""What ONNX Runtime 1.31 needs to start one node on a CPU: 0.16 to 0.24 us (tests/benchmarks/bench_diagnosis.py)."""
START_GPU_MS = 0.003
"""What launching one kernel takes on the host (https://developer.nvidia.com/blog/cuda-graphs/: 2.2 us to 3.8 us)."""
_TINY_CPU, _TINY_GPU = 10, 2
"""A layer that takes less than this many starts is tiny. A GPU is started ahead of time, while it still computes."""
_FEWEST = 20
_WORTH_A_LOOK = 0.1
ENQUEUE_BOUND = 0.8
"""trtexec warns from here on ("Throughput may be bound by Enqueue Time",
https://github.com/NVIDIA/TensorRT/blob/main/samples/common/sampleReporting.cpp)."""


def start_ms(subject: Subject) -> float:
    """What starting one layer costs here, about."""
    return START_GPU_MS if subject.on_gpu else START_CPU_MS


def executed_layers(subject: Subject) -> int:
    """In one pass: a body that runs often counts as often, as the timeline shows it. What takes no time is not run."""
    took_time = sum(median_ms > 0 for median_ms in subject.medians_ms)
    return max(took_time, sum(span.kind == "layer" and span.duration_ms > 0 for span in subject.profile.timeline))


def are_tiny(subject: Subject) -> bool:
    """Whether starting layers is a part of the latency. Where launching is told apart, `bound_by_enqueue` decides."""
    executed = executed_layers(subject)
    if executed < _FEWEST or subject.latency_ms <= 0 or subject.lane_ms(lambda run: run.enqueue_ms) is not None:
        return False
    return subject.latency_ms / executed < tiny_ms(subject)


def tiny_ms(subject: Subject) -> float:
    """A layer that takes less is hardly longer than its start."""
    return start_ms(subject) * (_TINY_GPU if subject.on_gpu else _TINY_CPU)


def outside_layers(subject: Subject) -> float:
    """The part of the latency that is neither in layers nor in copies that are told apart, 0 to 1.

    0 where every pass was taken with the profiler on, which needs its time between layers, and where the time on the
    device is not known.
    """
    if subject.times_are_the_hosts:
        return 0.0
    apart = bool(subject.profile.layer_pass_ms) or subject.profile.backend != "onnxruntime"
    if not subject.layers or not subject.profile.latency_ms or subject.latency_ms <= 0 or not apart:
        return 0.0
    copies = subject.copies_ms if subject.latency_has_copies else 0.0
    return max(0.0, 1 - subject.layers_part - copies / subject.latency_ms)


def many_tiny_layers(subject: Subject) -> Iterator[Insight]:
    """20 layers or more take so little on average that starting them is a part of the latency.

    Larger batches, fused layers and CUDA graphs all make starts count less
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/optimization.html, "Batching", "CUDA Graphs").
    """
    if not are_tiny(subject):
        return
    executed, start = executed_layers(subject), start_ms(subject)
    saved = min(1.0, executed * start / subject.latency_ms)
    remedy = (
        "Capture the passes in a CUDA graph" if subject.on_gpu else "Run it on one thread (`threads: 1`) to compare"
    )
    yield Insight(
        score=saved,
        title=f"{count(executed)} layers, most of them tiny",
        evidence=f"{milliseconds(subject.latency_ms)} for {count(executed)} executed layers are "
        f"{milliseconds(subject.latency_ms / executed)} each; starting one takes about {milliseconds(start)}, "
        f"{share(saved)} of the latency in all.",
        next_step=f"Use larger batches where the task allows it, and run `sanitize` to fuse and fold layers. {remedy}.",
        layers=subject.longest_first(
            position for position, median_ms in enumerate(subject.medians_ms) if 0 < median_ms < tiny_ms(subject)
        ),
    )


def time_outside_layers(subject: Subject) -> Iterator[Insight]:
    """A tenth or more of the latency lies outside all layers: the layer pass, slower as it is, sums up to less."""
    outside = outside_layers(subject)
    if outside < _WORTH_A_LOOK:
        return
    yield Insight(
        score=outside / 2,
        title=f"{share(outside)} of the latency is outside layers",
        evidence=f"All layers take {milliseconds(subject.layers_sum_ms)} a pass, the timing pass "
        f"{milliseconds(subject.latency_ms)}, with {layers_word(executed_layers(subject))} to start.",
        next_step=(
            "Look at the pauses in the timeline. Inputs and outputs that are copied, many small layers, and more "
            "threads than free CPUs are the usual causes."
        ),
    )


def layers_explain_little(subject: Subject) -> Iterator[Insight]:
    """A tenth or more of the latency is neither in the medians of layers nor known to be between layers.

    In each pass other layers may be interrupted: their medians then sum up to far less than a pass takes. And where
    latencies were measured with ONNX Runtime's profiler on, its own work is a part of them.
    """
    latency_ms = subject.latency_ms
    if subject.times_are_the_hosts or not subject.layers_ms or not subject.profile.latency_ms:
        return
    if subject.scattered_part >= _WORTH_A_LOOK:
        yield Insight(
            score=0.0,
            title=f"The medians of the layers explain {share(subject.layers_ms / latency_ms)} of the latency",
            evidence=f"They sum up to {milliseconds(subject.layers_ms)} of {milliseconds(latency_ms)}. The layers of "
            f"one pass take {milliseconds(subject.layers_sum_ms)}: in each pass others are slow.",
            next_step=(
                "Passes are interrupted, by other processes or by threads that wait for each other: measure on a quiet "
                "machine, or with `threads: 1`. Until then, read shares of layers as shares of their sum."
            ),
        )
    gap = latency_ms - subject.layers_sum_ms
    if subject.profile.profiler == "on" and gap >= _WORTH_A_LOOK * latency_ms:
        yield Insight(
            score=0.0,
            title=f"{share(gap / latency_ms)} of the latency is outside layers, the profiler's own work included",
            evidence=f"All layers take {milliseconds(subject.layers_sum_ms)} a pass of {milliseconds(latency_ms)}.",
            next_step=(
                "Measure the latency without a profiler (`ndld-flow profile MODEL`): what remains outside layers there "
                "is dispatch, copies and waiting."
            ),
        )


def bound_by_enqueue(subject: Subject) -> Iterator[Insight]:
    """Launching takes 80 % of the time on the device or more: trtexec's own threshold."""
    enqueue = subject.lane_ms(lambda run: run.enqueue_ms)
    compute = subject.lane_ms(lambda run: run.compute_ms)
    if enqueue is None or compute is None or enqueue <= ENQUEUE_BOUND * compute:
        return
    yield Insight(
        score=max(0.0, min(1.0, (enqueue - compute) / subject.latency_ms)) if subject.latency_ms else 0.0,
        title="The host needs as long to launch a pass as the device to run it",
        evidence=f"Enqueueing takes {milliseconds(enqueue)}, computing {milliseconds(compute)} (medians).",
        next_step=(
            "Use a CUDA graph (trtexec: `--useCudaGraph`; ONNX Runtime: the provider option `enable_cuda_graph`), or "
            "larger batches. Check that nothing else keeps the host's CPU busy."
        ),
    )
