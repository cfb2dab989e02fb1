"""Edits of large models: little memory, and each weight copied once. Measured in processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support import models

MIB = 2**20
MOST_MEMORY = 200 * MIB
LAYERS = 8

CHILD = """
import json, re, sys
from pathlib import Path
from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.models.files import load_model
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.processes.worker import peak_memory_bytes
from ndld_flow.steps.edit import Edit

source, target, operations = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
step = Edit.model_validate_json(operations)
entries = [Entry(entry.name, entry.operation) for entry in step.operations]
written = lambda: int(re.search(r"wchar: (\\d+)", Path("/proc/self/io").read_text())[1])
before = written()
edit_file(EditedModel(load_model(source), source), entries, target)
print(json.dumps([peak_memory_bytes(), written() - before]))
"""


def edit_in_child(source: Path, folder: Path, *operations: object) -> tuple[int, int]:
    """Edit in another process; returns its peak memory and how many bytes it wrote."""
    folder.mkdir()
    asked = json.dumps({"operations": operations})
    command = [sys.executable, "-c", CHILD, str(source), str(folder / "model.onnx"), asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    memory, written = json.loads(done.stdout)
    return memory, written


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of 16 MiB in a data file; together with the interpreter more than may be held."""
    return models.make_big(tmp_path_factory.mktemp("large") / "large.onnx", layers=LAYERS, width=2048)


def data_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_names_attributes_and_outputs_change_in_little_memory_and_weights_are_copied_once(
    large: Path, tmp_path: Path
) -> None:
    memory, written = edit_in_child(
        large,
        tmp_path / "out",
        {"rename_nodes": {"select": {"op_type": "MatMul"}, "to": "product_{index}"}},
        {"rename_tensors": {"select": "/w_([0-9]+)/", "to": "weight_{1}"}},
        {"set_attributes": {"select": {"op_type": "Constant", "position": "first"},
                            "attributes": {"value": {"value": 0.25, "dtype": "float32"}}}},
        {"add_outputs": {"select": "Relu_20_out"}},
    )  # fmt: skip
    size = data_of(large).stat().st_size
    assert size == LAYERS * 16 * MIB
    assert memory < MOST_MEMORY
    assert written < 1.01 * size  # less where the file system shares blocks
    after = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    assert [tensor.name for tensor in after.graph.initializer][:2] == ["weight_0", "weight_1"]
    assert [output.name for output in after.graph.output] == ["y", "Relu_20_out"]
    with data_of(large).open("rb") as old, data_of(tmp_path / "out" / "model.onnx").open("rb") as new:
        while piece := old.read(16 * MIB):
            assert new.read(16 * MIB) == piece
        assert not new.read(1)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_converted_randomized_and_moved_in_little_memory(large: Path, tmp_path: Path) -> None:
    memory, written = edit_in_child(
        large,
        tmp_path / "out",
        {"remove_nodes": {"select": {"op_type": "Identity"}, "bridge": True}},
        {"convert_dtype": {"select": ["w_0", "w_1"], "to": "float16", "casts": True}},
        {"generate_initializers": {"select": ["w_2", "w_3"], "kind": "normal"}},
        {"externalize_weights": {"select": ["w_4", "w_5"], "file": "two.bin"}},
        {"add_initializer": {"name": "result", "generate": "normal", "shape": [20, MIB]}},
    )
    assert memory < MOST_MEMORY
    assert written < 1.01 * (data_of(large).stat().st_size + 80 * MIB)
    result = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert result.pop("model.onnx") < 100_000
    assert result == {"model.onnx.data": (LAYERS - 3 + 5) * 16 * MIB, "two.bin": 2 * 16 * MIB}
    after = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    types = {tensor.name: tensor.data_type for tensor in after.graph.initializer}
    assert (types["w_0"], types["w_2"]) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    [w_5] = [tensor for tensor in after.graph.initializer if tensor.name == "w_5"]
    offset = next(int(entry.value) for entry in w_5.external_data if entry.key == "offset")
    outcome = np.fromfile(tmp_path / "out" / "two.bin", np.float32, 100, offset=offset)
    np.testing.assert_array_equal(outcome, np.fromfile(data_of(large), np.float32, 100, offset=5 * 16 * MIB))


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_digesting_and_inspecting_a_large_model_take_little_memory(large: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from ndld_flow import api; from ndld_flow.store.digest import digest_file\n"
        "digest_file(Path(sys.argv[1] + '.data'))\n"
        "api.inspect(sys.argv[1])\n"
        "print(Path('/proc/self/status').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(large)], capture_output=True, text=True, check=True)
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert peak is not None and int(peak[1]) * 1024 < MOST_MEMORY
