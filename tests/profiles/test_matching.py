"""Matches of layers with known truth: edited, renamed and rerun models."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations, permutations
from pathlib import Path

import onnx
import pytest

from ndld_flow.profiles.compare.match_layers import match_layers
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.profile import Layer, LayerRole, LayerWeight, Profile
from tests.support.a100_exports import a100_exports
from tests.support.compare_samples import layer, profile_of, tensor
from tests.support.layer_pairs import (
    EDITS,
    NAMINGS,
    VIEWS,
    Sample,
    Traced,
    by_count,
    judge,
    judge_pairs,
    recall,
    run,
    trace,
)
from tests.support.models import GraphBuilder, rename_output, tfm_model
from tests.support.models import tensor as declared
from tests.support.trex_matching import beam_search


def chain(blocks: int = 6) -> onnx.ModelProto:
    """Equal blocks of a convolution and an activation, each with weights of its own."""
    b = GraphBuilder(0)
    h = "x"
    for _ in range(blocks):
        h = b.op("Relu", b.op("Conv", h, b.weight(8, 8, 3, 3), pads=[1, 1, 1, 1], strides=[1, 1]))
    rename_output(b, h, "y")
    return b.model([declared("x", [1, 8, 12, 12])], [declared("y", [1, 8, 12, 12])])


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Sample]:
    """(model, edit, naming) -> its profile."""
    result = {}
    models = {"chain": trace(chain()), "transformer": trace(tfm_model(layers=2))}
    edits = ("unchanged", "inserted early", "twin inserted early", "removed", "reordered")
    for name, traced in models.items():
        shapes = {value.name: (1, 12) for value in traced.model.graph.input} if name == "transformer" else {}
        for edit in edits:
            for naming in ("numbered by type", "scrambled"):
                changed: Traced = NAMINGS[naming](EDITS[edit](traced, random.Random(1)))
                result[name, edit, naming] = run(changed, shapes, tmp_path_factory.mktemp("m"))
    return result


def test_a_match_of_confidence_1_is_right(samples: dict[tuple[str, str, str], Sample]) -> None:
    for (name, edit, naming), sample in samples.items():
        for view in VIEWS.values():
            result, other = view(samples[name, "unchanged", naming]), view(sample)
            rows = match_layers([result.profile, other.profile])
            wrong = [item for item in judge(rows, result, other) if item.confidence >= 0.995 and not item.is_right]
            assert not wrong, (name, edit, naming, wrong)


def test_names_shifted_by_one_layer_are_not_trusted(samples: dict[tuple[str, str, str], Sample]) -> None:
    """A convolution more, and `Conv.3` is another than before."""
    result, other = (samples["chain", edit, "numbered by type"] for edit in ("unchanged", "twin inserted early"))
    rows = match_layers([result.profile, other.profile])
    outcome = judge(rows, result, other)
    assert all(match.is_right for match in outcome)
    assert recall(rows, result, other)[0] >= 6
    assert any(match.confidence > 0.999 and match.method == "weights" for match in outcome)


@pytest.mark.thorough
def test_most_confident_matches_are_right_and_most_layers_are_matched(
    samples: dict[tuple[str, str, str], Sample],
) -> None:
    matched, there, right, sure = 0, 0, 0, 0
    for (name, _, naming), sample in samples.items():
        for view in VIEWS.values():
            result, other = view(samples[name, "unchanged", naming]), view(sample)
            rows = match_layers([result.profile, other.profile])
            outcome = [match for match in judge(rows, result, other) if match.confidence >= 0.9]
            right, sure = right + sum(match.is_right for match in outcome), sure + len(outcome)
            counts = recall(rows, result, other)
            matched, there = matched + counts[0], there + counts[1]
    assert matched >= 0.9 * there
    assert right >= 0.97 * sure


def test_different_networks_have_hardly_a_confident_match(samples: dict[tuple[str, str, str], Sample]) -> None:
    result, other = (samples[name, "unchanged", "numbered by type"] for name in ("chain", "transformer"))
    for view in VIEWS.values():
        rows = match_layers([view(result).profile, view(other).profile])
        assert sum(row.confidence >= 0.9 for row in rows if all(row.layers)) <= 1


def test_every_pair_of_several_is_matched_as_well_as_alone(samples: dict[tuple[str, str, str], Sample]) -> None:
    several = [sample for (name, _, naming), sample in samples.items() if (name, naming) == ("chain", "scrambled")]
    rows = match_layers([sample.profile for sample in several])
    for a, b in combinations(range(len(several)), 2):
        alone = match_layers([several[a].profile, several[b].profile])
        right = sum(item.is_right for item in judge(rows, several[a], several[b], (a, b)))
        assert right >= sum(item.is_right for item in judge(alone, several[a], several[b]))


# By hand


def weighted(name: str, digest: str, **more: object) -> Layer:
    weights = (LayerWeight(name=f"{name}.w", shape=(8, 8, 3, 3), digest=digest),)
    return layer(name, dims=[1, 8, 4, 4]).model_copy(update={"weights": weights, **more})


def of(*layers: Layer) -> Profile:
    return profile_of([[10.0]] * 5, layers)


def pairs_of(*profiles: Profile) -> list[tuple[tuple[int, ...], ...]]:
    return [row.layers for row in match_layers(profiles) if all(row.layers)]


def test_weights_distinguish_twin_branches_with_exchanged_names() -> None:
    result = of(weighted("left", "aa"), weighted("right", "bb"))
    other = of(weighted("left", "bb"), weighted("right", "aa"))
    assert sorted(pairs_of(result, other)) == [((0,), (1,)), ((1,), (0,))]
    assert all(row.confidence > 0.99 for row in match_layers([result, other]))


def test_twins_without_weights_have_low_confidence() -> None:
    result, other = of(layer("left"), layer("right")), of(layer("right"), layer("left"))
    assert all(row.confidence < 0.995 for row in match_layers([result, other]) if all(row.layers))


def test_a_layer_missing_in_the_base_is_matched_between_the_others() -> None:
    base = of(layer("a", dims=[1, 4]), layer("z", "Softmax", dims=[1, 9]))
    new = layer("new", "Resize", dims=[1, 5])
    others = [of(base.layers[0], new, base.layers[1]), of(base.layers[0], new, base.layers[1], layer("end", "Mul"))]
    (row,) = (row for row in match_layers([base, *others]) if row.layers[1] == (1,))
    assert row.layers == ((), (1,), (1,))
    assert row.confidence_between(1, 2) > 0.5
    assert row.methods[0] == "unmatched"


def test_the_best_evidence_decides_where_links_contradict() -> None:
    result = of(weighted("a", "aa"), weighted("b", "bb"))
    other = of(weighted("a", "aa"), weighted("b", "bb"))
    swapped = of(weighted("a", "bb"), weighted("b", "aa"))
    rows = {row.layers for row in match_layers([result, other, swapped])}
    assert rows == {((0,), (0,), (1,)), ((1,), (1,), (0,))}


def test_profiles_with_little_information_are_matched_partly() -> None:
    repeated = of(*[layer("same", dims=[1, 2])] * 4)
    bare = of(layer("same"), layer("same"))
    assert match_layers([of(), of()]) == ()
    assert all(row.methods[1] == "unmatched" for row in match_layers([repeated, of()]))
    for permutation, other in permutations((repeated, bare, of(layer("", ""))), 2):
        rows = match_layers([permutation, other])
        assert sorted(at for row in rows for at in row.layers[0]) == list(range(len(permutation.layers)))
        assert all(row.confidence < 0.995 for row in rows if all(row.layers))


def test_a_different_batch_size_keeps_every_match() -> None:
    kinds = ("Conv", "Relu", "MaxPool", "Gemm", "Softmax")
    result, other = (
        of(*[layer(f"{batch}{kind}", kind, dims=[batch, at + 1]) for at, kind in enumerate(kinds)]) for batch in (1, 8)
    )
    assert pairs_of(result, other) == [((at,), (at,)) for at in range(len(kinds))]


def test_commutative_operands_may_be_exchanged() -> None:
    reads = tensor("a", 1, 4), tensor("b", 1, 4)
    result, other = (
        of(
            layer("l", "Conv").model_copy(update={"outputs": (tensor("a", 1, 4),)}),
            layer("r", "Gemm").model_copy(update={"outputs": (tensor("b", 1, 4),)}),
            layer(name, "Add").model_copy(update={"inputs": inputs, "outputs": (tensor("y", 1, 4),)}),
        )
        for name, inputs in (("sum", reads), ("total", reads[::-1]))
    )
    assert pairs_of(result, other) == [((at,), (at,)) for at in range(3)]


def repeated(blocks: int, inserted: int | None = None) -> Profile:
    """Equal blocks in a chain, whose tensors are counted, with a multiplication after one of them."""
    layers: list[Layer] = []
    for block in range(blocks):
        for kind in ("MatMul", "Add", "Softmax", "Gemm", "Relu", *(["Mul"] if block == inserted else [])):
            tensors = [(tensor(f"t{len(layers) + end}", 1, 16, 64),) for end in (0, 1)]
            layers.append(layer("", kind).model_copy(update={"inputs": tensors[0], "outputs": tensors[1]}))
    return of(*layers)


@pytest.mark.parametrize("blocks", [30, pytest.param(500, marks=pytest.mark.thorough)])
def test_counted_names_that_shifted_mislead_nobody(blocks: int) -> None:
    """500 blocks are more layers than are compared with each other at once."""
    found = pairs_of(repeated(blocks), repeated(blocks, inserted=blocks // 2))
    after = 5 * (blocks // 2 + 1)
    assert found == [((at,), (at + (at >= after),)) for at in range(5 * blocks)]


def test_the_prefix_of_counted_names_is_no_name() -> None:
    """PyTorch calls the weights of any network `onnx::Conv_136`."""

    def network(first: int, style: str) -> Profile:
        sizes = [16, 32, 64, 128, 256]
        weights = [LayerWeight(name=f"onnx::Conv_{first + 3 * at}", shape=(size, 3)) for at, size in enumerate(sizes)]
        return of(
            *(
                layer(style.format(at), dims=(1, size, 8, 8)).model_copy(update={"weights": (weight,)})
                for at, (size, weight) in enumerate(zip(sizes, weights, strict=True))
            ),
            *[layer("", "Relu")] * 20,
        )

    rows = match_layers([network(87, "/body/body.{}/Conv"), network(120, "Conv_{}")])
    assert "names" not in {method for row in rows for method in row.methods}


def test_a_bias_does_not_prove_that_a_layer_is_the_same() -> None:
    """A convolution put in between takes over the bias of the one before it, which runtimes fuse."""

    def weight(name: str, *shape: int) -> LayerWeight:
        return LayerWeight(name="", shape=shape, digest=name)

    def conv(*weights: LayerWeight) -> Layer:
        return layer("", dims=[1, 8, 4, 4]).model_copy(update={"weights": weights})

    kernel, bias, other = weight("k", 8, 8, 3, 3), weight("b", 8), weight("o", 8, 8, 3, 3)
    assert pairs_of(of(conv(kernel, bias)), of(conv(kernel), conv(other, bias))) == [((0,), (0,))]
    assert pairs_of(of(conv(kernel, bias)), of(conv(other, bias), conv(kernel))) == [((0,), (1,))]


def linked(name: str, type_: str, reads: str, writes: str, role: LayerRole = "compute") -> Layer:
    tensors = {"inputs": (tensor(reads, 1, 8, 4, 4),), "outputs": (tensor(writes, 1, 8, 4, 4),)}
    return layer(name, type_, role=role).model_copy(update=tensors)


def test_a_conversion_is_the_same_only_next_to_a_layer_that_is() -> None:
    """The second model has other layers in front of its conversion and behind it."""
    result, other = (
        of(
            linked("a", "Relu", "x", "a"),
            *([linked("b", "Sigmoid", "a", "b")] if reads == "b" else []),
            linked("ReorderInput", "ReorderInput", reads, "in", "reformat"),
            linked(name, kind, "in", "y"),
        )
        for reads, name, kind in (("a", "c", "Conv"), ("b", "d", "MaxPool"))
    )
    assert pairs_of(result, other) == [((0,), (0,))]
    assert len(pairs_of(result, result)) == len(result.layers)


def test_what_a_runtime_calls_any_conversion_is_no_name() -> None:
    convs = [linked("", "Conv", f"x{at}", f"x{at + 1}") for at in range(12)]
    networks = [
        of(*convs, linked(f"ReorderOutput_token_{number}", "ReorderOutput", "x12", f"y{number}", "reformat"))
        for number in (10, 20)
    ]
    assert {row.methods[1] for row in match_layers(networks) if row.layers[0] == (12,)} == {"structure"}


def test_parts_of_a_softmax_do_not_count_to_the_transpose_before_it() -> None:
    """A runtime lists the Softmax with the Transpose that it moved, too."""

    def running(type_: str, reads: str, *nodes: str) -> Layer:
        return linked("", type_, reads, f"{reads}{type_}").model_copy(update={"onnx_nodes": nodes})

    whole = running("Transpose", "x", "t", "s"), running("Softmax", "xTranspose", "s")
    parts = (
        running("Transpose", "x", "t"),
        running("ReduceMax", "xTranspose", "s"),
        running("Exp", "xTransposeReduceMax", "s"),
    )
    result, other = (profile_of([[10.0]] * 5, layers, model_digest="blake3:one") for layers in (whole, parts))
    rows = {row.layers[0]: row.layers[1] for row in match_layers([result, other])}
    assert rows[0,] == (0,)
    assert 2 in rows[1,]


def exchanged(names: str, *branches: str) -> Profile:
    """Two branches that look alike, in this order of their operands in an addition; `names` begin their tensors."""
    layers = [linked(f"{names}in", "Relu", "x", f"{names}x")]
    for branch in branches:
        layers.append(linked(f"{names}{branch}1", "Conv", f"{names}x", f"{names}{branch}1"))
        layers.append(linked(f"{names}{branch}2", "Sigmoid", f"{names}{branch}1", f"{names}{branch}2"))
    operands = tuple(tensor(f"{names}{branch}2", 1, 8, 4, 4) for branch in sorted(branches))
    layers.append(linked(f"{names}sum", "Add", "", f"{names}y").model_copy(update={"inputs": operands}))
    return of(*layers)


def test_branches_that_may_be_exchanged_are_matched_together_unless_names_distinguish_them() -> None:
    unknown = exchanged("left", "lower", "upper"), exchanged("0f3", "d1", "c7")
    assert pairs_of(*unknown) == [((0,), (0,)), ((1, 3), (1, 3)), ((2, 4), (2, 4)), ((5,), (5,))]
    named = pairs_of(exchanged("net/", "lower", "upper"), exchanged("net/", "upper", "lower"))
    assert named[1:3] == [((1,), (3,)), ((2,), (4,))]


def test_profiles_without_names_of_layers_are_not_equal_if_their_data_flow_differs() -> None:
    """Otherwise layers are matched by position, with the confidence of two identical profiles."""

    def network(read: str) -> Profile:
        def unary(kind: str, source: str, target: str) -> Layer:
            tensors = {"inputs": (tensor(source, 1, 4),), "outputs": (tensor(target, 1, 4),)}
            return layer("", kind).model_copy(update=tensors)

        branches = unary("Relu", "x", "a"), unary("Relu", "y", "b")
        return of(*branches, unary("Softmax", read, "p"), unary("Sigmoid", "a" if read == "b" else "b", "q"))

    assert {((0,), (0,)), ((1,), (1,))} <= set(pairs_of(network("a"), network("a")))
    assert {((0,), (0,)), ((1,), (1,))}.isdisjoint(pairs_of(network("a"), network("b")))


def test_networks_that_have_nothing_in_common_match_almost_nothing(
    samples: dict[tuple[str, str, str], Sample],
) -> None:
    """At most a twentieth of the time, with everything recorded or with less."""
    networks = [samples[name, "unchanged", "scrambled"] for name in ("chain", "transformer")]
    networks.append(by_count(read_profile(a100_exports() / "fp32")))
    for one, other in permutations(networks, 2):
        for view in VIEWS.values():
            profile = view(one).profile
            rows = match_layers([profile, view(other).profile])
            matched = sum(profile.layer_times.sum_ms(row.layers[0]) for row in rows if all(row.layers))
            assert matched <= 0.05 * profile.layers_sum_ms, (one.profile.layers[0].name, view)


def test_a_computation_is_never_paired_with_a_change_of_layout() -> None:
    """Not even under one name, with one weight and between the same neighbours."""
    conv = weighted("conv", "aa")
    reorder = conv.model_copy(update={"type": "ReorderInput", "role": "reformat"})
    assert pairs_of(of(conv, layer("y", "Relu")), of(reorder, layer("y", "Relu"))) == [((1,), (1,))]


# The baseline


def test_no_pair_of_an_a100s_engines_is_wrong_and_more_are_right_than_by_trex() -> None:
    samples = {name: by_count(read_profile(a100_exports() / name)) for name in ("fp32", "fp16", "qat")}
    for (name, sample), (other_name, other) in permutations(samples.items(), 2):
        judged = judge(match_layers([sample.profile, other.profile]), sample, other)
        assert not [match for match in judged if match.ms and not match.is_right], (name, other_name)
        aligned = beam_search(sample.profile.layers, other.profile.layers)
        beam = judge_pairs([((ours,), (theirs,)) for ours, theirs in aligned], sample, other)
        right, beam_right = (sum(match.ms for match in found if match.is_right) for found in (judged, beam))
        # TREx pairs a reformat with a quantization, which both are of TensorRT's type `Reformat`.
        assert right >= beam_right - 0.02 * sample.profile.layers_sum_ms, (name, other_name)


def test_weights_and_windows_are_recorded(samples: dict[tuple[str, str, str], Sample]) -> None:
    result = next(layer for layer in samples["chain", "unchanged", "scrambled"].profile.layers if layer.weights)
    (weight,) = result.weights
    assert weight.shape == (8, 8, 3, 3)
    assert weight.digest
    assert weight.name
    assert dict(result.attributes)["strides"] == (1, 1)


@pytest.mark.thorough
def test_layers_with_weights_are_matched_under_new_names(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A trained model exported again with an additional layer is matched by the contents of its layers."""
    traced = trace(onnx.load(sample_model("cls")))
    shapes = {"x": (1, 3, 48, 96)}
    result = run(NAMINGS["numbered by type"](traced), shapes, tmp_path / "one")
    changed = NAMINGS["numbered by type"](EDITS["twin inserted early"](traced, random.Random(1)))
    other = run(changed, shapes, tmp_path / "other")
    rows = match_layers([result.profile, other.profile])
    outcome = judge(rows, result, other)
    assert not [match for match in outcome if match.confidence >= 0.995 and not match.is_right]
    assert sum(match.is_right for match in outcome) >= 0.98 * len(outcome)
    assert recall(rows, result, other)[0] >= 0.97 * recall(rows, result, other)[1]
