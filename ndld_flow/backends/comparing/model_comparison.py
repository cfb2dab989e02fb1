"""Run two models on the same inputs and measure how far their outputs agree. One session is open at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ndld_flow.backends.comparing.agreement import Agreement
from ndld_flow.backends.comparing.model_matching import Pair, pair_names, shared_inputs
from ndld_flow.backends.models.declared_inputs import model_inputs
from ndld_flow.backends.models.tensors import Array, shape_text
from ndld_flow.backends.running.feeds import Feed, make_feeds, note_assumed
from ndld_flow.backends.running.generated_values import is_float, is_integer
from ndld_flow.backends.running.onnxruntime_session import SessionSettings, open_model
from ndld_flow.inputs import InputSpec

Outputs = Mapping[str, Array | None]


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    path: Path
    label: str
    settings: SessionSettings


@dataclass(frozen=True)
class Samples:
    """What both models are run on: sample i is seeded with `seed + i`."""

    given: Mapping[str, InputSpec]
    count: int
    seed: int


@dataclass
class ComparedOutput:
    """One output of the reference, or one that only the candidate has."""

    pair: Pair
    agreement: Agreement
    dtype: str = ""
    """The candidate's."""
    shape: tuple[int, ...] = ()
    """The candidate's, of the first sample."""
    exact: bool = False
    """Integers, bools and strings are equal or not."""
    wrong: list[str] = field(default_factory=list)
    """Why it could not be compared, as sentences."""

    @property
    def name(self) -> str:
        """The reference's name; the candidate's where the reference has no such output."""
        return self.pair[0] or self.pair[1] or ""


@dataclass(frozen=True)
class Comparison:
    """What came out of running both."""

    inputs: dict[str, str]
    """Input -> how the first sample's values came to be."""
    outputs: tuple[ComparedOutput, ...]
    provider_reference: str
    provider_candidate: str
    notes: tuple[str, ...]
    """What makes the comparison say less than it seems to."""
    log: str
    """What ONNX Runtime had to say."""


@dataclass
class _Run:
    """A model being run, sample after sample."""

    provider: str = ""
    log: str = ""

    def samples(self, side: Side, feeds: Iterator[dict[str, Array]]) -> Iterator[dict[str, Array | None]]:
        model = open_model(side.path, side.settings)
        self.provider, self.log = model.providers[0], model.log
        for arrays in feeds:
            bound = model.bind(arrays)
            bound.once()
            yield bound.outputs()


def compare_models(
    reference: Side,
    candidate: Side,
    samples: Samples,
    bounds: Callable[[str], tuple[float | None, float | None]],
    scratch: Path,
    progress: Callable[[int, int, str], None],
) -> Comparison:
    """Run both models on the same samples and compare every output.

    `bounds` gives (rtol, atol) for an output's name. Inputs and outputs are matched by name, what is left by order;
    inputs are cast to each model's own dtypes. The reference's outputs wait in `scratch`. Raises `ModelError`,
    `BackendError` or `RequestError` when a model cannot be run as asked; an output that cannot be compared says so in
    `ComparedOutput.wrong`.
    """
    inputs = shared_inputs(model_inputs(reference.path), model_inputs(candidate.path))
    given = inputs.named_as_reference(samples.given)
    described: dict[str, str] = {}
    notes: set[str] = set()

    def feeds(side: Side, offset: int) -> Iterator[dict[str, Feed]]:
        for i in range(samples.count):
            progress(offset + i, 2 * samples.count, f"running {side.label}")
            made = make_feeds(inputs.specs, given, samples.seed + i, reference.label)
            described.update({name: feed.description for name, feed in made.items()} if i == 0 else {})
            notes.update(note_assumed(made))
            yield made

    first, second = _Run(), _Run()
    plain = ({name: feed.values for name, feed in made.items()} for made in feeds(reference, 0))
    kept = [_keep(scratch, i, outputs) for i, outputs in enumerate(first.samples(reference, plain))]
    cast = (inputs.for_candidate(made) for made in feeds(candidate, samples.count))
    compared: tuple[ComparedOutput, ...] = ()
    for i, outputs in enumerate(second.samples(candidate, cast)):
        if i == 0:
            pairs = pair_names(list(kept[0]), list(outputs))
            compared = tuple(ComparedOutput(pair, Agreement(*bounds(pair[0] or pair[1] or ""))) for pair in pairs)
        for output in compared:
            _add(output, kept[i], outputs)
    flat = [output.name for output in compared if output.agreement.says_little]
    if flat:
        notes.add(f"the reference gives the same number everywhere in {', '.join(flat)}, so agreement says little")
    log = "\n".join(text for text in (first.log, second.log) if text)
    return Comparison(described, compared, first.provider, second.provider, tuple(sorted(notes)), log)


def _keep(scratch: Path, sample: int, outputs: Outputs) -> dict[str, Path | None]:
    """Write one sample's outputs aside; None for an output that is no tensor."""
    kept: dict[str, Path | None] = {}
    for number, (name, array) in enumerate(outputs.items()):
        kept[name] = None if array is None else scratch / f"{sample}-{number}.npy"
        if array is not None:
            np.save(scratch / f"{sample}-{number}.npy", _storable(array), allow_pickle=False)
    return kept


def _storable(array: Array) -> Array:
    """What a .npy file can hold: strings of one length, and bfloat16 and its like as float32 (which is exact)."""
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin != 1:
        return array.astype(np.float32 if is_float(array.dtype) else np.int64)
    return array


def _add(output: ComparedOutput, kept: Mapping[str, Path | None], outputs: Outputs) -> None:
    mine, theirs = output.pair
    if output.wrong:
        return
    if mine is None or theirs is None:
        owner, other = ("candidate", "reference") if mine is None else ("reference", "candidate")
        output.wrong.append(f"only the {owner} has this output, the {other} has not")
        return
    path, array = kept[mine], outputs[theirs]
    if path is None or array is None:
        output.wrong.append("it is no tensor, so it cannot be compared")
        return
    candidate = _storable(array)
    reference = np.load(path, mmap_mode="r", allow_pickle=False)
    if not output.dtype:
        output.dtype, output.shape = str(array.dtype.name), tuple(array.shape)
        output.exact = not is_float(reference.dtype)
    _check_comparable(output, reference, candidate)
    if not output.wrong:
        output.agreement.add(reference, candidate)


def _check_comparable(output: ComparedOutput, reference: Array, candidate: Array) -> None:
    if _family(reference) != _family(candidate):
        output.wrong.append(f"it is {candidate.dtype.name} where the reference has {reference.dtype.name}")
    elif reference.shape != candidate.shape:
        output.wrong.append(
            f"its shape is {shape_text(candidate.shape)} where the reference has {shape_text(reference.shape)}"
        )


def _family(array: Array) -> str:
    if is_float(array.dtype):
        return "float"
    return "integer" if is_integer(array.dtype) else str(array.dtype.kind)
