"""Rules on time that is not spent computing: launching layers, reformats, casts, copies, control flow, transfers."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import count, counted, milliseconds, share
from ndld_flow.profiles.diagnose.subject import FUSE, Insight, RecipeChange, Subject, changes_type
from ndld_flow.records.measurement import BUSY
from ndld_flow.records.profile import LayerRole

_NOTABLE_SHARE = 0.03
"""Minimum share of the latency that justifies a change of the model."""
_REORDERS = ("ReorderInput", "ReorderOutput")
_NOTABLE_SHARE_OF_TRANSFERS = 0.1
START_CPU_MS = 0.0002
"""Time that ONNX Runtime 1.31 needs to start one node on a CPU: 0.16 to 0.24 us (tests/benchmarks/bench_diagnosis.py).
"""
START_GPU_MS = 0.003
"""Time to launch one kernel on the host (https://developer.nvidia.com/blog/cuda-graphs/: 2.2 us to 3.8 us)."""
_TINY_CPU, _TINY_GPU = 10, 2
"""A layer is tiny if it takes less than this many launches. On a GPU, launches overlap with computing."""
_FEWEST_LAUNCHES = 20
_MOST_LAUNCHES = 500
"""A time outside layers of more than this many launches for each of them is no dispatch: threads wait, for example."""
_NOTABLE_SHARE_OUTSIDE = 0.1
_ENQUEUE_BOUND = 0.8
"""Threshold of trtexec's warning ("Throughput may be bound by Enqueue Time",
https://github.com/NVIDIA/TensorRT/blob/main/samples/common/sampleReporting.cpp)."""


def reformats(subject: Subject) -> Iterator[Insight]:
    """Report layers that change a tensor's layout, but not its type, and take at least 3 %.

    ONNX Runtime's CPU provider computes convolutions in blocks of channels (NCHWc) and reorders if a neighbour has no
    such kernel; TensorRT reformats where neighbours differ in precision or format
    (https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html, "layout optimizations";
    https://docs.nvidia.com/deeplearning/tensorrt/latest/performance/optimization.html). The estimated saving is half of
    their time, as some remain. Giving up the blocked layout does not help: without it PP-OCRv4's models need a third
    more CPU time (`optimization: extended`, tests/benchmarks/bench_diagnosis.py).
    """
    positions = tuple(index for index in _in_role(subject, "reformat") if not changes_type(subject.layers[index]))
    part = subject.share(positions)
    if part < _NOTABLE_SHARE:
        return
    are_reorders = any(subject.layers[position].type in _REORDERS for position in positions)
    if are_reorders:
        next_step = (
            "They occur where a layer between convolutions has no kernel for blocks of channels: run `sanitize` with "
            "`fuse: true`, and export activations as Relu or as one operator. `optimization: extended` disables the "
            "blocks, which is usually slower."
        )
    else:
        next_step = "Look at the neighbours of the longest reformats: their kernels use different formats."
        if subject.profile.runs_engine:
            next_step += (
                " At inputs and outputs the caller can use the engine's format (`advanced.io_formats` of "
                "`build_engine`)."
            )
    yield Insight(
        score=part / 2,
        title=f"Changing layouts takes {share(part)} of {subject.whole}",
        evidence=f"{subject.call_types(positions)}: {subject.took(positions)}. The longest is "
        f"{subject.call(positions[0])}.",
        next_step=next_step,
        layers=positions,
        change=FUSE if are_reorders else None,
    )


def casts(subject: Subject) -> Iterator[Insight]:
    """Report casts that take at least 3 %: precision changes too often."""
    positions = _in_role(subject, "cast")
    part = subject.share(positions)
    if part < _NOTABLE_SHARE:
        return
    put_in = sum(1 for position in positions if not subject.layers[position].onnx_nodes)
    yield Insight(
        score=part * 0.8,
        title=f"Casts take {share(part)} of {subject.whole}",
        evidence=f"{counted(len(positions), 'layer')}, {put_in} of them not in the model: "
        f"{subject.took(positions)}. The longest is {subject.call(positions[0])}.",
        next_step=(
            "Give neighbours the same precision: add layers between two blocked layers to `block` of "
            "`convert_fp16`, or remove single layers from it. Casts that the runtime inserts show that the provider "
            "has no kernel for that precision."
        ),
        layers=positions,
    )


def copies(subject: Subject) -> Iterator[Insight]:
    """Report copies of tensors between host and device within the model, of any size.

    ONNX Runtime inserts a copy between neighbours on different devices, and each waits for the device
    (https://onnxruntime.ai/docs/performance/tune-performance/troubleshooting.html).
    """
    positions = _in_role(subject, "copy")
    if not positions:
        return
    yield Insight(
        score=subject.share(positions),
        title=f"{counted(len(positions), 'layer')} copying tensors between host and device",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}.",
        next_step=(
            "Find the adjacent layers on the CPU: replace their operators with supported ones, or run "
            "`fix_shapes` and `sanitize` if they only compute shapes."
        ),
        layers=positions,
    )


