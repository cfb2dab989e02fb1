"""Loading, saving, checking and counting models."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import ModelError, OutputsError
from ndld_flow.models import external_data, files
from ndld_flow.models.element_types import has_subgraphs
from ndld_flow.models.external_files import external_files
from ndld_flow.models.files import (
    check_model,
    describe_change,
    load_model,
    load_structure,
    rename_external_data,
    save_model,
    summarize_model,
)
from ndld_flow.models.lazy_tensors import byte_pieces
from tests.support import models
from tests.support.message_files import CheckMessage


def outputs(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feed)]


def random_input(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ["cnn", "tfm", "ctrl", "func", "sparse"])
def test_a_model_survives_load_and_save_unchanged(tmp_path: Path, name: str) -> None:
    source = getattr(models, f"make_{name}")(tmp_path / "source.onnx")
    save_model(load_model(source), tmp_path / "model.onnx")
    before, after = onnx.load(source), onnx.load(tmp_path / "model.onnx")
    check_model(tmp_path / "model.onnx")
    assert [n.name for n in before.graph.node if n.op_type != "Constant"] == [
        n.name for n in after.graph.node if n.op_type != "Constant"
    ]
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert after.opset_import == before.opset_import
    assert len(after.functions) == len(before.functions)


def test_sparse_initializers_stay_sparse_and_count_by_their_stored_values(tmp_path: Path) -> None:
    source = models.make_sparse(tmp_path / "source.onnx")
    model = load_model(source)
    summary = summarize_model(model)
    save_model(model, tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx").graph
    assert summary.parameter_count == 3
    assert len(written.sparse_initializer) == 2
    assert not written.initializer
    feed = {"x": random_input(3, 4)}
    np.testing.assert_array_equal(outputs(source, feed)[0], outputs(tmp_path / "model.onnx", feed)[0])


def test_a_hostile_sparse_shape_is_an_error_not_an_allocation(tmp_path: Path, check_message: CheckMessage) -> None:
    proto = models.sparse_model()
    proto.graph.sparse_initializer[0].dims[:] = [2**40]
    onnx.save(proto, tmp_path / "model.onnx")
    tensor = load_model(tmp_path / "model.onnx").graph.initializers["s"].const_value
    assert tensor is not None
    with pytest.raises(ModelError) as caught:
        tensor.numpy()
    check_message(caught.value)


def test_external_data_stays_on_disk_and_is_copied_next_to_the_model(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "source.onnx")
    model = load_model(source)
    assert all(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
    target = tmp_path / "out" / "model.onnx"
    target.parent.mkdir()
    save_model(model, target)
    data = target.with_name("model.onnx.data")
    assert data.read_bytes() == (tmp_path / "source.onnx.bin").read_bytes()
    assert {stat.S_IMODE(path.stat().st_mode) for path in (target, data)} == {0o644}
    assert sorted(path.name for path in target.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert external_files(target) == ("model.onnx.data",)
    feed = {"x": random_input(2, 256)}
    np.testing.assert_array_equal(outputs(source, feed)[0], outputs(target, feed)[0])


def test_data_files_are_renamed_in_all_tensors_and_nowhere_else(tmp_path: Path) -> None:
    def tensor(name: str, file: str) -> onnx.TensorProto:
        made = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[4])
        made.data_location = onnx.TensorProto.EXTERNAL
        made.external_data.add(key="location", value=file)
        made.external_data.add(key="offset", value="0")
        return made

    constant = helper.make_node("Constant", [], ["c"], value=tensor("c", "c.bin"))
    body = helper.make_graph([constant], "body", [], [], [tensor("w", "w.bin")])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)
    model = helper.make_model(helper.make_graph([branch], "g", [], [], [tensor("v", "w.bin")]))
    model.functions.add(
        name="f", domain="d", node=[helper.make_node("Constant", [], ["a"], value=tensor("a", "a.bin"))]
    )
    model.graph.metadata_props.add(key="location", value="w.bin")
    onnx.save_model(model, tmp_path / "model.onnx")
    names = {"a.bin": "1", "c.bin": "2", "w.bin": "3"}
    assert external_files(tmp_path / "model.onnx") == tuple(names)
    rename_external_data(tmp_path / "model.onnx", tmp_path / "renamed.onnx", names)
    assert external_files(tmp_path / "renamed.onnx") == ("1", "2", "3")
    rename_external_data(tmp_path / "renamed.onnx", tmp_path / "again.onnx", {new: old for old, new in names.items()})
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes(), "metadata stay"


def test_saving_over_the_model_that_was_loaded_keeps_its_weights(tmp_path: Path) -> None:
    path = models.make_ext(tmp_path / "model.onnx")
    feed = {"x": random_input(2, 256)}
    expected = outputs(path, feed)[0]
    save_model(load_model(path), path)
    save_model(load_model(path), path)
    np.testing.assert_array_equal(outputs(path, feed)[0], expected)


def test_only_the_used_part_of_a_data_file_is_copied(tmp_path: Path) -> None:
    source = models.make_ext(tmp_path / "source.onnx")
    proto = onnx.load(source, load_external_data=False)
    del proto.graph.node[3:]
    del proto.graph.initializer[1:]
    proto.graph.node[-1].output[0] = "y"
    onnx.save(proto, source)
    save_model(load_model(source), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").stat().st_size == 256 * 256 * 4
    check_model(tmp_path / "model.onnx")


def test_weights_too_large_for_one_message_go_to_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_data, "INLINE_LIMIT_BYTES", 10_000)
    source = models.make_tfm(tmp_path / "source.onnx")
    model = load_model(source)
    save_model(model, tmp_path / "model.onnx")
    assert external_files(tmp_path / "model.onnx") == ("model.onnx.data",)
    assert not any(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
    feed = {"ids": np.ones((1, 5), np.int64), "mask": np.ones((1, 5), np.int64)}
    np.testing.assert_array_equal(outputs(source, feed)[0], outputs(tmp_path / "model.onnx", feed)[0])


def test_the_ir_version_is_one_that_onnx_runtime_loads(tmp_path: Path) -> None:
    proto = models.cnn_model()
    proto.ir_version = 14
    onnx.save(proto, tmp_path / "new.onnx")
    save_model(load_model(tmp_path / "new.onnx"), tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").ir_version == 13
    ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])


def test_summary_counts_subgraphs_and_functions(tmp_path: Path) -> None:
    ctrl = summarize_model(load_model(models.make_ctrl(tmp_path / "ctrl.onnx")))
    func = summarize_model(load_model(models.make_func(tmp_path / "func.onnx")))
    assert ctrl.nodes_by_type["Loop"] == 1
    assert ctrl.nodes_by_type["Div"] == 2
    assert func.nodes_by_type == {
        "Add": 2, "Identity": 2, "local::Block": 2, "local::Linear": 2,
        "Constant": 1, "LeakyRelu": 1, "MatMul": 1, "Mul": 1,
    }  # fmt: skip
    assert (func.parameter_count, func.initializer_bytes, func.opset, func.ir_version) == (73, 292, 17, 8)


BROKEN_FILES: dict[str, bytes] = {
    "empty": b"",
    "text": b"this is no model, and it is long enough to be parsed",
    "truncated": models.cnn_model().SerializeToString()[:-200],
    "no graph": onnx.ModelProto(ir_version=8).SerializeToString(),
    "random": bytes(range(256)) * 4,
}


def test_a_model_passed_between_steps_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, result, last = (models.make_cnn(tmp_path / f"{name}.onnx") for name in ("source", "made", "last"))
    read: list[Path] = []

    def load(path: Path) -> ir.Model:
        read.append(path)
        return load_model(path)

    monkeypatch.setattr(files, "load_model", load)
    change = describe_change(source, result)
    assert change.before == change.after == summarize_model(load_model(source))
    describe_change(result, last)
    assert read == [source, result, last]
    last.touch()
    describe_change(last, result)
    assert read == [source, result, last, last]


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_a_file_that_is_no_model_is_reported_in_one_paragraph(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(BROKEN_FILES[kind])
    with pytest.raises(ModelError) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_model_and_a_folder_are_model_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(ModelError, match=str(path)):
            load_model(path)
        with pytest.raises(ModelError, match=str(path)):
            external_files(path)
        with pytest.raises(ModelError, match=str(path)):
            check_model(path)


def relocate(path: Path, location: str) -> None:
    proto = onnx.load(path, load_external_data=False)
    for initializer in proto.graph.initializer:
        for entry in initializer.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(proto, path)


def link_out(folder: Path) -> str:
    (folder / "link.bin").symlink_to("/etc/hostname")
    return "link.bin"


def hard_link(folder: Path) -> str:
    os.link(folder / "model.onnx.bin", folder / "hard.bin")
    return "hard.bin"


def short(folder: Path) -> str:
    (folder / "short.bin").write_bytes(b"1234")
    return "short.bin"


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe.bin")
    return "pipe.bin"


HOSTILE: dict[str, tuple[Callable[[Path], str], str]] = {
    "parent": (lambda folder: "../model.onnx.bin", "outside"),
    "hidden parent": (lambda folder: "a/../../model.onnx.bin", "outside"),
    "absolute": (lambda folder: "/etc/hostname", "outside"),
    "empty": (lambda folder: "", "outside"),
    "missing": (lambda folder: "none.bin", "missing"),
    "link": (link_out, "link out"),
    "hard link": (hard_link, "hard links"),
    "short": (short, "has only 4"),
    "pipe": (pipe, "regular file"),
}


@pytest.mark.representatives("pipe", "link", "empty")
@pytest.mark.parametrize("kind", HOSTILE)
def test_external_data_outside_the_model_folder_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = HOSTILE[kind]
    path = models.make_ext(tmp_path / "model.onnx")
    relocate(path, make(tmp_path))
    with pytest.raises(ModelError, match=message):
        load_model(path)


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("part", ["values", "indices"])
@pytest.mark.parametrize("where", ["initializer", "constant", "function"])
def test_external_data_of_sparse_tensors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, part: str, has_data: bool, check_message: CheckMessage
) -> None:
    """onnx reads them from the current directory, wherever the model is."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "w.bin").write_bytes(np.arange(4).tobytes())
    (tmp_path / "w.bin").write_bytes(bytes(32))
    values = helper.make_tensor("w", TensorProto.FLOAT, [4], bytes(16), raw=True)
    indices = helper.make_tensor("i", TensorProto.INT64, [4], np.arange(4).tobytes(), raw=True)
    sparse = helper.make_sparse_tensor(values, indices, [8])
    tensor = sparse.values if part == "values" else sparse.indices
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    if not has_data:
        tensor.ClearField("raw_data")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "xy"]
    nodes = [helper.make_node("Constant", [], ["w"], sparse_value=sparse)] if where != "initializer" else []
    nodes.append(helper.make_node("Add", ["x", "w"], ["y"]))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    if where == "function":
        functions = [helper.make_function("own", "F", ["x"], ["y"], nodes, opsets[:1])]
        nodes = [helper.make_node("F", ["x"], ["y"], domain="own")]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], sparse_initializer=[sparse] if where == "initializer" else []
    )
    model = helper.make_model(graph, functions=functions, opset_imports=opsets)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / "model.onnx")
    check_message(caught.value)
    with pytest.raises(ModelError) as caught:
        load_structure(tmp_path / "model.onnx")
    check_message(caught.value)


