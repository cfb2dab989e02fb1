"""Comparison of two models' outputs on the same samples.

Only one session is open at a time; outputs are stored in files, because they may exceed memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ndld_flow.accuracy.agreement import Agreement, Measuring, Yardstick, find_yardstick
from ndld_flow.accuracy.inside.capture import tensors_of
from ndld_flow.accuracy.ranked_lists import Outputs, RankedList, find_lists
from ndld_flow.accuracy.sequence_runs import AppendedParts, States, UnrolledSamples, refuse_mistakes
from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, with_time_left
from ndld_flow.base.text import joined, short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.versions import read_version
from ndld_flow.models.element_types import element_of
from ndld_flow.models.files import model_inputs, model_outputs
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype, shape_text
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.records.execution import Execution
from ndld_flow.records.measurement import ANOTHER_ORDER, FIXED_SIZES
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import open_model
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import Session, SessionFacts, SessionRequest
from ndld_flow.runtimes.session_process import open_session
from ndld_flow.samples.feedback import Feedback, check_feedback, find_feedback, states_only
from ndld_flow.samples.feeds import Pair, SharedInputs, pair_names, shared_inputs
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.sample_feeds import Sample, Samples, SeenSamples, make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import Sequences, make_sequences
from ndld_flow.samples.wanted_inputs import Feed

_HELD_BYTES = 64 * 2**20
"""Outputs up to this size in total stay in memory: sequences have thousands of small ones."""

CONSTANT = "the reference is constant in"
"""Beginning of the note on outputs that are constant."""


class StoredOutputs:
    """Stored outputs, sample by sample, in the order they were stored: the first ones in memory, others in files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
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

    def first(self, count: int) -> StoredOutputs:
        """Return the outputs of the first samples, which stay where they are."""
        part = copy(self)
        part._samples = self._samples[:count]
        return part

    def samples_of(self, name: str, rows: RankedList | None = None) -> Callable[[], Iterator[Array]]:
        """Return a function that yields one output, sample by sample, of the samples in which it is a tensor; of a list
        only the rows that are compared.
        """
        part = Yardstick(rows=rows)
        return lambda: (
            array for outputs in self for array in part.pair(name, outputs, outputs)[:1] if array is not None
        )

    def yardsticks(self, model: Path, positions: Mapping[str, tuple[int, ...]]) -> dict[str, Yardstick]:
        """Return output -> how it is judged, of a reference with this file, whose outputs these are."""
        lists, found = find_lists(self, model), dict[str, Yardstick]()
        for name in dict.fromkeys(name for outputs in self for name, array in outputs.items() if array is not None):
            rows = lists.get(name)
            found[name] = find_yardstick(self.samples_of(name, rows), positions.get(name, ()), rows)
        return found

    def __iter__(self) -> Iterator[dict[str, Array | None]]:
        return (self[i] for i in range(len(self)))


def storable(array: Array) -> Array:
    """Return an array that can be written to a .npy file: strings of fixed length, and bfloat16 and the like as
    float32, which is exact.
    """
    if array.dtype.kind in "OU":
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

    def add(
        self, sample: str, reference: Outputs, candidate: Outputs, named: Outputs, dtypes: Mapping[str, str]
    ) -> None:
        """Compare one more sample; `named` has the candidate's outputs by the reference's names, and `dtypes` maps
        outputs that run in another dtype to their declared one.
        """
        if self.wrong:
            return
        mine, theirs = self.pair
        if mine is None or theirs is None:
            owner, other = ("candidate", "reference") if mine is None else ("reference", "candidate")
            self.wrong.append(f"the {owner} has this output, and the {other} does not")
            return
        if mine not in reference and theirs not in candidate:  # an element that not every sample has
            self.skip()
            return
        if mine not in reference or theirs not in candidate:
            owner, other = ("candidate", "reference") if mine not in reference else ("reference", "candidate")
            self.wrong.append(f"in sample {sample}, the {owner} has this element, and the {other} does not")
            return
        r, c = reference[mine], candidate[theirs]
        if r is None or c is None:
            self.wrong.append("it has no dense numbers or texts, so it cannot be compared")
            return
        if not self.dtype:
            self.dtype, self.shape = dtypes.get(theirs, str(c.dtype.name)), tuple(c.shape)
        r, c = self.yardstick.pair(mine, reference, named)
        assert r is not None and c is not None
        self._add_tensors(sample, r, storable(c))

    def skip(self) -> None:
        """Pass over a sample in which neither model has this output."""
        self.samples.append({})
        self.nonfinite.append(0)

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
Forced = Literal["nothing", "tokens", "states"]
"""The values that the candidate gets from the reference at every step; with its states also its tokens."""


