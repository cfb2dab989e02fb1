"""What an accuracy check would notice: planted faults, what the samples reach, and weak checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.accuracy.power import faults, measure_power
from ndld_flow.accuracy.power.faults import NodeFault, WeightFault, draw_faults, weight_sites, wrong_attributes
from ndld_flow.accuracy.power.measure_power import plant
from ndld_flow.accuracy.ranked_lists import Outputs
from ndld_flow.base.errors import ModelError
from ndld_flow.models.files import load_model, save_model
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.measurement import FIXED_SIZES, is_warning
from ndld_flow.records.placement import Placement
from ndld_flow.records.power import PartsReached, PlantedFault, Power, first_reason
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.panels.power import collect_power
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.samples.feeds import shared_inputs
from tests.accuracy.test_check_accuracy import compare
from tests.support.models_run import Given, write_model
from tests.support.run_fixtures import run_record
from tests.support.text_facts import numbers_in

PLAIN = SessionSettings(optimization="disabled")


def weights(**arrays: Any) -> str:
    """Return the initializers of a model in ONNX's text format."""
    return ", ".join(
        f"float[{','.join(map(str, np.shape(array)))}] {name} = {{{','.join(map(str, np.ravel(array)))}}}"
        for name, array in arrays.items()
    )


DRAWN = np.random.default_rng(0).normal(size=(64, 8)).round(3)
TABLE = f"""g (int64[n] ids) => (float[n, 8] y) <{weights(table=DRAWN)}> {{
    rows = Gather <axis = 0> (table, ids)
    y = Tanh(rows)
}}"""
LAYERS = f"""g (float[n, 8] x) => (float[n, 64] y) <{weights(w=DRAWN.T, b=DRAWN[:, 0])}> {{
    h = MatMul(x, w)
    s = Add(h, b)
    y = Relu(s)
}}"""


def documents_of(accuracy: Accuracy) -> RunDocuments:
    return RunDocuments(run_record([]), known={Accuracy: {"agree": accuracy}, PrecisionSearch: {}, Placement: {}})


def measured(folder: Path, model: Path | str, inputs: Given | None = None, **settings: Any) -> Power:
    _, accuracy = compare(folder, model, model, inputs, **{"power": 20, **settings})
    assert accuracy.power is not None
    return accuracy.power


def test_a_check_reports_the_faults_that_it_would_notice(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, LAYERS, LAYERS, {"x": {"shape": [16, 8]}}, power=20)
    power = accuracy.power
    assert power is not None and accuracy.passed and not accuracy.weak
    assert len(power.faults) == power.wanted == 20
    assert power.count("noticed") + power.count("within bounds") + power.count("unseen") == 20
    assert power.share("noticed") > 0.5
    for name, outcome in (("noticed", "noticed"), ("within_bounds", "within bounds"), ("unseen", "unseen")):
        assert ran.result.metrics[name].value == power.share(outcome)  # type: ignore[arg-type]
    assert power.remarks[0] in ran.result.summary
    assert {fault.weight for fault in power.faults} == {"w", "b", ""}
    assert power.single_sizes == {"n": 16}


def test_a_fault_that_leaves_the_check_undecided_is_not_noticed(tmp_path: Path) -> None:
    """The first value may be a quantity of its own, or one like the others: an error of 0.001 decides nothing."""
    consts = "float[3] means = {0.001,0.5,0.9}, float[3] off = {0.01,0,0}"
    model = f"g (float[n, 3] x) => (float[n, 3] y) <{consts}> {{ a = Add(x, means) y = Add(a, off) }}"
    wrong = model.replace("0.01,0,0", "0.011,0,0")
    given: Given = {"x": {"shape": [64, 3], "range": [0, 1e-5]}}
    _, accuracy = compare(tmp_path, model, wrong, given, made="off", power=60)
    assert accuracy.outcome == "inconclusive" and accuracy.power is not None
    found = {(fault.weight, fault.kind): fault.outcome for fault in accuracy.power.faults}
    assert found["off", "scaled by 1.1"] == "within bounds"
    assert found["means", "zeroed"] == "noticed"


