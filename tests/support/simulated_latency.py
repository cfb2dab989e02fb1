"""Measurements of pairs of models whose true latency is a function of the model, with the noise of a machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx

from ndld_flow.measure.pair_rounds import MeasuredRounds, RoundLimits
from ndld_flow.measure.profiling_request import Side
from ndld_flow.records.noise import Round
from tests.support.simulated_rounds import SCENARIOS, Scenario, simulate_round

Cost = Callable[[onnx.ModelProto], float]
Measure = Callable[[Sequence[Side], Path, RoundLimits, Callable[[Sequence[Round]], bool]], MeasuredRounds]


def simulated_rounds(cost: Cost, seed: int = 0, scenario: Scenario = SCENARIOS["calm"]) -> Measure:
    """Return a stand-in for `measure_rounds` in which a model's true latency is its cost."""
    dice = random.Random(seed)

    def measure_rounds(
        pair: Sequence[Side], folder: Path, limits: RoundLimits, is_decided: Callable[[Sequence[Round]], bool]
    ) -> MeasuredRounds:
        base, candidate = (cost(onnx.load(side.request.path)) for side in pair)
        rounds: list[Round] = []
        while len(rounds) < limits.rounds:
            rounds.append(simulate_round(dice, scenario, candidate / base - 1, len(rounds)))
            if is_decided(rounds):
                break
        return MeasuredRounds(tuple(rounds), "simulated")

    return measure_rounds


def quantized_layers(model: onnx.ModelProto) -> set[str]:
    """Return the names of the convolutions that read dequantized values."""
    dequantized = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return {node.name for node in model.graph.node if node.op_type == "Conv" and node.input[0] in dequantized}
