"""Records of `optimize` with every outcome of a variant."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import (
    FrontPoint,
    Gain,
    Optimization,
    Speed,
    TriedVariant,
    VariantOutcome,
)
from ndld_flow.records.run_folder import OPTIMIZATION_RECORD
from tests.support.run_fixtures import write_quickstart


def variant(name: str, outcome: VariantOutcome, *ratios: float, **more: Any) -> TriedVariant:
    """Return a variant; `ratios` are that of its latency to the source's, and the ends of its interval."""
    proved = outcome in ("delivered", "not faster")
    speed = Speed(ratio=ratios[0], low=ratios[1], high=ratios[2], clock="cpu", proved=proved) if ratios else None
    return TriedVariant(**{"name": name, "runtime": "onnxruntime", "outcome": outcome, "speed": speed} | more)


def agreement(cosine: float, slice_rms: float) -> dict[str, Metric]:
    return {"cosine": Metric(value=cosine), "max_abs": Metric(value=3.1), "slice_rms": Metric(value=slice_rms)}


def optimization(*variants: TriedVariant, **changed: Any) -> Optimization:
    """Return a record whose delivered variant is twice as fast."""
    values: dict[str, Any] = {
        "model": "model.onnx",
        "target": "onnxruntime",
        "keep": ("cosine >= 0.99",),
        "search_samples": 24,
        "held_samples": 12,
        "random_inputs": False,
        "variants": variants,
        "stopped_because": f"all {len(variants)} variants tried",
        "ending": "faster",
        "budget_s": 60.0,
        "delivered": "INT8 of convolutions",
        "runtime": "onnxruntime",
        "digest": "d",
        "file": "outputs/runs/model-INT8-of-convolutions/20261121T093000Z-3f9a1c/made/model.onnx",
        "size_bytes": 3_770_000,
        "source_bytes": 10_900_000,
        "exported": ("fast.onnx",),
        "speed": Speed(ratio=0.5, low=0.48, high=0.52, clock="cpu"),
        "accuracy": "worst slice off by 2 % of its spread (channel 4902), cosine 0.9991: within tolerance",
        "recipe": "outputs/optimizations/model-999fd733/INT8-of-convolutions.yaml",
        "command": "ndld-flow run outputs/optimizations/model-999fd733/INT8-of-convolutions.yaml -o fast.onnx",
        "run": "model-INT8-of-convolutions/20261121T093000Z-3f9a1c",
        "started_at": datetime(2026, 11, 27, tzinfo=UTC),
        "wall_s": 27.4,
    }
    return Optimization(**values | changed)


RACE = optimization(
    variant("weights in INT8", "not tried", why="the budget was used up"),
    variant("INT8 of all operators", "not right", 0.4, 0.39, 0.41, why="cosine 0.93 on 3 samples",
            metrics=agreement(0.93, 0.2), took_s=1.2),
    variant("clean", "not the best", 0.97, 0.96, 0.98, metrics=agreement(1, 0), took_s=0.8),
    variant("INT8 of convolutions", "delivered", 0.51, 0.50, 0.53, metrics=agreement(0.99931, 0.021), took_s=2.4),
    variant("INT8 by integer operators", "failed",
            why="ONNX Runtime does not open it: no kernel for QLinearSoftmax(1)",
            hint="ONNX Runtime accepts this model only with fixed sizes: --fix-shapes tries it"),
    variant("INT8 without first and last layer", "not the best", 0.55, 0.54, 0.57,
            metrics=agreement(0.9995, 0.018), took_s=2.1),
    variant("INT8 with dynamic ranges", "not faster", 1.1, 1.08, 1.13, metrics=agreement(0.9999, 0.001),
            why="latency +10 % (+8 % to +13 %)", took_s=0.9),
    variant("OpenVINO's default", "near the bound", 0.6, 0.58, 0.63, runtime="openvino",
            metrics=agreement(0.9903, 0.08), why="cosine >= 0.99 may fail on other samples: the worst of as many may "
            "be 0.9874", took_s=3.0),
    variant("INT8 with one scale per weight", "not right on held-out data", 0.45, 0.43, 0.47,
            metrics=agreement(0.9951, 0.05), why="cosine >= 0.99 fails: 0.9872", took_s=2.2),
    variant("INT8 where it pays", "cannot win", why="the INT8 of all operators is slower than the source"),
    not_tried=("OpenVINO is not installed: its default is not tried.",),
)  # fmt: skip
"""The record of a race with every outcome, in no order."""

SEARCH = optimization(
    variant("source", "not the best", latency=Metric(value=21.6, unit="ms"),
            objectives={"latency": Metric(value=21.6, unit="ms"), "size": Metric(value=10.9e6, unit="bytes")}),
    variant("INT8 by minmax", "delivered", latency=Metric(value=18.9, unit="ms"),
            objectives={"latency": Metric(value=18.9, unit="ms"), "size": Metric(value=3.77e6, unit="bytes")}),
    objectives=("latency", "size"), delivered="INT8 by minmax", speed=None,
)  # fmt: skip
"""The record of a sweep, without alternating passes."""

_GAINS = (
    Gain(objective="latency", ratio=0.873, low=0.861, high=0.884, evidence="alternating passes"),
    Gain(objective="size", ratio=3.77 / 10.9, low=3.77 / 10.9, high=3.77 / 10.9, evidence="exact"),
)
FRONT = SEARCH.model_copy(update={
    "speed": Speed(ratio=0.873, low=0.861, high=0.884, clock="cpu"),
    "gains": _GAINS,
    "front": (
        FrontPoint(name="INT8 by minmax", gains=_GAINS, command="ndld-flow run one.yaml", delivered=True),
        FrontPoint(name="clean", gains=_GAINS[1:], command="ndld-flow run two.yaml", delivered=False),
    ),
})  # fmt: skip
"""The record of a sweep whose winner was proved in alternating passes."""


def write_optimized(folder: Path, found: Optimization = RACE) -> Path:
    """Write the quickstart as the run that proved a model, with the record of `optimize`."""
    write_quickstart(folder)
    (folder / OPTIMIZATION_RECORD).write_text(found.to_json(), encoding="utf-8")
    return folder
