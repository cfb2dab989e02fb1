"""Likely sizes and values of inputs, from names, metadata and files beside the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples.likely_inputs import LikelyInput, find_states, is_image, likely_inputs, suggest_shapes
from tests.support.message_files import CheckMessage
from tests.support.models import save, tensor

INT = TensorProto.INT64


def write(path: Path, *inputs: onnx.ValueInfoProto, **metadata: str) -> Path:
    """Write a model with these inputs; nothing here runs it."""
    graph = helper.make_graph([], "main", list(inputs), [])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, metadata)
    return save(model, path / "model.onnx")


def first(path: Path, **given: tuple[int, ...]) -> dict[str, LikelyInput]:
    """The most likely inputs by name."""
    return {likely.spec.name: likely for likely in next(likely_inputs(path, given))}


def test_declared_sizes_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("x", [2, 5, 7]))
    assert [[likely.shape for likely in inputs] for inputs in likely_inputs(path)] == [[(2, 5, 7)]]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("images", ["batch", 3, "height", "width"], (1, 3, 640, 640)),
        ("pixel_values", [None, 3, None, None], (1, 3, 224, 224)),
        ("x", ["?", 3, "?", "?"], (1, 3, 224, 224)),
        ("x", ["N", "h", "w", 3], (1, 224, 224, 3)),
        ("x", [1, 3, 48, "w"], (1, 3, 48, 320)),
        ("x", [1, 3, 512, None], (1, 3, 512, 512)),
        ("waveforms", ["batch", "N"], (1, 16000)),
        ("features", ["batch", 80, "time"], (1, 80, 100)),
        ("x", ["n", 7], (1, 7)),
    ],
)
def test_usual_sizes_are_chosen_for_dynamic_dimensions(
    name: str, shape: list[int | str | None], expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert first(write(tmp_path, tensor(name, shape)))[name].shape == expected


def test_metadata_of_ultralytics_decides(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("images", ["batch", 3, "height", "width"]), imgsz="[480, 832]")
    likely = first(path)["images"]
    assert likely.shape == (1, 3, 480, 832)
    assert "imgsz" in likely.reason
    assert likely.fitting == {"resize": "letterbox", "interpolation": "linear"}
    classifier = write(tmp_path, tensor("images", [1, 3, 224, 224]), imgsz="[224, 224]", task="classify")
    assert next(likely_inputs(classifier))[0].fitting == {"resize": "crop"}


@pytest.mark.parametrize(
    ("config", "fitting"),
    [
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            {"resize": "crop", "crop_share": 0.875},
        ),
        (
            {"size": 224, "do_center_crop": True, "crop_size": 224, "resample": 3},
            {"resize": "crop", "interpolation": "bicubic"},
        ),
        ({"size": {"height": 384, "width": 384}}, {"resize": "stretch"}),
        ({"size": {"shortest_edge": 384}}, {}),
        ({"size": {"shortest_edge": -1}, "do_center_crop": True, "crop_size": "x"}, {}),
    ],
)
def test_images_are_fitted_as_the_preprocessor_does(config: object, fitting: object, tmp_path: Path) -> None:
    path = write(tmp_path, tensor("pixel_values", [1, 3, 224, 224]))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    assert next(likely_inputs(path))[0].fitting == fitting


def test_files_of_hugging_face_decide(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    path = write(tmp_path / "onnx", tensor("pixel_values", [None, 3, None, None]))
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"size": {"shortest_edge": 384}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3]})
    )
    likely = first(path)["pixel_values"]
    assert (likely.shape, likely.mean, likely.std) == ((1, 3, 384, 384), (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[1, 2]", "{", '{"size": {"height": "x"}}', '{"size": -3, "image_mean": "x"}', '{"a": NaN}']
)
def test_an_invalid_configuration_is_ignored(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, tensor("pixel_values", [None, 3, None, None]))
    (tmp_path / "config.json").write_text(text)
    assert first(path)["pixel_values"].shape == (1, 3, 224, 224)


def test_tokens_are_indices_of_the_table_and_masks_are_ones(tmp_path: Path) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    table = numpy_helper.from_array(np.zeros((77, 4), np.float32), "table")
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["cast"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "cast"], ["y"]),
    ]
    inputs = [tensor(name, ["batch", "sequence"], INT) for name in names]
    graph = helper.make_graph(nodes, "main", inputs, [], [table])
    path = save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx"
    )
    likely = first(path)
    assert likely["input_ids"].range == (0, 77)
    assert likely["attention_mask"].data == "ones"
    assert likely["token_type_ids"].data == "zeros"
    assert {item.shape for item in likely.values()} == {(1, 128)}


def test_the_number_of_tokens_does_not_exceed_the_positions(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("input_ids", ["batch", "sequence"], INT))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40}')
    assert first(path)["input_ids"].shape == (1, 40)


def test_a_cache_and_its_mask_have_matching_sizes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        tensor("input_ids", ["batch", "sequence_length"], INT),
        tensor("past_key_values.0.key", ["batch", 2, "past_sequence_length", 8]),
        tensor("attention_mask", ["batch", "past_sequence_length + sequence_length"], INT),
    )
    likely = first(path)
    (_, _, past, _), (_, tokens) = (likely[name].shape or () for name in ("past_key_values.0.key", "input_ids"))
    assert likely["attention_mask"].shape == (1, past + tokens)
    assert likely["past_key_values.0.key"].data == "zeros"


def test_a_length_is_that_of_the_signal(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("waveforms", ["batch", "N"]), tensor("waveforms_lens", ["batch"], INT))
    assert first(path)["waveforms"].shape == (1, first(path)["waveforms_lens"].data)


def test_a_sampling_rate_makes_the_other_input_a_signal(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("input", [None, None]), tensor("sr", [], INT))
    assert first(path)["input"].shape == (1, 16000)
    assert first(path)["sr"].data == 16000


@pytest.mark.parametrize(
    ("given", "output", "found"),
    [
        (tensor("conv_cache", [1, 8]), tensor("conv_cache_out", [1, 8]), True),
        (tensor("past.0.key", [1, "past"]), tensor("present.0.key", [1, "total"]), True),
        (tensor("state", [2, 1, 8]), tensor("stateN", [2, 1, 8]), True),
        (tensor("state", [2, 1, 8]), tensor("state_out", [1, 8]), False),
        (tensor("mask", [1, 8], INT), tensor("mask_out", [1, 8], INT), False),
        (tensor("input", [1, 8]), tensor("output", [1, 8]), False),
    ],
)
def test_states_are_recognized_by_their_outputs(
    given: onnx.ValueInfoProto, output: onnx.ValueInfoProto, found: bool
) -> None:
    graph = helper.make_graph([], "main", [tensor("x", [1]), given], [output, tensor("y", [1])])
    assert find_states(graph) == ({given.name: output.name} if found else {})
    assert find_states(helper.make_graph([], "main", [given], [output])) == {}, "the only input is no state"


def test_a_stream_takes_its_signal_in_short_pieces(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("input", [None, None]), tensor("state", [2, None, 8]), tensor("sr", [], INT))
    assert {name: likely.shape for name, likely in first(path).items()} == {
        "input": (1, 512), "state": (2, 1, 8), "sr": ()
    }  # fmt: skip


def test_a_message_has_the_overrides_to_try(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("images", ["n", 3, "h", "w"]), tensor("scale", [1, 4]))
    assert suggest_shapes(path, {"images": (1, 3, 1, 1), "scale": (1, 4)}).endswith(
        "or try: 'inputs.images.shape=[1,3,640,640]'"
    )
    assert suggest_shapes(path, {"images": (1, 3, 640, 640), "scale": (1, 4)}) == "check the recipe's `inputs:`."
    assert suggest_shapes(tmp_path / "nowhere.onnx", {}) == "check the recipe's `inputs:`."


def test_question_marks_do_not_count_as_a_shared_name(tmp_path: Path) -> None:
    path = write(tmp_path, tensor("x", ["?", "?"]), tensor("image", ["?", 3, "?", "?"]))
    assert first(path)["image"].shape == (1, 3, 224, 224)
    assert first(path)["x"].shape == (1, 64)  # a pass at 1 says little of the speed at other sizes


def test_given_shapes_are_used_and_checked(tmp_path: Path, check_message: CheckMessage) -> None:
    path = write(tmp_path, tensor("x", ["n", 3, "h", "w"]))
    assert first(path, x=(2, 3, 5, 7))["x"].shape == (2, 3, 5, 7)
    for wrong in ((2, 4, 5, 7), (2, 3)):
        with pytest.raises(RequestError) as caught:
            first(path, x=wrong)
        check_message(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "layout"),
    [
        ("x", ("n", "c", "h", "w"), "NCHW"),
        ("x", ("n", 3, 8, 3), "NCHW"),
        ("x", ("n", 8, 8, 3), "NHWC"),
        ("x", ("n", 8, "h", "w"), ""),
        ("past_key_values.0", ("n", "heads", "length", "size"), ""),
        ("h0", ("n", "c", "h", "w"), ""),
    ],
)
def test_states_are_no_pictures(name: str, shape: tuple[int | str, ...], layout: str) -> None:
    assert is_image(TensorSpec(name, "float32", shape)) == layout
