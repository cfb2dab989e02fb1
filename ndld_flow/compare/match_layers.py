"""Which layers of several profiles do the same work.

A cascade: first by the ONNX nodes that layers came from, where a fused layer meets the several it stands for; then by
name and type; then by type and dims in order, between what is matched already. The profiles are taken in an order of
their own, so that the rows do not depend on which of them is the base.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import get_args

from ndld_flow.compare.layer_groups import LayerGroup, group_by_nodes
from ndld_flow.compare.layer_types import kind_of
from ndld_flow.compare.sequence import align, longest_increasing
from ndld_flow.records.comparison import LayerRow, MatchMethod
from ndld_flow.records.profile import Layer, Profile, TensorInfo

METHODS: tuple[MatchMethod, ...] = get_args(MatchMethod)
"""From the surest to none."""
# How sure each way is, where 1.0 is the very same ONNX nodes. An order for the eye, not a probability.
_NAME, _NAME_BUT_DIMS = 0.9, 0.7
_DIMS, _OUTPUT_DIMS, _TYPE_ONLY = 0.6, 0.4, 0.2


def match_layers(profiles: Sequence[Profile]) -> tuple[LayerRow, ...]:
    """Rows of layers that do the same work, in the first profile's order of execution, layers of others where they ran.

    Every layer is in exactly one row.
    """
    order = [number for *_, number in sorted((*_own_order(profile), number) for number, profile in enumerate(profiles))]
    ordered = [profiles[position] for position in order]
    groups = group_by_nodes(ordered)
    groups = _group_by_name(groups, ordered)
    groups = _group_in_order(groups, ordered)
    return _rows(groups, profiles, order)


def _own_order(profile: Profile) -> tuple[int, list[object]]:
    """Equal only for profiles that are alike in all that layers are matched by."""
    return -len(profile.layers), [
        (one.name, one.type, one.role, one.onnx_nodes, _dims(one.outputs), _dims(one.inputs)) for one in profile.layers
    ]


def _group_by_name(groups: list[LayerGroup], profiles: Sequence[Profile]) -> list[LayerGroup]:
    """Join groups of different profiles that hold a layer of the same name and type.

    Of several layers with one name, the first goes with the first, the second with the second, ...
    """
    if all(len(group.layers) == len(profiles) for group in groups):
        return groups
    homes: dict[Hashable, list[LayerGroup]] = defaultdict(list)
    group_of = _group_of(groups)
    for number, profile in enumerate(profiles):
        seen: Counter[tuple[str, str]] = Counter()
        for position, layer in enumerate(profile.layers):
            key = (layer.name, kind_of(layer))
            seen[key] += 1
            if layer.name:
                homes[key, seen[key]].append(group_of[number, position])
    joined: dict[int, LayerGroup] = {}
    for named in homes.values():
        first = _final(named[0], joined)
        for other in named[1:]:
            home = _final(other, joined)
            if home is not first and not first.layers.keys() & home.layers.keys():
                first.take_in(home, "name and type", _name_confidence(first, home, profiles))
                joined[id(home)] = first
    return [group for group in groups if id(group) not in joined]


def _group_of(groups: Sequence[LayerGroup]) -> dict[tuple[int, int], LayerGroup]:
    return {
        (number, position): group
        for group in groups
        for number, positions in group.layers.items()
        for position in positions
    }


def _final(group: LayerGroup, joined: dict[int, LayerGroup]) -> LayerGroup:
    while id(group) in joined:
        group = joined[id(group)]
    return group


def _name_confidence(one: LayerGroup, other: LayerGroup, profiles: Sequence[Profile]) -> float:
    dims = [_dims(_first(group, profiles).outputs) for group in (one, other)]
    return _NAME if dims[0] == dims[1] or not all(dims) else _NAME_BUT_DIMS


def _group_in_order(groups: list[LayerGroup], profiles: Sequence[Profile]) -> list[LayerGroup]:
    """Align what is left of each profile with what is merged so far, between the groups that both have."""
    sequences = _sequences(groups, profiles)
    merged = sequences[0] if sequences else []
    gone: dict[int, LayerGroup] = {}
    for number, sequence in enumerate(sequences[1:], 1):
        ours = [_final(group, gone) for group in sequence]
        # What an earlier profile has is merged already; what is new may find a group without this profile.
        for key, confidence in _KEYS:
            gone |= _align_free(merged, ours, number, _Keyed(profiles, key, confidence))
        merged = _insert(merged, ours)
    return merged


def _sequences(groups: Sequence[LayerGroup], profiles: Sequence[Profile]) -> list[list[LayerGroup]]:
    """Each profile's groups in the order in which their first layers ran."""
    found: list[list[tuple[int, int]]] = [[] for _ in profiles]
    for index, group in enumerate(groups):
        for number, positions in group.layers.items():
            found[number].append((positions[0], index))
    return [[groups[index] for _, index in sorted(firsts)] for firsts in found]


