"""Matches of layers between profiles, and verdicts on their times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.profiles.compare.intervals import two_sided_p
from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.profiles.compare.pair_evidence import kind_of
from ndld_flow.profiles.compare.pair_matching import align
from ndld_flow.profiles.compare.verdicts import adjust
from ndld_flow.records.comparison import LayerRow
from ndld_flow.records.profile import Layer, Profile
from tests.support.compare_samples import comparison_of, layer, profile_of, tensor


def of(*layers: Layer) -> Profile:
    """A profile of one and the same model."""
    return profile_of([[10.0]] * 5, layers, model_digest="blake3:00")


def of_another(*layers: Layer) -> Profile:
    """A profile of a model of its own."""
    return profile_of([[10.0]] * 5, layers)


def rows_of(*profiles: Profile) -> list[tuple[str, ...]]:
    """Each row as the names of each profile's layers, and how the last one came in."""
    return [
        (*("+".join(p.layers[at].name for at in row.layers[n]) for n, p in enumerate(profiles)), row.methods[-1])
        for row in match_layers(profiles)
    ]


# The cascade


def test_layers_are_matched_by_the_nodes_they_came_from() -> None:
    plain = of(*(layer(name, nodes=[name]) for name in ("conv", "bn", "relu", "pool")))
    fused = of(
        layer("conv_relu", nodes=["conv", "bn", "relu"]), layer("reorder", "Reorder"), layer("p", nodes=["pool"])
    )
    assert rows_of(plain, fused) == [
        ("conv+bn+relu", "conv_relu", "nodes"),
        ("", "reorder", "unmatched"),
        ("pool", "p", "nodes"),
    ]
    assert [row.confidence for row in match_layers([plain, fused])] == pytest.approx([1, 1, 1], abs=0.001)


def test_layers_that_share_nodes_form_a_group() -> None:
    result = of(layer("ab", nodes="ab"), layer("cd", nodes="cd"), layer("e", nodes="e"))
    other = of(layer("a", nodes="a"), layer("bc", nodes="bc"), layer("d", nodes="d"), layer("e", nodes="ef"))
    assert rows_of(result, other) == [("ab", "a", "nodes"), ("cd", "bc+d", "nodes"), ("e", "e", "nodes")]


def test_a_constant_shared_by_all_layers_does_not_join_them() -> None:
    result = of(*(layer(name, nodes=[name, f"{name}2", "shape"]) for name in "abc"))
    other = of(*(layer(name, nodes=[name, "shape"]) for name in "abc"))
    assert rows_of(result, other) == [(name, name, "nodes") for name in "abc"]


def test_layers_without_nodes_are_matched_by_name_and_type() -> None:
    result = of(layer("in", "Reformat", dims=[1, 3]), layer("conv", "Conv"), layer("twice"), layer("twice"))
    other = of(
        layer("in", "Reformat", dims=[1, 3]), layer("conv", "CaskConvolution"), layer("twice"), layer("conv", "Add")
    )
    assert rows_of(result, other) == [
        ("in", "in", "names"),
        ("conv", "conv", "structure"),
        ("", "twice", "unmatched"),
        ("", "conv", "unmatched"),
        ("twice", "", "unmatched"),
        ("twice", "", "unmatched"),
    ]


def test_remaining_layers_are_matched_by_type_and_dims_in_order() -> None:
    result = of(layer("a", dims=[8]), layer("b", dims=[16]), layer("c", "Add", dims=[16]), layer("d", dims=[8]))
    other = of(layer("w", dims=[8]), layer("x", dims=[16]), layer("new", "Mul", dims=[4]), layer("z", dims=[8]))
    assert rows_of(result, other) == [
        ("a", "w", "structure"),
        ("b", "x", "structure"),
        ("", "new", "unmatched"),
        ("c", "", "unmatched"),
        ("d", "z", "structure"),
    ]


def test_order_is_kept_between_existing_matches() -> None:
    """A reformat before the convolution is not the one after it."""
    result = of(layer("r1", "Reformat", dims=[8], role="reformat"), layer("conv", nodes=["conv"]))
    other = of(layer("conv", nodes=["conv"]), layer("r2", "NoOp", dims=[8], role="reformat"))
    assert [row[:2] for row in rows_of(result, other)] == [("r1", ""), ("conv", "conv"), ("", "r2")]


