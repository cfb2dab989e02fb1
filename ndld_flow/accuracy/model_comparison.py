"""Comparison of two models' outputs on the same samples.

Only one session is open at a time; outputs are stored in files, because they may exceed memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ndld_flow.accuracy.agreement import Agreement, Measuring, Yardstick, find_yardstick
from ndld_flow.accuracy.inside.capture import tensors_of
from ndld_flow.accuracy.sequence_runs import AppendedParts, Outputs, States, UnrolledSamples, refuse_mistakes
from ndld_flow.inputs import InputSpec
from ndld_flow.models.element_types import element_of
from ndld_flow.models.files import model_inputs, model_outputs
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.model_matching import Pair, SharedInputs, pair_names, shared_inputs
from ndld_flow.samples.sample_feeds import Sample, Samples, make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import Feedback, Sequences, check_feedback, find_feedback, make_sequences

_HELD_BYTES = 64 * 2**20
"""Outputs up to this size in total stay in memory: sequences have thousands of small ones."""


class StoredOutputs:
    """Stored outputs, sample by sample, in the order they were stored: the first ones in memory, others in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._samples: list[dict[str, Path | Array | None]] = []
        self._held_bytes = 0

    def add(self, outputs: Outputs) -> None:
        kept: dict[str, Path | Array | None] = {}
        for number, (name, array) in enumerate(outputs.items()):
            kept[name] = None if array is None else self._keep(storable(array), number)
        self._samples.append(kept)

    def _keep(self, array: Array, number: int) -> Path | Array:
        if self._held_bytes + array.nbytes <= _HELD_BYTES:
            self._held_bytes += array.nbytes
            held = array.view()
            held.flags.writeable = False  # as a mapped file is: a user's metric gets it
            return held
        path = self._folder / f"{len(self._samples)}-{number}.npy"
        np.save(path, array, allow_pickle=False)
        return path

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, sample: int) -> dict[str, Array | None]:
        """Return the outputs of one sample by name; types unknown to .npy files are converted as by `storable`."""
        return {
            name: np.load(kept, mmap_mode="r", allow_pickle=False) if isinstance(kept, Path) else kept
            for name, kept in self._samples[sample].items()
        }

    def samples_of(self, name: str) -> Callable[[], Iterator[Array]]:
        """Return a function that yields one output, sample by sample; it yields nothing for an output that is not a
        tensor.
        """
        return lambda: (array for outputs in self for array in [outputs[name]] if array is not None)

    def __iter__(self) -> Iterator[dict[str, Array | None]]:
        return (self[i] for i in range(len(self)))


def storable(array: Array) -> Array:
    """Return an array that can be written to a .npy file: strings of fixed length, and bfloat16 and the like as
    float32, which is exact.
    """
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.isbuiltin != 1:
        return array.astype(np.float32 if is_float(array.dtype) else np.int64)
    return array


@dataclass
class ComparedOutput:
    """One output of the reference, or one that only the candidate has."""

    pair: Pair
    agreement: Agreement
    dtype: str = ""
    """The candidate's element type, as its model declares it."""
    shape: tuple[int, ...] = ()
    """The candidate's shape in the first sample."""
    yardstick: Yardstick = field(default_factory=Yardstick)
    """The criterion by which it is judged."""
    samples: list[dict[str, float]] = field(default_factory=list)
    """The metrics of each sample alone."""
    nonfinite: list[int] = field(default_factory=list)
    """Elements of each sample that are NaN or infinite in one model only."""
    wrong: list[str] = field(default_factory=list)
    """Sentences that explain why it could not be compared."""

    @property
    def name(self) -> str:
        """Return the reference's name, or the candidate's if the reference has no such output."""
        return self.pair[0] or self.pair[1] or ""

    def add(self, sample: str, reference: Outputs, candidate: Outputs, dtypes: Mapping[str, str]) -> None:
        """Compare one more sample; `dtypes` maps outputs that run in another dtype to their declared one."""
        if self.wrong:
            return
        mine, theirs = self.pair
        if mine is None or theirs is None:
            owner, other = ("candidate", "reference") if mine is None else ("reference", "candidate")
            self.wrong.append(f"the {owner} has this output, and the {other} does not")
            return
        r, c = reference[mine], candidate[theirs]
        if r is None or c is None:
            self.wrong.append("it is not a tensor, so it cannot be compared")
            return
        if not self.dtype:
            self.dtype, self.shape = dtypes.get(theirs, str(c.dtype.name)), tuple(c.shape)
        self._add_tensors(sample, r, storable(c))

    def _add_tensors(self, sample: str, r: Array, c: Array) -> None:
        if _family(r) != _family(c):
            self.wrong.append(f"it is {c.dtype.name}, and {r.dtype.name} in the reference")
        elif r.shape != c.shape:
            self.wrong.append(f"its shape is {shape_text(c.shape)}, and {shape_text(r.shape)} in the reference")
        else:
            before = self.agreement.nonfinite
            self.samples.append(self.agreement.add(r, c, sample))
            self.nonfinite.append(self.agreement.nonfinite - before)


