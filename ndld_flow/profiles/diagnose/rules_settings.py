"""Rules on what a recipe chooses for the whole model, and on computation to fold or fuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from pydantic import JsonValue

from ndld_flow.base.quantities import counted, milliseconds, share, size
from ndld_flow.profiles.diagnose.subject import FUSE, AddedStep, Insight, RecipeChange, Subject
from ndld_flow.records.profile import Layer

_CPU = "CPUExecutionProvider"
_NOTABLE_SHARE = 0.03
_HALVES = ("float16", "bfloat16")
_REDUCED = (*_HALVES, "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4")
_MOSTLY = 0.8
_MOST_THREADS = 1e15
_BATCH_PAYS = 1.2
_MANY_TIMES = 4
_MUCH_MEMORY = 256 * 2**20


def cpu_fallback(subject: Subject) -> Iterator[Insight]:
    """Report layers on the CPU in a session on another provider: the device waits for them, and tensors are copied.

    ONNX Runtime places nodes without a kernel of the provider on the CPU, and shape computations on purpose
    (https://onnxruntime.ai/docs/execution-providers/, "the nodes that are not supported fall back to CPU").
    """
    if not subject.on_gpu or not subject.profile.providers:
        return
    positions = subject.where(lambda layer: layer.provider == _CPU)
    if not positions:
        return
    yield Insight(
        score=subject.share(positions),
        title=f"{counted(len(positions), 'layer')} on the CPU instead of the device",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}, "
        f"although the session requests {subject.profile.providers[0]}.",
        next_step=(
            "Run `fix_shapes` and `sanitize` if they compute shapes. Otherwise the provider has no kernel for this "
            "operator, type or version of the opset: replace it, or try another opset."
        ),
        layers=positions,
    )


def single_precision_remains(subject: Subject) -> Iterator[Insight]:
    """Report float32 products in a mostly half-precision model that take at least 3 %."""
    halves = _macs(subject, _HALVES)
    singles = _macs(subject, ("float32",))
    if halves <= singles:
        return
    positions = subject.where(lambda layer: layer.precision == "float32" and bool(layer.macs))
    part = subject.share(positions)
    if part < _NOTABLE_SHARE:
        return
    yield Insight(
        score=part / 2,
        title=f"{counted(len(positions), 'layer')} multiplying in float32 in a half-precision model",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)} for "
        f"{share(singles / (singles + halves))} of the multiplications. The longest is {subject.call(positions[0])}.",
        next_step=(
            "If `block` of `convert_fp16` keeps them, remove them from it one by one, with `check_accuracy` after "
            "each: often only one of them needs float32."
        ),
        layers=positions,
    )


def half_precision_on_cpu(subject: Subject) -> Iterator[Insight]:
    """Report a half-precision model on the CPU: ONNX Runtime has few such kernels and inserts casts to float32."""
    if subject.on_gpu or not subject.profile.runtime.inserts_casts:
        return
    positions = subject.where(
        lambda layer: (
            layer.role == "cast"
            and not layer.onnx_nodes
            and any(tensor.dtype in _HALVES for tensor in (*layer.inputs, *layer.outputs))
        )
    )
    if not positions:
        return
    yield Insight(
        score=subject.share(positions),
        title="Half precision is cast to float32 and back on the CPU",
        evidence=f"ONNX Runtime inserted {counted(len(positions), 'layer')} for casts: {subject.took_part(positions)}.",
        next_step="Run the float32 model on the CPU; half precision pays on devices that support it.",
        layers=positions,
    )


def single_precision_on_gpu(subject: Subject) -> Iterator[Insight]:
    """Report a model on a GPU with at least 80 % of its multiplications in float32.

    Tensor cores multiply FP16 at least twice as fast as TF32, and half as many bytes move
    (https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/), so the estimated saving is half of the
    time of these layers. NVIDIA's ResNet-50 exports of one A100 (TREx) take 1.99 ms in float32 and 0.86 ms in float16.
    """
    reduced, singles = _macs(subject, _REDUCED), _macs(subject, ("float32",))
    if not subject.on_gpu or not singles or singles < _MOSTLY * (singles + reduced):
        return
    if any(layer.macs and not layer.precision for layer in subject.layers):
        return  # their type is unknown
    positions = subject.where(lambda layer: layer.precision == "float32" and bool(layer.macs))
    part = subject.share(positions)
    if part < _NOTABLE_SHARE:
        return
    # Tensor cores multiply the first 10 bits of float32's fraction, and a kernel's name may not reveal it.
    units = {"tensor core TF32": "TF32", "FP32 FMA": "float32", "FMA": "float32"}
    used = Counter(units.get(subject.layers[position].unit, "float32 or TF32") for position in positions)
    listed = ", ".join(f"{counted(number, 'layer')} in {name}" for name, number in used.most_common())
    yield Insight(
        score=part / 2,
        title=f"The GPU multiplies in single precision: {listed}",
        evidence=f"They do {share(singles / (singles + reduced))} of the multiplications and take "
        f"{subject.took_part(positions)}.",
        next_step="Run `convert_fp16` and `check_accuracy`, then profile both in turns.",
        layers=positions,
        # An engine was built by an earlier step, which a conversion before the profile would not affect.
        change=None
        if subject.profile.runs_engine
        else RecipeChange(steps=(AddedStep("convert_fp16"),), needs_check=True),
    )


def more_threads_than_cpus(subject: Subject) -> Iterator[Insight]:
    """Report more ONNX Runtime threads than CPUs: they spin while waiting for each other
    (https://onnxruntime.ai/docs/performance/tune-performance/threading.html).
    """
    threads, cpus = subject.profile.options.get("threads"), subject.profile.machine.cpu_count or 0
    if not isinstance(threads, int | float) or not 0 < cpus < threads < _MOST_THREADS or subject.on_gpu:
        return
    yield Insight(
        score=min(0.5, 1 - cpus / threads),
        title=f"{threads:.0f} threads on {cpus} {'CPU' if cpus == 1 else 'CPUs'}",
        evidence=f"`threads` is {threads:.0f}; this process may use {cpus}.",
        next_step=f"Profile with `threads: {cpus}`, and with fewer.",
        change=RecipeChange(settings={"threads": cpus}),
    )


def larger_batches_pay(subject: Subject) -> Iterator[Insight]:
    """Report a larger batch with at least 20 % more throughput than the smallest in the batch sweep."""
    points = sorted(
        (point for point in subject.profile.batches if point.latency_ms and min(point.latency_ms) > 0),
        key=lambda point: point.batch,
    )
    if len(points) < 2 or not points[0].items_per_s:
        return
    best = max(points, key=lambda point: point.items_per_s)
    gain = best.items_per_s / points[0].items_per_s
    if gain < _BATCH_PAYS:
        return
    yield Insight(
        score=1 - 1 / gain,
        title=f"Batches of {best.batch} give {gain:.2g} times the throughput",
        evidence=f"{best.items_per_s:.4g} items per second at batch {best.batch}, {points[0].items_per_s:.4g} at batch "
        f"{points[0].batch}. A batch takes {milliseconds(best.latency.median_ms)} instead of "
        f"{milliseconds(points[0].latency.median_ms)} ({share(1 - 1 / gain)} less per item).",
        next_step=f"If requests may wait for each other, collect them into batches of {best.batch}.",
    )


def memory_beyond_weights(subject: Subject) -> Iterator[Insight]:
    """Report a peak memory of at least 256 MiB and four times the weights: activations or the arena use it."""
    peak = subject.profile.peak_memory_bytes
    weights = sum(layer.weight_bytes for layer in subject.layers)
    if not weights or peak < _MUCH_MEMORY or peak < _MANY_TIMES * weights:
        return
    largest = max(range(len(subject.layers)), key=lambda position: subject.layers[position].written_bytes)
    yield Insight(
        title=f"Memory is {peak / weights:.0f} times the weights",
        evidence=f"The peak is {size(peak)}, weights are {size(weights)}; the largest output is that of "
        f"{subject.call(largest)}, {size(subject.layers[largest].written_bytes)}.",
        next_step=(
            "Try `memory_arena: false`, which releases memory between passes, smaller batches, or smaller inputs."
        ),
        layers=(largest,),
    )


def _macs(subject: Subject, precisions: tuple[str, ...]) -> int:
    return sum(layer.macs or 0 for layer in subject.layers if layer.precision in precisions)


_SHAPES = ("Shape", "Size")
_FEWEST_SHAPES = 3
_INTEGERS = ("int64", "int32", "bool")
_FEW_VALUES = 64
"""A tensor of at most this many integers is a shape, an axis or an index."""
_NOTABLE_SHARE_OF_LAYERS = 0.02
_CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")
_AFFINE = ("Mul", "Add", "Sub", "Div")
_LONGEST_WAY = 8
"""Maximum number of layers between a convolution and a layer that can be folded into it."""


def shapes_at_run_time(subject: Subject) -> Iterator[Insight]:
    """Report at least three Shape layers per pass, with the layers computed from them.

    With fixed input shapes their results are constants, and the runtime plans memory ahead
    (https://onnxruntime.ai/docs/tutorials/mobile/helpers/make-dynamic-shape-fixed.html).
    """
    shapes = subject.where(lambda layer: layer.type in _SHAPES)
    if len(shapes) < _FEWEST_SHAPES:
        return
    positions = subject.where(_computes_shapes)
    yield Insight(
        score=subject.share(positions),
        title=f"{counted(len(positions), 'layer')} computing shapes in each pass",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}.",
        next_step=(
            "If the inputs always have this shape, run `fix_shapes` and then `sanitize`, which folds them; or set "
            "`free_dimensions` of `profile`."
        ),
        layers=positions,
        change=_with_fixed_shapes(subject),
    )


def scaling_not_folded(subject: Subject) -> Iterator[Insight]:
    """Report a layer that scales or shifts and is the only reader of a convolution: it can be folded into the weights
    and the bias of the convolution.

    It is a BatchNormalization, which at inference is a factor and an offset per channel (Jacob et al., 2017,
    https://arxiv.org/abs/1712.05877, section 3.2), or a Mul, Add, Sub or Div with a constant (one value, or one per
    channel).
    """
    positions = subject.where(
        lambda layer: (layer.type == "BatchNormalization" or _is_affine(layer)) and _reads_convolution(subject, layer)
    )
    part = subject.share(positions)
    if not positions or part < _NOTABLE_SHARE_OF_LAYERS:
        return
    yield Insight(
        score=part,
        title=f"{counted(len(positions), 'layer')} scaling or shifting a convolution's output",
        evidence=f"{subject.call_types(positions)}: {subject.took_part(positions)}. The "
        f"longest is {subject.call(positions[0])}.",
        next_step="Run `sanitize` with `fuse: true`: it folds them into the weights of the convolution.",
        layers=positions,
        change=FUSE,
    )


def _computes_shapes(layer: Layer) -> bool:
    if layer.type in _SHAPES:
        return True
    tensors = (*layer.inputs, *layer.outputs)
    small = all(prod(tensor.shape) <= _FEW_VALUES and tensor.dtype in _INTEGERS for tensor in tensors)
    return bool(tensors) and small and layer.role != "control"


def _is_affine(layer: Layer) -> bool:
    """Return whether one input is a constant that is broadcast along all axes, or all but one."""
    if layer.type not in _AFFINE or not layer.weight_bytes or len(layer.inputs) != 2 or not layer.outputs:
        return False
    smaller = min((tensor.shape for tensor in layer.inputs), key=prod)
    if layer.type == "Div" and smaller != layer.inputs[1].shape:
        return False
    return sum(size > 1 for size in smaller) <= 1 and prod(smaller) < prod(layer.outputs[0].shape)


def _with_fixed_shapes(subject: Subject) -> RecipeChange | None:
    """Return the steps that make shapes constant; None for an input whose measured shape is not known."""
    inputs = subject.profile.inputs
    if not inputs or any(not tensor.name or min(tensor.shape, default=0) < 0 for tensor in inputs):
        return None
    shapes: dict[str, JsonValue] = {tensor.name: list(tensor.shape) for tensor in inputs}
    return RecipeChange(steps=(AddedStep("fix_shapes", {"shapes": shapes}), AddedStep("sanitize")))


def _reads_convolution(subject: Subject, layer: Layer) -> bool:
    """Return whether a layer is the only reader of a convolution, directly, through reorders or through similar
    layers."""
    for _ in range(_LONGEST_WAY):
        written = [
            (tensor.name, subject.makers[tensor.name]) for tensor in layer.inputs if tensor.name in subject.makers
        ]
        if len(written) != 1 or len(subject.readers[written[0][0]]) != 1:
            return False
        layer = subject.layers[written[0][1]]
        if layer.type in _CONVOLUTIONS:
            return True
        if layer.role != "reformat" and not _is_affine(layer):
            return False
    return False
