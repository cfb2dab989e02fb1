"""Made samples: their values by use and name, their sizes, and that the same seed makes the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ndld_flow.models.tensors import Array, InputUses, TensorSpec
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.samples.made_samples import FORMS, MadeSample, candidates, forms_of
from ndld_flow.samples.wanted_inputs import WantedInput, want_inputs
from tests.support.models_run import specs


def made(
    *wanted: TensorSpec, count: int = 40, one_size: bool = False, **given: Any
) -> tuple[list[MadeSample], list[WantedInput]]:
    inputs = specs(given)
    shapes = {name: feed.values.shape for name, feed in make_feeds(wanted, inputs).items()}
    known = want_inputs(wanted, inputs, "m")
    return list(islice(candidates(known, shapes, 0, one_size=one_size), count)), known


def values(*wanted: TensorSpec, **given: Any) -> list[Array]:
    """Return the first input's values in many samples."""
    samples, known = made(*wanted, **given)
    return [sample.feeds(known)[wanted[0].name].values for sample in samples]


def flat(arrays: Sequence[Array]) -> Array:
    return np.concatenate([array.ravel() for array in arrays])


X = TensorSpec("x", "float32", ("batch", 3, "frames"))


def test_floats_take_every_form_in_several_sizes_and_batches() -> None:
    samples, known = made(X, x={"shape": [1, 3, 40]})
    assert {sample.form for sample in samples} == set(FORMS)
    shapes = {sample.shapes["x"] for sample in samples}
    assert shapes == {(batch, 3, frames) for batch in (1, 2) for frames in (20, 40, 60)}
    assert all(sample.feeds(known)["x"].values.shape == sample.shapes["x"] for sample in samples)
    assert "made: smooth, batch 2, 20 frames" in {sample.label for sample in samples}
    everything = flat([sample.feeds(known)["x"].values for sample in samples])
    assert everything.min() < -3 and everything.max() > 3


def test_labels_are_distinct_and_equal_seeds_make_equal_samples() -> None:
    (first, known), (second, _) = made(X, x={"shape": [1, 3, 40]}), made(X, x={"shape": [1, 3, 40]})
    assert len({sample.label for sample in first}) == len(first)
    for left, right in zip(first, second, strict=True):
        assert np.array_equal(left.feeds(known)["x"].values, right.feeds(known)["x"].values)
    draws = {flat([sample.feeds(known)["x"].values]).tobytes() for sample in first}
    assert len(draws) == len(first)


def test_sizes_keep_the_bounds_of_the_recipe_and_what_the_model_fixes() -> None:
    bounds = {"min": [1, 3, 30], "opt": [1, 3, 40], "max": [1, 3, 50]}
    assert {sample.shapes["x"] for sample in made(X, x=bounds)[0]} == {(1, 3, 30), (1, 3, 40), (1, 3, 50)}
    assert {sample.shapes["x"] for sample in made(X, x={"shape": [1, 3, 40]}, one_size=True)[0]} == {(1, 3, 40)}
    fixed = TensorSpec("x", "float32", (1, 3, 8))
    assert {sample.shapes["x"] for sample in made(fixed)[0]} == {(1, 3, 8)}


def test_inputs_that_share_a_dimension_have_one_size() -> None:
    mask = TensorSpec("mask", "bool", ("batch", "frames"))
    for sample in made(X, mask, x={"shape": [1, 3, 40]})[0]:
        assert sample.shapes["mask"] == (sample.shapes["x"][0], sample.shapes["x"][2])


@pytest.mark.parametrize(("name", "dtype"), [("attention_mask", "int64"), ("mask", "bool"), ("mask", "float32")])
def test_masks_show_a_prefix_with_at_least_one_element(name: str, dtype: str) -> None:
    masks = [mask.astype(int) for mask in values(TensorSpec(name, dtype, ("b", "s")), **{name: {"shape": [1, 9]}})]
    assert set(np.unique(flat(masks))) == {0, 1}
    assert all(mask[:, 0].all() and (np.diff(mask, axis=1) <= 0).all() for mask in masks)


def test_masks_whose_true_elements_hide_show_the_first() -> None:
    masks = values(TensorSpec("key_padding_mask", "bool", (2, 9)))
    assert not any(mask[:, 0].any() for mask in masks)
    assert flat(masks).any()


