"""Language models run step by step: greedy decoding, teacher forcing, flipped tokens and their margins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from pydantic import ValidationError

from ndld_flow.accuracy.sequence_runs import UnrolledSamples
from ndld_flow.base.errors import RecipeError
from ndld_flow.models.files import model_inputs
from ndld_flow.records.accuracy import Accuracy, SequenceAgreement
from ndld_flow.samples.feedback import FedFrom
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import make_sequences
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.steps.inspect_activations import InspectActivations
from ndld_flow.store.kinds import AccuracyDocument, Onnx
from tests.support.decoders import HEAD, STYLES, VOCABULARY, Array, Style, decoder_inputs, decoder_model, past_names
from tests.support.message_files import CheckMessage
from tests.support.models_run import Given, Ran, run_step, specs, write_model
from tests.support.typed_api import plan_once

_PROMPT = np.random.default_rng(5).integers(0, VOCABULARY, (1, 7))


def decoder_given(style: Style, folder: Path, prompt: Array = _PROMPT) -> dict[str, Any]:
    """Return the `inputs:` of a decoder that reads a prompt, and then its own tokens."""
    np.save(folder / "prompt.npy", prompt)
    cache = {"shape": [1, 4 if style == "multi_head" else 2, 0, HEAD]}
    parts = [f"{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    given: dict[str, Any] = {f"past_key_values.{part}": {"from": f"present.{part}", **cache} for part in parts}
    given["input_ids"] = {
        "from": "logits",
        "apply": "argmax",
        "data": str(folder / "prompt.npy"),
        "first_shape": list(prompt.shape),
        "shape": [1, 1],
    }
    if style == "group":
        given["attention_mask"] = {"shape": list(prompt.shape), "grow": [0, 1], "data": "ones"}
    else:
        given["position_ids"] = {"data": "arange"}
    return given


def greedy(model: onnx.ModelProto, prompt: Array, steps: int) -> list[int]:
    """Return the tokens that a plain loop chooses."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    tokens, past, chosen = prompt, None, []
    for _ in range(steps):
        logits, *present = session.run(None, decoder_inputs(model, tokens, past))
        past = dict(zip(past_names(model), present, strict=True))
        tokens = logits[:, -1:].argmax(axis=-1)
        chosen.append(int(tokens[0, 0]))
    return chosen


def with_noise(model: onnx.ModelProto, amount: float) -> onnx.ModelProto:
    """Return a decoder whose head is a little different."""
    noisy = onnx.ModelProto()
    noisy.CopyFrom(model)
    head = next(weight for weight in noisy.graph.initializer if weight.name == "lm_head.weight")
    values = numpy_helper.to_array(head)
    noise = np.random.default_rng(0).standard_normal(values.shape).astype(values.dtype) * amount
    head.CopyFrom(numpy_helper.from_array(values + noise, head.name))
    return noisy


def compare(
    folder: Path, reference: onnx.ModelProto, candidate: onnx.ModelProto, given: Given, **settings: Any
) -> tuple[Ran, Accuracy, SequenceAgreement]:
    onnx.save(reference, folder / "reference.onnx")
    onnx.save(candidate, folder / "candidate.onnx")
    artifacts = {"reference": Onnx(folder / "reference.onnx", "source", "digest")}
    settings = {"steps": 40, "threads": 1, "tolerance": None, **settings}
    ran = run_step(CheckAccuracy, folder / "candidate.onnx", folder / "ran", settings, given, artifacts=artifacts)
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_text())
    assert accuracy.sequence is not None
    return ran, accuracy, accuracy.sequence


def read_tokens(model: Path, given: Given, steps: int) -> list[list[int]]:
    sequences = make_sequences(model_inputs(model), specs(given), SampleSettings(steps=steps), "m")
    return [sample.feeds["input_ids"].values[0].tolist() for sample in UnrolledSamples(sequences, model)]


@pytest.mark.parametrize("style", STYLES)
def test_a_decoder_continues_its_prompt_as_a_plain_loop_does(style: Style, tmp_path: Path) -> None:
    model = decoder_model(style)
    onnx.save(model, tmp_path / "model.onnx")
    read = read_tokens(tmp_path / "model.onnx", decoder_given(style, tmp_path), 12)
    assert read[0] == _PROMPT[0].tolist()
    assert [token for step in read[1:] for token in step] == greedy(model, _PROMPT, 11)


