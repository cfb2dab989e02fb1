"""Rules on engines: their layers and their builds. Nothing was measured: they report facts, not costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ndld_flow.base.extras import ENGINE_LIBRARIES
from ndld_flow.base.quantities import TIMES, count, counted, seconds, share, size
from ndld_flow.base.text import first_of, one_line, short_name
from ndld_flow.profiles.diagnose.subject import EngineSubject, Insight, changes_type, ignored_nodes, missed_precisions
from ndld_flow.records.profile import Layer

_HALVES = ("float16", "bfloat16")
_REDUCED = (*_HALVES, "int8", "uint8", "int4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
_SHAPE_COPIES = ("shapehosttodevice", "devicetoshapehost")
_WIDE = 4
"""Ratio of elements above which shapes need different tactics and memory."""
_LONG_BUILD_S = 30.0
"""Minimum duration of a long build."""
_COMPATIBLE = {
    "ampere_plus": "every GPU since Ampere",
    "same_compute_capability": "every GPU of its compute capability",
}


def placeholder_ranges_used(subject: EngineSubject) -> Iterator[Insight]:
    """Report placeholder INT8 ranges."""
    if subject.option("placeholder_ranges") is not True:
        return
    yield Insight(
        title="The outputs are meaningless on purpose",
        evidence="Tensors have placeholder INT8 ranges (`placeholder_ranges`): the engine is only for measuring.",
        next_step="Calibrate (`calibration_cache`) before using its outputs.",
    )


def weights_are_missing(subject: EngineSubject) -> Iterator[Insight]:
    """Report a stripped engine, which runs only after refitting."""
    if subject.option("weights") != "strip":
        return
    yield Insight(
        title="The engine has no weights",
        evidence="It was built with `weights: strip` and must be refitted before it runs.",
        next_step="Ship the ONNX model with it, or build with `weights: fixed`.",
    )


def constraints_ignored(subject: EngineSubject) -> Iterator[Insight]:
    """Report precision constraints that the build ignored."""
    constraints = subject.build.constraints if subject.build is not None else ()
    ignored = [constraint for constraint in constraints if constraint.is_ignored]
    if not ignored:
        return
    first, why = ignored[0], ignored[0].outcome.removeprefix("ignored").lstrip(": ")
    nodes = ignored_nodes(subject.build)
    yield Insight(
        title=f"{len(ignored)} of {len(constraints)} precision constraints were ignored",
        evidence=f"Such as {one_line(first.precision)} for {one_line(first.node)}: {one_line(why) or 'no reason'}.",
        next_step="The table of constraints shows the reasons. If constraints must hold, set `typing: obey`.",
        layers=subject.where(lambda layer: not nodes.isdisjoint(layer.onnx_nodes)),
    )


def requested_precision_missed(subject: EngineSubject) -> Iterator[Insight]:
    """Report layers for which TensorRT chose another precision than requested, as `typing: prefer` permits."""
    ignored = ignored_nodes(subject.build)
    missed = [
        index
        for index in missed_precisions(subject.profile, subject.build)
        if ignored.isdisjoint(subject.layers[index].onnx_nodes)
    ]
    if not missed:
        return
    ways = [
        f"{one_line(layer.name)} ({one_line(layer.asked_precision)} requested, computes in {layer.precision})"
        for layer in (subject.layers[index] for index in missed)
    ]
    yield Insight(
        title=f"{counted(len(missed), 'layer')} without the requested precision",
        evidence=f"{first_of(ways, 3)}.",
        next_step=(
            "`typing: obey` refuses to build where a constraint cannot be met; with `apply_precision` and "
            "`typing: strong` it is met by Casts."
        ),
        layers=tuple(missed),
    )


def weights_beyond_half(subject: EngineSubject) -> Iterator[Insight]:
    """Report the builder's warning that weights do not fit into FP16."""
    logged = subject.build.warnings if subject.build is not None else ()
    overflows = [
        warning for warning in logged if "FP16" in warning and ("subnormal" in warning or "infinity" in warning.lower())
    ]
    if not overflows:
        return
    yield Insight(
        title="Weights beyond the range of FP16",
        evidence=f"The builder warns: {short_name(overflows[0].lstrip('- '), 300)}",
        next_step=(
            "Check the outputs with `check_accuracy`; if they are wrong, keep the layers of these weights in fp32 with "
            "`constrain_precision`, or block them in `convert_fp16`."
        ),
    )