def test_a_mask_of_ones_in_the_recipe_is_made_too_but_a_written_one_stays() -> None:
    mask = TensorSpec("mask", "int64", (1, 9))
    assert flat(values(mask, mask={"data": "ones"})).min() == 0
    assert flat(values(mask, mask={"values": [[1] * 9]})).min() == 1


def test_positions_reach_large_numbers_and_stay_inside_their_table() -> None:
    free = TensorSpec("position_ids", "int64", ("b", "s"))
    drawn = values(free, position_ids={"shape": [1, 6]})
    assert flat(drawn).max() > 5_000 and flat(drawn).max() < 32_768
    assert all((np.diff(array, axis=1) == 1).all() for array in drawn)
    limited = TensorSpec("position_ids", "int64", (1, 6), InputUses(rows=20))
    assert 12 < flat(values(limited)).max() < 20


def test_integers_without_a_known_use_are_bytes_or_of_all_magnitudes() -> None:
    drawn = values(TensorSpec("x", "int64", (1, 100)))
    assert {array.max() > 255 for array in drawn} == {True, False}
    assert flat(drawn).min() == 0 and flat(drawn).max() < 32_768
    assert flat(values(TensorSpec("x", "uint8", (1, 100)))).max() == 255
    assert flat(values(TensorSpec("count", "int64", ()))).max() <= 255


def test_numbers_alone_are_of_all_magnitudes() -> None:
    drawn = flat(values(TensorSpec("gain", "float32", ())))
    assert drawn.min() < 0.1 and drawn.max() > 100


@pytest.mark.parametrize("shape", [(), (1,)])
def test_constants_of_comparisons_and_another_value_are_drawn(shape: tuple[int, ...]) -> None:
    rate = TensorSpec("sr", "int64", shape, InputUses(constants=(8000.0, 16000.0)))
    assert set(flat(values(rate)).tolist()) == {8000, 16000, 16001}
    assert set(flat(values(rate, sr={"data": 8000})).tolist()) == {8000}


def test_tables_are_read_as_a_whole_and_in_part() -> None:
    ids = TensorSpec("ids", "float32", (1, 300), InputUses(rows=40))
    samples, known = made(ids)
    by_form: dict[str, list[int]] = {}
    for sample in samples:
        drawn = sample.feeds(known)["ids"].values
        assert set(np.unique(drawn)) <= set(range(40))
        by_form.setdefault(sample.form, []).append(len(np.unique(drawn)))
    assert min(by_form["random"]) > 35 and max(by_form["few values"]) <= 8


def test_data_in_which_a_constant_has_a_meaning_keep_their_forms() -> None:
    padded = TensorSpec("x", "float32", (1, 30, 8), InputUses(constants=(0.0,), others=True))
    assert set(forms_of(want_inputs([padded], {}, "m"))) == set(FORMS)


def test_a_range_of_the_recipe_limits_the_values() -> None:
    drawn = flat(values(X, x={"shape": [1, 3, 40], "range": [5.0, 9.0]}))
    assert drawn.min() >= 5 and drawn.max() < 9
    tokens = TensorSpec("ids", "int64", ("b", "s"))
    assert set(flat(values(tokens, ids={"shape": [2, 90], "range": [3, 6]})).tolist()) == {3, 4, 5}


def test_images_have_the_values_of_images() -> None:
    drawn = flat(values(TensorSpec("x", "float32", (1, 3, 16, 16))))
    assert drawn.min() < -0.9 and drawn.max() > 0.9 and np.abs(drawn).max() <= 1


def test_each_input_takes_a_form_of_its_own_kind() -> None:
    image = TensorSpec("image", "float32", (1, 3, 16, 16))
    samples, known = made(image, X, x={"shape": [1, 3, 40]})
    assert {sample.form for sample in samples} == set(FORMS)
    assert max(np.abs(sample.feeds(known)["image"].values).max() for sample in samples) <= 1


def test_lengths_are_at_most_those_of_their_input() -> None:
    length = TensorSpec("x_length", "int64", ("batch",))
    samples, known = made(X, length, x={"shape": [1, 3, 40]})
    shares = [sample.feeds(known)["x_length"].values / sample.shapes["x"][2] for sample in samples]
    assert flat(shares).max() <= 1 and 0.5 <= flat(shares).min() < 0.8


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_have_their_type(dtype: str) -> None:
    assert {array.dtype.name for array in values(TensorSpec("x", dtype, (1, 3, 40)))} == {dtype}
