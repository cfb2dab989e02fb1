"""Rules on the build of an engine: effects of shapes, caches and compatibility."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.base.quantities import TIMES, seconds, size
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject, elements
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import one_line
from ndld_flow.records.build import ShapeRange

_WIDE = 4
"""Ratio of elements above which shapes need different tactics and memory."""
_LONG_BUILD_S = 30.0
"""Minimum duration of a long build."""
_COMPATIBLE = {
    "ampere_plus": "every GPU since Ampere",
    "same_compute_capability": "every GPU of its compute capability",
}


def layers_unknown(subject: EngineSubject) -> Iterator[Insight]:
    """Report an engine built with too little verbosity to see its layers."""
    build = subject.build
    named_only = bool(subject.layers) and all(not _is_told(layer.type) for layer in subject.layers)
    if subject.layers and not named_only and (build is None or build.layers_basis != "network as parsed"):
        return
    verbosity = subject.option("verbosity")
    why = f" It was built with `verbosity: {verbosity}`." if isinstance(verbosity, str) else ""
    yield Insight(
        score=0,
        title="The compiled layers are not known",
        evidence=("Layers are known by name only." if named_only else "The compiled layers were not recorded.") + why,
        next_step="Build with `verbosity: detailed` to record types, tensors, tactics and ONNX nodes of layers.",
    )


def opt_at_one_end(subject: EngineSubject) -> Iterator[Insight]:
    """Report an opt shape at one end of a wide range; tactics are chosen for it."""
    for number, name, shapes in subject.ranges():
        least, most = elements(shapes.min), elements(shapes.max)
        if least <= 0 or most < _WIDE * least or shapes.opt not in (shapes.min, shapes.max):
            continue
        end = "largest" if shapes.opt == shapes.max else "smallest"
        yield Insight(
            score=0,
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
    wide = [(name, shapes) for _, name, shapes in subject.ranges() if _is_wide(shapes)]
    if not wide:
        return
    name, shapes = wide[0]
    yield Insight(
        score=0,
        title="Memory is allocated for shapes much larger than usual",
        evidence=f"{size(build.memory.activation_bytes)} of activations, for the largest shapes: {one_line(name)} may "
        f"be {_dims(shapes.max)}, which is {elements(shapes.max) / elements(shapes.opt):,.0f} times its opt "
        f"{_dims(shapes.opt)}.",
        next_step="If memory is short, lower `max`, or put the large shapes into a profile of their own.",
    )


def costs_of_compatibility(subject: EngineSubject) -> Iterator[Insight]:
    """Report compatibility with other releases or GPUs, which may be slower by TensorRT's guide on version and hardware
    compatibility.
    """
    build = subject.build
    if build is None or build.backend != "tensorrt":
        return
    level = subject.option("hardware_compatibility")
    reasons = [f"on {_COMPATIBLE[level]}"] if isinstance(level, str) and level in _COMPATIBLE else []
    if subject.option("version_compatible") is True:
        reasons.insert(0, "with later releases of TensorRT")
    if not reasons:
        return
    yield Insight(
        score=0,
        title="Compatibility excludes tactics",
        evidence=f"The engine has to run {' and '.join(reasons)}: it cannot use tactics specific to this GPU or "
        "release.",
        next_step="Compare it with an engine for this machine only, using `profile` and `compare_profiles`.",
    )


def timing_cache(subject: EngineSubject) -> Iterator[Insight]:
    """Report a long build without timings from a cache. TensorRT-RTX times nothing; further attempts time on
    purpose."""
    build = subject.build
    if build is None or build.backend != "tensorrt" or build.build_s < _LONG_BUILD_S:
        return
    if subject.option("attempt") not in (None, 1):
        return
    cache = build.timing_cache
    if cache is None:
        yield Insight(
            score=0,
            title="Built without a timing cache",
            evidence=f"The build took {seconds(build.build_s)}, and the next one times every tactic again.",
            next_step="Leave `timing_cache` on: timings are kept for later builds on this machine.",
        )
    elif cache.loaded_entries == 0 or (cache.loaded_entries is None and not cache.loaded_bytes):
        yield Insight(
            score=0,
            title="The timing cache was empty",
            evidence=f"The build took {seconds(build.build_s)}; the cache {one_line(cache.file)} was empty and now "
            f"has {size(cache.saved_bytes)}.",
            next_step="Later builds on this machine with this release are faster; for other machines, ship the cache "
            "(`timing_cache_file`).",
        )


def _is_told(layer_type: str) -> bool:
    return layer_type not in ("", "unknown", "Reformat")


def _is_wide(shapes: ShapeRange) -> bool:
    return 0 < _WIDE * elements(shapes.opt) <= elements(shapes.max)


def _dims(shape: Sequence[int]) -> str:
    return TIMES.join(map(str, shape)) or "scalar"