def test_no_fault_is_planted_with_power_off(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, LAYERS, LAYERS, power="off")
    assert accuracy.power is None
    assert "unseen" not in ran.result.metrics


def test_no_fault_is_tried_after_the_time_for_them(tmp_path: Path) -> None:
    power = measured(tmp_path, LAYERS, power="auto", power_time="1 ms")
    assert not power.faults and "power_time" in power.not_measured


def test_a_table_of_which_one_row_is_read_makes_the_check_weak(tmp_path: Path) -> None:
    ran, accuracy = compare(tmp_path, TABLE, TABLE, {"ids": {"shape": [6], "data": "zeros"}}, power=20)
    assert accuracy.passed and ran.result.passed
    assert accuracy.power is not None
    assert accuracy.power.reached == (PartsReached(parts="rows", of="table", reached=1, count=64),)
    assert "rows of table" in accuracy.weak[0] and numbers_in(accuracy.weak[0]) == [1, 64]
    assert "within tolerance, weak: 1 of 64" in ran.result.summary


def test_a_weak_check_is_inconclusive_on_request(tmp_path: Path) -> None:
    settings = {"power": 20, "when_weak": "inconclusive"}
    ran, accuracy = compare(tmp_path, TABLE, TABLE, {"ids": {"shape": [6], "data": "zeros"}}, **settings)
    assert accuracy.outcome == "inconclusive"
    assert (ran.result.passed, ran.result.inconclusive) == (False, True)
    (tmp_path / "all").mkdir()
    read_all = {"ids": {"shape": [64], "data": "arange"}}
    assert compare(tmp_path / "all", TABLE, TABLE, read_all, **settings)[1].outcome == "passed"


@pytest.mark.parametrize(("largest", "blind"), [(1.0, True), (30.0, False)])
def test_samples_without_what_a_model_detects_make_the_check_weak(tmp_path: Path, largest: float, blind: bool) -> None:
    """A detector of seals gives 1e-7 for all pages without one: INT8 that detects nothing passes, and was delivered."""
    detector = f"""g (float[1, 8] x) => (float[1, 1] y) <{weights(w=np.ones((8, 1)), b=[-20.0])}> {{
        h = MatMul(x, w)
        s = Add(h, b)
        y = Sigmoid(s)
    }}"""
    for number, values in enumerate([0.1, 0.5, largest]):
        np.save(tmp_path / f"{number}.npy", np.full((1, 8), values, np.float32))
    ran, accuracy = compare(tmp_path, detector, detector, {"x": {"data": str(tmp_path / "*.npy")}})
    assert (accuracy.passed, accuracy.blind, bool(accuracy.weak)) == (True, blind, blind)
    assert ("weak" in ran.result.summary) == blind


def test_a_single_sample_is_not_called_blind(tmp_path: Path) -> None:
    assert not compare(tmp_path, LAYERS, LAYERS, {"x": {"shape": [1, 8]}})[1].blind


def test_many_rows_of_a_large_table_are_enough(tmp_path: Path) -> None:
    assert PartsReached(parts="rows", of="t", reached=58, count=30_000).is_weak
    assert not PartsReached(parts="rows", of="t", reached=59, count=30_000).is_weak
    assert not PartsReached(parts="rows", of="t", reached=3, count=43).is_weak


def test_an_input_that_may_be_ignored_makes_the_check_weak(tmp_path: Path) -> None:
    masked = f"""g (float[1, 8] x, float[1, 8] mask) => (float[1, 64] y) <{weights(w=DRAWN.T)}> {{
        shown = Mul(x, mask)
        y = MatMul(shown, w)
    }}"""
    all_ones: Given = {"x": {"shape": [1, 8]}, "mask": {"shape": [1, 8], "data": "ones"}}
    assert measured(tmp_path, masked, all_ones).ignorable == ("mask",)
    (tmp_path / "half").mkdir()
    half: Given = {"x": {"shape": [1, 8]}, "mask": {"values": [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]}}
    assert measured(tmp_path / "half", masked, half).ignorable == ()


