"""The choice of made samples: those that reach most of a model that others do not."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ndld_flow.accuracy.model_comparison import ModelPair
from ndld_flow.accuracy.sample_coverage import Observation, Observer, Reached, add_levels, open_observer
from ndld_flow.base.errors import RequestError
from ndld_flow.models.files import read_proto
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.samples.made_samples import (
    ExtendedSamples,
    MadeSample,
    candidates,
    describe_sizes,
    forms_of,
    without_files,
)
from ndld_flow.samples.sample_feeds import Samples
from ndld_flow.samples.sample_settings import Made
from ndld_flow.samples.usual_values import InputKind, kind_of
from ndld_flow.samples.wanted_inputs import WantedInput

AUTO = 4
"""Number of made samples where nobody gave data."""
_MOST = 60
_MOST_OF_FORM = 12
_SECONDS = 3.0
"""Estimated time of all candidates."""
_PATIENCE_S = 8.0
"""Time after which no more candidates run: the estimate knows nothing of bodies."""
_MOST_FAILURES = 2
"""Failed runs after which a size is given up; one may fail by its values."""
_SAME_FORM = 0.5
"""Weight of a sample of a form that was chosen before."""

Accepts = Callable[[Mapping[str, Array]], bool]


def extend_samples(
    samples: Samples,
    made: Made,
    model: Path,
    settings: SessionRequest,
    accepts: Accepts = lambda _: True,
    *,
    one_size: bool = False,
) -> Samples:
    """Return samples followed by made ones, chosen by a run of the model; the same ones if none are wanted or possible.

    `accepts` returns False for values that whatever else runs on them refuses; with `one_size` all have the shapes of
    the first sample.
    """
    count = (AUTO if samples.is_generated else 0) if made == "auto" else 0 if made == "off" else made
    if not count or not samples.wanted:
        return samples
    try:
        observer = open_observer(model, settings.unfused().brief())
        chosen = _Choice(samples, observer, accepts, one_size=one_size).choose(count)
    except Exception:  # models of 2 GB cannot be observed, and what else tapped models may meet must end no check
        return samples
    return ExtendedSamples(samples, chosen) if chosen else samples


def extend_pair(pair: ModelPair, made: Made) -> ModelPair:
    """Return a pair whose samples are followed by made ones that both models accept.

    By itself (`auto`), a candidate with calibrated ranges gets none: values beyond those of the calibration saturate.
    """
    if made == "off" or not isinstance(pair.samples, Samples):
        return pair
    if made == "auto" and not pair.samples.is_generated:
        return pair
    if made == "auto" and _quantizers(pair.candidate.path) > _quantizers(pair.reference.path):
        return pair

    def accepts(feeds: Mapping[str, Array]) -> bool:
        for side in (pair.reference, pair.candidate):
            names = pair.inputs.candidate_names if side is pair.candidate else {name: name for name in feeds}
            try:
                if side.request is not None:
                    side.request.refuse_shapes({names[name]: array.shape for name, array in feeds.items()})
            except RequestError:
                return False
        return True

    settings = replace(pair.reference.settings, provider="cpu", provider_options={})
    return replace(pair, samples=extend_samples(pair.samples, made, pair.reference.path, settings, accepts))


def _quantizers(path: Path) -> int:
    """Return the number of nodes that quantize with fixed ranges."""
    return sum(node.op_type.startswith(("QuantizeLinear", "QLinear")) for node in read_proto(path).graph.node)


class _Choice:
    """A greedy choice among candidates."""

    def __init__(self, samples: Samples, observer: Observer, accepts: Accepts, *, one_size: bool) -> None:
        self._samples, self._observer, self._accepts, self._one_size = samples, observer, accepts, one_size
        self._wanted = [without_files(each) for each in samples.wanted]
        self._watched = [each.name for each in self._wanted if _is_watched(each)]

    def choose(self, count: int) -> list[MadeSample]:
        """Return the chosen samples; fewer if not as many run."""
        first = next(iter(self._samples)).feeds
        base = self._observer.observe({name: feed.values for name, feed in first.items()}, self._watched)
        if base is None:
            return []
        shapes = {name: tuple(feed.values.shape) for name, feed in first.items()}
        base.reached["sizes"].add((describe_sizes(self._wanted, shapes),))
        most = min(_MOST, _MOST_OF_FORM * len(forms_of(self._wanted)))
        tried = min(max(int(_SECONDS / base.work), 2 * count), most)
        found = self._observe(
            islice(candidates(self._wanted, shapes, self._samples.made_seed, one_size=self._one_size), tried)
        )
        add_levels([base, *(observation for _, observation in found)])
        return _pick(found, base, count)

    def _observe(self, made: Iterable[MadeSample]) -> list[tuple[MadeSample, Observation]]:
        found: list[tuple[MadeSample, Observation]] = []
        failures, runs = Counter[str](), set[str]()
        until = time.monotonic() + _PATIENCE_S
        for sample in made:
            if time.monotonic() > until:
                break
            if failures[sample.sizes] >= _MOST_FAILURES and sample.sizes not in runs:
                continue
            feeds = {name: feed.values for name, feed in sample.feeds(self._wanted).items()}
            seen = self._observer.observe(feeds, self._watched) if self._accepts(feeds) else None
            if seen is None:
                failures[sample.sizes] += 1
                continue
            runs.add(sample.sizes)
            if seen.is_finite:
                seen.reached["sizes"].add((sample.sizes,))
                found.append((sample, seen))
        return found


def _is_watched(wanted: WantedInput) -> bool:
    """Return True for an input whose single values matter."""
    uses, kind = wanted.spec.uses, wanted.dtype.kind
    return kind in "iub" or bool(uses.rows or uses.constants) or kind_of(wanted) is not InputKind.OTHER


def _pick(found: Sequence[tuple[MadeSample, Observation]], base: Observation, count: int) -> list[MadeSample]:
    """Return the samples that reach most of what the ones before them do not, one after another.

    Each group of parts counts by the share of it that is new. Of equals the first is chosen, the most typical one.
    """
    totals: Reached = defaultdict(set)
    covered: Reached = defaultdict(set)
    for observation in (base, *(observation for _, observation in found)):
        for group, parts in observation.reached.items():
            totals[group] |= parts
    left, chosen, forms = list(found), list[MadeSample](), set[str]()
    latest = base
    while left and len(chosen) < count:
        for group, parts in latest.reached.items():
            covered[group] |= parts

        def gain(pair: tuple[MadeSample, Observation]) -> float:
            new = (
                len(parts - covered[group]) / len(totals[group]) for group, parts in pair[1].reached.items() if parts
            )
            return sum(new) * (_SAME_FORM if pair[0].form in forms else 1.0)

        best = max(left, key=gain)
        left.remove(best)
        chosen.append(best[0])
        forms.add(best[0].form)
        latest = best[1]
    return chosen
