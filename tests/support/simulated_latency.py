"""Measurements of pairs of models whose true latency is a function of the model, with the noise of a machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest

from ndld_flow.measure.pair_rounds import MeasuredRounds, RoundLimits
from ndld_flow.measure.process_runs import Side
from ndld_flow.placement import regions
from ndld_flow.records.noise import Round
from tests.support.simulated_rounds import SCENARIOS, Scenario, simulate_round

Decide = Callable[[Sequence[Round]], bool]
Cost = Callable[[onnx.ModelProto], float]


def simulate_latency(
    patch: pytest.MonkeyPatch, cost: Cost, seed: int = 0, scenario: Scenario = SCENARIOS["calm"]
) -> None:
    """Replace the measurements of placements by simulated ones, in which a model's true latency is its cost."""
    rng = random.Random(seed)

    def measure(pair: Sequence[Path], limits: RoundLimits, is_decided: Decide) -> MeasuredRounds:
        base, candidate = (cost(onnx.load(path)) for path in pair)
        rounds: list[Round] = []
        while len(rounds) < limits.rounds:
            rounds.append(simulate_round(rng, scenario, candidate / base - 1, len(rounds)))
            if is_decided(rounds):
                break
        return MeasuredRounds(tuple(rounds), "simulated")

    def in_processes(pair: Sequence[Side], folder: Path, limits: RoundLimits, is_decided: Decide) -> MeasuredRounds:
        return measure([side.request.path for side in pair], limits, is_decided)

    def in_sessions(
        pair: Sequence[Path], session: object, values: object, limits: RoundLimits, is_decided: Decide
    ) -> MeasuredRounds:
        return measure(pair, limits, is_decided)

    patch.setattr(regions, "measure_rounds", in_processes)
    patch.setattr(regions, "measure_sessions", in_sessions)


def quantized_layers(model: onnx.ModelProto) -> set[str]:
    """Return the names of the convolutions that read dequantized values."""
    dequantized = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return {node.name for node in model.graph.node if node.op_type == "Conv" and node.input[0] in dequantized}
