"""Steps and verbs on decoders of language models: attention with a cache, rotary embeddings, weights in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ndld_flow import api
from ndld_flow.steps.sanitize import Sanitize
from tests.support.decoders import HEAD, STYLES, VOCABULARY, Style, decode, decoder_model, full_pass
from tests.support.models_run import run_step
from tests.support.representatives import thorough_except

_TOKENS = np.random.default_rng(9).integers(0, VOCABULARY, (1, 8))


@pytest.mark.representatives("group-False", "standard-False")
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_a_sanitized_decoder_decodes_the_same(style: Style, quantized: bool, tmp_path: Path) -> None:
    source = decoder_model(style, quantized=quantized)
    onnx.save(source, tmp_path / "model.onnx")
    ran = run_step(Sanitize, tmp_path / "model.onnx", tmp_path, {})
    sanitized = onnx.load(ran.out / "model.onnx")
    assert [info.name for info in sanitized.graph.input] == [info.name for info in source.graph.input]
    assert np.abs(decode(sanitized, _TOKENS) - full_pass(source, _TOKENS)).max() < 1e-4


def _inputs(style: Style) -> dict[str, Any]:
    """The second token of a sequence."""
    cache = {"shape": [1, 4 if style == "multi_head" else 2, 1, HEAD]}
    parts = [f"past_key_values.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    inputs: dict[str, Any] = dict.fromkeys(parts, cache) | {"input_ids": {"shape": [1, 1]}}
    if style == "group":
        return inputs | {"attention_mask": {"shape": [1, 2], "data": "ones"}}
    return inputs | {"position_ids": {"shape": [1, 1], "data": "ones"}}


@pytest.mark.parametrize("style", thorough_except(["standard", "group", "multi_head"], "standard"))
def test_a_recipe_checks_converts_compares_and_measures_a_decoder(style: Style, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(decoder_model(style, quantized=True), model)
    steps: dict[str, Any] = {
        "lint": {"fail_on": "error"},
        "sanitize": {},
        "half": {"step": "convert_fp16", "keep_io": ["logits"]},
        "agree": {"step": "check_accuracy", "reference": "source", "candidate": "sanitize"},
        "speed": {"step": "profile", "from": "half", "passes": 3, "duration": 0, "warmup": 0, "stable": 0, "runs": 1},
    }
    inputs = _inputs(style)
    recipe = {"name": "decoder", "model": str(model), "inputs": inputs, "steps": steps}
    assert api.run(recipe, outputs=tmp_path / "outputs").passed
    inspection = api.inspect(model)
    assert inspection.summary is not None and inspection.summary.node_count == len(onnx.load(model).graph.node)
    assert api.draw(model, tmp_path / "model.svg").stat().st_size > 1000
    assert api.diff(model, model).is_empty