def control_flow_on_gpu(subject: Subject) -> Iterator[Insight]:
    """Report If, Loop or Scan in a session on a GPU: the condition is read on the host, so the host waits for the
    device in every iteration, and CUDA graphs cannot be used
    (https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider .html, "Using CUDA Graphs").
    """
    positions = _in_role(subject, "control")
    if not positions or not subject.on_gpu:
        return
    part = subject.share(positions)
    yield Insight(
        score=part,
        title=f"Control flow on a GPU: {subject.call_types(positions)}",
        evidence=f"They take {subject.took(positions)} without their bodies ({share(part)} of {subject.whole}).",
        next_step=(
            "Make the input that decides the branch a constant and run `sanitize`, which resolves the branch "
            "statically; unroll loops of a known length when exporting."
        ),
        layers=positions,
    )


def many_tiny_layers(subject: Subject) -> Iterator[Insight]:
    """Report at least 20 layers so short that launching them is a relevant part of the latency.

    Larger batches, fused layers and CUDA graphs reduce the cost of launches
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
        f"{milliseconds(subject.latency_ms / executed)} each; launching one takes about {milliseconds(start)}, "
        f"{share(saved)} of the latency in all.",
        next_step=f"Use larger batches if possible, and run `sanitize` to fuse and fold layers. {remedy}.",
        layers=subject.longest_first(
            position for position, median_ms in enumerate(subject.medians_ms) if 0 < median_ms < tiny_ms(subject)
        ),
        change=RecipeChange(settings={"threads": 1}) if "threads" in subject.profile.options else None,
    )


def time_outside_layers(subject: Subject) -> Iterator[Insight]:
    """Report at least a tenth of the latency outside all layers, even though the layer pass is slower."""
    outside, others = outside_layers(subject), subject.profile.share_used_by_others
    if outside < _NOTABLE_SHARE_OUTSIDE:
        return
    is_busy = others >= BUSY
    load = f" Other processes used {share(others)} of the CPUs." if is_busy else ""
    yield Insight(
        score=0.0 if is_busy else outside / 2,
        title=f"{share(outside)} of the latency is outside layers",
        evidence=f"The layers of one pass take {milliseconds(subject.pass_layers_ms)}, the timing pass "
        f"{milliseconds(subject.latency_ms)}, with {counted(executed_layers(subject), 'layer')} to launch.{load}",
        next_step=(
            "Measure on an idle machine: the layers and the timing pass were interrupted at different times."
            if is_busy
            else "Look at the gaps in the timeline. Copies of inputs and outputs, many small layers, and more "
            "threads than idle CPUs are the usual causes."
        ),
    )


def layers_explain_little(subject: Subject) -> Iterator[Insight]:
    """Report at least a tenth of the latency that is neither in the layers' medians nor known to be between layers.

    If different layers are interrupted in each pass, their medians add up to less than a pass. With ONNX Runtime's
    profiler on, latencies include its own work.
    """
    latency_ms = subject.latency_ms
    if subject.times_are_of_the_host or not subject.layers_ms or not subject.profile.latency_ms:
        return
    if subject.scattered_part >= _NOTABLE_SHARE_OUTSIDE:
        yield Insight(
            title=f"The medians of the layers explain {share(subject.layers_ms / latency_ms)} of the latency",
            evidence=f"They add up to {milliseconds(subject.layers_ms)} of {milliseconds(latency_ms)}. The layers of "
            f"one pass take {milliseconds(subject.pass_layers_ms)}: different layers are slow in each pass.",
            next_step=(
                "Passes are interrupted, by other processes or by threads that wait for each other: measure on an idle "
                "machine, or with `threads: 1`. Until then, read shares of layers as shares of their sum."
            ),
        )
    gap = latency_ms - subject.pass_layers_ms
    if subject.profile.profiler == "on" and gap >= _NOTABLE_SHARE_OUTSIDE * latency_ms:
        yield Insight(
            title=f"{share(gap / latency_ms)} of the latency is outside layers, the profiler's own work included",
            evidence=f"Its layers take {milliseconds(subject.pass_layers_ms)} of a pass of {milliseconds(latency_ms)}.",
            next_step=(
                "Measure the latency without a profiler (`ndld-flow profile MODEL`): what remains outside layers there "
                "is dispatch, copies and waiting."
            ),
        )


def bound_by_enqueue(subject: Subject) -> Iterator[Insight]:
    """Report enqueueing that takes at least 80 % of the device time, trtexec's own threshold."""
    enqueue = subject.lane_ms(lambda run: run.enqueue_ms)
    compute = subject.lane_ms(lambda run: run.compute_ms)
    if enqueue is None or not compute or enqueue <= _ENQUEUE_BOUND * compute:
        return
    yield Insight(
        score=max(0.0, min(1.0, (enqueue - compute) / subject.latency_ms)) if subject.latency_ms else 0.0,
        title="The host takes as long to enqueue a pass as the device to run it",
        evidence=f"Enqueueing takes {milliseconds(enqueue)}, computing {milliseconds(compute)} (medians).",
        next_step=(
            "Use a CUDA graph (trtexec: `--useCudaGraph`; ONNX Runtime: the provider option `enable_cuda_graph`), or "
            "larger batches. Check that the host's CPU is otherwise idle."
        ),
        change=RecipeChange(settings={"cuda_graph": True}) if "cuda_graph" in subject.profile.options else None,
    )


