"""Recording of OpenVINO's performance counters, with the graph that runs and the tensors of its origin.

Friendly names of a model's nodes may contain anything, and OpenVINO joins those of a fused layer by commas. So each
operation gets a number instead, by which `layer_pass` finds the nodes of the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.openvino.compile_settings import CompileSettings
from ndld_flow.runtimes.openvino.openvino_session import dtype_name, execution_facts, open_model, precision_of
from ndld_flow.runtimes.protocol import ReportPasses

WARMUP_PASSES = 3
"""Number of passes at the beginning whose times are subtracted."""
_ENOUGH_S = 0.2
"""Minimum duration of the measured passes, so that whole microseconds of a mean are a small error."""
_MOST_PASSES = 1000
_KEPT_TYPES = ("Parameter", "Result")
"""Nodes that keep their names, which are those of the model's inputs and outputs."""


def record_layers(
    model: Path,
    settings: CompileSettings,
    feeds: Mapping[str, Array],
    passes: int,
    folder: Path,
    report: ReportPasses,
) -> Path | None:
    """Run passes with performance counters and write `layers.json`; None if inferences run concurrently.

    A layer's time is the mean of the passes after the warm-up. Raises `ModelError` or `BackendError` as `open_model`
    does.
    """
    origins: dict[str, list[str]] = {}
    session = open_model(model, settings, count=True, prepare=lambda graph: origins.update(_number(graph)))
    if session.concurrent_inferences != 1:
        return None
    binding = session.bind(feeds)
    for _ in range(WARMUP_PASSES):
        binding.run()
    before = binding.layer_times()
    began, done = time.perf_counter(), 0
    while done < passes or (time.perf_counter() - began < _ENOUGH_S and done < _MOST_PASSES):
        binding.run()
        done += 1
        report(min(done, passes), passes)
    pass_ms = (time.perf_counter() - began) * 1e3 / done
    # OpenVINO reports means over all passes since compilation, the slow first one included.
    times = {
        name: max(0.0, (mean_ms * (WARMUP_PASSES + done) - before.get(name, 0.0) * WARMUP_PASSES) / done)
        for name, mean_ms in binding.layer_times().items()
    }
    recording = folder / "layers.json"
    ran = session.compiled.get_runtime_model().get_ordered_ops()
    nodes = [_describe(node, session.quantizes_activations) for node in ran]
    recording.write_text(json.dumps({"origins": origins, "nodes": nodes, "times": times, "pass_ms": pass_ms}))
    return recording


def _number(graph: Any) -> dict[str, list[str]]:  # noqa: ANN401
    """Give each operation a number for a name; return the number -> the tensors of the model that it computes.

    An operation without a tensor of the model is part of the computation of those that read it.
    """
    origins: dict[str, list[str]] = {}
    for position, operation in enumerate(reversed(graph.get_ordered_ops())):
        tensors = {name: None for port in operation.outputs() for name in sorted(port.get_names())}
        if not tensors:
            readers = [each.get_node() for port in operation.outputs() for each in port.get_target_inputs()]
            tensors = {name: None for node in readers for name in origins.get(node.get_friendly_name(), ())}
        if operation.get_type_name() in _KEPT_TYPES:
            continue
        number = f"#{position}"
        operation.set_friendly_name(number)
        origins[number] = list(tensors)
    return origins


def _describe(node: Any, quantizes_activations: bool) -> dict[str, Any]:  # noqa: ANN401
    facts = execution_facts(node)
    dtypes, shapes = facts["outputPrecisions"].split(","), [port.get_partial_shape() for port in node.outputs()]
    return {
        "name": node.get_friendly_name(),
        "type": facts["layerType"],
        "origins": facts["originalLayersNames"].split(","),
        "precision": precision_of(node, quantizes_activations=quantizes_activations),
        "kernel": facts["primitiveType"],
        "reads": [
            [source.get_node().get_friendly_name(), source.get_index()]
            for source in (port.get_source_output() for port in node.inputs())
        ],
        "writes": [
            {
                "dtype": dtype_name(dtypes[index]) if index < len(dtypes) else "",
                "shape": list(shape.to_shape()) if shape.is_static else None,
            }
            for index, shape in enumerate(shapes)
        ],
    }
