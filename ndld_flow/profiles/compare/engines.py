"""Compare two engines without running them: layers that do the same work, and what the builder chose for each.

What one engine does not reveal (tactics of TensorRT-RTX, shapes in a lock, sizes in an export) is unknown: it is
neither equal nor different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic import JsonValue

from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name
from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.records.build import (
    Build,
    EngineComparison,
    EngineLock,
    EngineVerdict,
    LayerAspect,
    LayersBasis,
    MatchedEngineLayer,
    stable_name,
    stable_names,
)
from ndld_flow.records.comparison import LayerRow, MatchMethod
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, TensorInfo

ASPECTS: tuple[LayerAspect, ...] = get_args(LayerAspect)
CHOICES: tuple[LayerAspect, ...] = ("type", "precision", "tactic", "formats", "shapes")
"""Aspects that make two engines different; a name alone does not."""
_NAMED = 3
_NO_TYPE = "unknown"
"""Type of a layer whose export has only its name."""


@dataclass(frozen=True)
class EngineSide:
    """One of two engines."""

    label: str
    profile: Profile
    """Its layers; times, if there are any, are not compared."""
    lock: EngineLock | None = None
    build: Build | None = None

    @property
    def digest(self) -> str:
        """Digest of the engine's file; empty if it is not recorded, as in exports of layers."""
        return self.lock.engine_digest if self.lock else self.build.engine_digest if self.build else ""

    @property
    def size_bytes(self) -> int | None:
        """Size of the engine's file; None if it is not recorded."""
        return self.lock.engine_bytes if self.lock else self.build.engine_bytes if self.build else None

    @property
    def basis(self) -> LayersBasis | None:
        """Source of the layers; None for exports, which are of the engine inspector."""
        return self.lock.layers_basis if self.lock else self.build.layers_basis if self.build else None

    @property
    def reveals_layers(self) -> bool:
        """True if its layers are those of the engine, and not of the network before its optimization."""
        return bool(self.profile.layers) and self.basis != "network as parsed"

    def aspect(self, aspect: LayerAspect, places: Sequence[int]) -> str:
        """Return an aspect of layers as text; empty if it is not recorded for one of them."""
        texts = [_READ[aspect](self.profile.layers[index]) for index in places]
        return " + ".join(texts) if all(texts) else ""


def side_of_lock(label: str, lock: EngineLock) -> EngineSide:
    """Return the engine of a lock without the record of its build: its layers have no shapes."""
    layers = tuple(
        Layer(
            index=index,
            name=name,
            type=layer.type,
            precision=layer.precision,
            tactic=layer.tactic,
            inputs=_tensors(layer.formats.partition(" -> ")[0]),
            outputs=_tensors(layer.formats.partition(" -> ")[2]),
            samples_ms=(),
        )
        for index, (name, layer) in enumerate(lock.layers.items())
    )
    profile = Profile(
        label=label,
        model_digest=lock.request.model_digest,
        backend=lock.request.backend,
        machine=Machine(gpus=(lock.request.gpu,) if lock.request.gpu else (), driver=lock.request.driver),
        versions={},
        options=lock.request.options,
        inputs=(),
        outputs=(),
        warmup_passes=0,
        warmup_ms=0,
        runs=(),
        layers=layers,
    )
    return EngineSide(label, profile, lock)


def _tensors(formats: str) -> tuple[TensorInfo, ...]:
    """Return tensors with the types and formats of a lock; their names and shapes are not in it."""
    words = [text.partition(" ") for text in formats.split(", ") if text]
    return tuple(TensorInfo(name="", dtype=dtype, shape=(), format=layout) for dtype, _, layout in words)


def _shapes(layer: Layer) -> str:
    tensors = [*layer.inputs, *layer.outputs]
    if not tensors or not any(tensor.name for tensor in tensors):  # of a lock
        return ""
    return " -> ".join(
        ", ".join("x".join(map(str, tensor.shape)) or "scalar" for tensor in side)
        for side in (layer.inputs, layer.outputs)
    )