@dataclass(frozen=True)
class ComparedModel:
    """One of the two models of a comparison."""

    path: Path
    label: str
    settings: OnnxruntimeRequest
    request: SessionRequest | None = None
    """The runtime that runs it; None for ONNX Runtime with these settings."""
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
        """True if it runs on the CPU in ONNX Runtime."""
        return self.request is None and full_name(self.settings.provider) == CPU

    def open(self, scratch: Path) -> Session:
        """Open the model as it runs; a process of its own keeps its files in `scratch`."""
        if self.request is None:
            return open_model(self.to_run, self.settings)
        return open_session(self.request, self.to_run, scratch)

    def describe(self, facts: SessionFacts) -> Execution:
        """Return the record of what runs it, from the description of its session."""
        if self.request is None:
            return Execution(library=read_version("onnxruntime"), device=facts.devices[0])
        versions = " ".join(self.request.library_versions(facts.versions).values())
        return Execution(
            library=f"{self.request.names().library} {versions}",
            device=facts.device_name or facts.devices[0],
            built=self.request.describe_built_file(),
        )

    def refuse_sample(self, sample: str, arrays: Mapping[str, Array]) -> None:
        """Raise `RequestError` for a sample whose shapes it is known not to accept."""
        assert self.request is not None
        try:
            self.request.refuse_shapes({name: array.shape for name, array in arrays.items()})
        except RequestError as error:
            raise RequestError(f"{self.label}, sample {short_name(sample)}: {error}") from None


@dataclass
class ModelRun:
    """Runs a model sample by sample."""

    side: ComparedModel
    scratch: Path
    execution: Execution | None = None
    """What ran it, once it has run."""
    provider: str = ""
    log: str = ""
    notes: tuple[str, ...] = ()
    """The precision of another runtime than ONNX Runtime, and its notes, such as inputs that it casts."""
    growing: set[str] = field(default_factory=set)
    """Outputs that begin with the states they were computed from."""
    tokens: list[dict[str, Array]] = field(default_factory=list)
    """The tokens that each step read, by the names of their inputs."""

    def over(self, feeds: Iterator[dict[str, Array]], feedback: Feedback) -> Iterator[dict[str, Array | None]]:
        """Yield the outputs by name, None for one that is not a tensor; the session stays open during the iteration.

        States take the outputs of the step before; of a state that only grows, the new part is yielded.
        """
        with closing(self.side.open(self.scratch)) as model:
            facts = model.describe()
            self.log, self.execution = model.log, self.side.describe(facts)
            self.provider = self.execution.device
            if self.side.request is not None:
                self.provider = f"{self.side.request.names().library} {self.provider}"
                precision = facts.facts.get("inference_precision")
                computed = f", whose layers computed in {precision}" if precision else ""
                built = "" if self.execution.built is None else f" as {self.execution.built.described}"
                self.notes = (f"{self.side.label} ran{built} in {self.execution.described}{computed}", *facts.notes)
            casts = NarrowedInputs(facts.inputs)
            states, parts = States(feedback, facts.inputs, self.side.path), AppendedParts(feedback)
            chosen = feedback.keys() - states_only(feedback).keys()
            for arrays in feeds:
                fed, outputs = states.run(model, arrays)
                casts.add(fed)
                self.tokens.append({name: fed[name] for name in chosen})
                yield parts.cut(fed, outputs)
                self.growing |= parts.growing
            self.log = model.log
            self.notes += tuple(casts.notes())