def _family(array: Array) -> str:
    if is_float(array.dtype):
        return "float"
    return "integer" if is_integer(array.dtype) else str(array.dtype.kind)


_REDUCED = {"float16": "fp16", "bfloat16": "bf16"}


def reduced_precision(model: Path) -> str:
    """Return `fp16` or `bf16`, whichever more inner tensors have; empty if none has either."""
    counts = Counter(_REDUCED.get(element_of(place.type), "") for place in tensors_of(model))
    del counts[""]
    return max(counts, key=lambda precision: counts[precision], default="")


Arithmetic = Literal["stored", "native"]


@dataclass(frozen=True)
class ComparedModel:
    """One of the two models of a comparison."""

    path: Path
    label: str
    settings: SessionSettings
    emulation: Path | None = None
    """The model that emulates its stored precision and runs in its place."""
    stored_dtypes: Mapping[str, str] = field(default_factory=dict)
    """Outputs that the emulation returns as fp32 -> the dtype they are stored in."""
    notes: tuple[str, ...] = ()

    @property
    def to_run(self) -> Path:
        return self.emulation or self.path

    def emulated(self, target: Path) -> ComparedModel:
        """Return the model with its fp16 and bf16 tensors rounded as stored, written to `target`.

        Other models, which have no such tensors or do not run on a CPU, are returned unchanged. On a CPU, ONNX Runtime
        would compute in fp32 and hide overflows.
        """
        if not self._on_cpu:
            return self
        emulated = emulate_stored(self.path, target)
        if emulated is None:
            return self
        return replace(self, emulation=target, stored_dtypes=emulated.outputs, notes=emulated.notes)

    def native(self) -> ComparedModel:
        """Return the model, with a warning if it is computed in a higher precision than it is stored in."""
        if not self._on_cpu or not (precision := reduced_precision(self.path)):
            return self
        warning = (
            f"ONNX Runtime computes {precision} in fp32 on the CPU, where nothing overflows: overflows of "
            f"{self.label} on a GPU are visible only with `arithmetic: stored`"
        )
        return replace(self, notes=(warning,))

    @property
    def _on_cpu(self) -> bool:
        return full_name(self.settings.provider) == CPU