_READ: Mapping[LayerAspect, Callable[[Layer], str]] = {
    "type": lambda layer: "" if layer.type == _NO_TYPE else layer.type,
    "precision": lambda layer: layer.precision,
    # TensorRT-RTX's stubs stand for kernels that are chosen when the engine is first run.
    "tactic": lambda layer: "" if layer.tactic.endswith("_STUB") else layer.tactic,
    "formats": lambda layer: layer.formats if any(t.layout for t in (*layer.inputs, *layer.outputs)) else "",
    "shapes": _shapes,
    "name": lambda layer: stable_name(layer.name),
}


def match_engines(before: EngineSide, after: EngineSide) -> tuple[MatchedEngineLayer, ...]:
    """Return all layers of two engines, those that do the same work in one row, with the aspects that differ."""
    profiles = [_with_stable_names(side.profile) for side in (before, after)]
    return tuple(_row(before, after, row) for row in match_layers(profiles))


def pair_equal_engines(before: EngineSide, after: EngineSide) -> tuple[MatchedEngineLayer, ...]:
    """Return the rows of two engines whose locks are equal: every layer with the one of its name."""
    places = [
        {name: index for index, name in enumerate(stable_names(layer.name for layer in side.profile.layers))}
        for side in (before, after)
    ]
    sure = (1.0, 1.0)
    methods: tuple[MatchMethod, MatchMethod] = ("nodes", "nodes")
    return tuple(
        _row(
            before,
            after,
            LayerRow(layers=((index,), (places[1][name],)), methods=methods, confidence=1.0, confidences=sure),
        )
        for name, index in places[0].items()
        if name in places[1]
    )


def _with_stable_names(profile: Profile) -> Profile:
    """Return a profile whose layers have no numbers of the compiler in their names, which would mislead the match."""
    names = stable_names(layer.name for layer in profile.layers)
    layers = tuple(layer.model_copy(update={"name": name}) for layer, name in zip(profile.layers, names, strict=True))
    return profile.model_copy(update={"layers": layers})


def _row(before: EngineSide, after: EngineSide, row: LayerRow) -> MatchedEngineLayer:
    ours, theirs = row.layers
    side, places = (after, theirs) if theirs else (before, ours)
    names = tuple(side.profile.layers[index].name for index in places)
    if not (ours and theirs):
        return MatchedEngineLayer(before=ours, after=theirs, names=names, method="unmatched", confidence=0)
    texts = {aspect: (before.aspect(aspect, ours), after.aspect(aspect, theirs)) for aspect in ASPECTS}
    return MatchedEngineLayer(
        before=ours,
        after=theirs,
        names=names,
        method=row.methods[1],
        confidence=row.confidence_between(0, 1),
        changed=tuple(aspect for aspect, (then, now) in texts.items() if then and now and then != now),
        unknown=tuple(aspect for aspect, (then, now) in texts.items() if not (then and now)),
    )


def compare_sides(before: EngineSide, after: EngineSide) -> EngineComparison:
    """Compare two engines without a lock for one or both, such as exports of layers.

    Without the digests of the files, the engines may differ in weights, and in everything that an export leaves out:
    they are different or undecided, never equal.
    """
    rows = match_engines(before, after)
    differences = [*describe_rows(before, after, rows)]
    verdict: EngineVerdict
    if before.digest and before.digest == after.digest:
        verdict, differences = "identical", []
    elif differences and before.reveals_layers and after.reveals_layers:
        verdict = "different"
    else:
        verdict = "undecided"
        differences.append(_reason(before, after))
    return EngineComparison(
        verdict=verdict,
        differences=tuple(differences),
        causes=tuple(_causes(before, after)),
        layer_count=len(after.profile.layers),
        before_bytes=before.size_bytes,
        after_bytes=after.size_bytes,
        rows=rows,
    )


def _causes(before: EngineSide, after: EngineSide) -> Iterator[str]:
    """Yield the circumstances that are recorded for both, and differ."""
    ours, theirs = facts_of_engine(before), facts_of_engine(after)
    for group in _CAUSES:
        for name, then in ours[group].items():
            now = theirs[group].get(name, "")
            if then and now and then != now:
                yield f"{name} is {short_name(now)}, and was {short_name(then)}"


_CAUSES = ("Library and device", "Model and shapes", "Settings")
NOT_SET = "not set"
_OF_TIMES = ("inference_options", "device")
"""Parts of the options of an export that do not decide the engine."""


