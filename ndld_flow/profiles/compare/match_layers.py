"""Match the layers of several profiles that do the same work.

Each pair of profiles is matched independently, so that comparing many gives the same result as comparing two. The links
of all pairs are then merged by descending confidence; a link that contradicts an earlier one is dropped. Profiles are
processed in a canonical order, so that the rows do not depend on the choice of the base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import get_args

from ndld_flow.profiles.compare.pair_evidence import LayerFeatures
from ndld_flow.profiles.compare.pair_matching import Link, match_pair
from ndld_flow.records.comparison import LayerRow, MatchMethod
from ndld_flow.records.profile import Layer, Profile

_Tensors = tuple[tuple[str, tuple[int, ...]], ...]
_Looks = tuple[str, str, str, tuple[str, ...], _Tensors, _Tensors, tuple[str, ...]]
_Identity = tuple[int, tuple[_Looks, ...]]
_QUICK = 20_000
"""Total number of layers in all pairs up to which every pair of profiles is matched, a few seconds."""
_SAME_PLACE = 0.99
"""Confidence for layers at the same place of two profiles that look the same throughout, without weights as proof."""
_Found = tuple[MatchMethod, float]
METHODS: tuple[MatchMethod, ...] = get_args(MatchMethod)
"""From the most certain to none."""


def match_layers(profiles: Sequence[Profile]) -> tuple[LayerRow, ...]:
    """Return rows of layers that do the same work, in the first profile's order of execution.

    Every layer is in exactly one row; layers of other profiles are placed by their execution order.
    """
    alike: dict[_Identity, list[int]] = defaultdict(list)
    for number, profile in enumerate(profiles):
        alike[_identity(profile)].append(number)
    twins = [alike[key] for key in sorted(alike)]
    different = [profiles[numbers[0]] for numbers in twins]
    digests = [frozenset(profiles[number].model_digest for number in numbers) - {""} for numbers in twins]
    features = [LayerFeatures(profile.layers, models) for profile, models in zip(different, digests, strict=True)]
    pairs = list(combinations(range(len(features)), 2))
    if sum(len(features[ours]) + len(features[theirs]) for ours, theirs in pairs) > _QUICK:
        # Of many profiles, each is matched with the first and with its neighbour.
        pairs = [pair for pair in pairs if pair[0] == 0 or pair[1] - pair[0] == 1]
    groups = _Groups(features)
    groups.add_links((*pair, link) for pair in pairs for link in match_pair(features[pair[0]], features[pair[1]]))
    rows = [_numbered(group, twins, profiles) for group in groups.all()]
    placed: list[_Row] = []
    starts: list[list[tuple[int, int]]] = [[] for _ in profiles]
    """For each profile, the first layer and the index of each of its rows."""
    for index, row in enumerate(rows):
        for number, positions in row.layers.items():
            starts[number].append((positions[0], index))
    for firsts in starts:
        placed = _insert_rows(placed, [rows[index] for _, index in sorted(firsts)])
    return tuple(row.as_record(len(profiles)) for row in placed)


def _identity(profile: Profile) -> _Identity:
    """Return a key that is equal for profiles with equal features of all layers."""
    layers = tuple(
        (
            layer.name,
            layer.type,
            layer.role,
            layer.onnx_nodes,
            tuple((tensor.name, tensor.shape) for tensor in layer.outputs),
            tuple((tensor.name, tensor.shape) for tensor in layer.inputs),
            tuple(weight.digest for weight in layer.weights),
        )
        for layer in profile.layers
    )
    return -len(profile.layers), layers


@dataclass(eq=False)
class _Group:
    """Layers that do the same work."""

    layers: dict[int, list[int]]
    """Profile -> positions in its layers."""
    links: list[tuple[int, int, MatchMethod, float]] = field(default_factory=list)
    """(profile, profile, method, confidence) of the links: a tree over the profiles."""
    ceilings: dict[int, float] = field(default_factory=dict)
    """Profile -> confidence that all its layers in this group belong together."""


class _Groups:
    """A partition of the layers of all profiles into groups."""

    def __init__(self, features: Sequence[LayerFeatures]) -> None:
        self._of = [
            [_Group({number: [at]}) for at in range(len(profile.layers))] for number, profile in enumerate(features)
        ]

    def all(self) -> list[_Group]:
        """Return every group once."""
        return list({id(group): group for groups in self._of for group in groups}.values())

    def add_links(self, links: Iterable[tuple[int, int, Link]]) -> None:
        """Join groups by links, the most certain first; layers of one profile are joined only by links of several
        layers.
        """
        for ours, theirs, link in sorted(links, key=lambda entry: -entry[2].confidence):
            linked = [self._of[ours][at] for at in link.ours] + [self._of[theirs][at] for at in link.theirs]
            groups = list({id(group): group for group in linked}.values())
            held = [number for group in groups for number in group.layers]
            if len(groups) > 1 and (len(linked) > 2 or len(held) == len(set(held))):
                self._join(groups, (ours, theirs, link.method, link.confidence))

    def _join(self, groups: Sequence[_Group], link: tuple[int, int, MatchMethod, float]) -> None:
        home = max(groups, key=lambda group: len(group.layers))
        for guest in groups:
            if guest is home:
                continue
            for number, positions in guest.layers.items():
                if number in home.layers:
                    home.ceilings[number] = min(home.ceilings.get(number, 1.0), link[3])
                home.layers[number] = sorted([*home.layers.get(number, ()), *positions])
                for at in positions:
                    self._of[number][at] = home
            home.links += guest.links
            for number, ceiling in guest.ceilings.items():
                home.ceilings[number] = min(home.ceilings.get(number, 1.0), ceiling)
        home.links.append(link)


@dataclass(eq=False)
class _Row:
    """A group being converted to a row, with the profiles in their given order."""

    layers: dict[int, list[int]]
    methods: dict[int, MatchMethod]
    confidences: dict[int, float]

    def as_record(self, count: int) -> LayerRow:
        """Return the row for `count` profiles."""
        return LayerRow(
            layers=tuple(tuple(self.layers.get(number, ())) for number in range(count)),
            methods=tuple(self.methods.get(number, "unmatched") for number in range(count)),
            confidence=min(self.confidences.values(), default=1.0),
            confidences=tuple(self.confidences.get(number, 0.0) for number in range(count)),
        )


def _numbered(group: _Group, twins: Sequence[Sequence[int]], profiles: Sequence[Profile]) -> _Row:
    """Return a group for the given profiles; profiles with equal features share the layers of their representative."""
    layers = {twin: positions for number, positions in group.layers.items() for twin in twins[number]}
    row = _Row(layers, {}, {})
    if len(layers) == 1:
        return row
    reference = min(group.layers, key=lambda number: min(twins[number]))
    reached = _reached(group, reference)
    if len(twins[reference]) > 1:
        reached[reference] = _likeness([profiles[twin] for twin in twins[reference]], group.layers[reference][0])
    own = group.ceilings.get(reference, 1.0)
    for number, (method, confidence) in reached.items():
        for twin in twins[number]:
            row.methods[twin] = method
            row.confidences[twin] = min(confidence, own, group.ceilings.get(number, 1.0))
    first = min(layers)
    others = [(row.confidences[number], row.methods[number]) for number in layers if number != first]
    row.confidences[first], row.methods[first] = max(others, key=lambda match: (match[0], -METHODS.index(match[1])))
    return row


def _likeness(twins: Sequence[Profile], at: int) -> _Found:
    """Return how a layer is matched with that of a profile with equal features."""
    layer: Layer = twins[0].layers[at]
    digests = {profile.model_digest for profile in twins}
    if len(digests) == 1 and "" not in digests:
        return ("nodes" if layer.onnx_nodes else "names" if layer.name else "structure"), 1.0
    if any(weight.digest for weight in layer.weights):
        return "weights", 1.0
    return ("names" if layer.name or layer.onnx_nodes else "structure"), _SAME_PLACE


def _reached(group: _Group, reference: int) -> dict[int, _Found]:
    """Return for each other profile its link with the reference: the weakest link of the best path."""
    reached: dict[int, _Found] = {reference: (METHODS[0], 1.0)}
    links = sorted(group.links, key=lambda link: -link[3])
    while len(reached) < len(group.layers):
        first, second, method, confidence = next(link for link in links if (link[0] in reached) != (link[1] in reached))
        known, new = (first, second) if first in reached else (second, first)
        reached[new] = min((method, confidence), reached[known], key=lambda link: link[1])
    return reached


def _insert_rows(merged: list[_Row], sequence: list[_Row]) -> list[_Row]:
    """Insert rows that occur only in this sequence after their neighbours."""
    known = {id(row) for row in merged}
    following: dict[int | None, list[_Row]] = defaultdict(list)
    neighbour: int | None = None
    for row in sequence:
        if id(row) in known:
            neighbour = id(row)
        else:
            following[neighbour].append(row)
    if not following:
        return merged
    return [*following[None], *(each for row in merged for each in (row, *following[id(row)]))]
