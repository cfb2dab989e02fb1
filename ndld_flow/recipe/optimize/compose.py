"""Compose the recipes of `optimize`: a sweep over variants of a model, and the recipe that proves one of them.

Both have the same steps with the same settings, so that the second reuses what the first has computed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ndld_flow.base.declared_metrics import Wrong, find_metric
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted, parse_duration_ms
from ndld_flow.base.text import short_name, suggest
from ndld_flow.recipe.gates import GateError, parse_condition
from ndld_flow.recipe.write_recipe import RecipeOptions, input_lines, name_recipe, try_model
from ndld_flow.store.found_files import find_files

if TYPE_CHECKING:
    from ndld_flow.measure.trial_pass import InputTrial

Target = Literal["onnxruntime", "openvino", "any"]
AT_LEAST = 0.99
"""Largest upper end of the ratio of latencies at which a model is faster: two equal models may differ by 1 %."""
_MOST_FILES = 48
"""Number of files that are used; of more, these are taken at equal distances."""
_FEW_FILES = 12
_RANDOM_SAMPLES = 4
_HELD_SEED = 1000
"""Seed of the held-out random inputs; those of the search start from 0."""
_WHOLE_WEIGHTS = 2**20
"""Bytes of weights of matrix products from which the memory's bandwidth may limit the latency."""
_KEEP = re.compile(r"\s*([A-Za-z_][\w.]*)\s*((?:<=|>=|==|<|>).*)", re.DOTALL)

_SEARCH = """\
# The search of `ndld-flow optimize` for the fastest variant of {model_name} that stays right.
#
#   ndld-flow run {target}
#
# Each variant sets the steps that differ; a variant that fails `agree` is not measured.
{notes}{head}
sweep:
  over:
    variant:
{variants}{threads}
  minimize: speed.latency.min
  subject_to: {conditions}
  together: 1                 # point by point, so that an interruption loses nothing
  winners: 4                  # the best are measured again, in turns
{time}"""
_HEAD = """\
name: {name}
defaults:{profiled}
  - _self_
model: {model}                # relative to the current directory

inputs:                       # the files of the search; `held` has others
{inputs}

runtime: {runtime}

steps:
{steps}"""
_PROOF = """\
# {variant}: the proof of `ndld-flow optimize`, on samples that the search has not seen. Reproduce the result with:
#
#   ndld-flow run {target} -o {output}
#
{head}
gates:
{gates}
"""


@dataclass(frozen=True)
class OptimizeOptions:
    """Options of `optimize`."""

    target: Target = "onnxruntime"
    """The runtime that the model is for; `any` tries both."""
    data: tuple[str, ...] = ()
    """`PATH` or `INPUT=PATH`: a folder, a glob or files. A third is held out of the search."""
    keep: tuple[str, ...] = ()
    """Conditions on metrics of `check_accuracy`, such as `cosine >= 0.999`; by default its own judgement."""
    budget: str = ""
    """No further variant starts after this time: `10 min`."""
    threads: tuple[int, ...] = ()
    """Numbers of threads to measure with; several are a part of the search, none leaves it to the runtime."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its shape."""
    metric: Path | None = None
    """A Python file with your own metric, as in `check_accuracy`."""
    labels: Path | None = None
    """The labels for it, a .csv or .json that names files."""


@dataclass(frozen=True)
class Variant:
    """A variant of the model."""

    name: str
    runtime: str
    """The value of `runtime:`."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Step -> the text of its settings, where they are not those of the sweep."""
    is_source: bool = False

    @property
    def result(self) -> str:
        """Return the step whose model is measured."""
        return "source" if self.is_source else "made"