def test_equal_layers_stay_alone_where_any_of_them_may_be_new() -> None:
    result, other = of_another(*[layer(f"a{at}") for at in range(4)]), of_another(*[layer(f"b{at}") for at in range(5)])
    assert not [row for row in match_layers([result, other]) if all(row.layers)]
    nameless, other = of_another(layer("", "")), of_another(layer("", ""), layer("b"))
    assert len(match_layers([nameless, nameless])) == 1
    assert max(row.confidence for row in match_layers([nameless, other]) if all(row.layers)) < 1


def test_similar_profiles_are_matched_consistently() -> None:
    """Where a layer could go to either of two, it goes to the same for all."""
    first = of(layer("a"), layer("a", dims=[2]), layer("a", dims=[2]))
    second = of(layer("a", "Add", nodes="abc", dims=[1]), layer("", dims=[2]))
    rows = match_layers([first, second, second])
    assert all(row.layers[1] == row.layers[2] for row in rows)
    assert {row.methods[1:] for row in rows if row.layers[1]} == {
        ("nodes",) * 2,
        ("structure",) * 2,
    }


def test_names_within_one_model_outrank_order() -> None:
    base = of(layer("a", nodes="a", dims=[1]), layer("b", dims=[2]), layer("c", dims=[1, 3]), layer("d", dims=[4]))
    other = of(layer("z", nodes="a", dims=[1]), layer("b", dims=[2]), layer("c", dims=[1, 9]), layer("y", dims=[4]))
    by_nodes, by_name, but_dims, in_order = (row.confidence for row in match_layers([base, other]))
    assert by_nodes == pytest.approx(1, abs=0.001)
    assert max(by_name, but_dims, in_order) < 1
    assert by_name > but_dims


@pytest.mark.parametrize(
    ("one", "other"),
    [("Conv", "FusedConv"), ("Conv", "CaskConvolution"), ("Gemm", "MatMul"), ("com.microsoft.FusedConv", "Conv"),
     ("Conv_nchwc", "Conv"), ("SoftMaxV2", "Softmax"), ("TiledPooling", "MaxPool"), ("Softmax", "softmax")],
)  # fmt: skip
def test_equivalent_types_of_backends_match(one: str, other: str) -> None:
    assert kind_of(layer("x", one)) == kind_of(layer("x", other))


def test_different_types_do_not_match() -> None:
    assert len({kind_of(layer("x", type_)) for type_ in ("Conv", "ConvTranspose", "Add", "Mul", "MaxPool", "")}) == 6


def test_a_third_profile_joins_the_rows_of_two() -> None:
    first = of(layer("a", nodes="a", dims=[1]), layer("b", dims=[2]))
    second = of(layer("a2", nodes="a", dims=[1]), layer("new", "Mul", dims=[2]), layer("b", dims=[2]))
    third = of(layer("x", dims=[1]), layer("y", "Mul", dims=[2]), layer("b", dims=[2]))
    assert [row[:3] for row in rows_of(first, second, third)] == [("a", "a2", "x"), ("", "new", "y"), ("b", "b", "b")]


LAYERS = st.lists(
    st.builds(
        layer,
        name=st.sampled_from(["a", "b", "c", "d", ""]),
        type_=st.sampled_from(["Conv", "Add", ""]),
        nodes=st.lists(st.sampled_from("abcdefgh"), max_size=3, unique=True),
        dims=st.lists(st.sampled_from([1, 2]), max_size=1),
        ms=st.just((1.0,)),
        role=st.sampled_from(["compute", "reformat"]),
    ),
    max_size=8,
)
PROFILES = st.lists(LAYERS.map(lambda layers: of(*layers)), min_size=2, max_size=4)


def contents(rows: Sequence[LayerRow], order: Sequence[int]) -> set[tuple[tuple[int, ...], ...]]:
    """Rows as sets, with the profiles in one order."""
    return {tuple(row.layers[order.index(number)] for number in range(len(order))) for row in rows}


@settings(deadline=None, max_examples=20)
@given(PROFILES)
def test_every_layer_is_in_one_row_and_rows_follow_the_base(profiles: list[Profile]) -> None:
    rows = match_layers(profiles)
    for number, profile in enumerate(profiles):
        placed = [at for row in rows for at in row.layers[number]]
        assert sorted(placed) == list(range(len(profile.layers)))
    firsts = [row.layers[0][0] for row in rows if row.layers[0]]
    assert firsts == sorted(firsts)
    for row in rows:
        alone = sum(map(bool, row.layers)) == 1
        assert 0 <= row.confidence <= 1
        assert alone == all(method == "unmatched" for method in row.methods)


