"""Comparison of two models layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.accuracy.inside.capture import tensors_of
from ndld_flow.accuracy.inside.divergence import Observed, diverge, first_divergent
from ndld_flow.accuracy.model_comparison import ModelPair, Progress, reduced_precision
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.models.tensors import Array
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.samples.sample_feeds import Samples

MOST_LAYERS = 1000
"""Most layers in a record: more would make it too large to view."""


@dataclass(frozen=True)
class ComparedLayers:
    """The layers of a comparison and the first that diverges."""

    kept: tuple[LayerDivergence, ...]
    count: int
    """Number of layers compared, recorded or not."""
    first: LayerDivergence | None
    bounds: Mapping[str, float]
    """Metric -> bound beyond which values have diverged."""
    notes: tuple[str, ...]


def compare_layers(
    pair: ModelPair, tensors: Sequence[str] | None, bounds: Mapping[str, float], progress: Progress
) -> ComparedLayers:
    """Compare tensors inside both models by name: the given ones of the reference, or all."""
    layers = diverge(
        Observed(pair.reference.to_run, pair.reference.settings),
        Observed(pair.candidate.to_run, pair.candidate.settings),
        _Feeds(pair.samples),
        tensors,
        reduced_precision(pair.candidate.path),
        progress,
    )
    first = first_divergent(layers, bounds)
    kept = layers if len(layers) <= MOST_LAYERS else _most_divergent(layers, first)
    notes: tuple[str, ...] = ()
    if len(kept) < len(layers):
        notes = (f"the record keeps the {len(kept):,} most divergent of {len(layers):,} compared layers",)
    return ComparedLayers(kept, len(layers), first, bounds, notes)


def choose_tensors(pair: ModelPair, patterns: Sequence[str]) -> list[str]:
    """Return the reference's tensors that match a pattern, or whose node does.

    Raises `RequestError` for a pattern that matches nothing.
    """
    places = [place for place in tensors_of(pair.reference.path) if not place.in_body]
    chosen = set()
    for pattern in patterns:
        fits = name_matcher(pattern)
        found = [place.name for place in places if fits(place.name) or (place.node and fits(place.node))]
        if not found:
            known = [place.name for place in places]
            nearest = f"; {suggest(pattern, known)}" if is_plain(pattern) else ""
            raise RequestError(f'layers: "{pattern}" matches no tensor or node of {pair.reference.label}{nearest}')
        chosen.update(found)
    return [place.name for place in places if place.name in chosen]


def _most_divergent(layers: Sequence[LayerDivergence], first: LayerDivergence | None) -> tuple[LayerDivergence, ...]:
    ranked = sorted(layers, key=lambda layer: (layer.nonfinite > 0, layer.metrics.get("relative_rms", 0.0)))
    tensors = {layer.tensor for layer in ranked[-MOST_LAYERS:]}
    return tuple(layer for layer in layers if layer.tensor in tensors or layer is first)


class _Feeds(Collection[Mapping[str, Array]]):
    """The reference's input values, sample by sample, read anew in each iteration."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return ({name: feed.values for name, feed in sample.feeds.items()} for sample in self._samples)

    def __contains__(self, feeds: object) -> bool:
        return any(feeds is sample for sample in self)
