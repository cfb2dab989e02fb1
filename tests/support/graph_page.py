"""A page with a graph view and nothing else, and profiles to show in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ndld_flow.records.profile import Layer, Profile, ProfileRun, TensorInfo
from ndld_flow.report.render import bundle, report_files
from ndld_flow.report.report_data import GraphShape, collect_graphs
from tests.support.run_fixtures import MACHINE

STYLES = ("tokens.css", "page.css", "charts.css", "tables.css", "graph.css")
_REPOSITORY = Path(__file__).parents[2]

_TYPES = ("Conv", "Relu", "Add", "MatMul", "Reshape", "MaxPool", "LayerNormalization", "Cast")


def tensors(*names: str) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name=name, dtype="float32", shape=(1, 8)) for name in names)


def layer(index: int, reads: Sequence[str], writes: Sequence[str], type_: str = "Add", ms: float = 1.0) -> Layer:
    """A layer that reads and writes tensors of these names."""
    return Layer(
        index=index,
        name=f"layer_{index}",
        type=type_,
        precision="float16" if index % 3 == 0 else "float32",
        inputs=tensors(*reads),
        outputs=tensors(*writes),
        samples_ms=(ms, ms, ms),
    )


def profile_of(layers: Sequence[Layer], inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ()) -> Profile:
    return Profile(
        label="p",
        model_digest="",
        backend="onnxruntime",
        machine=MACHINE,
        versions={},
        options={},
        inputs=tensors(*inputs),
        outputs=tensors(*outputs),
        warmup_passes=1,
        warmup_ms=1,
        runs=(ProfileRun(latency_ms=(1.0,)),),
        layers=tuple(layers),
    )


def residual_profile(count: int) -> Profile:
    """A chain in which every fourth layer also reads what its third predecessor read; later layers take longer."""
    layers = []
    for index in range(count):
        reads = ["x"] if index == 0 else [f"t{index - 1}"]
        if index % 4 == 3:
            reads.append(f"t{index - 3}")
        layers.append(layer(index, reads, [f"t{index}"], _TYPES[index % len(_TYPES)], 0.1 + index / count))
    return profile_of(layers, outputs=[f"t{count - 1}"])


def collect_graph(profile: Profile) -> GraphShape | None:
    """The graph of one profile; None without layers."""
    return next(iter(collect_graphs([profile], len(profile.layers))[0]), None)


def write_graph_page(profile: Profile, folder: Path, script: str = "") -> Path:
    """`report.html` with `view` and `picked` in its global scope; `script` runs after them."""
    graph = collect_graph(profile)
    assert graph is not None
    layers = [
        {"name": layer.name, "type": layer.type, "ms": ms, "precision": layer.precision, "role": layer.role}
        for layer, ms in zip(profile.layers, profile.layer_times.ms, strict=True)
    ]
    data = json.dumps({"graph": asdict(graph), "layers": layers}).replace("<", "\\u003c")
    styles = "\n".join(report_files().joinpath("static", name).read_text("utf-8") for name in STYLES)
    scripts = bundle("tests/javascript/graph_page.js", _REPOSITORY)
    page = folder / "report.html"
    page.write_text(_PAGE % (styles, data, scripts, script), encoding="utf-8")
    return page


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>graph</title><style>%s</style>
<body><div class="tooltip" hidden></div><main><div id="host"></div></main>
<script type="application/json" id="data">%s</script>
<script>%s
%s
requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "1"; }));
</script></html>
"""