class NarrowedInputs:
    """Values of inputs that a runtime casts to a narrower float type than the model's, where they become infinite."""

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        floats = {spec.name: numpy_dtype(spec.dtype) for spec in inputs}
        self._dtypes = {name: dtype for name, dtype in floats.items() if dtype is not None and is_float(dtype)}
        self._lost: Counter[str] = Counter()

    def add(self, arrays: Mapping[str, Array]) -> None:
        """Add the values of one sample."""
        for name, dtype in self._dtypes.items():
            values = arrays.get(name)
            if values is not None and is_float(values.dtype) and values.dtype.itemsize > dtype.itemsize:
                with np.errstate(over="ignore"):
                    cast = values.astype(dtype).astype(values.dtype)
                self._lost[name] += int(np.count_nonzero(np.isfinite(values) & ~np.isfinite(cast)))

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each input with such values."""
        for name, count in self._lost.items():
            if count:
                yield f"input {name}: {counted(count, 'value')} became infinite in {self._dtypes[name].name}"


Progress = Callable[[int, int, str], None]
MeasuringOf = Callable[[str], Measuring]
"""Returns the metrics to measure on an output, given its name."""


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
    seen: SeenSamples | None = None
    """The samples of the data that steps which made the candidate were fitted to."""
    sequences: Sequences | None = None
    """The sequences whose steps are the samples; None for single samples."""
    forced: Forced = "tokens"

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
    forced: Forced = "tokens"

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


@dataclass(frozen=True)
class ReferenceRun:
    """The reference's outputs on all samples, with which any number of candidates are compared."""

    run: ModelRun
    outputs: StoredOutputs
    labels: tuple[str, ...]
    """The label of each sample."""
    inputs: dict[str, str]
    """Input -> origin of its values in the first sample."""
    yardsticks: dict[str, Yardstick] = field(default_factory=dict)
    """Output -> the criterion by which it is judged; empty until one is asked for."""

    def yardstick(self, output: str, places: Mapping[str, tuple[int, ...]]) -> Yardstick:
        if not self.yardsticks:
            self.yardsticks.update(self.outputs.yardsticks(self.run.side.path, places))
        return self.yardsticks.get(output, Yardstick())


def run_reference(pair: ModelPair, scratch: Path, progress: Progress) -> ReferenceRun:
    """Run the reference of a pair on all samples, and store its outputs in `scratch`. Raises as `compare_models`."""
    run, kept = ModelRun(pair.reference, scratch), StoredOutputs(scratch / "reference")
    reader = _SampleReader(pair, progress)
    for outputs in run.over(reader.for_reference(run), _feedback_of(pair, pair.reference)):
        kept.add(outputs)
    return ReferenceRun(run, kept, tuple(reader.labels), reader.described)


def compare_models(
    pair: ModelPair,
    measuring: MeasuringOf,
    keep_candidate: bool,
    scratch: Path,
    progress: Progress,
    known: ReferenceRun | None = None,
) -> Comparison:
    """Run both models on the same samples and compare every output; `known` is a run of this reference on these.

    Outputs are matched by name, then by order;
    inputs are cast to each model's own dtypes. The reference's outputs are stored in `scratch`, and the candidate's too
    with `keep_candidate`. Raises `ModelError`, `BackendError` or `RequestError` if a model cannot be run as
    requested; `ComparedOutput.wrong` explains outputs that cannot be compared.
    """
    reference = known or run_reference(pair, scratch, progress)
    first, second, kept = reference.run, ModelRun(pair.candidate, scratch), reference.outputs
    kept_theirs = StoredOutputs(scratch / "candidate")
    cast = (
        pair.inputs.for_candidate(feeds) for feeds in _SampleReader(pair, progress).for_candidate(second, first.tokens)
    )
    outputs = _Outputs(pair, reference, measuring, pair.candidate.stored_dtypes)
    for computed in second.over(cast, _feedback_of(pair, pair.candidate)):
        outputs.add(computed)
        if keep_candidate or pair.sequences is not None:
            kept_theirs.add(outputs.named_as_reference(computed))
    compared = outputs.finish()
    return Comparison(
        inputs=reference.inputs,
        samples=reference.labels,
        outputs=compared,
        arithmetic=pair.arithmetic,
        reference=first,
        candidate=second,
        kept_reference=kept,
        kept_candidate=kept_theirs,
        notes=(*first.notes, *second.notes, *sorted(_caveats(pair, compared))),
        seen=pair.samples.seen,
        sequences=pair.sequences,
        forced=pair.forced,
    )


