"""The same edits by ndld_flow, ONNX GraphSurgeon and plain onnx_ir: seconds, peak memory, bytes written.

    python tests/benchmarks/bench_edit.py [MODEL.onnx ...] [--big] [--only TOOL,TOOL] [--repeat N]

Nodes are renamed, a constant's attribute and metadata are set, an output is added and another renamed. Without models:
those that tests build. `--big` adds a generated 2.4 GB model. Each runs in a fresh process. Seconds are those of load,
edit and save, imports not counted; memory is the process's peak, imports included. ndld_flow also infers shapes, checks
the result and records what changed; its peers do not.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PREFIX = "edited_"
NOTE = "note"
NUMBER = 0.25


def edit_with_ndld_flow(model: Path, out: Path) -> None:
    from ndld_flow.graph.edit.edit_file import Entry, edit_file
    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.models.files import load_model
    from ndld_flow.steps.edit import Edit

    edited = EditedModel(load_model(model), model)
    result = next(v.name for node in edited.model.graph for v in node.outputs if v.name and not v.is_graph_output())
    output = edited.model.graph.outputs[0].name
    constant = {"op_type": "Constant", "output": [scalar_constant(model)]}
    operations = [
        {"set_attributes": {"select": constant, "attributes": {"value": {"value": NUMBER}}, "allow_empty": True}},
        {"rename_nodes": {"select": "*", "to": f"{PREFIX}{{index}}"}},
        {"set_metadata": {"metadata": {NOTE: "edited"}}},
        {"add_outputs": {"select": result}},
        {"rename_tensors": {"names": {output: f"{PREFIX}{output}"}}},
    ]
    step = Edit.model_validate_json(json.dumps({"operations": operations}))
    edit_file(edited, [Entry(entry.name, entry.operation) for entry in step.operations], out)


def edit_with_graphsurgeon(model: Path, out: Path) -> None:
    import numpy as np
    import onnx
    import onnx_graphsurgeon as gs

    proto = onnx.load(model)
    large = proto.ByteSize() > 2**30
    graph = gs.import_onnx(proto)
    constant = graph.tensors().get(scalar_constant(model))
    if constant is not None:
        constant.values = np.array(NUMBER, dtype=np.float32)
    for index, node in enumerate(graph.nodes):
        node.name = f"{PREFIX}{index}"
    result = next(value for node in graph.nodes for value in node.outputs if value not in graph.outputs)
    graph.outputs[0].name = f"{PREFIX}{graph.outputs[0].name}"
    result.dtype = result.dtype or graph.outputs[0].dtype
    graph.outputs.append(result)
    exported = gs.export_onnx(graph)
    onnx.helper.set_model_props(exported, {NOTE: "edited"})
    onnx.save(exported, out, save_as_external_data=large, location=f"{out.name}.data")


def edit_with_onnx_ir(model: Path, out: Path) -> None:
    import onnx_ir as ir

    loaded = ir.load(model)
    constant = scalar_constant(model)
    for node in loaded.graph.all_nodes():
        if node.op_type == "Constant" and node.outputs[0].name == constant:
            node.attributes.add(ir.AttrTensor("value", ir.tensor(NUMBER, dtype=ir.DataType.FLOAT)))
    for index, node in enumerate(loaded.graph.all_nodes()):
        node.name = f"{PREFIX}{index}"
    result = next(value for node in loaded.graph for value in node.outputs if not value.is_graph_output())
    loaded.graph.outputs[0].name = f"{PREFIX}{loaded.graph.outputs[0].name}"
    loaded.graph.outputs.append(result)
    loaded.metadata_props[NOTE] = "edited"
    external = any(isinstance(v.const_value, ir.ExternalTensor) for v in loaded.graph.initializers.values())
    ir.save(loaded, out, external_data=f"{out.name}.data" if external else None)


@functools.cache
def scalar_constant(model: Path) -> str:
    """Return the output of the model's first Constant node of one float; empty without one."""
    import onnx

    for node in onnx.load(model, load_external_data=False).graph.node:
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        if node.op_type == "Constant" and [(t.data_type, len(t.dims)) for t in tensors] == [(1, 0)]:
            return str(node.output[0])
    return ""


TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "ndld_flow": edit_with_ndld_flow,
    "graphsurgeon": edit_with_graphsurgeon,
    "onnx_ir": edit_with_onnx_ir,
}


@dataclass(frozen=True)
class Row:
    """Cost of one tool on one model."""

    tool: str
    seconds: float = 0.0
    memory_mb: float = 0.0
    written_mb: float = 0.0
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"  {self.tool:14s} {self.error}"
        return (
            f"  {self.tool:14s} {self.seconds:7.2f} s {self.memory_mb:8.0f} MB peak {self.written_mb:8.0f} MB written"
        )


def measure(tool: str, model: Path, folder: Path) -> Row:
    """Run a tool in a process of its own; what it wrote is removed."""
    target = folder / "out"
    target.mkdir()
    command = [sys.executable, str(Path(__file__).resolve()), "--child", tool, str(model.resolve()), str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=folder)
    except subprocess.TimeoutExpired:
        return Row(tool, error="more than 900 s")
    finally:
        for file in target.iterdir():
            file.unlink()
        target.rmdir()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Row(tool, error=f"failed: {last[:150]}")
    numbers = json.loads(done.stdout.strip().splitlines()[-1])
    return Row(tool, numbers["seconds"], numbers["memory_mb"], numbers["written_mb"])


def run_worker(tool: str, model: Path, folder: Path) -> None:
    """Edit, and print the figures; a first run with a tiny model takes the imports out of the seconds."""
    from tests.support import models

    tiny = models.make_cnn(folder / "tiny.onnx")
    TOOLS[tool](tiny, folder / "tiny_out.onnx")
    written, start = _proc("io", r"wchar: (\d+)"), time.perf_counter()
    TOOLS[tool](model, folder / "model.onnx")
    seconds = time.perf_counter() - start
    result = {
        "seconds": seconds,
        "memory_mb": _proc("status", r"VmHWM:\s+(\d+) kB") / 1024,
        "written_mb": (_proc("io", r"wchar: (\d+)") - written) / 1e6,
    }
    print(json.dumps(result))


def _proc(file: str, pattern: str) -> int:
    result = re.search(pattern, Path(f"/proc/self/{file}").read_text())
    assert result is not None
    return int(result[1])


def default_models(folder: Path, big: bool) -> list[Path]:
    from tests.support import models

    built = [getattr(models, f"make_{name}")(folder / f"{name}.onnx") for name in ("cnn", "tfm", "ctrl", "ext")]
    return [*built, *([models.make_big(folder / "big.onnx")] if big else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each, of which the fastest is told")
    parser.add_argument("--only", default=",".join(TOOLS))
    parser.add_argument("--child", nargs=3)
    arguments = parser.parse_args()
    if arguments.child:
        tool, model, target = arguments.child
        run_worker(tool, Path(model), Path(target))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in arguments.models or default_models(folder, arguments.big):
            print(model.name, flush=True)
            for tool in arguments.only.split(","):
                rows = [measure(tool, model, folder) for _ in range(arguments.repeat)]
                print(min(rows, key=lambda row: row.seconds), flush=True)


if __name__ == "__main__":
    main()