def layers_unknown(subject: EngineSubject) -> Iterator[Insight]:
    """Report an engine built with too little verbosity to see its layers."""
    build = subject.build
    named_only = bool(subject.layers) and all(layer.type in ("", "unknown", "Reformat") for layer in subject.layers)
    if subject.layers and not named_only and (build is None or build.layers_basis != "network as parsed"):
        return
    verbosity = subject.option("verbosity")
    why = f" It was built with `verbosity: {verbosity}`." if isinstance(verbosity, str) else ""
    yield Insight(
        title="The compiled layers are not known",
        evidence=("Layers are known by name only." if named_only else "The compiled layers were not recorded.") + why,
        next_step="Build with `verbosity: detailed` to record types, tensors, tactics and ONNX nodes of layers.",
    )


def single_precision_only(subject: EngineSubject) -> Iterator[Insight]:
    """Report a strongly typed engine of a float32 model, where no flag enables half precision.

    Any tensor or weights of another type show that some layers compute differently.
    """
    if not subject.is_strongly_typed or not subject.computing:
        return
    types = {tensor.dtype for layer in subject.layers for tensor in (*layer.inputs, *layer.outputs)}
    types |= {name for layer in subject.layers for name in (layer.precision, layer.weights_dtype)}
    if types & set(_REDUCED):
        return
    yield Insight(
        title="All layers compute in single precision",
        evidence=f"All {counted(len(subject.computing), 'layer')} that compute in floating point compute in float32, "
        "as the model specifies; the network is strongly typed, so that no builder flag changes it.",
        next_step=(
            "Put `convert_fp16` before this step, and `check_accuracy` after it: the engine takes its types from the "
            "model."
        ),
        layers=(),
    )


def single_precision_among_half(subject: EngineSubject) -> Iterator[Insight]:
    """Report float32 layers in an engine that mostly computes in half precision."""
    halves = [index for index in subject.computing if subject.layers[index].precision in _HALVES]
    single = tuple(index for index in subject.computing if subject.layers[index].precision == "float32")
    if not halves or not single:
        return
    typed = subject.is_strongly_typed
    unknown = subject.where(lambda layer: layer.role == "compute" and not layer.precision)
    more = f"; for {count(len(unknown))} more it is unknown" if unknown else ""
    yield Insight(
        title=f"{counted(len(single), 'layer')} of {count(len(subject.layers))} in float32 in a half-precision engine",
        evidence=f"{subject.call_types(single)} compute in float32; {counted(len(halves), 'layer')} in half precision"
        f"{more}.",
        next_step=(
            "The model decides the types: see `block` and `keep_io` of `convert_fp16`, and `constrain_precision`."
            if typed
            else "TensorRT found them faster, has no half-precision kernel for them, or was constrained: see the "
            "constraints. The model's outputs keep their type unless `advanced.io_formats` sets another."
        ),
        layers=single,
    )


def reformats_at_the_ends(subject: EngineSubject) -> Iterator[Insight]:
    """Report reformats of the engine's inputs and outputs, which the caller could pass in the engine's own format
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html, "I/O formats").
    """
    ends = {tensor.name: f"input {one_line(tensor.name)}" for tensor in subject.profile.inputs if tensor.name}
    ends |= {tensor.name: f"output {one_line(tensor.name)}" for tensor in subject.profile.outputs if tensor.name}
    reformats = {
        index: ends[tensor.name]
        for index, layer in enumerate(subject.layers)
        if layer.purpose == "reformat"
        for tensor in (*layer.inputs, *layer.outputs)
        if tensor.name in ends
    }
    if not reformats:
        return
    ways = [f"{end} {_way(subject.layers[index])}" for index, end in reformats.items()]
    yield Insight(
        title=f"{counted(len(reformats), 'layer')} reformatting at the engine's inputs and outputs",
        evidence=f"{first_of(ways, 3)}, in every pass.",
        next_step=(
            "If the caller can pass tensors in the engine's own format, set `advanced.io_formats`, and "
            "set `advanced.direct_io` to refuse reformats."
        ),
        layers=tuple(reformats),
    )


def reformats_inside(subject: EngineSubject) -> Iterator[Insight]:
    """Report reformats between layers that use different formats or types."""
    reformats = subject.where(lambda layer: layer.purpose == "reformat" and bool(layer.inputs and layer.outputs))
    inside = tuple(index for index in reformats if not subject.is_at_end(index))
    if not inside:
        return
    changing = [index for index in inside if changes_type(subject.layers[index])]
    types = f"; {len(changing)} of them change the type too" if changing else ""
    fewer = " Fewer precision changes between neighbours reduce their number." if changing else ""
    yield Insight(
        title=f"{counted(len(inside), 'layer')} reformatting between other layers",
        evidence=f"{share(len(inside) / len(subject.layers))} of {counted(len(subject.layers), 'layer')} only change a "
        f"tensor's memory layout{types}.",
        next_step=f"Measure their cost with `profile`.{fewer}",
        layers=inside,
    )