@settings(deadline=None, max_examples=20)
@given(PROFILES)
def test_rows_do_not_depend_on_the_base(profiles: list[Profile]) -> None:
    usual = contents(match_layers(profiles), range(len(profiles)))
    for order in permutations(range(len(profiles))):
        assert contents(match_layers([profiles[number] for number in order]), order) == usual


@settings(deadline=None)
@given(LAYERS, st.randoms(use_true_random=False))
def test_permuting_layers_keeps_the_matches_by_nodes(layers: list[Layer], rng: random.Random) -> None:
    traced = [layer.model_copy(update={"onnx_nodes": (f"{at}", f"{at}b")}) for at, layer in enumerate(layers)]
    places = list(range(len(traced)))
    rng.shuffle(places)
    rows = match_layers([of(*traced), of(*(traced[place] for place in places))])
    assert len(rows) == len(layers)
    assert all(row.layers[0] == (places[row.layers[1][0]],) for row in rows)
    assert {row.methods[1] for row in rows} <= {"nodes"}


@settings(deadline=None)
@given(LAYERS)
def test_a_profile_matches_itself(layers: list[Layer]) -> None:
    rows = match_layers([of(*layers), of(*layers)])
    assert [row.layers for row in rows] == [((at,), (at,)) for at in range(len(layers))]


# Alignment