def facts_of_engine(side: EngineSide) -> dict[str, dict[str, str]]:
    """Return what is known of an engine besides its layers, by group; an empty text is not recorded."""
    build, lock, profile = side.build, side.lock, side.profile
    request = lock.request if lock else None
    library = build.library if build else request.library if request else ""
    gpus = build.machine.gpus[build.device : build.device + 1] if build else profile.machine.gpus[:1]
    ranges = build.profiles if build else request.profiles if request else ()
    weights = sum(layer.weight_bytes for layer in profile.layers)
    shapes = {
        f"shape of {name}, profile {number}": " / ".join(
            "x".join(map(str, dims)) for dims in (each.min, each.opt, each.max)
        )
        for number, built in enumerate(ranges)
        for name, each in built.inputs.items()
    }
    if not ranges:
        shapes = {f"shape of {tensor.name}": "x".join(map(str, tensor.shape)) for tensor in profile.inputs}
    return {
        "Engine": {
            "bytes of the file": f"{side.size_bytes:,}" if side.size_bytes is not None else "",
            "digest": side.digest[:16],
            "layers": f"{len(profile.layers):,}",
            "source of the layers": side.basis or ("export of the engine inspector" if profile.layers else ""),
            "weights in layers": f"{size(weights)} ({weights:,} bytes)" if weights else "",
            "activations": f"{build.memory.activation_bytes:,} bytes"
            if build and build.memory.activation_bytes
            else "",
        },
        "Library and device": {
            "library": library,
            "GPU": ", ".join(gpus),
            "driver": profile.machine.driver,
            "compute capabilities": ", ".join(build.compute_capabilities) if build else "",
            **({} if build else profile.versions),
        },
        "Model and shapes": {
            "model": profile.model_digest[:16],
            "typing": build.typing if build else "",
            **shapes,
        },
        "Settings": dict(_flat(profile.options, "")),
    }


def _flat(options: JsonValue, place: str) -> Iterator[tuple[str, str]]:
    """Yield settings by dotted names."""
    if isinstance(options, Mapping) and options:
        for name, value in options.items():
            if place or name not in _OF_TIMES:
                yield from _flat(value, f"{place}.{name}".lstrip("."))
    elif place:
        is_set = options is not None and options not in ([], {}, "")
        yield place, (str(options).lower() if isinstance(options, bool) else str(options)) if is_set else NOT_SET


def _reason(before: EngineSide, after: EngineSide) -> str:
    hidden = [side.label for side in (before, after) if not side.reveals_layers]
    if hidden:
        return f"the layers of {' and '.join(hidden)} are not known: the builder reveals only the network"
    return "no layer is known to differ, but the files of the engines are not known: weights and the rest may differ"


def describe_rows(before: EngineSide, after: EngineSide, rows: Iterable[MatchedEngineLayer]) -> Iterator[str]:
    """Yield one phrase for each kind of difference, with the first layers."""
    listed = list(rows)
    for word, only in (
        ("missing", [row for row in listed if not row.after]),
        ("added", [row for row in listed if not row.before]),
    ):
        if only:
            names = [name for row in only for name in row.names]
            yield f"{counted(len(names), 'layer')} {word}: {_first(names)}"
    for aspect in CHOICES:
        changed = [row for row in listed if aspect in row.changed]
        if changed:
            shown = [
                f"{' + '.join(row.names)} is {after.aspect(aspect, row.after)}, and was "
                f"{before.aspect(aspect, row.before)}"
                for row in changed
            ]
            yield f"{counted(len(changed), 'layer')} with another {_NOUNS[aspect]}: {_first(shown)}"


_NOUNS: Mapping[LayerAspect, str] = {
    "type": "type",
    "precision": "precision",
    "tactic": "tactic",
    "formats": "format",
    "shapes": "shape",
}


def count_changes(rows: Iterable[MatchedEngineLayer]) -> Counter[LayerAspect]:
    """Return the number of rows that differ in each aspect."""
    return Counter(aspect for row in rows for aspect in row.changed)


def _first(names: Sequence[str]) -> str:
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'; '.join(short_name(name, 240) for name in names[:_NAMED])}{more}"
