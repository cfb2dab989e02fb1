"""The step `export_pytorch`: the folder it writes, what it refuses, and the comparison that guards it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.export import pytorch
from ndld_flow.steps.export_pytorch import ExportPytorch
from tests.support.exported_modules import export_proto, run_module
from tests.support.models import make_cnn, make_ctrl, make_func, make_tfm
from tests.support.models_run import Ran, run_step, write_model

pytest.importorskip("torch", reason="PyTorch is not installed")

Nodes = list[onnx.NodeProto]


def proto(nodes: Nodes, weights: dict[str, Any], shape: list[Any], x: str = "x", y: str = "y") -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value(x, TensorProto.FLOAT, shape)],
        [value(y, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def blocks(widths: list[int]) -> onnx.ModelProto:
    """Blocks of convolution and ReLU, in scopes as PyTorch's exporter writes them."""
    nodes, weights, name = [], {}, "x"
    for number, (into, out) in enumerate(pairwise(widths)):
        scope = f"/body/body.{number}"
        weight = f"body.{number}.conv.weight"
        weights[weight] = np.random.default_rng(number).normal(size=(out, into, 3, 3)).astype(np.float32)
        conv, relu = f"{scope}/conv/Conv_output_0", f"{scope}/Relu_output_0"
        nodes.append(helper.make_node("Conv", [name, weight], [conv], f"{scope}/conv/Conv", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [conv], [relu], f"{scope}/Relu"))
        name = relu
    nodes.append(helper.make_node("Identity", [name], ["y"]))
    return proto(nodes, weights, ["n", widths[0], 8, 8])


def exported(model: Path, folder: Path, inputs: dict[str, Any] | None = None, **settings: Any) -> Ran:
    return run_step(ExportPytorch, model, folder, settings, inputs)


def test_equal_blocks_are_one_class_with_the_differences_as_parameters(tmp_path: Path) -> None:
    module = export_proto(blocks([3, 8, 16, 16]), tmp_path)
    assert module.code.count("(nn.Module)") == 3  # the block, the body, and the model
    assert module.modules == 5
    assert list(module.weights) == [f"body.block_{n}.conv.weight" for n in range(3)]
    assert "self.block_1 = Body(8, 16)" in module.code
    x = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    assert run_module(module, {"x": x})[0].shape == (2, 16, 8, 8)


thorough = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.mark.parametrize("make", [thorough(make_cnn), thorough(make_func), make_ctrl, thorough(make_tfm)])
def test_the_folder_runs_without_this_package_and_agrees_with_onnx_runtime(make: Any, tmp_path: Path) -> None:
    inputs = {"x": {"shape": [1, 3, 16, 16]}} if make is make_cnn else None
    ran = exported(make(tmp_path / "model.onnx"), tmp_path / "ran", inputs, samples=2)
    assert ran.result.metrics["max_abs"] < 1e-4
    assert sorted(path.name for path in ran.out.iterdir()) == [
        "model.py",
        "model.safetensors",
        "names.json",
        "onnx_operators.py",
    ]
    for name in ("model.py", "onnx_operators.py"):
        imported = {
            item
            for node in ast.walk(ast.parse((ran.out / name).read_text()))
            for item in ([node.module] if isinstance(node, ast.ImportFrom) else [])
        }
        assert not [item for item in imported if item and item.startswith("ndld_flow")]