@dataclass(frozen=True)
class Samples:
    """The files of the inputs: those of the search, and those that are held out."""

    search: Mapping[str, list[str]] = field(default_factory=dict)
    held: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of samples of both parts."""
        if not self.search:
            return _RANDOM_SAMPLES, _RANDOM_SAMPLES
        return len(next(iter(self.search.values()))), len(next(iter(self.held.values())))


@dataclass(frozen=True)
class Composer:
    """Everything from which the recipes of one search are composed."""

    model: Path
    options: OptimizeOptions
    trial: InputTrial
    samples: Samples
    variants: Sequence[Variant]
    left_out: Sequence[str]
    """Sentences on what is not tried, and why."""

    @property
    def name(self) -> str:
        """Return the name of the recipes."""
        return f"optimize-{name_recipe(self.model)}"

    @property
    def base_runtime(self) -> str:
        """Return the runtime in which the source is measured."""
        return "openvino" if self.options.target == "openvino" else "onnxruntime"

    def compose_sweep(self, target: Path) -> str:
        """Return the text of the sweep, for a file."""
        variants = "\n".join(f"      {json.dumps(each.name)}: {{{_changes(each)}}}" for each in self.variants)
        threads = self.options.threads
        return _SEARCH.format(
            model_name=short_name(self.model.name),
            target=short_name(str(target)),
            notes="".join(f"# {note}\n" for note in self.left_out),
            head=self._head(self.name, self.base_runtime, self._steps(), _PROFILED),
            variants=variants,
            threads=f"\n    speed.threads: {list(threads)}" if len(threads) > 1 else "",
            conditions=json.dumps(_conditions(self.options.keep, "agree")),
            time=f"  time: {self.options.budget}\n" if self.options.budget else "",
        )

    def is_base(self, variant: Variant, threads: int | None) -> bool:
        """Return whether a variant is what all others are compared with: the source, with the settings of `base`."""
        return variant.is_source and variant.runtime == self.base_runtime and threads is None

    def compose_proof(
        self, variant: Variant, threads: int | None, target: Path, output: Path, *, measured: bool = True
    ) -> str:
        """Return the text of the recipe that checks a variant on held-out samples; `measured` adds the comparison with
        the source.
        """
        keep = self.options.keep
        gates = [*_conditions(keep, "agree"), *_conditions(keep, "held")]
        if measured:
            gates.append(f"versus.latency.median.ratio_high <= {AT_LEAST}")
        return _PROOF.format(
            variant=variant.name,
            target=short_name(str(target)),
            output=short_name(str(output)),
            head=self._head(
                f"{self.name}-proof",
                variant.runtime,
                self._proof_steps(variant, threads, measured),
                _PROFILED + "\n  - profiling@steps.base: quick" if measured else "",
            ),
            gates="\n".join(f"  - {json.dumps(gate)}" for gate in gates) or "  []",
        )

    def _head(self, name: str, runtime: str, steps: Sequence[str], profiled: str) -> str:
        return _HEAD.format(
            name=name,
            profiled=profiled,
            model=json.dumps(os.path.relpath(self.model)),
            inputs="\n".join(input_lines(self.trial, self.samples.search)) or "  {}",
            runtime=runtime,
            steps="\n".join(f"  {step}" for step in steps),
        )

    def _steps(self, variant: Variant | None = None, threads: int | None = None) -> list[str]:
        """Return the steps of the search; those of one variant, or those that all variants change."""
        steps = variant.steps if variant is not None else {}
        result = variant.result if variant is not None else "made"
        lines = []
        if variant is None or not variant.is_source:
            lines.append("clean: {step: sanitize, from: source}   # fold constants, fuse operators")
            lines += [] if variant is not None and "found" not in steps else [f"found: {steps.get('found', _CLEAN)}"]
            lines.append(
                f"made: {steps.get('made', _CLEAN)}{'' if variant is not None else '   # variants replace it'}"
            )
        lines.append(f"agree: {{step: check_accuracy, reference: source, candidate: {result}{self._judged(False)}}}")
        lines.append(f"speed: {{step: profile, from: {result}{self._threads(threads)}}}")
        return lines

    def _proof_steps(self, variant: Variant, threads: int | None, measured: bool) -> list[str]:
        """Return the steps of the search, and those on held-out samples and against the source."""
        *made, speed = self._steps(variant, threads)
        held = f"{{step: check_accuracy, reference: source, candidate: {variant.result}{self._judged(True)}}}"
        base = f"{{step: profile, from: source, backend: {self.base_runtime}{self._threads(None)}}}"
        versus = "{step: compare_profiles, base: base, from: speed, threshold: 1 %, allow: [versions]}"
        checked = [*made, f"held: {held}   # other samples"]
        return [*checked, f"base: {base}", speed, f"versus: {versus}"] if measured else checked

    def _threads(self, threads: int | None) -> str:
        given = self.options.threads
        number = threads if threads is not None else given[0] if len(given) == 1 else None
        return f", threads: {number}" if number is not None else ""

    def _judged(self, held: bool) -> str:
        """Return the settings of a check of accuracy on either part of the samples."""
        text = ", tolerance: null" if self.options.keep else ""
        if not self.samples.search:
            text += f", samples: {_RANDOM_SAMPLES}" + (f", seed: {_HELD_SEED}" if held else "")
        elif held:
            text += f", data: {json.dumps(self.samples.held)}"
        if self.options.metric is not None:
            labels = {"metric": str(self.options.metric), "labels": str(self.options.labels)}
            text += f", samples: {self.samples.counts[held]}" if self.samples.search else ""
            text += "".join(f", {key}: {json.dumps(value)}" for key, value in labels.items())
        return text


_PROFILED = "\n  - profiling@steps.speed: quick"
_CLEAN = "{step: sanitize, from: clean}"


def read_model(
    model: Path, options: OptimizeOptions, progress: Callable[[int, int, str], None] = lambda *_: None
) -> Composer:
    """Read a model as `init` does, split the data, and choose the variants to try.

    Raises RequestError for unusable options, before the model runs, and ModelError for a model that cannot be read or
    does not run.
    """
    _check_keep(options)
    if options.budget:
        try:
            parse_duration_ms(options.budget)
        except ValueError as error:
            raise RequestError(f"--budget: {error}") from None
    trial = try_model(model, RecipeOptions(shapes=options.shapes), progress=progress)
    if trial.error:
        shapes = " ".join(f"--shape {short_name(each.spec.name)}=1x3x640x640" for each in trial.inputs[:1])
        raise ModelError(
            f"{model}: it does not run, so that nothing can be compared with it: {trial.error}\n"
            f"If only its sizes are wrong, give them, such as {shapes or '--shape NAME=SHAPE'}."
        )
    samples = _split(options.data, trial)
    variants, left_out = _choose_variants(model, options, samples)
    return Composer(model, options, trial, samples, variants, left_out)


def _check_keep(options: OptimizeOptions) -> None:
    """Refuse conditions on metrics that `check_accuracy` does not return."""
    from ndld_flow.steps.check_accuracy import CheckAccuracy

    if (options.metric is None) != (options.labels is None):
        raise RequestError("give both --metric and --labels: your own metric judges outputs by their labels.")
    step = CheckAccuracy.model_construct(metric=options.metric, labels=options.labels)  # only declares its metrics
    for text in options.keep:
        match = _KEEP.fullmatch(text)
        try:
            parse_condition(text)
        except GateError as error:
            raise RequestError(f"--keep {text!r}: {error}, such as 'cosine >= 0.999'.") from None
        if match is None:
            raise RequestError(f"--keep {text!r}: write METRIC, a comparison and a number, such as 'cosine >= 0.999'.")
        found = find_metric(match[1], step, CheckAccuracy.returns, settled=options.metric is None)
        if isinstance(found, Wrong):
            raise RequestError(f"--keep {text!r}: check_accuracy: {found.what}; {found.hint}")


def _conditions(keep: Sequence[str], step: str) -> list[str]:
    return [f"{step}.{match[1]} {match[2]}" for text in keep if (match := _KEEP.fullmatch(text))]


def _split(data: Sequence[str], trial: InputTrial) -> Samples:
    """Return the files of each input: every third is held out of the search."""
    patterns: dict[str, list[str]] = {}
    for text in data:
        name, path = _input_of(text, trial)
        patterns.setdefault(name, []).append(path)
    found = {name: [os.path.relpath(file.path) for file in find_files(paths)] for name, paths in patterns.items()}
    counts = {len(files) for files in found.values()}
    if len(counts) > 1:
        listed = ", ".join(f"{short_name(name)} {len(files)}" for name, files in found.items())
        raise RequestError(f"--data: sample i is the i-th file of each input, and their numbers differ: {listed}.")
    if counts and counts.pop() < 2:
        (first, *_) = found.values()
        raise RequestError(
            f"--data: {first[0]} is the only file, and files of the search must not decide at the end. Give at least "
            f"two, better {_FEW_FILES} or more: a third is held out."
        )
    used = {name: files[:: -(-len(files) // _MOST_FILES)] for name, files in found.items()}
    held = {name: files[2::3] or files[1:] for name, files in used.items()}
    search = {name: [file for file in files if file not in held[name]] for name, files in used.items()}
    return Samples(search, held)


def _input_of(text: str, trial: InputTrial) -> tuple[str, str]:
    """Return the input and the path of `PATH` or `INPUT=PATH`."""
    names = [likely.spec.name for likely in trial.inputs]
    name, equals, path = text.partition("=")
    if equals and name in names:
        return name, path
    if Path(text).exists() or not equals:
        pictures = [likely.spec.name for likely in trial.inputs if likely.image_layout]
        free = (
            names
            if len(names) == 1
            else pictures[:1] or [likely.spec.name for likely in trial.inputs if likely.data == "random"]
        )
        if len(free) == 1:
            return free[0], text
        listed = " or ".join(f"{short_name(name)}=PATH" for name in names)
        raise RequestError(f"--data {text}: the model has {counted(len(names), 'input')}; write {listed}.")
    raise RequestError(f"--data {text}: {name!r} is not an input of the model; {suggest(name, names)}")


def _choose_variants(
    model: Path, options: OptimizeOptions, samples: Samples
) -> tuple[Sequence[Variant], Sequence[str]]:
    """Return the variants to try, the simplest first, and sentences on what is not tried."""
    from ndld_flow.models.weight_shares import weight_bytes_by_operator

    runtimes = ("onnxruntime", "openvino") if options.target == "any" else (options.target,)
    variants = [Variant("source", runtimes[0], is_source=True)]
    left_out = ["FP16 is not tried: a CPU computes it in FP32."]
    weights = weight_bytes_by_operator(model)
    matrices = weights.get("MatMul", 0) + weights.get("Gemm", 0)
    recurrent = matrices + weights.get("LSTM", 0)
    total = max(sum(weights.values()), 1)
    for runtime in runtimes:
        label = f", {runtime}" if len(runtimes) > 1 else ""
        if runtime != runtimes[0]:
            variants.append(Variant(f"source{label}", runtime, is_source=True))
        variants.append(Variant(f"clean{label}", runtime))
        if runtime == "openvino":
            own = "{backend: openvino, inference_precision: default}"
            variants.append(Variant(f"clean in the precision that OpenVINO chooses{label}", own))
        if samples.search:
            variants += _int8_variants(runtime, label, options)
            if runtime == "onnxruntime":
                variants += _weight_variants(label, matrices / total, matrices, recurrent / total)
    if not samples.search:
        left_out.append("INT8 is not tried: it needs real samples, for ranges and to be judged; give --data.")
        left_out.append("Accuracy is judged on random inputs, and is only as good as these.")
    elif sum(samples.counts) < _FEW_FILES:
        left_out.append(f"Only {counted(sum(samples.counts), 'file')} of data: rare inputs may not be among them.")
    return variants, left_out


def _int8_variants(runtime: str, label: str, options: OptimizeOptions) -> Iterator[Variant]:
    for method in ("minmax", "percentile"):
        made = {"made": f"{{step: quantize, from: clean, method: {method}}}"}
        yield Variant(f"INT8, {method}{label}", runtime, made)
    tolerance = _tolerance(options.keep)
    found = (
        "{step: find_precision, from: clean, precision: int8, int8: {method: percentile}"
        f"{tolerance}, trials: 60, time: 2 min}}"
    )
    made = {"found": found, "made": "{step: quantize, from: clean, method: percentile, found_by: found}"}
    yield Variant(f"INT8 except what it breaks{label}", runtime, made)


def _weight_variants(label: str, share: float, matrices: int, recurrent: float) -> Iterator[Variant]:
    """Yield variants for models whose weights are mostly those of matrix products, or of LSTMs."""
    if recurrent >= 0.5:
        dynamic = {"made": "{step: quantize, from: clean, mode: dynamic}"}
        yield Variant(f"INT8 with dynamic ranges{label}", "onnxruntime", dynamic)
    if share >= 0.5 and matrices >= _WHOLE_WEIGHTS:
        for weights in ("int8", "int4"):
            settings = f"mode: weight_only, weights: {weights}, accuracy_level: 4"
            made = {"made": f"{{step: quantize, from: clean, {settings}}}"}
            yield Variant(f"weights in {weights.upper()}{label}", "onnxruntime", made)


def _tolerance(keep: Sequence[str]) -> str:
    """Return the bounds of `find_precision` that correspond to conditions, as far as it has them."""
    from ndld_flow.accuracy.tolerance import Tolerance

    bounds = {}
    for text in keep:
        match = _KEEP.fullmatch(text)
        if match and match[1] in Tolerance.model_fields and match[1] != "slices":
            bounds[match[1]] = match[2].lstrip("<>= ")
    if not bounds:
        return ""
    return ", tolerance: {slices: off, " + ", ".join(f"{name}: {value}" for name, value in bounds.items()) + "}"


def _changes(variant: Variant) -> str:
    """Return the settings of a variant, as an axis of the sweep has them."""
    changes = [f"runtime: {variant.runtime}"]
    changes += ["agree.candidate: source", "speed.from: source"] if variant.is_source else []
    return ", ".join([*changes, *(f"{name}: {text}" for name, text in variant.steps.items())])
