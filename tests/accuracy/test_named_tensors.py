"""check_accuracy of outputs that are no tensors: sequences, maps, optional values, and texts inside of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ndld_flow.records.accuracy import Accuracy
from ndld_flow.runtimes.session_process import read_arrays, write_arrays
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.store.kinds import AccuracyDocument, Onnx
from tests.support.models_run import run_step

FLOAT, STRING = TensorProto.FLOAT, TensorProto.STRING
node = helper.make_node
SEQUENCE = helper.make_tensor_sequence_value_info("s", FLOAT, None)
TEXTS = helper.make_tensor_sequence_value_info("s", STRING, None)
OPTIONAL = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None)))
MAPS = onnx.ValueInfoProto(name="z")
MAPS.type.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
MAPS.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = FLOAT
MAPS.type.sequence_type.elem_type.map_type.value_type.tensor_type.shape.SetInParent()


def write(path: Path, nodes: Sequence[onnx.NodeProto], *outputs: onnx.ValueInfoProto) -> Path:
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 3])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], outputs), ir_version=8, opset_imports=opsets)
    onnx.save(model, path)
    return path


def constructed(*op_types: str) -> list[onnx.NodeProto]:
    """A sequence of what these operators make of x."""
    nodes = [node(op_type, ["x"], [f"e{index}"]) for index, op_type in enumerate(op_types)]
    return [*nodes, node("SequenceConstruct", [f"e{index}" for index in range(len(op_types))], ["s"])]


def compare(
    folder: Path, reference: Path, candidate: Path, data: Sequence[str] = (), **settings: Any
) -> tuple[bool, Accuracy]:
    given: Mapping[str, Any] = {"x": {"data": list(data)} if data else {"shape": [4, 3], "range": [-1.0, 1.0]}}
    artifacts = {"reference": Onnx(reference, "source", "digest")}
    ran = run_step(CheckAccuracy, candidate, folder / "ran", settings, given, artifacts=artifacts)
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_text())
    return ran.result.passed, accuracy


def failed(accuracy: Accuracy) -> list[str]:
    return [output.output for output in accuracy.outputs if output.failed]


def test_the_elements_of_a_sequence_are_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx", constructed("Relu", "Neg"), SEQUENCE)
    second = write(tmp_path / "b.onnx", constructed("Relu", "Identity"), SEQUENCE)
    passed, accuracy = compare(tmp_path / "1", first, first)
    assert passed
    assert {output.output: output.shape for output in accuracy.outputs} == {"s[0]": (4, 3), "s[1]": (4, 3)}
    assert all(output.metrics["max_abs"] == 0 for output in accuracy.outputs)
    assert accuracy.power is not None
    assert accuracy.power.faults
    passed, accuracy = compare(tmp_path / "2", first, second)
    assert not passed
    assert failed(accuracy) == ["s[1]"]


def test_a_tolerance_of_a_sequence_holds_for_its_elements(tmp_path: Path) -> None:
    first = write(tmp_path / "a.onnx", constructed("Relu", "Neg"), SEQUENCE)
    second = write(tmp_path / "b.onnx", constructed("Relu", "Identity"), SEQUENCE)
    passed, accuracy = compare(
        tmp_path / "1", first, second, made="off", output_tolerance={"s": {"slices": "off", "max_abs": 2.0}}
    )
    assert passed, accuracy.outputs


@pytest.mark.parametrize("lengths", [(2, 3), (3, 2)])
def test_sequences_of_unequal_lengths_differ(lengths: tuple[int, int], tmp_path: Path) -> None:
    types = ("Relu", "Neg", "Abs")
    first, second = (write(tmp_path / f"{count}.onnx", constructed(*types[:count]), SEQUENCE) for count in lengths)
    passed, accuracy = compare(tmp_path / "1", first, second)
    assert not passed
    assert failed(accuracy) == ["s[2]"]


@pytest.mark.parametrize("late", [False, True])
def test_samples_may_have_sequences_of_different_lengths(late: bool, tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.ones((2, 3), np.float32))
    np.save(tmp_path / "1.npy", np.arange(9, dtype=np.float32).reshape(3, 3))
    data = [str(tmp_path / f"{number}.npy") for number in ((0, 1) if late else (1, 0))]
    split = [node("Identity", ["x"], ["y"]), node("SplitToSequence", ["y"], ["s"], axis=0)]
    other = [node("Clip", ["x", "", "six"], ["y"]), node("SplitToSequence", ["y"], ["s"], axis=0)]
    six = node("Constant", [], ["six"], value_float=6.0)
    first, second = (write(tmp_path / f"{len(item)}.onnx", item, SEQUENCE) for item in (split, [six, *other]))
    settings = {"samples": 2, "made": "off", "power": "off"}
    passed, accuracy = compare(tmp_path / "1", first, first, data, **settings)
    assert passed
    assert [output.output for output in accuracy.outputs] == ["s[0]", "s[1]", "s[2]"]
    passed, accuracy = compare(tmp_path / "2", first, second, data, **settings)
    assert not passed
    assert failed(accuracy) == ["s[2]"]


def test_empty_sequences_prove_nothing_and_differ_from_others(tmp_path: Path) -> None:
    empty = write(tmp_path / "a.onnx", [node("SequenceEmpty", [], ["s"])], SEQUENCE)
    _, accuracy = compare(tmp_path / "1", empty, empty)
    assert accuracy.outcome == "inconclusive"
    passed, _ = compare(tmp_path / "2", empty, write(tmp_path / "b.onnx", constructed("Relu"), SEQUENCE))
    assert not passed


def test_texts_in_sequences_are_compared(tmp_path: Path) -> None:
    def texts(path: Path, *words: str) -> Path:
        constants = [node("Constant", [], [f"c{index}"], value_strings=[word]) for index, word in enumerate(words)]
        return write(
            path, [*constants, node("SequenceConstruct", [constant.output[0] for constant in constants], ["s"])], TEXTS
        )

    first, second = texts(tmp_path / "a.onnx", "a", "b"), texts(tmp_path / "b.onnx", "a", "c")
    assert compare(tmp_path / "1", first, first)[0]
    passed, accuracy = compare(tmp_path / "2", first, second)
    assert not passed
    assert failed(accuracy) == ["s[1]"]


def test_optional_values_are_compared_and_may_both_be_absent(tmp_path: Path) -> None:
    kind = helper.make_tensor_type_proto(FLOAT, None)
    y = helper.make_tensor_value_info("y", FLOAT, ["n", 3])
    relu = node("Relu", ["x"], ["y"])
    none = write(tmp_path / "a.onnx", [relu, node("Optional", [], ["o"], type=kind)], y, OPTIONAL)
    some = write(tmp_path / "b.onnx", [relu, node("Optional", ["x"], ["o"])], y, OPTIONAL)
    other = write(tmp_path / "c.onnx", [relu, node("Optional", ["y"], ["o"])], y, OPTIONAL)
    assert compare(tmp_path / "1", none, none)[0]
    assert compare(tmp_path / "2", some, some)[0]
    for number, pair in enumerate([(none, some), (some, none), (some, other)]):
        passed, accuracy = compare(tmp_path / f"3{number}", *pair)
        assert not passed
        assert failed(accuracy) == ["o"]


def maps(path: Path, *keys: int, scale: float = 1.0) -> Path:
    nodes = [
        node("Constant", [], ["k"], value_float=scale),
        node("Mul", ["x", "k"], ["p"]),
        node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", classlabels_int64s=keys),
    ]
    return write(path, nodes, MAPS)


def test_maps_are_compared_by_their_keys(tmp_path: Path) -> None:
    first = maps(tmp_path / "a.onnx", 5, 7, 10)
    passed, accuracy = compare(tmp_path / "1", first, first)
    assert passed
    assert {output.output: output.shape for output in accuracy.outputs} == {"z": (4, 3), "z (keys)": (3,)}
    passed, accuracy = compare(tmp_path / "2", first, maps(tmp_path / "b.onnx", 5, 7, 10, scale=1.5))
    assert not passed
    assert failed(accuracy) == ["z"]
    passed, accuracy = compare(tmp_path / "3", first, maps(tmp_path / "c.onnx", 5, 7, 11))
    assert not passed
    assert failed(accuracy) == ["z (keys)"]


def test_texts_pass_through_a_process_of_their_own(tmp_path: Path) -> None:
    arrays = {"s[0]": np.array([["a", "bc"]], object), "t": np.array("d"), "n": None, "x": np.zeros((2, 1), np.float32)}
    write_arrays(tmp_path / "arrays", arrays)
    read = read_arrays(tmp_path / "arrays")
    assert read.keys() == arrays.keys()
    assert read["n"] is None
    for name in ("s[0]", "t", "x"):
        np.testing.assert_array_equal(read[name], arrays[name])
