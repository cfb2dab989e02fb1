"""Which layers of several profiles do the same work.

A cascade: first by the ONNX nodes that layers came from, where a fused layer meets the several it stands for; then by
name and type; then by type and dims in order, between what is matched already. The profiles are taken in an order of
their own, so that the rows do not depend on which of them is the base.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import get_args

from ndld_flow.compare.layer_alignment import group_in_order, in_execution_order, insert_own
from ndld_flow.compare.layer_groups import LayerGroup, dims_of, final_home, first_layer, group_by_nodes
from ndld_flow.compare.layer_types import kind_of
from ndld_flow.records.comparison import LayerRow, MatchMethod
from ndld_flow.records.profile import Layer, Profile

METHODS: tuple[MatchMethod, ...] = get_args(MatchMethod)
"""From the surest to none."""
# How sure each way is, where 1.0 is the very same ONNX nodes. An order for the eye, not a probability.
_NAME, _NAME_BUT_DIMS = 0.9, 0.7

_Dims = tuple[tuple[int, ...], ...]
_OwnOrder = tuple[int, tuple[tuple[str, str, str, tuple[str, ...], _Dims, _Dims], ...]]


def match_layers(profiles: Sequence[Profile]) -> tuple[LayerRow, ...]:
    """Rows of layers that do the same work, in the first profile's order of execution, layers of others where they ran.

    Every layer is in exactly one row.
    """
    alike: dict[_OwnOrder, list[int]] = defaultdict(list)
    for number, profile in enumerate(profiles):
        alike[_own_order(profile)].append(number)
    twins = [alike[key] for key in sorted(alike)]
    ordered = [profiles[numbers[0]] for numbers in twins]
    groups = group_by_nodes(ordered)
    groups = _group_by_name(groups, ordered)
    groups = group_in_order(groups, ordered)
    for group in groups:
        _let_twins_in(group, twins, ordered)
    return _rows(groups, profiles)


def _own_order(profile: Profile) -> _OwnOrder:
    """Equal only for profiles that are alike in all that layers are matched by."""
    return -len(profile.layers), tuple(
        (layer.name, layer.type, layer.role, layer.onnx_nodes, dims_of(layer.outputs), dims_of(layer.inputs))
        for layer in profile.layers
    )


def _let_twins_in(group: LayerGroup, twins: Sequence[Sequence[int]], profiles: Sequence[Profile]) -> None:
    """Number profiles as they were given, and let those that are alike follow the one that stood for them."""
    if len(group.layers) == 1 and any(len(twins[number]) > 1 for number in group.layers):
        method, group.confidence = _surest(first_layer(group, profiles))
        group.methods = dict.fromkeys(group.methods, method)
    group.methods = {twin: method for number, method in group.methods.items() for twin in twins[number]}
    group.layers = {twin: positions for number, positions in group.layers.items() for twin in twins[number]}


def _surest(layer: Layer) -> tuple[MatchMethod, float]:
    """How a layer is matched with one that is alike."""
    if layer.onnx_nodes:
        return "onnx nodes", 1.0
    return ("name and type", _NAME) if layer.name else ("type and dims in order", _NAME_BUT_DIMS)


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
        first = final_home(named[0], joined)
        for other in named[1:]:
            home = final_home(other, joined)
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


def _name_confidence(one: LayerGroup, other: LayerGroup, profiles: Sequence[Profile]) -> float:
    dims = [dims_of(first_layer(group, profiles).outputs) for group in (one, other)]
    return _NAME if dims[0] == dims[1] or not all(dims) else _NAME_BUT_DIMS


def _rows(groups: Sequence[LayerGroup], profiles: Sequence[Profile]) -> tuple[LayerRow, ...]:
    placed: list[LayerGroup] = []
    for sequence in in_execution_order(groups, profiles):
        placed = insert_own(placed, sequence)
    return tuple(_row(group, len(profiles)) for group in placed)


def _row(group: LayerGroup, count: int) -> LayerRow:
    return LayerRow(
        layers=tuple(tuple(group.layers.get(number, ())) for number in range(count)),
        methods=tuple(group.methods.get(number, "unmatched") for number in range(count)),
        confidence=group.confidence,
    )
