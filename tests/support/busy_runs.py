"""A run whose profile has more threads than its machine has CPUs: a finding that can be applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ndld_flow.records.profile import Profile
from ndld_flow.records.run_record import RunRecord
from tests.support.run_fixtures import StepSketch, profile, run_record, write_run


def resolved(**settings: Any) -> dict[str, Any]:
    return {
        "name": "toy",
        "model": "model.onnx",
        "steps": {
            "clean": {"step": "sanitize", "from": "source", "fuse": True},
            "speed": {"step": "profile", "from": "clean", "threads": 8, **settings},
        },
    }


def run_of(recipe: dict[str, Any], **fields: Any) -> RunRecord:
    steps = [
        StepSketch("clean", "sanitize", parents={"from": "source"}),
        StepSketch("speed", "profile", parents={"from": "clean"}),
    ]
    return run_record(steps, name="toy", recipe=recipe).model_copy(update=fields)


def busy(threads: int) -> Profile:
    """A profile with more threads than the two CPUs of its machine."""
    measured = profile("speed", 12, 2, 3)
    machine = measured.machine.model_copy(update={"cpu_count": 2})
    return measured.model_copy(update={"options": {**measured.options, "threads": threads}, "machine": machine})


def write_busy_run(folder: Path) -> Path:
    """Write the run `busy`, whose recipe is not in a file, into the outputs in a folder, and return its own folder."""
    command = ("ndld-flow", "profile", "model.onnx")
    run = run_of(resolved(), command=command, directory=str(folder)).model_copy(update={"recipe_name": "busy"})
    return write_run(folder / "outputs" / "runs" / "busy" / run.id, run, {"speed/profile.json": busy(8)})