@dataclass
class ModelRun:
    """Runs a model sample by sample."""

    side: ComparedModel
    provider: str = ""
    log: str = ""
    growing: set[str] = field(default_factory=set)
    """Outputs that begin with the states they were computed from."""

    def over(self, feeds: Iterator[dict[str, Array]], feedback: Feedback) -> Iterator[dict[str, Array | None]]:
        """Yield the outputs by name, None for one that is not a tensor; the session stays open during the iteration.

        States take the outputs of the step before; of a state that only grows, the new part is yielded.
        """
        model = open_model(self.side.to_run, self.side.settings)
        self.provider, self.log = model.providers[0], model.log
        states, parts = States(feedback, model.describe().inputs, self.side.path), AppendedParts(feedback)
        for arrays in feeds:
            yield parts.cut(*states.run(model, arrays))
            self.growing |= parts.growing


Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Comparison:
    """The results of running both models."""

    inputs: dict[str, str]
    """Input -> origin of its values in the first sample."""
    samples: tuple[str, ...]
    """The label of each sample."""
    outputs: tuple[ComparedOutput, ...]
    arithmetic: Arithmetic
    reference: ModelRun
    candidate: ModelRun
    kept_reference: StoredOutputs
    kept_candidate: StoredOutputs
    """Empty unless requested; named as in the reference."""
    notes: tuple[str, ...]
    """Caveats: reasons why the comparison is weaker evidence than it seems."""
    sequences: Sequences | None = None
    """The sequences whose steps are the samples; None for single samples."""
    forced: bool = False
    """The candidate got the reference's states at every step."""

    @property
    def emulated(self) -> tuple[Literal["reference", "candidate"], ...]:
        """Return the models whose stored precision was emulated."""
        first: tuple[Literal["reference"], ...] = ("reference",) if self.reference.side.emulation else ()
        second: tuple[Literal["candidate"], ...] = ("candidate",) if self.candidate.side.emulation else ()
        return (*first, *second)

    @property
    def log(self) -> str:
        """Return ONNX Runtime's messages."""
        return "\n".join(run.log for run in (self.reference, self.candidate) if run.log)


@dataclass(frozen=True)
class ModelPair:
    """Two models with the same inputs, and the samples to run them on."""

    reference: ComparedModel
    candidate: ComparedModel
    inputs: SharedInputs
    samples: Samples | Sequences
    arithmetic: Arithmetic
    forced: bool = False
    """The candidate gets the reference's states at every step, and not its own."""

    @property
    def sequences(self) -> Sequences | None:
        """Return the samples if they are sequences of steps."""
        return self.samples if isinstance(self.samples, Sequences) else None

    @property
    def complete_samples(self) -> Samples:
        """Return the samples with values for all inputs: of sequences, every step with the reference's states."""
        if isinstance(self.samples, Samples):
            return self.samples
        return UnrolledSamples(self.samples, self.reference.to_run, self.reference.settings)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the outputs of both models, by the reference's names for those that it has."""
        mine, theirs = ([spec.name for spec in model_outputs(side.path)] for side in (self.reference, self.candidate))
        return tuple(name or other_name or "" for name, other_name in pair_names(mine, theirs))

    def with_arithmetic(self, scratch: Path) -> ModelPair:
        """Return the pair as it runs: if `stored` is requested, fp16 and bf16 models are emulated on a CPU."""
        if self.arithmetic == "native":
            return replace(self, reference=self.reference.native(), candidate=self.candidate.native())
        reference = self.reference.emulated(scratch / "reference.onnx")
        return replace(self, reference=reference, candidate=self.candidate.emulated(scratch / "candidate.onnx"))


def pair_models(
    reference: ComparedModel,
    candidate: ComparedModel,
    given: Mapping[str, InputSpec],
    wanted: SampleSettings,
    arithmetic: Arithmetic,
) -> ModelPair:
    """Match two models' inputs, first by name, then by order, and find samples for both.

    Raises `ModelError` if the models have different inputs, `RequestError` for samples that cannot be found.
    """
    inputs = shared_inputs(model_inputs(reference.path), model_inputs(candidate.path))
    own = wanted.model_copy(update={"data": inputs.named_as_reference(wanted.data)})
    named = inputs.named_as_reference(given)
    make = make_sequences if find_feedback(named) else make_samples
    return ModelPair(reference, candidate, inputs, make(inputs.specs, named, own, reference.label), arithmetic)