@pytest.mark.parametrize(("gain", "pairs"), [(1.01, ("y and z",)), (1.5, ()), (1.0, ())])
def test_outputs_that_may_be_swapped_make_the_check_weak(tmp_path: Path, gain: float, pairs: tuple[str, ...]) -> None:
    """Those that are equal are no mistake: the order of two names of one value means nothing."""
    alike = f"""g (float[4, 8] x) => (float[4, 64] y, float[4, 64] z) <{weights(w=DRAWN.T, gain=[gain])}> {{
        y = MatMul(x, w)
        z = Mul(y, gain)
    }}"""
    power = measured(tmp_path, alike, {"x": {"shape": [4, 8]}})
    assert power.exchangeable == pairs
    assert any("swaps y and z" in reason for reason in power.weak) == bool(pairs)


def test_a_constant_output_makes_the_check_weak(tmp_path: Path) -> None:
    dead = f"""g (float[4, 8] x) => (float[4, 64] y) <{weights(w=DRAWN.T)}> {{
        h = MatMul(x, w)
        n = Abs(h)
        m = Neg(n)
        y = Relu(m)
    }}"""
    power = measured(tmp_path, dead)
    assert power.constant == ("y",)
    assert power.weak[0] == "output y is constant"


def branching() -> onnx.ModelProto:
    """Return a model that multiplies by one of two weights, which are constants of its branches."""
    right, left = DRAWN[:8].astype(np.float32), DRAWN[8:16].astype(np.float32)
    branches = {}
    for name, weight in (("then_branch", right), ("else_branch", left)):
        nodes = [
            helper.make_node("Constant", [], [f"{name}_w"], value=numpy_helper.from_array(weight)),
            helper.make_node("MatMul", ["x", f"{name}_w"], [f"{name}_y"], name=f"{name}_matmul"),
        ]
        output = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4, 8])
        branches[name] = helper.make_graph(nodes, name, [], [output])
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], name="choose", **branches)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_faults_in_a_branch_that_never_runs_are_unseen(tmp_path: Path) -> None:
    onnx.save(branching(), tmp_path / "model.onnx")
    power = measured(tmp_path, tmp_path / "model.onnx", {"flag": {"data": "ones"}})
    assert power.branches_not_run == ("else_branch of choose",)
    by_node = {
        node: {f.outcome for f in power.faults if f.node == node}
        for node in ("then_branch_matmul", "else_branch_matmul")
    }
    assert by_node["else_branch_matmul"] == {"unseen"}
    assert "unseen" not in by_node["then_branch_matmul"]


def test_a_model_that_cannot_be_planted_passes_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object) -> None:
        raise ValueError("exceeds the maximum size of a protobuf")

    monkeypatch.setattr(measure_power, "plant", too_large)
    power = measured(tmp_path, LAYERS)
    assert not power.faults
    assert "ValueError" in power.not_measured


def test_outputs_in_another_order_are_noted(tmp_path: Path) -> None:
    two = "g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) { y = Neg(x) z = Abs(x) }"
    other = two.replace("float[n, 4] y, float[n, 4] z", "float[n, 4] z, float[n, 4] y")
    _, accuracy = compare(tmp_path, two, other)
    assert accuracy.passed
    assert any(is_warning(note) and "z, y" in note for note in accuracy.notes)


_FREE = "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }"
_FIXED = _FREE.replace("[n, 4] x", "[1, 4] x")


@pytest.mark.parametrize(
    ("reference", "candidate", "noted"),
    [
        (_FREE, _FIXED, True),
        (_FREE, _FIXED.replace(" x)", " rows)").replace("(x)", "(rows)"), True),
        (_FIXED, _FREE, False),
    ],
    ids=["fixed", "renamed", "freer"],
)
def test_sizes_that_only_the_candidate_fixes_are_noted(
    reference: str, candidate: str, noted: bool, tmp_path: Path
) -> None:
    """It agrees at that size, and is of no use at others."""
    _, accuracy = compare(tmp_path, reference, candidate)
    assert [note.partition(": ")[2] for note in accuracy.notes if FIXED_SIZES in note] == ["x 1x4, not nx4"] * noted


