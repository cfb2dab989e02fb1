"""The same steps and verbs by the command line, in processes of their own, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ndld_flow.execution.events import RunFinished, SweepFinished
from ndld_flow.processes.worker import IN_PROCESS

_VERBS = (("inspect",), ("ops", "--model"), ("draw", "-o", "picture.svg"))
"""Verbs that read a model, and what is before its path."""
_CHANGING = ("profile", "compare_profiles", "find_precision", "build_engine", "lint")
"""Steps whose results hold times, or depend on a time limit."""


def compare_with_command_line(recipe: Mapping[str, Any], finished: RunFinished | SweepFinished, folder: Path) -> str:
    """Return how the results of the command line differ from those of a run in this process; empty if they do not."""
    file, outputs = folder / "recipe.yaml", folder / "by_command"
    file.write_text(json.dumps(recipe))
    ran = _call(["run", str(file), "--outputs", str(outputs), "--trust"], folder)
    if ran.returncode != finished.exit_code:
        return f"exit code {ran.returncode} instead of {finished.exit_code}: {ran.stderr[-300:]}"
    records = sorted(outputs.glob("runs/*/*/run.json"))
    differing = _differences(recipe, _results(Path(finished.folder) / "run.json"), _results(records[-1]))
    if differing:
        return f"other results: {', '.join(differing)}"
    for verb in _VERBS:
        called = _call([*verb, recipe["model"]], folder)
        if called.returncode != 0:
            return f"{verb[0]}: exit code {called.returncode}: {called.stderr[-300:]}"
    return ""


def _call(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != IN_PROCESS}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", "ndld_flow", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)


def _results(record: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome and the digest of the artifact of each step of a run; reused results count as computed."""
    found = {}
    for step in json.loads(record.read_text())["steps"]:
        if step["record"]:
            outcome = step["outcome"].replace("reused", "done")
            found[step["name"]] = (outcome, step["record"]["artifact"]["digest"])
    return found


def _differences(
    recipe: Mapping[str, Any], here: Mapping[str, tuple[str, str]], there: Mapping[str, tuple[str, str]]
) -> list[str]:
    compared = [name for name, entry in recipe["steps"].items() if entry["step"] not in _CHANGING]
    return [name for name in compared if here.get(name) != there.get(name)]