def compare_first(pair: ModelPair, compared: Comparison, count: int, measuring: MeasuringOf) -> Comparison:
    """Return the comparison on the first samples alone, from the stored outputs of both models."""
    kept, theirs = compared.kept_reference.first(count), compared.kept_candidate.first(count)
    reference = ReferenceRun(compared.reference, kept, compared.samples[:count], compared.inputs)
    outputs = _Outputs(pair, reference, measuring, {output.name: output.dtype for output in compared.outputs})
    for stored in theirs:
        outputs.add(stored)
    notes = (*compared.reference.notes, *compared.candidate.notes, *sorted(_caveats(pair, outputs.compared)))
    return replace(
        compared,
        samples=reference.labels,
        outputs=tuple(outputs.compared),
        kept_reference=kept,
        kept_candidate=theirs,
        notes=notes,
    )


class _Outputs:
    """The outputs of a candidate, compared sample by sample with the stored ones of the reference."""

    def __init__(
        self, pair: ModelPair, reference: ReferenceRun, measuring: MeasuringOf, dtypes: Mapping[str, str]
    ) -> None:
        self._reference, self._measuring, self._dtypes = reference, measuring, dtypes
        self._declared = {spec.name: _positions(spec.shape or ()) for spec in model_outputs(pair.reference.path)}
        self._count = 0
        self.compared: list[ComparedOutput] = []

    def add(self, outputs: Outputs) -> None:
        """Compare the outputs of one more sample."""
        kept, sample = self._reference.outputs[self._count], self._reference.labels[self._count]
        # The outputs that no sample before had: sequences differ in length.
        mine, theirs = ({output.pair[side] for output in self.compared} for side in (0, 1))
        for names in pair_names([n for n in kept if n not in mine], [n for n in outputs if n not in theirs]):
            self.compared.append(self._prepare(names))
            for _ in range(self._count):
                self.compared[-1].skip()
        named = self.named_as_reference(outputs)
        for output in self.compared:
            output.add(sample, kept, outputs, named, self._dtypes)
        self._count += 1

    def named_as_reference(self, outputs: Outputs) -> Outputs:
        """Return a candidate's outputs by the names of the reference, without those that it lacks."""
        own = {theirs: mine for mine, theirs in (output.pair for output in self.compared) if mine is not None}
        return {own[name]: array for name, array in outputs.items() if name in own}

    def finish(self) -> tuple[ComparedOutput, ...]:
        """Return all outputs, the declared ones if no optional output had a value."""
        return tuple(self.compared or (self._prepare((name, name)) for name in self._declared))

    def _prepare(self, pair: Pair) -> ComparedOutput:
        """Return an output to compare, with the criterion by which the candidate's errors are judged."""
        name = pair[0]
        yardstick = Yardstick() if name is None else self._reference.yardstick(name, self._declared)
        return ComparedOutput(pair, Agreement(self._measuring(name or pair[1] or ""), yardstick), yardstick=yardstick)