@pytest.mark.parametrize("positions", [{"data": "arange"}, {}])
def test_position_ids_go_on_after_the_prompt(positions: dict[str, Any], tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(decoder_model("standard"), model)
    given = specs({**decoder_given("standard", tmp_path), "position_ids": positions})
    sequences = make_sequences(model_inputs(model), given, SampleSettings(steps=4), "m")
    read = [sample.feeds["position_ids"].values[0].tolist() for sample in sequences]
    assert read == [[0, 1, 2, 3, 4, 5, 6], [7], [8], [9]]


def test_each_row_of_prompts_starts_a_sequence(tmp_path: Path) -> None:
    model, prompts = decoder_model("standard"), np.random.default_rng(6).integers(0, VOCABULARY, (3, 5))
    onnx.save(model, tmp_path / "model.onnx")
    given = decoder_given("standard", tmp_path, prompts)
    given["input_ids"]["first_shape"] = [1, 5]
    read = read_tokens(tmp_path / "model.onnx", given, 6)
    assert [read[0], read[6], read[12]] == prompts.tolist()
    for start in range(3):
        chosen = [step[0] for step in read[6 * start + 1 : 6 * start + 6]]
        assert chosen == greedy(model, prompts[start : start + 1], 5)


def test_teacher_forcing_compares_the_same_text_at_each_step(tmp_path: Path) -> None:
    """After the first token that differs, a candidate with its own tokens writes another text."""
    source = decoder_model("standard")
    noisy, given = with_noise(source, 0.02), decoder_given("standard", tmp_path)
    (tmp_path / "forced").mkdir()
    (tmp_path / "own").mkdir()
    forced, _, tokens = compare(tmp_path / "forced", source, noisy, given)
    _, _, free = compare(tmp_path / "own", source, noisy, given, tokens="own")
    assert (tokens.tokens, free.tokens) == ("reference", "own")
    first, second = tokens.outputs[0], free.outputs[0]
    assert first.flipped_count and second.flipped_count
    assert first.flipped[0] == second.flipped[0], "the first difference is the same"
    assert first.flipped_count < second.flipped_count
    before = first.flipped[0] + 1
    assert first.errors[:before] == pytest.approx(second.errors[:before], rel=0.5)
    assert max(second.errors[before:]) > 3 * max(first.errors[before:])  # type: ignore[type-var,operator]
    assert forced.result.metrics["flipped_steps"].value == first.flipped_count
    assert forced.result.metrics["first_flipped_step"].value == before
    assert "flipped (first at step" in forced.result.summary


def test_the_margin_of_a_flipped_token_is_that_of_the_reference(tmp_path: Path) -> None:
    source = decoder_model("standard")
    given = decoder_given("standard", tmp_path)
    _, _, sequence = compare(tmp_path, source, with_noise(source, 0.02), given)
    output = sequence.outputs[0]
    chosen = greedy(source, _PROMPT, output.flipped[0])
    text = np.concatenate([_PROMPT, np.array([chosen], np.int64)], axis=1)
    session = ort.InferenceSession(source.SerializeToString())
    logits = np.sort(session.run(["logits"], decoder_inputs(source, text))[0][0, -1])
    assert output.margins[0] == pytest.approx(float(logits[-1] - logits[-2]), abs=1e-4)
    assert output.median_margin is not None and output.median_margin > min(filter(None, output.margins))


@pytest.mark.thorough
def test_equal_decoders_flip_no_token_and_a_loop_is_weak_evidence(tmp_path: Path) -> None:
    source = decoder_model("standard")
    given = decoder_given("standard", tmp_path)
    ran, _, sequence = compare(tmp_path, source, source, given, steps=33)
    assert sequence.outputs[0].flipped_count == 0
    assert "first_flipped_step" not in ran.result.metrics
    stuck = with_noise(source, 0)
    head = next(weight for weight in stuck.graph.initializer if weight.name == "lm_head.weight")
    head.CopyFrom(numpy_helper.from_array(np.eye(64, VOCABULARY, dtype=np.float32) * 1e-3, head.name))
    embedding = next(weight for weight in stuck.graph.initializer if weight.name == "embedding")
    constant = np.tile(np.linspace(0, 1, 64, dtype=np.float32), (VOCABULARY, 1))
    embedding.CopyFrom(numpy_helper.from_array(constant, embedding.name))
    (tmp_path / "stuck").mkdir()
    ran, accuracy, _ = compare(tmp_path / "stuck", stuck, stuck, given, steps=40)
    assert any("the reference chose" in note for note in accuracy.notes)


@pytest.mark.thorough
def test_layers_and_activations_read_the_tokens_of_the_reference(tmp_path: Path) -> None:
    source = decoder_model("standard")
    given = decoder_given("standard", tmp_path)
    _, accuracy, _ = compare(tmp_path, source, with_noise(source, 0.02), given, layers=["lm_head"])
    assert accuracy.layers
    ran = run_step(
        InspectActivations,
        tmp_path / "reference.onnx",
        tmp_path / "inspected",
        {"steps": 6, "tensors": ["lm_head"]},
        given,
    )
    assert ran.result.passed


@pytest.mark.parametrize(
    ("fed", "logits", "expected"),
    [
        (FedFrom("y", "argmax", -1, (1, 1)), np.array([[[0, 9, 1], [5, 1, 2]]]), [[0]]),
        (FedFrom("y", "argmax", 1, (1, 1)), np.array([[[0, 9], [5, 1], [7, 3]]]), [[0]]),
        (FedFrom("y", "argmax", -1, (2, 1)), np.array([[0, 9, 1], [5, 1, 2]]), [[1], [0]]),
        (FedFrom("y", "argmax", -1, (2,)), np.array([[0, 9, 1], [5, 1, 2]]), [1, 0]),
        (FedFrom("y", "argmax", -1, (1, 2)), np.array([[[0, 9, 1], [5, 1, 2], [0, 1, 2]]]), [[0, 2]]),
    ],
)
def test_tokens_are_chosen_at_the_last_positions(fed: FedFrom, logits: Array, expected: Sequence[Any]) -> None:
    spec = model_inputs_of("int64", len(fed.shape))
    assert fed.value(logits.astype(np.float32), spec).tolist() == expected


def model_inputs_of(dtype: str, rank: int) -> Any:
    from ndld_flow.models.tensors import TensorSpec

    return TensorSpec("tokens", dtype, (None,) * rank)


_GRAPH = "g (int64[1, n] t, float[1, n] f) => (float[1, n, 9] logits, float[4] flat) {{ {} }}".format(
    "c = Cast<to=1>(t) s = Add(c, f) a = Constant<value_ints=[2]>() u = Unsqueeze(s, a) "
    "w = Constant<value_floats=[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0,9.0]>() logits = Mul(u, w) "
    "flat = Constant<value_floats=[1.0,2.0,3.0,4.0]>()"
)


@pytest.mark.parametrize(
    "given",
    [
        "t: {from: logits}",
        "t: {from: logits, shape: [1, 1]}",
        "t: {from: flat, apply: argmax, shape: [1, 1]}",
        "t: {from: logits, apply: argmax, axis: 3, shape: [1, 1]}",
        "f: {from: logits, apply: argmax, shape: [1, 1]}",
        "t: {from: logits, apply: argmax}",
        "t: {apply: argmax, shape: [1, 1]}",
    ],
)
def test_mistakes_in_tokens_are_named_before_anything_runs(
    given: str, tmp_path: Path, check_message: CheckMessage
) -> None:
    model = write_model(tmp_path / "model.onnx", _GRAPH)
    text = f"model: {model}\ninputs:\n  {given}\nsteps:\n  measured: {{step: profile, steps: 4}}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError) as caught:
        plan_once(tmp_path / "recipe.yaml", outputs=tmp_path / "outputs")
    check_message(caught.value)


def test_own_tokens_need_own_states(check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        CheckAccuracy.model_validate({"tokens": "own", "states": "reference"})
    check_message(caught.value)
