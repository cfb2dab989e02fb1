"""Small models in ONNX's text form, and steps run on them as the runner would."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.parser

from ndld_flow.inputs import InputSpec
from ndld_flow.step import Context, Result, Step
from ndld_flow.store.kinds import Artifact, Onnx

Given = Mapping[str, Mapping[str, Any]]


def write_model(path: Path, graph: str, opset: int = 17) -> Path:
    """Write `g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }` as a model."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{graph}')
    onnx.save(model, path)
    return path


def specs(given: Given) -> dict[str, InputSpec]:
    """A recipe's `inputs:`, validated from JSON as the recipe is."""
    return {name: InputSpec.model_validate_json(json.dumps(spec)) for name, spec in given.items()}


@dataclass(frozen=True)
class Ran:
    """A step's result and what it wrote."""

    result: Result
    out: Path
    scratch: Path
    told: list[tuple[int, int, str]]


def run_step(
    kind: type[Step[Any, Any]],
    model: Path,
    folder: Path,
    settings: Mapping[str, Any],
    inputs: Given | None = None,
    *,
    artifacts: Mapping[str, Artifact] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Ran:
    """Run a step on a model file; its settings come from JSON as in a recipe."""
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    scratch.mkdir()
    result: list[tuple[int, int, str]] = []
    tell = progress or (lambda done, total, what: result.append((done, total, what)))
    context = Context(
        name="measured",
        inputs=specs(inputs or {}),
        artifacts=dict(artifacts or {}),
        scratch=scratch,
        log=logging.getLogger("ndld_flow.test"),
        progress=tell,
        caches=folder / "caches",
    )
    step = kind.model_validate_json(json.dumps(settings))
    return Ran(step.run(Onnx(model, "candidate", "digest"), out, context), out, scratch, result)