def shape_computations_on_host(subject: EngineSubject) -> Iterator[Insight]:
    """Report copies of shape values between host and device."""
    copies = subject.where(lambda layer: layer.type.lower() in _SHAPE_COPIES)
    if not copies:
        return
    yield Insight(
        title=f"{counted(len(copies), 'layer')} copying shapes between host and device",
        evidence=f"{subject.call_types(copies)}: shapes are computed from values on the device.",
        next_step=(
            "If the inputs always have one shape, run `fix_shapes` and `sanitize` first: shapes become constants."
        ),
        layers=copies,
    )


def opt_at_one_end(subject: EngineSubject) -> Iterator[Insight]:
    """Report an opt shape at one end of a wide range; tactics are chosen for it."""
    for number, name, shapes in subject.ranges():
        least, most = prod(shapes.min), prod(shapes.max)
        if least <= 0 or most < _WIDE * least or shapes.opt not in (shapes.min, shapes.max):
            continue
        end = "largest" if shapes.opt == shapes.max else "smallest"
        yield Insight(
            title=f"Tactics of a wide range are chosen for its {end} shape",
            evidence=f"Input {one_line(name)} of profile {number} ranges from {_dims(shapes.min)} to "
            f"{_dims(shapes.max)}, {most / least:,.0f} times as many elements, and its opt is the {end}.",
            next_step=(
                "Make `opt` the most frequent shape; for several frequent shapes, give each its own optimization "
                "profile (`profiles`)."
            ),
        )


def memory_for_the_largest(subject: EngineSubject) -> Iterator[Insight]:
    """Report a large maximum shape: activations are allocated for it, however rare it is."""
    build = subject.build
    if build is None or not build.memory.activation_bytes:
        return
    wide = [(name, shapes) for _, name, shapes in subject.ranges() if 0 < _WIDE * prod(shapes.opt) <= prod(shapes.max)]
    if not wide:
        return
    name, shapes = wide[0]
    yield Insight(
        title="Memory is allocated for shapes much larger than usual",
        evidence=f"{size(build.memory.activation_bytes)} of activations, for the largest shapes: {one_line(name)} may "
        f"be {_dims(shapes.max)}, which is {prod(shapes.max) / prod(shapes.opt):,.0f} times its opt "
        f"{_dims(shapes.opt)}.",
        next_step="If memory is short, lower `max`, or put the large shapes into a profile of their own.",
    )


def costs_of_compatibility(subject: EngineSubject) -> Iterator[Insight]:
    """Report compatibility with other releases or GPUs, which may be slower by TensorRT's guide on version and hardware
    compatibility.
    """
    build = subject.build
    if build is None or ENGINE_LIBRARIES[build.backend].compiles_on_load:
        return
    level = subject.option("hardware_compatibility")
    reasons = [f"on {_COMPATIBLE[level]}"] if isinstance(level, str) and level in _COMPATIBLE else []
    if subject.option("version_compatible") is True:
        reasons.insert(0, "with later releases of TensorRT")
    if not reasons:
        return
    yield Insight(
        title="Compatibility excludes tactics",
        evidence=f"The engine has to run {' and '.join(reasons)}: it cannot use tactics specific to this GPU or "
        "release.",
        next_step="Compare it with an engine for this machine only, using `profile` and `compare_profiles`.",
    )


def timing_cache(subject: EngineSubject) -> Iterator[Insight]:
    """Report a long build without timings from a cache. TensorRT-RTX times nothing; further attempts time on
    purpose."""
    build = subject.build
    if build is None or ENGINE_LIBRARIES[build.backend].compiles_on_load or build.build_s < _LONG_BUILD_S:
        return
    if subject.option("attempt") not in (None, 1):
        return
    cache = build.timing_cache
    if cache is None:
        yield Insight(
            title="Built without a timing cache",
            evidence=f"The build took {seconds(build.build_s)}, and the next one times every tactic again.",
            next_step="Leave `timing_cache` on: timings are kept for later builds on this machine.",
        )
    elif cache.loaded_entries == 0 or (cache.loaded_entries is None and not cache.loaded_bytes):
        yield Insight(
            title="The timing cache was empty",
            evidence=f"The build took {seconds(build.build_s)}; the cache {one_line(cache.file)} was empty and now "
            f"has {size(cache.saved_bytes)}.",
            next_step="Later builds on this machine with this release are faster; for other machines, ship the cache "
            "(`timing_cache_file`).",
        )


def _way(layer: Layer) -> str:
    ends = [one_line(f"{side[0].dtype} {side[0].format}") for side in (layer.inputs, layer.outputs) if side]
    return f"({' to '.join(end for end in ends if end)})" if any(ends) else ""


def _dims(shape: Sequence[int]) -> str:
    return TIMES.join(map(str, shape)) or "scalar"