def _align_free(
    merged: list[LayerGroup], sequence: list[LayerGroup], number: int, keyed: _Keyed
) -> dict[int, LayerGroup]:
    """Let merged groups take in those of the sequence that stand between the same neighbours, in place.

    Returns the groups that are no more, by identity, and which took them in.
    """
    place = {id(group): position for position, group in enumerate(merged)}
    gone: dict[int, LayerGroup] = {}
    if all(id(group) in place for group in sequence) or all(number in group.layers for group in merged):
        return gone
    for ours, theirs in _between_anchors(sequence, place, len(merged)):
        waiting = keyed.keys({i: merged[i] for i in theirs if number not in merged[i].layers})
        free = keyed.keys({i: sequence[i] for i in ours if id(sequence[i]) not in place})
        theirs_at, ours_at = list(waiting), list(free)
        for a, b in align(list(waiting.values()), list(free.values())):
            home, guest = merged[theirs_at[a]], sequence[ours_at[b]]
            if not home.layers.keys() & guest.layers.keys():
                home.take_in(guest, "type and dims in order", keyed.confidence)
                gone[id(guest)] = sequence[ours_at[b]] = home
    return gone


def _between_anchors(
    sequence: Sequence[LayerGroup], place: dict[int, int], merged_count: int
) -> Iterator[tuple[range, range]]:
    """The stretches between groups that both have, as far as both have them in the same order."""
    shared = [position for position, group in enumerate(sequence) if id(group) in place]
    kept = longest_increasing([place[id(sequence[position])] for position in shared])
    anchors = [(-1, -1), *((shared[i], place[id(sequence[shared[i]])]) for i in kept), (len(sequence), merged_count)]
    for (ours, theirs), (our_end, their_end) in pairwise(anchors):
        if our_end - ours > 1 and their_end - theirs > 1:
            yield range(ours + 1, our_end), range(theirs + 1, their_end)


def _insert(merged: list[LayerGroup], sequence: list[LayerGroup]) -> list[LayerGroup]:
    """Put the sequence's own groups after their neighbours."""
    known = {id(group) for group in merged}
    following: dict[int | None, list[LayerGroup]] = defaultdict(list)
    neighbour: int | None = None
    for group in sequence:
        if id(group) in known:
            neighbour = id(group)
        else:
            following[neighbour].append(group)
    if not following:
        return merged
    return [*following[None], *(one for group in merged for one in (group, *following[id(group)]))]


class _Keyed:
    """By what groups are aligned at one level of the cascade: the key of their first profile's layers."""

    def __init__(self, profiles: Sequence[Profile], key: Callable[[Layer], Hashable], confidence: float) -> None:
        self.confidence = confidence
        self._profiles, self._key = profiles, key

    def keys(self, groups: Mapping[int, LayerGroup]) -> dict[int, Hashable]:
        """Of the groups that have a key, under the positions they were given with."""
        found = {position: self._key_of(group) for position, group in groups.items()}
        return {position: key for position, key in found.items() if key is not None}

    def _key_of(self, group: LayerGroup) -> Hashable:
        number, positions = next(iter(group.layers.items()))
        layers = self._profiles[number].layers
        if len(positions) == 1:
            return self._key(layers[positions[0]])
        keys = tuple(self._key(layers[position]) for position in positions)
        return None if None in keys else keys


def _first(group: LayerGroup, profiles: Sequence[Profile]) -> Layer:
    number, positions = next(iter(group.layers.items()))
    return profiles[number].layers[positions[0]]


def _dims(tensors: Sequence[TensorInfo]) -> tuple[tuple[int, ...], ...]:
    return tuple(tensor.shape for tensor in tensors)


def _type_and_dims(layer: Layer) -> Hashable:
    if not layer.outputs:
        return None
    return kind_of(layer), _dims(layer.inputs), _dims(layer.outputs)


def _type_and_output_dims(layer: Layer) -> Hashable:
    return (kind_of(layer), _dims(layer.outputs)) if layer.outputs else None


def _type_only(layer: Layer) -> Hashable:
    """Only where dims are not told: a profile without layer information."""
    return kind_of(layer) or None if not layer.outputs else None


_KEYS = ((_type_and_dims, _DIMS), (_type_and_output_dims, _OUTPUT_DIMS), (_type_only, _TYPE_ONLY))


def _rows(groups: Sequence[LayerGroup], profiles: Sequence[Profile], order: Sequence[int]) -> tuple[LayerRow, ...]:
    """The groups as rows, with the profiles in the order in which they were given."""
    for group in groups:
        group.layers = {order[number]: positions for number, positions in group.layers.items()}
        group.methods = {order[number]: method for number, method in group.methods.items()}
    placed: list[LayerGroup] = []
    for sequence in _sequences(groups, profiles):
        placed = _insert(placed, sequence)
    return tuple(_row(group, len(profiles)) for group in placed)


def _row(group: LayerGroup, count: int) -> LayerRow:
    return LayerRow(
        layers=tuple(tuple(group.layers.get(number, ())) for number in range(count)),
        methods=tuple(group.methods.get(number, "unmatched") for number in range(count)),
        confidence=group.confidence,
    )