def best_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common subsequence, by the textbook."""
    row = [0] * (len(second) + 1)
    for item in first:
        before = row[:]
        for at, other in enumerate(second, 1):
            row[at] = before[at - 1] + 1 if item == other else max(before[at], row[at - 1])
    return row[-1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_alignment_finds_the_longest_common_subsequence(first: list[int], second: list[int]) -> None:
    pairs = align(first, second)
    assert all(first[a] == second[b] for a, b in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    assert len(pairs) == best_length(first, second)


# Times


def test_the_t_distribution_matches_published_tables() -> None:
    table = {
        (1, 12.706): 0.05,
        (2, 4.303): 0.05,
        (3, 3.182): 0.05,
        (4, 2.776): 0.05,
        (8, 2.306): 0.05,
        (9, 3.250): 0.01,
    }
    for (freedom, t), p in table.items():
        assert two_sided_p(t, freedom) == pytest.approx(p, rel=1e-3)
    assert two_sided_p(0, 5) == 1
    assert two_sided_p(float("inf"), 5) == pytest.approx(0, abs=1e-12)
    assert two_sided_p(1.96, 10_000) == pytest.approx(0.05, rel=0.01)
    assert two_sided_p(40, 16) == 0  # and not a little less, as rounding would have it


def test_false_discoveries_are_bounded_by_benjamini_and_hochberg() -> None:
    assert adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert adjust([0.9, 0.8]) == pytest.approx([0.9, 0.9])
    assert adjust([]) == []


def timed(*medians: Sequence[float], session: str = "one") -> Profile:
    """Layers `0`, `1`, ... with these times, each in so many process runs of one pass."""
    layers = [layer(str(at), nodes=[str(at)], ms=tuple(ms)) for at, ms in enumerate(medians)]
    return profile_of([[10.0]] * 5, layers, layer_runs=(1,) * len(medians[0]), session=session)


def layer_verdicts(base: Profile, candidate: Profile) -> list[str]:
    return [verdict.verdict for verdict in comparison_of(base, candidate).layer_verdicts]


def test_layers_that_became_slower_or_faster_are_found() -> None:
    base = timed([1.0, 1.01, 0.99], [1.0, 1.01, 0.99], [1.0, 1.01, 0.99], [1.0, 1.5, 0.7], [0.002, 0.002, 0.002])
    candidate = timed([1.3, 1.31, 1.29], [0.7, 0.71, 0.69], [1.0, 1.02, 1.0], [1.2, 0.9, 1.6], [0.003, 0.003, 0.003])
    assert layer_verdicts(base, candidate) == ["regressed", "improved", "unchanged", "inconclusive", "unchanged"]
    first = comparison_of(base, candidate).layer_verdicts[0]
    assert first.ratio == pytest.approx(1.3)
    assert first.p_value is not None
    assert first.q_value is not None
    assert first.p_value <= first.q_value < 0.05


def linked(*layers: Layer) -> list[Layer]:
    """Layers each of which reads what the one before writes."""
    return [
        layer.model_copy(update={"inputs": (tensor(f"{at}", 1, 8),), "outputs": (tensor(f"{at + 1}", 1, 8),)})
        for at, layer in enumerate(layers)
    ]


def test_layers_of_a_row_are_added_up_run_by_run() -> None:
    first, last = layer("in", "Resize", ms=(1.0,) * 4), layer("out", "Softmax", ms=(1.0,) * 4)
    times = (1.0, 2.0, 3.0, 4.0), (3.0, 2.0, 1.0, 0.0)
    parts, fused = (
        of_another(*linked(first, *layers, last)).model_copy(update={"layer_runs": (2, 2)})
        for layers in (
            [layer("product", "MatMul", ms=times[0]), layer("bias", "Add", ms=times[1])],
            [layer("product", "Gemm", ms=(8.0,) * 4)],
        )
    )
    _, verdict, _ = comparison_of(parts, fused).layer_verdicts
    assert (verdict.ratio, verdict.verdict) == (2.0, "regressed")


def test_one_run_of_layers_shows_only_large_differences() -> None:
    base, candidate = timed([1.0], [1.0], [1.0], [0.001]), timed([0.5], [0.8], [2.0], [0.002])
    comparison = comparison_of(base, candidate)
    assert [verdict.verdict for verdict in comparison.layer_verdicts] == [
        "improved",
        "inconclusive",
        "regressed",
        "inconclusive",
    ]
    assert {verdict.p_value for verdict in comparison.layer_verdicts} == {None}


def test_one_run_of_layers_shows_nothing_beside_other_load() -> None:
    busy = {"before": {"affinity": [0, 1]}, "during": {"cpus_used_by_others": 1.0}}
    for runs, verdict in ((1, "inconclusive"), (3, "regressed")):
        base = timed([1.0] * runs).model_copy(update={"conditions": busy})
        assert layer_verdicts(base, timed([2.0] * runs)) == [verdict]


def test_two_runs_of_layers_are_enough_for_a_test() -> None:
    base, candidate = timed([1.0, 1.0], [1.0, 1.0]), timed([1.3, 1.3], [1.0, 1.0])
    result = comparison_of(base, candidate).layer_verdicts
    assert [item.verdict for item in result] == ["regressed", "unchanged"]
    assert all(item.p_value is not None for item in result)
    alone = timed([1.3], [1.0])
    for sides in ((base, alone), (alone, base)):
        assert {verdict.p_value for verdict in comparison_of(*sides).layer_verdicts} == {None}


def test_equal_layers_rarely_differ() -> None:
    rng = random.Random(2)
    alarms = 0
    for _ in range(20):
        sides = [timed(*([rng.lognormvariate(0, 0.1) for _ in range(5)] for _ in range(100))) for _ in "ab"]
        alarms += any(verdict in ("improved", "regressed") for verdict in layer_verdicts(*sides))
    assert alarms <= 3


def test_layers_measured_under_other_conditions_have_no_verdict() -> None:
    base, candidate = timed([1.0, 1.0]), timed([2.0, 2.0])
    elsewhere = candidate.model_copy(update={"versions": {"onnxruntime": "1.0"}})
    assert layer_verdicts(base, elsewhere) == ["incomparable"]


def test_coverage_is_the_share_of_time_with_a_partner() -> None:
    base = of(layer("a", nodes="a", ms=[3.0]), layer("b", "Add", ms=[1.0]))
    candidate = of(layer("a", nodes="a", ms=[2.0]), layer("c", "Mul", ms=[6.0]))
    _, share = comparison_of(base, candidate).coverage
    assert share is not None
    assert (share.matched_ms, share.unmatched_ms, share.matched_share) == (2.0, 6.0, 0.25)
    assert share.by_method["nodes"] == 2.0
    assert comparison_of(base, of()).coverage == (None, None)


def test_two_layers_are_as_certain_as_the_weaker_link_between_them() -> None:
    confidences = (1.0, 0.75, 0.25)
    row = LayerRow(layers=((0,), (1,), (2,)), methods=("weights",) * 3, confidence=0.25, confidences=confidences)
    assert [row.confidence_between(*pair) for pair in ((0, 1), (1, 2), (2, 0))] == [0.75, 0.25, 0.25]