HOSTILE = [
    "x\ny",
    '"""\nimport os; os.system("touch owned")\n"""',
    "x) -> None:\n        open('owned', 'w')\n    def f(self",
    "'); open('owned', 'w'); ('",
    "__import__('os').system('touch owned')",
    "self",
    "class",
    "torch",
    "ops",
    "forward",
    "state_dict",
    "../../owned",
    "пер",
    "\u202eowned",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_a_model_never_become_code(name: str, tmp_path: Path) -> None:
    weights = {f"{name}.weight": np.ones((2, 3, 1, 1), np.float32), f"{name}b": np.ones((2, 1, 1), np.float32)}
    nodes = [
        helper.make_node("Conv", [f"{name}x", f"{name}.weight"], [f"{name}c"], f"/{name}/{name}/Conv"),
        helper.make_node("Add", [f"{name}c", f"{name}b"], [f"{name}a"], f"/{name}/{name}"),
        helper.make_node("Relu", [f"{name}a"], [f"{name}y"], name),
    ]
    nodes[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['{name}', 'conv', 'Conv']")
    model = proto(nodes, weights, [1, 3, 2, 2], f"{name}x", f"{name}y")
    module = export_proto(model, tmp_path)
    tree = ast.parse(module.code)
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "__import__", "exec", "eval"}
    assert "import os" not in module.code
    assert "owned'" not in module.code
    assert run_module(module, {f"{name}x": np.ones((1, 3, 2, 2), np.float32)})[0].tolist() == [[[[4.0] * 2] * 2] * 2]


def test_words_of_attributes_are_quoted(tmp_path: Path) -> None:
    equation = 'ij,jk->ik", torch.zeros(1)) or open("owned", "w") or ("'
    nodes = [helper.make_node("Einsum", ["x", "x"], ["y"], equation=equation)]
    with pytest.raises(RequestError, match="Einsum"):
        export_proto(proto(nodes, {}, [2, 2]), tmp_path)


def test_everything_without_an_equivalent_is_named_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Det", ["x"], ["d"], "fine"),
        helper.make_node("QuickGelu", ["x"], ["g"], "contrib", domain="com.microsoft"),
        helper.make_node("Relu", ["g"], ["r"], "with_attribute", surprise=1),
        helper.make_node("DFT", ["r"], ["f"], "spectrum"),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    model = proto(nodes, {}, [2, 2])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(RequestError) as error:
        exported(path, tmp_path / "ran", check=False)
    for text in ("com.microsoft::QuickGelu (contrib)", "Relu with attribute `surprise` (with_attribute)", "DFT"):
        assert text in str(error.value)
    assert "Det" not in str(error.value)
    assert not list((tmp_path / "ran" / "out").iterdir())


def test_a_module_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong channel among many right ones, whose share of the whole output is far below a percent."""
    from ndld_flow.export.pytorch.call import EMITTERS, Entry

    wrong = Entry(lambda call: f"{call.x(0)} + {call.x(1)} * torch.tensor([1.5, 1, 1, 1]).reshape(4, 1, 1)", 7)
    monkeypatch.setitem(EMITTERS, "Add", wrong)
    scale = np.array([1e-3, 100, 100, 100], np.float32).reshape(4, 1, 1)
    nodes = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Add", ["m", "m"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto(nodes, {"s": scale}, [1, 4, 8, 8]).SerializeToString())
    with pytest.raises(RequestError, match="ONNX Runtime does: y: slice_rms"):
        exported(path, tmp_path / "ran")


@pytest.mark.thorough
def test_a_constant_output_is_called_weak_evidence(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", "g (float[2, 8] x) => (float[2, 8] y) { z = Sub(x, x) y = Exp(z) }")
    assert "1 output constant: weak evidence" in exported(path, tmp_path / "ran").result.summary


def test_without_a_check_the_summary_does_not_claim_agreement(tmp_path: Path) -> None:
    ran = exported(make_cnn(tmp_path / "m.onnx"), tmp_path / "ran", check=False)
    assert "not compared" in ran.result.summary
    assert "max_abs" not in ran.result.metrics


def test_without_pytorch_the_run_ends_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndld_flow.base.extras.find_spec", lambda name: None)
    (lack,) = ExportPytorch().foresee().lacks
    assert EXTRAS["torch"].command in lack and "check: false" in lack
    assert not ExportPytorch(check=False).foresee().lacks


def test_code_is_written_without_importing_pytorch(tmp_path: Path) -> None:
    make_cnn(tmp_path / "m.onnx")
    code = (
        "import sys; from pathlib import Path; from ndld_flow.export.pytorch.export_model import export_module;"
        f"export_module(Path({str(tmp_path / 'm.onnx')!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_lead_back_to_the_model(tmp_path: Path) -> None:
    ran = exported(make_cnn(tmp_path / "m.onnx"), tmp_path / "ran", check=False)
    names = json.loads((ran.out / "names.json").read_text())
    initializers = {initializer.name for initializer in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert names["inputs"] == ["x"]
    assert names["weights"]["conv.weight"] in initializers


def test_the_operators_import_nothing_but_pytorch() -> None:
    tree = ast.parse((Path(pytorch.__file__).parent / "onnx_operators.py").read_text())
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert modules <= {"__future__", "collections.abc", "torch", "torch.nn"}
