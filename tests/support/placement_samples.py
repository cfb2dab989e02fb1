"""The record of a placement, whose names are hostile."""

from __future__ import annotations

from ndld_flow.machine.host import describe_machine
from ndld_flow.records.placement import (
    MeasuredRatio,
    PlacedRegion,
    Placement,
    PlacementTrial,
)

FASTER = MeasuredRatio(float_ms=4.0, ratio=0.5, low=0.48, high=0.52, clock="cpu", rounds=4)
HOSTILE = "<script>alert(1)</script>"
PLACEMENT = Placement(
    model="source",
    objective="latency",
    backend="onnxruntime",
    machine=describe_machine(),
    tolerance={"slice_rms": 0.2},
    least_gain=0.01,
    sample_count=8,
    regions=(
        PlacedRegion(
            node=HOSTILE,
            op_type="Conv",
            output="c",
            followers=("Relu",),
            kind=0,
            macs=1000,
            alone=FASTER,
            error=0.01,
            decision="quantized",
            why="faster alone: 0.50 (0.48 to 0.52)",
        ),
        PlacedRegion(
            node="head", op_type="Conv", output="h", kind=0, decision="inaccurate", why="channel 17 of scores"
        ),
    ),
    trials=(
        PlacementTrial(name="all", regions=1, metrics={"slice_rms": 0.03}, latency=FASTER, outcome="delivered"),
        PlacementTrial(name="intensity", regions=0, metrics={}, outcome="no part of it is accurate"),
    ),
    delivered=FASTER,
    digest="d",
    wall_s=60.0,
)
