"""Make the golden store: `python -m tests.golden.make_store`, whenever the format of a document has changed.

It holds one of everything that is kept: a run with all kinds of documents that a CPU can make, a sweep, a comparison,
what noise was learned, tags. Pages and pictures are left out: they are drawn from the rest.
"""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from ndld_flow import api
from tests.support.models import GraphBuilder

ARCHIVE = Path(__file__).parent / "store.tar.xz"
PLACE = Path("/tmp/ndld_flow-golden")
"""Where it is made: recipes and records tell the place."""
RECIPE = """\
name: golden
description: one of everything
model: model.onnx
steps:
  lint: {}
  sanitize: {}
  search: {step: find_precision, tolerance: {cosine: 0.999999}}
  half: {step: convert_fp16, from: sanitize}
  agree: {step: check_accuracy, reference: source, candidate: half, layers: true, tolerance: {cosine: 0.9}}
  inside: {step: inspect_activations, from: half, reference: source, channels: 2, shown: 1, map_side: 8}
  base: {step: profile, from: source, runs: 2, passes: 6, duration: 0 ms, stable: 0 %, warmup: 0 ms, layer_passes: 3}
  speed: {step: profile, from: half, runs: 2, passes: 6, duration: 0 ms, stable: 0 %, warmup: 0 ms, layer_passes: 3}
  decide: {step: compare_profiles, base: base, from: speed}
gates: [agree.cosine >= 0.9, half.initializer_bytes <= sanitize.initializer_bytes]
"""
SWEEP = """\
name: golden-sweep
model: model.onnx
steps:
  sanitize: {}
  half: {step: convert_fp16}
sweep:
  over: {half.keep_io: [true, false], sanitize.fold_size_threshold: [1 KiB, 1 MiB]}
  minimize: half.initializer_bytes
"""


def make_model() -> onnx.ModelProto:
    """Twelve nodes, among them some that sanitizing removes."""
    builder = GraphBuilder()
    map_ = builder.op("Relu", builder.op("Conv", "x", builder.weight(4, 3, 3, 3), pads=[1, 1, 1, 1]))
    pooled = builder.op("Flatten", builder.op("Identity", builder.op("GlobalAveragePool", map_)))
    builder.nodes.append(
        helper.make_node("Softmax", [builder.op("MatMul", pooled, builder.weight(4, 5))], ["y"], name="last")
    )
    return builder.model(
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
    )


def make_store(folder: Path) -> None:
    """Fill a folder with a model, recipes, and the outputs of all that keeps something."""
    onnx.save(make_model(), folder / "model.onnx")
    (folder / "golden.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    with contextlib.chdir(folder):
        api.noise("model.onnx", comparisons=3)
        shutil.rmtree("outputs/runs/noise")
        api.run("golden.yaml")
        api.sweep("sweep.yaml")
        api.tag("golden", "shipped")
        api.tag("golden-sweep#best", "best-point")
        api.compare(["golden:base", "golden:speed"], ["latency.min <= +100000 %"])
        api.gc()


def pack(folder: Path, archive: Path) -> None:
    """All of it but what is drawn from the rest, and what only held it together while it was made."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        drawn = member.name.endswith((".html", ".svg", ".png", ".jpg")) and "/store/" not in member.name
        return None if drawn or "/store/locks" in member.name else member

    with tarfile.open(archive, "x:xz") as tar:
        tar.add(folder, arcname="golden", filter=kept)


if __name__ == "__main__":
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    make_store(PLACE)
    pack(PLACE, ARCHIVE)