def compare_models(
    pair: ModelPair, measuring: Callable[[str], Measuring], keep_candidate: bool, scratch: Path, progress: Progress
) -> Comparison:
    """Run both models on the same samples and compare every output.

    `measuring` returns the metrics to measure on an output, given its name. Outputs are matched by name, then by order;
    inputs are cast to each model's own dtypes. The reference's outputs are stored in `scratch`, and the candidate's too
    with `keep_candidate`. Raises `ModelError`, `BackendError` or `RequestError` if a model cannot be run as
    requested; `ComparedOutput.wrong` explains outputs that cannot be compared.
    """
    first, second = ModelRun(pair.reference), ModelRun(pair.candidate)
    kept, kept_theirs = StoredOutputs(_folder(scratch, "reference")), StoredOutputs(_folder(scratch, "candidate"))
    reader = _SampleReader(pair, progress)
    mine, theirs = (_feedback_of(pair, side) for side in (pair.reference, pair.candidate))
    plain = ({name: feed.values for name, feed in sample.feeds.items()} for sample in reader.through(first, 0))
    for outputs in first.over(plain, mine):
        kept.add(outputs)
    cast = (pair.inputs.for_candidate(sample.feeds) for sample in reader.through(second, 1))
    compared: tuple[ComparedOutput, ...] = ()
    for i, outputs in enumerate(second.over(cast, theirs)):
        if i == 0:
            pairs = pair_names(list(kept[0]), list(outputs))
            compared = tuple(_prepare(names, measuring(names[0] or names[1] or ""), kept) for names in pairs)
        for output in compared:
            output.add(reader.labels[i], kept[i], outputs, pair.candidate.stored_dtypes)
        if keep_candidate or pair.sequences is not None:
            names = {theirs: mine for mine, theirs in (output.pair for output in compared) if mine is not None}
            kept_theirs.add({names[name]: array for name, array in outputs.items() if name in names})
    notes = {*pair.samples.notes, *pair.reference.notes, *pair.candidate.notes}
    flat = [output.name for output in compared if output.agreement.is_weak_evidence]
    if flat:
        notes.add(f"the reference is constant in {', '.join(flat)}, so agreement there is weak evidence")
    return Comparison(
        inputs=reader.described,
        samples=tuple(reader.labels),
        outputs=compared,
        arithmetic=pair.arithmetic,
        reference=first,
        candidate=second,
        kept_reference=kept,
        kept_candidate=kept_theirs,
        notes=tuple(sorted(notes)),
        sequences=pair.sequences,
        forced=pair.forced,
    )


class _SampleReader:
    """Reads samples for a model; records their labels and the origin of the first one."""

    def __init__(self, pair: ModelPair, progress: Progress) -> None:
        self._pair, self._progress = pair, progress
        self.labels: list[str] = []
        self.described: dict[str, str] = {}

    def through(self, run: ModelRun, round_number: int) -> Iterator[Sample]:
        forced = self._pair.forced and round_number == 1
        samples: Samples | Sequences = self._pair.complete_samples if forced else self._pair.samples
        count = len(samples)
        for i, sample in enumerate(samples):
            self._progress(round_number * count + i, 2 * count, f"running {run.side.label}")
            if round_number == 0:
                self.labels.append(sample.label)
                self.described = self.described or {name: feed.description for name, feed in sample.feeds.items()}
            yield sample


def _feedback_of(pair: ModelPair, side: ComparedModel) -> Feedback:
    """Return the states of a model under its own names. Raises `RequestError` for outputs that cannot be states."""
    if pair.sequences is None:
        return {}
    feedback, inputs, outputs = pair.sequences.feedback, model_inputs(side.path), model_outputs(side.path)
    if side is pair.candidate:
        names = {mine: theirs for mine, theirs in pair_names(*map(_output_names, (pair.reference, side))) if mine}
        feedback = {pair.inputs.candidate_names[name]: names.get(output) or output for name, output in feedback.items()}
    refuse_mistakes(check_feedback(feedback, inputs, outputs, side.label))
    return {} if pair.forced and side is pair.candidate else feedback


def _output_names(side: ComparedModel) -> list[str]:
    return [spec.name for spec in model_outputs(side.path)]


def _prepare(pair: Pair, measuring: Measuring, kept: StoredOutputs) -> ComparedOutput:
    """Measure the reference's values of an output, by which the candidate's errors are judged."""
    yardstick = Yardstick() if pair[0] is None else find_yardstick(kept.samples_of(pair[0]))
    return ComparedOutput(pair, Agreement(measuring, yardstick), yardstick=yardstick)


def _folder(scratch: Path, name: str) -> Path:
    folder = scratch / name
    folder.mkdir()
    return folder
