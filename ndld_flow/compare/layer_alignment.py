"""Align what layers are left of several profiles: by type and dims in order, between what is matched already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise

from ndld_flow.compare.layer_groups import LayerGroup, dims_of, final_home
from ndld_flow.compare.layer_types import kind_of
from ndld_flow.compare.sequence import align, longest_increasing
from ndld_flow.records.profile import Layer, Profile

# How sure each way is, where 1.0 is the very same ONNX nodes.
_DIMS, _OUTPUT_DIMS, _TYPE_ONLY = 0.6, 0.4, 0.2


def group_in_order(groups: list[LayerGroup], profiles: Sequence[Profile]) -> list[LayerGroup]:
    """Align what is left of each profile with what is merged so far, between the groups that both have."""
    sequences = in_execution_order(groups, profiles)
    merged = sequences[0] if sequences else []
    gone: dict[int, LayerGroup] = {}
    for number, sequence in enumerate(sequences[1:], 1):
        ours = [final_home(group, gone) for group in sequence]
        # What an earlier profile has is merged already; what is new may find a group without this profile.
        for key, confidence in _KEYS:
            gone |= _align_free(merged, ours, number, _Keyed(profiles, key, confidence))
        merged = insert_own(merged, ours)
    return merged


def in_execution_order(groups: Sequence[LayerGroup], profiles: Sequence[Profile]) -> list[list[LayerGroup]]:
    """Each profile's groups in the order in which their first layers ran."""
    found: list[list[tuple[int, int]]] = [[] for _ in profiles]
    for index, group in enumerate(groups):
        for number, positions in group.layers.items():
            found[number].append((positions[0], index))
    return [[groups[index] for _, index in sorted(firsts)] for firsts in found]


def insert_own(merged: list[LayerGroup], sequence: list[LayerGroup]) -> list[LayerGroup]:
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


def _type_and_dims(layer: Layer) -> Hashable:
    if not layer.outputs:
        return None
    return kind_of(layer), dims_of(layer.inputs), dims_of(layer.outputs)


def _type_and_output_dims(layer: Layer) -> Hashable:
    return (kind_of(layer), dims_of(layer.outputs)) if layer.outputs else None


def _type_only(layer: Layer) -> Hashable:
    """Only where dims are not told: a profile without layer information."""
    return kind_of(layer) or None if not layer.outputs else None


_KEYS = ((_type_and_dims, _DIMS), (_type_and_output_dims, _OUTPUT_DIMS), (_type_only, _TYPE_ONLY))