def transfers(subject: Subject) -> Iterator[Insight]:
    """Report copies of inputs and outputs that take at least a tenth of the latency.

    Copies from pinned memory are faster and can overlap with computing
    (https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/, "Data Transfer Between Host and Device"). The estimated
    saving of keeping data on the device is nine tenths of the time that does not overlap.
    """
    to_device = subject.lane_ms(lambda run: run.h2d_ms)
    to_host = subject.lane_ms(lambda run: run.d2h_ms)
    if to_device is None or to_host is None or not subject.latency_ms:
        return
    part = (to_device + to_host) / subject.latency_with_copies_ms
    if part < _NOTABLE_SHARE_OF_TRANSFERS:
        return
    whole = "the latency" if subject.latency_has_copies else "a pass with its copies"
    yield Insight(
        score=min(1.0, part) * 0.9,
        title=f"Copies between host and device take {share(part)} of {whole}",
        evidence=f"To the device {milliseconds(to_device)}, back {milliseconds(to_host)}, latency "
        f"{milliseconds(subject.latency_ms)} (medians).",
        next_step=(
            "Keep inputs and outputs on the device (IO binding) if adjacent stages run there. Otherwise use pinned "
            "memory, overlap copies with the previous pass on a second stream, and send bytes instead of floats."
        ),
    )


def _in_role(subject: Subject, role: LayerRole) -> tuple[int, ...]:
    """Return the layers of a role that take time."""
    positions = (position for position, layer in enumerate(subject.layers) if layer.role == role)
    return subject.longest_first(position for position in positions if subject.medians_ms[position] > 0)


def start_ms(subject: Subject) -> float:
    """Return the approximate time to launch one layer."""
    return START_GPU_MS if subject.on_gpu else START_CPU_MS


def executed_layers(subject: Subject) -> int:
    """Return the number of layers executed in one pass, by the timeline: repeated bodies count each time; layers
    without time do not.
    """
    took_time = sum(median_ms > 0 for median_ms in subject.medians_ms)
    return max(took_time, sum(span.kind == "layer" and span.duration_ms > 0 for span in subject.profile.timeline))


def are_tiny(subject: Subject) -> bool:
    """Return whether launching layers is a relevant part of the latency. If enqueue times are recorded,
    `bound_by_enqueue` decides.
    """
    executed = executed_layers(subject)
    if (
        executed < _FEWEST_LAUNCHES
        or subject.latency_ms <= 0
        or subject.lane_ms(lambda run: run.enqueue_ms) is not None
    ):
        return False
    return subject.latency_ms / executed < tiny_ms(subject)


def tiny_ms(subject: Subject) -> float:
    """Return the time below which a layer is tiny."""
    return start_ms(subject) * (_TINY_GPU if subject.on_gpu else _TINY_CPU)


def is_dispatch(subject: Subject) -> bool:
    """Return whether launching the layers may take the time outside them, and not other processes or long waits."""
    gap_ms = outside_layers(subject) * subject.latency_ms
    most_ms = _MOST_LAUNCHES * start_ms(subject) * executed_layers(subject)
    return subject.profile.share_used_by_others < BUSY and gap_ms <= most_ms


def outside_layers(subject: Subject) -> float:
    """Return the part of the latency that is neither in layers nor in separately recorded copies, 0 to 1.

    0 if every pass ran with the profiler on, which takes time between layers, and if the time on the device is unknown.
    """
    if subject.times_are_of_the_host:
        return 0.0
    apart = bool(subject.profile.layer_pass_ms) or subject.profile.runs_engine
    if not subject.layers or not subject.profile.latency_ms or subject.latency_ms <= 0 or not apart:
        return 0.0
    copies = subject.copies_ms if subject.latency_has_copies else 0.0
    return max(0.0, 1 - subject.layers_part - copies / subject.latency_ms)
