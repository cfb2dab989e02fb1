"""Run two models on the same samples and tell how far their outputs agree. One session is open at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ndld_flow.accuracy.agreement import Agreement
from ndld_flow.accuracy.compared_output import ComparedOutput
from ndld_flow.accuracy.kept_outputs import KeptOutputs
from ndld_flow.accuracy.measuring import Measuring
from ndld_flow.accuracy.sides import Arithmetic, Run, Side
from ndld_flow.accuracy.yardstick import Yardstick, find_yardstick
from ndld_flow.inputs import InputSpec
from ndld_flow.models.declared_inputs import model_inputs, model_outputs
from ndld_flow.runtimes.onnxruntime.model_matching import Pair, SharedInputs, pair_names, shared_inputs
from ndld_flow.samples.sample_feeds import Sample, Samples, make_samples
from ndld_flow.samples.sample_settings import SampleSettings

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Comparison:
    """What came out of running both."""

    inputs: dict[str, str]
    """Input -> how the first sample's values came to be."""
    samples: tuple[str, ...]
    """What each sample is called."""
    outputs: tuple[ComparedOutput, ...]
    arithmetic: Arithmetic
    reference: Run
    candidate: Run
    kept_reference: KeptOutputs
    kept_candidate: KeptOutputs
    """Empty unless they were asked for; by the reference's names."""
    notes: tuple[str, ...]
    """What makes the comparison say less than it seems to."""

    @property
    def emulated(self) -> tuple[Literal["reference", "candidate"], ...]:
        """The models whose stored precision was emulated."""
        first: tuple[Literal["reference"], ...] = ("reference",) if self.reference.side.emulation else ()
        second: tuple[Literal["candidate"], ...] = ("candidate",) if self.candidate.side.emulation else ()
        return (*first, *second)

    @property
    def log(self) -> str:
        """What ONNX Runtime had to say."""
        return "\n".join(run.log for run in (self.reference, self.candidate) if run.log)


@dataclass(frozen=True)
class ModelPair:
    """Two models that can be fed alike, and the samples they are fed."""

    reference: Side
    candidate: Side
    inputs: SharedInputs
    samples: Samples
    arithmetic: Arithmetic

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the outputs of both are called: as in the reference, if it has them."""
        mine, theirs = ([spec.name for spec in model_outputs(side.path)] for side in (self.reference, self.candidate))
        return tuple(one or other or "" for one, other in pair_names(mine, theirs))

    def with_arithmetic(self, scratch: Path) -> ModelPair:
        """The same as they are to be run: where `stored` is asked for, fp16 and bf16 models are emulated on a CPU."""
        if self.arithmetic == "native":
            return replace(self, reference=self.reference.native(), candidate=self.candidate.native())
        reference = self.reference.emulated(scratch / "reference.onnx")
        return replace(self, reference=reference, candidate=self.candidate.emulated(scratch / "candidate.onnx"))


def pair_models(
    reference: Side, candidate: Side, given: Mapping[str, InputSpec], wanted: SampleSettings, arithmetic: Arithmetic
) -> ModelPair:
    """Match two models' inputs, by name and what is left by order, and find samples for both.

    Raises `ModelError` when the models have different inputs, `RequestError` for samples that cannot be found.
    """
    inputs = shared_inputs(model_inputs(reference.path), model_inputs(candidate.path))
    own = wanted.model_copy(update={"data": inputs.named_as_reference(wanted.data)})
    samples = make_samples(inputs.specs, inputs.named_as_reference(given), own, reference.label)
    return ModelPair(reference, candidate, inputs, samples, arithmetic)


def compare_models(
    pair: ModelPair, measuring: Callable[[str], Measuring], keep_candidate: bool, scratch: Path, progress: Progress
) -> Comparison:
    """Run both models on the same samples and compare every output.

    `measuring` says what is measured on an output, by its name. Outputs are matched by name, what is left by order;
    inputs are cast to each model's own dtypes. The reference's outputs wait in `scratch`, and the candidate's where
    they are to be kept. Raises `ModelError`, `BackendError` or `RequestError` when a model cannot be run as asked; an
    output that cannot be compared says so in `ComparedOutput.wrong`.
    """
    first, second = Run(pair.reference), Run(pair.candidate)
    kept, theirs = KeptOutputs(_folder(scratch, "reference")), KeptOutputs(_folder(scratch, "candidate"))
    told = _Told(pair.samples, progress)
    plain = ({name: feed.values for name, feed in sample.feeds.items()} for sample in told.through(first, 0))
    for outputs in first.over(plain):
        kept.keep(outputs)
    cast = (pair.inputs.for_candidate(sample.feeds) for sample in told.through(second, 1))
    compared: tuple[ComparedOutput, ...] = ()
    for i, outputs in enumerate(second.over(cast)):
        if i == 0:
            pairs = pair_names(list(kept[0]), list(outputs))
            compared = tuple(_prepare(two, measuring(two[0] or two[1] or ""), kept) for two in pairs)
        for output in compared:
            output.add(told.labels[i], kept[i], outputs, pair.candidate.stored_dtypes)
        if keep_candidate:
            names = {two: one for one, two in (output.pair for output in compared) if one is not None}
            theirs.keep({names[name]: array for name, array in outputs.items() if name in names})
    notes = {*pair.samples.notes, *pair.reference.notes, *pair.candidate.notes, *_hollow(compared)}
    return Comparison(
        inputs=told.described,
        samples=tuple(told.labels),
        outputs=compared,
        arithmetic=pair.arithmetic,
        reference=first,
        candidate=second,
        kept_reference=kept,
        kept_candidate=theirs,
        notes=tuple(sorted(notes)),
    )


class _Told:
    """Samples on their way to a model: what they are called, and how the first one came to be."""

    def __init__(self, samples: Samples, progress: Progress) -> None:
        self._samples, self._progress = samples, progress
        self.labels: list[str] = []
        self.described: dict[str, str] = {}

    def through(self, run: Run, round_number: int) -> Iterator[Sample]:
        count = len(self._samples)
        for i, sample in enumerate(self._samples):
            self._progress(round_number * count + i, 2 * count, f"running {run.side.label}")
            if round_number == 0:
                self.labels.append(sample.label)
                self.described = self.described or {name: feed.description for name, feed in sample.feeds.items()}
            yield sample


def _prepare(pair: Pair, measuring: Measuring, kept: KeptOutputs) -> ComparedOutput:
    """Measure the reference's values of an output, which the candidate's errors are judged by."""
    yardstick = Yardstick() if pair[0] is None else find_yardstick(kept.samples_of(pair[0]))
    return ComparedOutput(pair, Agreement(measuring, yardstick), yardstick=yardstick)


def _folder(scratch: Path, name: str) -> Path:
    folder = scratch / name
    folder.mkdir()
    return folder


def _hollow(compared: Sequence[ComparedOutput]) -> Sequence[str]:
    flat = [output.name for output in compared if output.agreement.says_little]
    if not flat:
        return ()
    return (f"the reference gives the same number everywhere in {', '.join(flat)}, so agreement says little",)
