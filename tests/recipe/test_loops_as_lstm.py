"""Where `optimize` rewrites Loops as LSTM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import yaml

from ndld_flow.base.settings import Settings
from ndld_flow.optimize.compose import read_model
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.variant import Variant
from ndld_flow.optimize.variants import loops_as_lstm
from ndld_flow.steps.edit import Edit
from ndld_flow.steps.quantize import Quantize

LOOP = """<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y) <int64 n = {3}, bool yes = {1}>
{y = Loop<body = step (int64 k, bool go, float[1,8] s) => (bool on, float[1,8] t) {on = Identity(go) t = Tanh(s)}>
(n, yes, x)}"""
NO_LOOP = '<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y) {y = Tanh(x)}'


def proposed(text: str, shares: dict[str, float], **options: object) -> tuple[dict[str, Variant], list[str]]:
    """Variants by their names, and sentences."""
    onnx.save(onnx.parser.parse_model(text), "model.onnx")
    np.save("x.npy", np.zeros((9, 1, 8), np.float32))
    given: dict[str, object] = {"data": ("x.npy",), "target": "onnxruntime", **options}
    composer = read_model(Path("model.onnx"), OptimizeOptions(**given), Path("samples"))  # type: ignore[arg-type]
    found = list(loops_as_lstm(replace(composer, shares=shares)))
    return {item.name: item for item in found if isinstance(item, Variant)}, [
        item for item in found if isinstance(item, str)
    ]


def test_loops_that_take_time_are_rewritten(in_folder: Path) -> None:
    for shares in ({"Loop": 0.8, "MatMul": 0.2}, {}):
        variants, sentences = proposed(LOOP, shares)
        assert list(variants) == ["loops as LSTM", "loops as LSTM in dynamic INT8"] and not sentences
        assert not any(variant.costly for variant in variants.values())
    assert list(proposed(LOOP, {}, data=())[0]) == ["loops as LSTM"], "INT8 is judged on real samples"
    variants, (sentence,) = proposed(LOOP, {"Loop": 0.2, "MatMul": 0.8})
    assert not variants and "20 %" in sentence
    assert proposed(NO_LOOP, {}) == ({}, [])
    assert proposed(LOOP, {}, target="rtx40") == ({}, []), "engines have no Loop to compare with"


def test_the_steps_are_valid(in_folder: Path) -> None:
    variants, _ = proposed(LOOP, {})
    for variant in variants.values():
        for text in variant.steps.values():
            settings = yaml.safe_load(text)
            steps: dict[str, type[Settings]] = {"edit": Edit, "quantize": Quantize}
            step = steps[settings.pop("step")]
            assert settings.pop("from") in ("clean", *variant.steps)
            step.model_validate_json(json.dumps(settings))
