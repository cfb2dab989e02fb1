"""Where inside the two models their values part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.accuracy.inside.capture import tensors_of
from ndld_flow.accuracy.inside.divergence import Observed, diverge, first_divergent
from ndld_flow.accuracy.model_comparison import ModelPair, Progress
from ndld_flow.accuracy.reduced_precision import reduced_precision
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import is_plain, name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.models.tensors import Array
from ndld_flow.records.divergence import LayerDivergence
from ndld_flow.samples.sample_feeds import Samples

MOST_LAYERS = 1000
"""More are not recorded: the record of a model of tens of thousands of nodes would be too large to look at."""


@dataclass(frozen=True)
class ComparedLayers:
    """What the layers say."""

    kept: tuple[LayerDivergence, ...]
    count: int
    """How many were compared."""
    first: LayerDivergence | None
    bounds: Mapping[str, float]
    """Metric -> bound, outside of which values have parted."""
    notes: tuple[str, ...]


def compare_layers(
    pair: ModelPair, tensors: Sequence[str] | None, bounds: Mapping[str, float], progress: Progress
) -> ComparedLayers:
    """Compare the tensors inside both models, by name: some of the reference's, or all of them."""
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
        notes = (f"of {len(layers):,} layers that were compared, the record keeps the {len(kept):,} that diverge most",)
    return ComparedLayers(kept, len(layers), first, bounds, notes)


def choose_tensors(pair: ModelPair, patterns: Sequence[str]) -> list[str]:
    """The reference's tensors that patterns fit, or the nodes that make them.

    Raises `RequestError` for a pattern that fits nothing.
    """
    places = [place for place in tensors_of(pair.reference.path) if not place.in_body]
    chosen = set()
    for pattern in patterns:
        fits = name_matcher(pattern)
        found = [place.name for place in places if fits(place.name) or (place.node and fits(place.node))]
        if not found:
            known = [place.name for place in places]
            nearest = f"; {suggest(pattern, known)}" if is_plain(pattern) else ""
            raise RequestError(f'layers: "{pattern}" fits no tensor or node of {pair.reference.label}{nearest}')
        chosen.update(found)
    return [place.name for place in places if place.name in chosen]


def _most_divergent(layers: Sequence[LayerDivergence], first: LayerDivergence | None) -> tuple[LayerDivergence, ...]:
    ranked = sorted(layers, key=lambda layer: (layer.nonfinite > 0, layer.metrics.get("relative_rms", 0.0)))
    tensors = {layer.tensor for layer in ranked[-MOST_LAYERS:]}
    return tuple(layer for layer in layers if layer.tensor in tensors or layer is first)


class _Feeds(Collection[Mapping[str, Array]]):
    """What the reference is fed, sample after sample, read each time it is asked for."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return ({name: feed.values for name, feed in sample.feeds.items()} for sample in self._samples)

    def __contains__(self, feeds: object) -> bool:
        return any(feeds is one for one in self)
