"""Rules on how an engine was built: what the choice of shapes, caches and compatibility brings with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.base.quantities import TIMES, seconds, size
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject, elements
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import one_line
from ndld_flow.records.build import ShapeRange

_WIDE = 4
"""Times as many elements: shapes so far apart want different tactics, and different memory."""
_LONG_BUILD_S = 30.0
"""A build that a person waits for."""
_COMPATIBLE = {
    "ampere_plus": "every GPU since Ampere",
    "same_compute_capability": "every GPU of its compute capability",
}


def layers_unknown(subject: EngineSubject) -> Iterator[Insight]:
    """Too little verbosity to see what was compiled."""
    build = subject.build
    named_only = bool(subject.layers) and all(not _is_told(layer.type) for layer in subject.layers)
    if subject.layers and not named_only and (build is None or build.layers_basis != "network as parsed"):
        return
    verbosity = subject.option("verbosity")
    why = f" It was built with `verbosity: {verbosity}`." if isinstance(verbosity, str) else ""
    yield Insight(
        score=0,
        title="What was compiled is not known",
        evidence=("Layers are known by name only." if named_only else "The compiled layers were not told.") + why,
        next_step="Build with `verbosity: detailed`: types, tensors, tactics and ONNX nodes of layers are then known.",
    )


def opt_at_one_end(subject: EngineSubject) -> Iterator[Insight]:
    """Tactics are chosen for the opt shape; of a wide range, it is the largest or the smallest."""
    for number, name, shapes in subject.ranges():
        least, most = elements(shapes.min), elements(shapes.max)
        if least <= 0 or most < _WIDE * least or shapes.opt not in (shapes.min, shapes.max):
            continue
        end = "largest" if shapes.opt == shapes.max else "smallest"
        yield Insight(
            score=0,
            title=f"Tactics of a wide range are chosen for its {end} shape",
            evidence=f"Input {one_line(name)} of profile {number} goes from {_dims(shapes.min)} to "
            f"{_dims(shapes.max)}, {most / least:,.0f} times as many elements, and its opt is the {end}.",
            next_step=(
                "Make `opt` the shape that is most used; where several are, give each an optimization profile of its "
                "own (`profiles`)."
            ),
        )


def memory_for_the_largest(subject: EngineSubject) -> Iterator[Insight]:
    """Activations are allocated for the largest shapes of a profile, however seldom they come."""
    build = subject.build
    if build is None or not build.memory.activation_bytes:
        return
    wide = [(name, shapes) for _, name, shapes in subject.ranges() if _is_wide(shapes)]
    if not wide:
        return
    name, shapes = wide[0]
    yield Insight(
        score=0,
        title="Memory is for shapes much larger than the usual",
        evidence=f"{size(build.memory.activation_bytes)} of activations, for the largest shapes: {one_line(name)} may "
        f"be {_dims(shapes.max)}, which is {elements(shapes.max) / elements(shapes.opt):,.0f} times its opt "
        f"{_dims(shapes.opt)}.",
        next_step="Where memory is short, lower `max`, or put the large shapes into a profile of their own.",
    )


def costs_of_compatibility(subject: EngineSubject) -> Iterator[Insight]:
    """An engine for other releases or other GPUs cannot use what only some of them have (TensorRT's guide on version
    and hardware compatibility says of both that they may be slower).
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
        title="Compatibility leaves out tactics",
        evidence=f"The engine has to run {' and '.join(reasons)}: it cannot use tactics that only this GPU or this "
        "release has.",
        next_step="Compare it with an engine that has to run here only, by `profile` and `compare_profiles`.",
    )


def timing_cache(subject: EngineSubject) -> Iterator[Insight]:
    """A long build that took nothing from a timing cache. TensorRT-RTX times nothing; further attempts are to."""
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
            evidence=f"Building took {seconds(build.build_s)}, and every tactic is timed anew next time.",
            next_step="Leave `timing_cache` on: what was timed is kept for later builds on this machine.",
        )
    elif cache.loaded_entries == 0 or (cache.loaded_entries is None and not cache.loaded_bytes):
        yield Insight(
            score=0,
            title="The timing cache was empty",
            evidence=f"Building took {seconds(build.build_s)}; the cache {one_line(cache.file)} held nothing and now "
            f"has {size(cache.saved_bytes)}.",
            next_step="Builds on this machine with this release are quicker from now on; elsewhere, ship the cache "
            "(`timing_cache_file`).",
        )


def _is_told(layer_type: str) -> bool:
    return layer_type not in ("", "unknown", "Reformat")


def _is_wide(shapes: ShapeRange) -> bool:
    return 0 < _WIDE * elements(shapes.opt) <= elements(shapes.max)


def _dims(shape: Sequence[int]) -> str:
    return TIMES.join(map(str, shape)) or "scalar"