def test_another_layout_fixes_no_sizes() -> None:
    """The channels, which both fix, stand where the other has a free size."""
    planes, pixels = (TensorSpec("x", "float32", shape) for shape in ((1, 3, "h", "w"), (1, "h", "w", 3)))
    assert shared_inputs([planes], [pixels]).freer_shapes == {}
    fixed = replace(pixels, shape=(1, 64, 64, 3))
    assert shared_inputs([planes], [fixed]).freer_shapes == {"x": (1, 3, "h", "w")}


def test_a_model_without_weights_has_no_power(tmp_path: Path) -> None:
    ran, accuracy = compare(
        tmp_path,
        "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }",
        "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }",
        power=20,
    )
    assert ran.result.passed
    assert accuracy.power is not None and not accuracy.power.faults
    assert accuracy.power.not_measured
    assert "unseen" not in ran.result.metrics


def looping() -> onnx.ModelProto:
    """Return a model whose loop multiplies by a weight three times, and looks up a row each time."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["before", "w"], ["product"], name="matmul"),
            helper.make_node("Gather", ["table", "step"], ["row"], name="gather", axis=0),
            helper.make_node("Add", ["product", "row"], ["sum"], name="add"),
            helper.make_node("Tanh", ["sum"], ["after"], name="tanh"),
            helper.make_node("Identity", ["going"], ["goes_on"], name="identity"),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, [4, 8]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, [4, 8]),
        ],
        [numpy_helper.from_array(DRAWN[:8].astype(np.float32), "w")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "", "x"], ["y"], name="loop", body=body)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [
            numpy_helper.from_array(np.array(3), "count"),
            numpy_helper.from_array(DRAWN[:5].astype(np.float32), "table"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def models(folder: Path) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    onnx.save(branching(), folder / "branching.onnx")
    onnx.save(looping(), folder / "looping.onnx")
    kernel, scales = DRAWN.reshape(64, 8, 1, 1), [1.0, 1.0, 2.0, 2.0]
    conv = f"""g (float[1, 8, 6, 6] x) => (float[1, 64, 12, 12] z) <{weights(k=kernel, s=scales)}> {{
        c = Conv <pads = [1, 1, 0, 0]> (x, k)
        r = LeakyRelu <alpha = 0.2> (c)
        p = MaxPool <kernel_shape = [2, 2]> (r)
        q = Softmax <axis = 1> (p)
        z = Resize <mode = "linear"> (q, , s)
    }}"""
    return {
        "branching": folder / "branching.onnx",
        "looping": folder / "looping.onnx",
        "layers": write_model(folder / "layers.onnx", LAYERS),
        "table": write_model(folder / "table.onnx", TABLE),
        "conv": write_model(folder / "conv.onnx", conv),
    }


@pytest.mark.parametrize("name", ["branching", "looping", "layers", "table", "conv"])
def test_a_planted_fault_computes_what_the_faulty_model_computes(tmp_path: Path, name: str) -> None:
    path = models(tmp_path)[name]
    planted = plant(path, SessionSettings(), 40, 0)
    feeds = {}
    for spec in open_model(path, PLAIN).describe().inputs:
        shape = [dim if isinstance(dim, int) else 64 for dim in spec.shape or ()]
        stream = np.random.default_rng(1)
        feeds[spec.name] = (
            np.arange(64)
            if spec.dtype == "int64"
            else np.array(True)
            if spec.dtype == "bool"
            else stream.normal(size=shape).astype(np.float32)
        )
    right = open_model(path, PLAIN).run_within(planted.outputs, feeds, 60)
    same = planted.session.run_within(planted.outputs, feeds, 60)
    assert planted.faults
    assert_close(same, right)
    for number, fault in enumerate(planted.faults):
        wrong = open_model(rebuilt(path, fault, tmp_path / f"{number}.onnx"), PLAIN)
        expected = wrong.run_within(planted.outputs, feeds, 60)
        found = planted.session.run_within(planted.outputs, {**feeds, **planted.feeds_of(number)}, 60)
        assert_close(found, expected)


def assert_close(found: Outputs, expected: Outputs) -> None:
    for name, values in expected.items():
        mine = found[name]
        assert values is not None and mine is not None
        np.testing.assert_allclose(mine, values, rtol=1e-4, atol=1e-5)


def rebuilt(path: Path, fault: WeightFault | NodeFault, target: Path) -> Path:
    """Write the model with a fault as a model of its own."""
    model = load_model(path)
    if isinstance(fault, WeightFault):
        replace_weight(model, str(fault.site.weight.name), ir.tensor(fault.value()))
    else:
        names = [(node.op_type, node.name) for node in model.graph.all_nodes()]
        node = list(model.graph.all_nodes())[names.index((fault.node.op_type, fault.node.name))]
        node.op_type = fault.op_type
        for name, value in fault.attributes.items():
            node.attributes.pop(name, None)
            if value is not None:
                node.attributes[name] = ir.convenience.convert_attribute(name, value)
    save_model(model, target)
    return target


def test_faults_are_planted_inside_loops_and_unknown_rows_are_named(tmp_path: Path) -> None:
    path = models(tmp_path / "models")["looping"]
    planted = plant(path, SessionSettings(), 40, 0)
    assert {fault.node.name for fault in planted.faults} == {"matmul", "gather", "tanh"}
    _, accuracy = compare(tmp_path, path, path, power=20)
    assert accuracy.power is not None
    assert accuracy.power.not_watched == ("rows of table",) and not accuracy.power.reached
    assert "rows of table" in str(collect_power(documents_of(accuracy))[0].facts)


def replace_weight(model: ir.Model, name: str, wrong: ir.TensorProtocol) -> None:
    for graph in model.graphs():
        if name in graph.initializers:
            graph.initializers[name].const_value = wrong
        for node in graph:
            if node.op_type == "Constant" and node.outputs[0].name == name:
                node.attributes["value"] = ir.AttrTensor("value", wrong)


def test_no_fault_is_planted_where_sizes_are_computed(tmp_path: Path) -> None:
    sized = f"""g (float[n, 8] x) => (float[a, b] y) <{weights(w=DRAWN.T, two=[2.0], floats=[3.0, 64.0])}> {{
        h = MatMul(x, w)
        many = Mul(floats, two)
        whole = Cast <to = 7> (many)
        y = Tile(h, whole)
    }}"""
    path = write_model(tmp_path / "sized.onnx", sized)
    assert {site.weight.name for site in weight_sites(load_model(path))} == {"w"}


def test_a_loop_without_an_end_is_stopped(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["before", "step"], ["after"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, []),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "on", "x"], ["y"], body=body)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array(1, np.float32), "step")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    session = open_model(tmp_path / "m.onnx", PLAIN)
    feeds = {"x": np.array(0, np.float32), "on": np.array(True)}
    with pytest.raises(ModelError):
        session.run_within(["y"], feeds, 0.2)
    assert session.run_within(["y"], {**feeds, "on": np.array(False)}, 60)["y"] == 0


def test_faults_are_drawn_alike_for_one_seed(tmp_path: Path) -> None:
    path = models(tmp_path)["conv"]
    drawn = [[(fault.node.name, fault.kind) for fault in draw_faults(load_model(path), 20, seed)] for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_fault_that_removes_an_element_of_a_sequence_is_noticed(tmp_path: Path) -> None:
    model = f"""g (float[8] x) => (seq(float[k]) y) <{weights(w=[1.0] * 7 + [2.0], zero=[0.0])}> {{
        mask = Greater(w, zero)
        kept = Compress <axis = 0> (x, mask)
        y = SplitToSequence(kept)
    }}"""
    power = measured(tmp_path, model)
    zeroed = {fault.outcome for fault in power.faults if fault.weight == "w" and fault.kind == "one channel zeroed"}
    assert zeroed == {"noticed"}


def test_branches_and_classes_that_are_not_reached_make_no_check_weak() -> None:
    classes = (PartsReached(parts="classes", of="y", reached=1, count=10),)
    assert Power(branches_not_run=("else_branch of If_1",), reached=classes).weak == ()


CLASSES = """g (float[n, 4] x) => (float[n, 4] y, int64[n, 1] label) {
    z = Neg(x)
    t = Identity(z)
    y = Softmax <axis = 1> (t)
    label = ArgMax <axis = 1> (z)
}"""


def test_the_classes_that_samples_reach_are_counted(tmp_path: Path) -> None:
    rows = [[0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 2.0, 3.0], [0.0, 5.0, 5.0, 5.0]]
    _, accuracy = compare(tmp_path, CLASSES, CLASSES, {"x": {"values": rows}}, power=20, made="off")
    assert accuracy.power is not None
    assert accuracy.power.reached[0] == PartsReached(parts="classes", of="y", reached=2, count=4, missing=("2", "3"))
    assert "y are reached, never 2, 3" in str(collect_power(documents_of(accuracy))[0].facts)


def trees() -> onnx.ModelProto:
    """Return two trees of two leaves each, which vote for one of three classes."""
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0, 1, 1, 1],
        nodes_nodeids=[0, 1, 2, 0, 1, 2],
        nodes_featureids=[0, 0, 0, 1, 0, 0],
        nodes_values=[0.5, 0.0, 0.0, 0.25, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        nodes_truenodeids=[1, 0, 0, 1, 0, 0],
        nodes_falsenodeids=[2, 0, 0, 2, 0, 0],
        class_treeids=[0, 0, 1, 1],
        class_nodeids=[1, 2, 1, 2],
        class_ids=[0, 1, 2, 1],
        class_weights=[0.5, 0.4, 0.7, 0.2],
        classlabels_int64s=[3, 7, 9],
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 3]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=8)


def test_faults_are_planted_in_trees(tmp_path: Path) -> None:
    path = tmp_path / "trees.onnx"
    onnx.save(trees(), path)
    planted = plant(path, SessionSettings(), 20, 0)
    assert {fault.kind for fault in planted.faults} >= {
        "nodes_values scaled by 1.1",
        "class_weights reversed",
        "< for <=",
    }
    feeds = {"x": np.stack(np.meshgrid(*[np.linspace(0, 1, 21, dtype=np.float32)] * 2), -1).reshape(-1, 2)}
    right = open_model(path, PLAIN).run_within(planted.outputs, feeds, 60)
    assert_close(planted.session.run_within(planted.outputs, feeds, 60), right)
    for number, fault in enumerate(planted.faults):
        wrong = open_model(rebuilt(path, fault, tmp_path / f"{number}.onnx"), PLAIN)
        found = planted.session.run_within(planted.outputs, {**feeds, **planted.feeds_of(number)}, 60)
        assert_close(found, wrong.run_within(planted.outputs, feeds, 60))
    power = measured(tmp_path, path, {"x": {"shape": [64, 2]}})
    assert PartsReached(parts="classes", of="label", reached=3, count=3) in power.reached
    assert {fault.outcome for fault in power.faults if fault.kind == "class_weights reversed"} == {"noticed"}


def rows_of_trees() -> onnx.ModelProto:
    """Return the trees of `trees` as a `TreeEnsemble`, with the class of the first column in place of a vote."""

    def tensor(values: list[float], dtype: Any = np.float32) -> TensorProto:
        return numpy_helper.from_array(np.array(values, dtype), "values")

    node = helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        n_targets=3,
        tree_roots=[0, 1],
        nodes_modes=tensor([0, 0], np.uint8),
        nodes_featureids=[0, 1],
        nodes_splits=tensor([0.5, 0.25]),
        nodes_truenodeids=[0, 2],
        nodes_trueleafs=[1, 1],
        nodes_falsenodeids=[1, 3],
        nodes_falseleafs=[1, 1],
        leaf_targetids=[0, 1, 2, 1],
        leaf_weights=tensor([0.5, 0.4, 0.7, 0.2]),
    )
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)


def of_doubles(model: onnx.ModelProto) -> onnx.ModelProto:
    """Change an ensemble of trees to double inputs, thresholds and weights."""
    (node,) = model.graph.node
    for attribute in list(node.attribute):
        if attribute.type == onnx.AttributeProto.FLOATS:
            values = numpy_helper.from_array(np.array(attribute.floats, np.float64), "values")
            node.attribute.append(helper.make_attribute(f"{attribute.name}_as_tensor", values))
            node.attribute.remove(attribute)
        elif attribute.t.data_type == TensorProto.FLOAT:
            doubles = numpy_helper.to_array(attribute.t).astype(np.float64)
            attribute.t.CopyFrom(numpy_helper.from_array(doubles, "values"))
    changed = [*model.graph.input, *(model.graph.output if node.op_type == "TreeEnsemble" else ())]
    for value in changed:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


@pytest.mark.parametrize(
    ("make", "double", "reached"),
    [(trees, False, 2), (rows_of_trees, False, 3), (trees, True, 3), (rows_of_trees, True, 2)],
)
def test_the_leaves_that_samples_reach_are_counted(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], double: bool, reached: int
) -> None:
    onnx.save(of_doubles(make()) if double else make(), tmp_path / "trees.onnx")
    rows = [[0.0, 0.0], [0.25, 0.1], [0.75, 0.1]][:reached]
    _, accuracy = compare(tmp_path, tmp_path / "trees.onnx", tmp_path / "trees.onnx", {"x": {"values": rows}}, power=20)
    assert accuracy.power is not None
    assert [(item.reached, item.count) for item in accuracy.power.reached if item.parts == "leaves"] == [(reached, 4)]
    assert f"{reached} of 4 leaves of" in " ".join(collect_power(documents_of(accuracy))[0].facts)
    kinds = {fault.kind for fault in accuracy.power.faults}
    weights = "class_weights" if make is trees else "leaf_weights"
    assert kinds >= {"< for <=", f"{weights}{'_as_tensor' if double and make is trees else ''} reversed"}


def test_few_leaves_make_a_check_weak() -> None:
    few = PartsReached(parts="leaves", of="forest", reached=5, count=150)
    (weak,) = Power(reached=(few,)).weak
    assert "leaves of forest" in weak and numbers_in(weak) == [5, 150]
    assert Power(reached=(few.model_copy(update={"reached": 8}),)).weak == ()


def test_twins_of_huge_trees_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    node = next(iter(ir.from_proto(trees()).graph))
    every = [kind for kind, _ in wrong_attributes(node)]
    monkeypatch.setattr(faults, "_MOST_COPIED", 12)
    assert [kind for kind, _ in wrong_attributes(node)] == every[:2]


def test_the_interval_of_a_share_is_wilsons() -> None:
    def power(unseen: int, count: int) -> Power:
        outcomes = ["unseen"] * unseen + ["noticed"] * (count - unseen)
        return Power(
            faults=tuple(PlantedFault(node="n", op_type="Conv", kind="zeroed", outcome=outcome) for outcome in outcomes)
        )

    # Newcombe (1998), table I: 81 of 263, 0 of 20 and 1 of 29 by the score method.
    assert power(81, 263).interval("unseen") == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert power(0, 20).interval("unseen") == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert power(1, 29).interval("unseen") == pytest.approx((0.0061, 0.1718), abs=1e-4)
    assert Power().interval("unseen") == (0.0, 1.0)
    (weak,) = power(9, 20).weak
    assert numbers_in(weak) == [9, 20]
    assert power(8, 20).weak == ()
    assert power(8, 20).remarks == ("20 planted faults: 12 noticed, 8 unseen",)
    assert power(1, 1).remarks == ("1 planted fault: 1 unseen",)
    assert Power().remarks == ()


@pytest.mark.parametrize(
    ("reasons", "text"), [("a", "a"), ("ab", "a, and 1 more reason"), ("abc", "a, and 2 more reasons")]
)
def test_further_reasons_are_counted_as_such(reasons: str, text: str) -> None:
    """A verdict ended with `and 1 more`, and did not say of what."""
    assert first_reason(tuple(reasons)) == text
