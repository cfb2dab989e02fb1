"""Runs of models with states: outputs of each step are inputs of the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.ranked_lists import Outputs
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import model_outputs
from ndld_flow.models.tensors import Array, TensorSpec, shape_text
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.runtimes.protocol import Session
from ndld_flow.samples.feedback import FedFrom, Feedback, check_feedback, find_feedback, states_only
from ndld_flow.samples.sample_feeds import Sample, Samples, SeenSamples, make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import Sequences, make_sequences
from ndld_flow.samples.wanted_inputs import Feed, fits


class States:
    """The states of one model while it runs sequences."""

    def __init__(self, feedback: Feedback, inputs: Sequence[TensorSpec], model: Path) -> None:
        self._feedback, self._model = feedback, model
        self._specs = {spec.name: spec for spec in inputs}
        self.values: dict[str, Array] = {}
        """Input -> its value at the next step."""

    def run(self, model: Session, arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array | None]]:
        """Run one step, and return the values of all inputs and outputs.

        `arrays` are the inputs that are no states, and first states. Raises `ModelError` for an output that its input
        does not accept.
        """
        given = {**self.values, **arrays}
        bound = model.bind(given)
        bound.run()
        outputs = bound.outputs()
        self.values = {name: self._value(name, fed, outputs[fed.output]) for name, fed in self._feedback.items()}
        return given, outputs

    def _value(self, name: str, fed: FedFrom, output: Array | None) -> Array:
        spec = self._specs[name]
        try:
            value = fed.value(output, spec)
        except ModelError as error:
            raise ModelError(f"{self._model}: {error}") from None
        if spec.shape is not None and not fits(value.shape, spec.shape):
            raise ModelError(
                f'{self._model}: output "{fed.output}" has the shape {shape_text(value.shape)}, and its input "{name}" '
                f"takes {spec.shape_text}."
            )
        return value


class AppendedParts:
    """The new part of states that only grow, such as a KV cache, so that a step is stored once and not by all later
    steps.
    """

    def __init__(self, feedback: Feedback) -> None:
        self._inputs = {fed.output: name for name, fed in states_only(feedback).items()}
        self.growing: set[str] = set()
        """Outputs that were cut to their new part."""

    def cut(self, fed: Mapping[str, Array], outputs: Outputs) -> dict[str, Array | None]:
        """Return outputs; one that begins with the state it was computed from is replaced by what follows it."""
        parts = dict(outputs)
        for output, name in self._inputs.items():
            value = outputs[output]
            if value is not None and (part := _appended(fed[name], value)) is not value:
                parts[output] = part
                self.growing.add(output)
        return parts


def _appended(before: Array, after: Array) -> Array:
    if before.ndim != after.ndim or before.dtype != after.dtype:
        return after
    longer = [axis for axis in range(after.ndim) if before.shape[axis] != after.shape[axis]]
    if len(longer) != 1 or before.shape[longer[0]] > after.shape[longer[0]]:
        return after
    head, tail = np.split(after, [before.shape[longer[0]]], axis=longer[0])
    return tail.copy() if np.array_equal(head, before) else after


class UnrolledSamples(Samples):
    """The steps of sequences as samples, for whatever runs single ones, with the states that a model computes.

    Each iteration runs the model again.
    """

    def __init__(self, sequences: Sequences, model: Path, settings: SessionSettings | None = None) -> None:
        self._sequences, self._model, self._settings = sequences, model, settings or SessionSettings()
        self.notes, self.described = sequences.notes, sequences.described
        self.wanted, self.is_generated = (), False  # nothing is made for single steps

    @property
    def seen(self) -> SeenSamples | None:
        return self._sequences.seen

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sample]:
        session = open_model(self._model, self._settings)
        states = States(self._sequences.feedback, session.describe().inputs, self._model)
        for step in self._sequences:
            fed, _ = states.run(session, step.arrays)
            feeds = {
                name: step.feeds.get(name) or Feed(value, f"state, {value.dtype.name} {shape_text(value.shape)}")
                for name, value in fed.items()
            }
            yield Sample(step.label, feeds)


def read_samples(
    model: Path, inputs: Sequence[TensorSpec], given: Mapping[str, InputSpec], wanted: SampleSettings, label: str
) -> Samples:
    """Return the samples for a step that runs single ones: steps of sequences get the states that `model` computes.

    Raises `RequestError` as `make_samples` and `make_sequences` do, and for states that the model has no output for.
    """
    if not find_feedback(given):
        return make_samples(inputs, given, wanted, label)
    sequences = make_sequences(inputs, given, wanted, label)
    refuse_mistakes(check_feedback(sequences.feedback, inputs, model_outputs(model), label))
    return UnrolledSamples(sequences, model)


def refuse_mistakes(mistakes: Iterable[tuple[str, str, str]]) -> None:
    """Raise `RequestError` with the first mistake of `check_feedback`."""
    for name, mistake, hint in mistakes:
        raise RequestError(f"inputs.{name}.from: {mistake}" + (f"; {hint}" if hint else "."))