def test_external_data_in_a_constant_inside_a_function_is_checked_too(tmp_path: Path) -> None:
    proto = models.func_model()
    value = next(n for f in proto.functions for n in f.node if n.op_type == "Constant").attribute[0].t
    value.ClearField("raw_data")
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value="/etc/hostname")
    onnx.save(proto, tmp_path / "model.onnx")
    assert external_files(tmp_path / "model.onnx") == ("/etc/hostname",)
    with pytest.raises(ModelError, match="outside"):
        load_model(tmp_path / "model.onnx")


def test_a_length_that_contradicts_the_shape_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    path = models.make_ext(tmp_path / "model.onnx")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[:] = [256, 255]
    onnx.save(proto, path)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    check_message(caught.value)


def test_external_files_in_subgraphs_are_found_without_importing_onnx(tmp_path: Path) -> None:
    body = helper.make_graph(
        [], "body", [], [models.tensor("w", [2])], [numpy_helper.from_array(np.zeros(2, np.float32), "w")]
    )
    initializer = body.initializer[0]
    initializer.ClearField("raw_data")
    initializer.data_location = TensorProto.EXTERNAL
    initializer.external_data.add(key="location", value="inner.bin")
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    graph = helper.make_graph([node], "main", [models.tensor("c", [], TensorProto.BOOL)], [models.tensor("y", [2])])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    assert external_files(tmp_path / "model.onnx") == ("inner.bin",)
    assert external_files(models.make_cnn(tmp_path / "cnn.onnx")) == ()