def _caveats(pair: ModelPair, compared: Sequence[ComparedOutput]) -> set[str]:
    """Return reasons why the comparison is weaker evidence than it seems."""
    notes = {*pair.samples.notes, *pair.reference.notes, *pair.candidate.notes}
    mine, theirs = map(_output_names, (pair.reference, pair.candidate))
    if mine != theirs and sorted(mine) == sorted(theirs):
        order = ", ".join(map(short_name, theirs))
        notes.add(f"{ANOTHER_ORDER}: {order}")
    freer, own = pair.inputs.freer_shapes, pair.inputs.candidate_shapes
    if freer:
        sizes = (f"{short_name(name)} {shape_text(own[name] or ())}, not {shape_text(freer[name])}" for name in freer)
        notes.add(f"{FIXED_SIZES}: {', '.join(sizes)}")
    lists = {output.yardstick.rows for output in compared if output.yardstick.rows is not None}
    notes |= {
        f"{joined(each.outputs)}: the most similar rows are compared, as the model sorts them by column {each.column} "
        f"of {each.score}"
        for each in lists
    }
    flat = [output.name for output in compared if output.agreement.is_weak_evidence]
    if flat:
        notes.add(f"{CONSTANT} {', '.join(flat)}, so agreement there is weak evidence")
    return notes


class _SampleReader:
    """Reads samples for a model; records their labels and the origin of the first one."""

    def __init__(self, pair: ModelPair, progress: Progress) -> None:
        self._pair, self._progress = pair, progress
        self.labels: list[str] = []
        self.described: dict[str, str] = {}

    def through(self, run: ModelRun, round_number: int) -> Iterator[Sample]:
        complete = self._pair.forced == "states" and round_number == 1
        samples: Samples | Sequences = self._pair.complete_samples if complete else self._pair.samples
        count, started_s = len(samples), time.monotonic()
        for i, sample in enumerate(samples):
            left_s = (time.monotonic() - started_s) * (count - i) / i if i else 0.0
            what = with_time_left(f"running {run.side.label}", left_s)
            self._progress(round_number * count + i, 2 * count, what)
            if round_number == 0:
                self.labels.append(sample.label)
                self.described = self.described or {name: feed.description for name, feed in sample.feeds.items()}
            yield sample

    def for_reference(self, run: ModelRun) -> Iterator[dict[str, Array]]:
        """Yield the reference's values; a sample that the candidate is known to refuse ends the comparison early."""
        reference, candidate = self._pair.reference, self._pair.candidate
        for sample in self.through(run, 0):
            if reference.request is not None:
                reference.refuse_sample(sample.label, sample.arrays)
            if candidate.request is not None:
                candidate.refuse_sample(sample.label, self._pair.inputs.for_candidate(sample.feeds))
            yield sample.arrays

    def for_candidate(self, run: ModelRun, tokens: Sequence[Mapping[str, Array]]) -> Iterator[dict[str, Feed]]:
        """Yield the candidate's values, with the reference's tokens of the same step if they are forced."""
        for sample, chosen in zip(self.through(run, 1), tokens, strict=True):
            forced = {name: Feed(values, "token of the reference") for name, values in chosen.items()}
            yield {**sample.feeds, **(forced if self._pair.forced == "tokens" else {})}


def _feedback_of(pair: ModelPair, side: ComparedModel) -> Feedback:
    """Return the states of a model under its own names. Raises `RequestError` for outputs that cannot be states."""
    if pair.sequences is None:
        return {}
    feedback, inputs, outputs = pair.sequences.feedback, model_inputs(side.path), model_outputs(side.path)
    if side is pair.candidate:
        names = {mine: theirs for mine, theirs in pair_names(*map(_output_names, (pair.reference, side))) if mine}
        feedback = {
            pair.inputs.candidate_names[name]: replace(fed, output=names.get(fed.output) or fed.output)
            for name, fed in feedback.items()
        }
    refuse_mistakes(check_feedback(feedback, inputs, outputs, side.label))
    if side is pair.reference or pair.forced == "nothing":
        return feedback
    return {} if pair.forced == "states" else states_only(feedback)


def _output_names(side: ComparedModel) -> list[str]:
    return [spec.name for spec in model_outputs(side.path)]


def _positions(shape: Sequence[int | str | None]) -> tuple[int, ...]:
    """Return the dynamic axes of an output that has fixed ones too; of others, exporters may have lost the sizes."""
    dynamic = tuple(axis for axis, dim in enumerate(shape) if not isinstance(dim, int))
    return dynamic if len(dynamic) < len(shape) else ()
