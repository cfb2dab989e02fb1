"""A point of a sweep as a command, which runs the point's own recipe."""

from __future__ import annotations

import shlex
from pathlib import Path

from ndld_flow import api
from tests.support.sweep_toys import SweepToy, make_sweep_toy
from tests.support.typed_api import plan_once

HARD = """
name: toy
model: model.onnx
inputs: {"x:0": {shape: [1]}}
steps_from: [steps/dye.py, steps/gauge.py]
steps:
  tint: {step: dye, colour: red, seconds: 0}
  speed: {step: gauge, threads: 1, order: '${steps.tint.colour}', limit: 100}
sweep:
  over:
    tint.colour: [rows, "it's, 'two' \\\\"]
    inputs.x:0.shape: [[1], [2]]
    mode: {plain: {}, far: {speed: {step: gauge, threads: '${steps.speed.limit}', limit: 3}}}
  together: 1
  winners: 0
"""


def test_the_commands_of_points_repeat_them(in_folder: Path) -> None:
    toy = make_sweep_toy(in_folder, HARD)
    record, _ = toy.run("steps.tint.weight=2.5", "~sweep.over.inputs.x:0.shape")
    assert [point.values for point in record.points] == [
        {"tint.colour": colour, "mode": mode} for colour in ("rows", "it's, 'two' \\") for mode in ("plain", "far")
    ]
    for point in record.points:
        folder = toy.outputs / "sweeps" / "toy" / record.id / point.folder
        assert _decide(toy, folder / "command.txt") == ["reused", "reused"]
    again = api.sweep(Path(folder.parent.parent / "recipe.yaml"), outputs=toy.outputs, trust=True)
    assert again.nothing_to_do


def _decide(toy: SweepToy, command: Path) -> list[str]:
    """Return the plan of a point's command."""
    words = shlex.split(command.read_text().partition("\n")[2])
    assert words[:2] == ["ndld-flow", "run"]
    assert words[-3:] == ["--outputs", str(toy.outputs), "--trust"]
    planned = plan_once(words[2], words[3:-3], outputs=toy.outputs, trust=True)
    return [decision.reason.text for decision in planned]