def test_the_checker_names_the_node(tmp_path: Path) -> None:
    proto = models.cnn_model()
    proto.graph.node[0].attribute.append(helper.make_attribute("no_such_attribute", 1))
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="Conv_0") as error:
        check_model(tmp_path / "model.onnx")
    assert "\n" not in str(error.value)


def test_an_invalid_model_raises_a_model_error(tmp_path: Path) -> None:
    proto = models.cnn_model()
    proto.graph.node.append(proto.graph.node[0])
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="redeclared"):
        load_model(tmp_path / "model.onnx")


def test_a_full_disk_is_an_outputs_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    model = load_model(models.make_ext(tmp_path / "source.onnx"))
    out = tmp_path / "out"
    out.mkdir()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(external_data, "_write", full)
    with pytest.raises(OutputsError) as caught:
        save_model(model, out / "model.onnx")
    check_message(caught.value)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("size", [1, 4, 5, 100])
@pytest.mark.parametrize("is_external", [True, False])
def test_bytes_of_a_tensor_are_read_in_pieces(tmp_path: Path, size: int, is_external: bool) -> None:
    """The last piece may be one byte, and what follows in the file belongs to other tensors."""
    (tmp_path / "w.bin").write_bytes(b"..abcde..")
    tensor: ir.TensorProtocol = ir.ExternalTensor(
        "w.bin", 2, 5, ir.DataType.UINT8, shape=ir.Shape([5]), name="w", base_dir=tmp_path
    )
    if not is_external:
        tensor = ir.tensor(np.frombuffer(b"abcde", np.uint8))
    pieces = list(byte_pieces(tensor, size))
    assert b"".join(pieces) == b"abcde"
    assert {len(piece) for piece in pieces[:-1]} <= {size}
    assert 1 <= len(pieces[-1]) <= size


def test_a_body_without_nodes_is_a_body(tmp_path: Path) -> None:
    onnx.save(
        onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        g (float[2] x, int64 n, bool c) => (float[2] y) {
            a = Relu(x)
            y = Loop(n, c, a) <body = b (int64 i, bool k, float[2] v) => (bool k, float[2] v) {}>
        }"""),
        tmp_path / "model.onnx",
    )
    assert [has_subgraphs(node) for node in load_model(tmp_path / "model.onnx").graph] == [False, True]
