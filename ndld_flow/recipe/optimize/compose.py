"""Compose the recipes of `optimize`: a sweep over variants of a model, and the recipe that proves one of them.

Both have the same steps with the same settings, so that the second reuses what the first has computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import counted, parse_duration_ms
from ndld_flow.base.text import short_name
from ndld_flow.recipe.optimize.conditions import FIRST_SAMPLES, Conditions, read_conditions
from ndld_flow.recipe.optimize.families import propose_variants
from ndld_flow.recipe.optimize.objectives import AT_LEAST, SLOWER, Objective, choose_objectives
from ndld_flow.recipe.optimize.options import OptimizeOptions
from ndld_flow.recipe.optimize.presets import Preset, read_preset
from ndld_flow.recipe.optimize.samples import FEW_FILES, RANDOM_SAMPLES, Samples, find_data, split_data
from ndld_flow.recipe.optimize.variant import CLEAN, Subject, Variant, describe_shapes
from ndld_flow.recipe.write_recipe import HELD_SEED, RecipeOptions, input_lines, name_recipe, try_model

if TYPE_CHECKING:
    from ndld_flow.measure.trial_pass import InputTrial

SEARCH_SHARE = 0.5
"""Share of the budget after which no variant starts: the rest is for the proofs."""
_ROUNDS_SHARE = 0.15
"""Share of the budget that the alternating passes of a proof may take."""
_LONG_CHECK_MS = 10_000
"""Duration of the passes of a check of accuracy from which a few samples are judged first."""
_SHORT = {"runs": 1, "passes": 10, "layer_passes": 0}
"""Settings of `profile` for the first measurement of a variant."""

_SEARCH = """\
# The search of `ndld-flow optimize` for variants of {model_name} that stay right.
#
#   ndld-flow run {target}
#
# Each variant sets the steps that differ; a variant that fails `{judge}` is not measured.
{notes}{head}
sweep:
  over:
    variant:
{variants}{threads}
{objectives}
  subject_to: {conditions}
  together: 1                 # point by point, so that an interruption loses nothing
  mixed: false                # the cheap variants first
{again}{time}"""
_AGAIN = """\
  short: {short}
  winners: {winners}                  # the best are measured again with the recipe's own settings, in turns
"""
_WINNERS = 3
_HEAD = """\
name: {name}
defaults:{profiled}
  - _self_
model: {model}                # relative to the current directory
{targets}
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
_BOARD = "board"
"""The name of the other machine among a recipe's targets."""


@dataclass(frozen=True)
class Composer:
    """Everything from which the recipes of one search are composed."""

    model: Path
    options: OptimizeOptions
    preset: Preset
    objectives: tuple[Objective, ...]
    conditions: Conditions
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
        return self.preset.runtimes[0]

    @property
    def fixed_shapes(self) -> str:
        """Return the only shapes that all variants but the source accept; empty if these stay free."""
        return describe_shapes(self.trial.inputs) if self.options.fix_shapes else ""

    def compose_sweep(
        self,
        target: Path,
        first: Sequence[str] = (),
        only: Sequence[Variant] | None = None,
        *,
        limit_ms: float | None = None,
        last: bool = True,
    ) -> str:
        """Return the text of the sweep, for a file. Variants that `first` names come first, before the costly ones.

        `only` are the variants to try, by default all. After `limit_ms`, by default the search's share of the budget,
        no variant starts. `last` measures the winners again.
        """
        place = {name: number for number, name in enumerate(first)}
        ordered = sorted(self.variants if only is None else only, key=lambda each: _order(each, place))
        variants = "\n".join(f"      {json.dumps(each.name)}: {{{self._changes(each)}}}" for each in ordered)
        threads, budget = self.options.threads, self.options.budget
        if limit_ms is None and budget:
            limit_ms = parse_duration_ms(budget) * SEARCH_SHARE
        short = ", ".join(f"speed.{name}: {value}" for name, value in _SHORT.items())
        again = _AGAIN.format(short=f"{{{short}}}", winners=_WINNERS)
        limits = ["fits"] if self._limits() else []
        return _SEARCH.format(
            model_name=short_name(self.model.name),
            target=short_name(str(target)),
            judge="` or `".join([*limits, "agree"]),
            notes="".join(f"# {note}\n" for note in self.left_out),
            head=self._head(self.name, self.base_runtime, self._steps(short=not last), _PROFILED),
            variants=variants,
            threads=f"\n    speed.threads: {list(threads)}" if len(threads) > 1 else "",
            objectives="\n".join(self._goals()),
            conditions=json.dumps([*self._early(), *self.conditions.of("agree"), *self._sizes()]),
            again="" if self.preset.built_only else again if last else "  winners: 0\n",
            time=f"  time: {limit_ms:g} ms\n" if budget and limit_ms is not None else "",
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
        gates = [*self.conditions.of("agree"), *self.conditions.of("held")]
        if measured:
            gates += [*self._sizes(), *self.gain_gates()]
        profiled = _PROFILED + "\n  - profiling@steps.base: quick" if measured and not self.preset.built_only else ""
        return _PROOF.format(
            variant=variant.name,
            target=short_name(str(target)),
            output=short_name(str(output)),
            head=self._head(
                f"{self.name}-proof", variant.runtime, self._proof_steps(variant, threads, measured), profiled
            ),
            gates="\n".join(f"  - {json.dumps(gate)}" for gate in gates) or "  []",
        )

    def compose_probe(self) -> str:
        """Return the text of a recipe that judges the source against itself, as the search does."""
        source = Variant("source", self.base_runtime, is_source=True)
        agree = next(step for step in self._steps(source) if step.startswith("agree:"))
        return self._head(f"{self.name}-probe", self.base_runtime, [agree], "")

    def gain_gates(self) -> list[str]:
        """Return the conditions by which a proof shows a gain: in the only objective, or none in one of several, as
        each of these is a gain. The latency may not grow, unless it is traded for throughput.
        """
        gates = []
        (first, *others) = self.objectives
        if not others and first.evidence != "single builds":
            gates.append(f"{first.gain('_high')} <= {AT_LEAST}")
        names = {each.name for each in self.objectives}
        allowed = self.conditions.latency
        if not self.preset.built_only and (allowed is not None or not names & {"latency", "throughput"}):
            gates.append(f"versus.latency.median.ratio_high <= {allowed if allowed is not None else SLOWER}")
        return gates

    def _goals(self) -> list[str]:
        """Return the lines of the objectives."""
        goals = {}
        for direction in ("minimize", "maximize"):
            metrics = [each.metric for each in self.objectives if each.direction == direction]
            if metrics:
                goals[direction] = metrics[0] if len(metrics) == 1 else json.dumps(metrics)
        return [f"  {direction}: {text}" for direction, text in goals.items()]

    def _head(self, name: str, runtime: str, steps: Sequence[str], profiled: str) -> str:
        host = f"\ntargets: {{{_BOARD}: {{host: {json.dumps(self.options.on)}}}}}" if self.preset.remote else ""
        return _HEAD.format(
            name=name,
            profiled="" if self.preset.built_only else profiled,
            model=json.dumps(os.path.relpath(self.model)),
            targets=host,
            inputs="\n".join(input_lines(self.trial, self.samples.search)) or "  {}",
            runtime=runtime,
            steps="\n".join(f"  {step}" for step in steps),
        )

    def _steps(self, variant: Variant | None = None, threads: int | None = None, *, short: bool = False) -> list[str]:
        """Return the steps of the search, with a `short` measurement or a whole one; those of one variant, or those
        that all variants change.
        """
        steps = variant.steps if variant is not None else {}
        result = variant.result if variant is not None else "made"
        lines = []
        if variant is None or not variant.is_source:
            lines += ["fixed: {step: fix_shapes, from: source}"] if self.fixed_shapes else []
            read = "fixed" if self.fixed_shapes else "source"
            lines.append(f"clean: {{step: sanitize, from: {read}}}   # fold constants, fuse operators")
            lines += [] if variant is not None and "found" not in steps else [f"found: {steps.get('found', CLEAN)}"]
            lines.append(f"made: {steps.get('made', CLEAN)}{'' if variant is not None else '   # variants replace it'}")
        lines += [f"fits: {{step: edit, from: {result}, operations: [{limits}]}}" for limits in self._limits()]
        check = f"step: check_accuracy, reference: source, candidate: {result}"
        if variant is None and self._early():
            first = {name: files[:: -(-len(files) // FIRST_SAMPLES)] for name, files in self.samples.search.items()}
            lines.append(f"first: {{{check}, tolerance: null, data: {json.dumps(first)}}}   # hopeless ones end here")
        lines.append(f"agree: {{{check}{self._judged(False)}}}")
        own = "".join(f", {name}: {value}" for name, value in _SHORT.items()) if short else ""
        return [*lines, *self._measuring(result, threads, variant.speed if variant is not None else own)]

    def _measuring(self, result: str, threads: int | None, own: str = "", name: str = "") -> list[str]:
        """Return the steps that measure a model, by default `engine` and `speed`."""
        on = f", on: {_BOARD}" if self.preset.remote else ""
        engine = ", ".join(f"{key}: {json.dumps(value)}" for key, value in self.preset.engine.items())
        built = f"{name}_engine" if name and self.preset.remote else name or "engine"
        lines = [f"{built}: {{step: build_engine, from: {result}, {engine}{on}}}"] if engine else []
        if self.preset.built_only:
            return lines
        settings = "".join(f", {key}: {json.dumps(value)}" for key, value in self.preset.speed.items())
        runs = f", backend: {self.preset.engine['backend']}, engine: {built}" if engine else ""
        measured = f"{settings}{runs}{self._threads(threads)}{own}{on}"
        return [*lines, f"{name or 'speed'}: {{step: profile, from: {result}{measured}}}"]

    def _proof_steps(self, variant: Variant, threads: int | None, measured: bool) -> list[str]:
        """Return the steps of the search, and those on held-out samples and against the source."""
        steps = self._steps(variant, threads)
        measuring = len(self._measuring(variant.result, threads))
        checked, speed = steps[:-measuring], steps[-measuring:]
        held = f"{{step: check_accuracy, reference: source, candidate: {variant.result}{self._judged(True)}}}"
        checked.append(f"held: {held}   # other samples")
        if not measured:
            return checked
        in_runtime = "" if self.preset.engine else f", backend: {self.base_runtime}"
        base = self._measuring("source", None, in_runtime, "base")
        if self.preset.built_only:
            return [*checked, *base, *speed]
        rounds = ", rounds: 0" if self.preset.remote else ""
        budget = self.options.budget
        if budget:
            rounds += f", budget: {max(parse_duration_ms(budget) * _ROUNDS_SHARE / 1e3, 1):.0f} s"
        allow = "[versions, batch, inputs]" if variant.speed else "[versions]"
        versus = f"{{step: compare_profiles, base: base, from: speed, threshold: 1 %, allow: {allow}{rounds}}}"
        return [*checked, *base, *speed, f"versus: {versus}"]

    def _threads(self, threads: int | None) -> str:
        given = self.options.threads
        number = threads if threads is not None else given[0] if len(given) == 1 else None
        return f", threads: {number}" if number is not None else ""

    def _judged(self, held: bool) -> str:
        """Return the settings of a check of accuracy on either part of the samples."""
        text = ", tolerance: null" if self.conditions.accuracy else ""
        if not self.samples.search:
            text += f", samples: {RANDOM_SAMPLES}" + (f", seed: {HELD_SEED}" if held else "")
        elif held:
            text += f", data: {json.dumps(self.samples.held)}"
        if self.options.metric is not None:
            labels = {"metric": str(self.options.metric), "labels": str(self.options.labels)}
            text += f", samples: {self.samples.counts[held]}" if self.samples.search else ""
            text += "".join(f", {key}: {json.dumps(value)}" for key, value in labels.items())
        return text

    def _early(self) -> list[str]:
        """Return the conditions on the first samples; none if judging all takes little longer than starting twice."""
        count = self.samples.counts[0]
        takes_ms = 2 * self.trial.pass_ms * (count - FIRST_SAMPLES)
        return self.conditions.early("first", count) if self.samples.search and takes_ms > _LONG_CHECK_MS else []

    def _limits(self) -> list[str]:
        """Return the operation that refuses models beyond the limits of the target."""
        operators = self.preset.limits.operators
        return [f"{{assert: {{only_op_types: {json.dumps(operators)}}}}}"] if operators else []

    def _sizes(self) -> list[str]:
        limit = self.preset.limits.model
        return [f"speed.model_bytes <= {limit:.0f} B"] if limit is not None and not self.preset.built_only else []

    def _changes(self, variant: Variant) -> str:
        """Return the settings of a variant, as an axis of the sweep has them."""
        changes = [f"runtime: {variant.runtime}"]
        if variant.is_source:
            reading = ["agree.candidate", "engine.from" if self.preset.engine else "speed.from"]
            reading += ["first.candidate"] if self._early() else []
            reading += ["fits.from"] if self._limits() else []
            changes += [f"{key}: source" for key in reading]
        changes += [f"speed.{setting}" for setting in [variant.speed.removeprefix(", ")] if setting]
        return ", ".join([*changes, *(f"{name}: {text}" for name, text in variant.steps.items())])


def _order(variant: Variant, learned: Mapping[str, int]) -> tuple[bool, bool, bool, int]:
    """Return a sort key: the source, variants that need no further step, others in the learned order, costly ones."""
    return not variant.is_source, variant.costly, bool(variant.steps), learned.get(variant.name, len(learned))


_PROFILED = "\n  - profiling@steps.speed: quick"


def read_model(
    model: Path,
    options: OptimizeOptions,
    folder: Path,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Composer:
    """Read a model as `init` does, split the data, and choose the variants to try.

    A single file of many samples is split into files in `folder`. Raises RequestError for unusable options, before the
    model runs, and ModelError for a model that cannot be read or does not run.
    """
    preset = read_preset(options.target)
    if preset.remote != bool(options.on):
        raise RequestError(
            f"--for {options.target}: it builds and measures on another machine; give it: --on ssh://USER@HOST."
            if preset.remote
            else f"--on {options.on}: --for {options.target} measures here; only targets on another machine take it."
        )
    objectives = choose_objectives(options.minimize, options.maximize, preset.defaults, built_only=preset.built_only)
    conditions = read_conditions(options.keep, options.metric, options.labels)
    if options.budget:
        try:
            parse_duration_ms(options.budget)
        except ValueError as error:
            raise RequestError(f"--budget: {error}") from None
    trial, samples = _read_inputs(model, options, folder, progress)
    if len({likely.shape[0] for likely in trial.inputs if likely.shape}) != 1:  # there is no number of items
        objectives = tuple(replace(each, metric=each.metric.replace(".items", ".median")) for each in objectives)
    subject = Subject(
        model=model,
        options=options,
        conditions=conditions,
        objectives=objectives,
        preset=preset,
        samples=samples,
        runtime=preset.runtimes[0],
        inputs=trial.inputs,
    )
    variants, left_out = _choose_variants(subject)
    return Composer(model, options, preset, objectives, conditions, trial, samples, variants, left_out)


def _read_inputs(
    model: Path, options: OptimizeOptions, folder: Path, progress: Callable[[int, int, str], None]
) -> tuple[InputTrial, Samples]:
    """Return inputs that the model accepts, at the sizes of the data if these are arrays, and the split data."""
    from ndld_flow.models.files import model_inputs

    trial = try_model(model, RecipeOptions(shapes=options.shapes), progress=progress)
    found = find_data(options.data, trial)
    shapes = {**found.shapes(trial), **options.shapes}
    if shapes != dict(options.shapes):
        trial = try_model(model, RecipeOptions(shapes=shapes), progress=progress)
    if trial.error:
        given = " ".join(f"--shape {short_name(each.spec.name)}=1x3x640x640" for each in trial.inputs[:1])
        raise ModelError(
            f"{model}: it does not run, so that nothing can be compared with it: {trial.error}\n"
            f"If only its sizes are wrong, give them, such as {given or '--shape NAME=SHAPE'}."
        )
    declared = {spec.name: spec for spec in model_inputs(model)}
    inputs = tuple(replace(each, spec=declared[each.spec.name]) for each in trial.inputs)  # with its free dimensions
    return replace(trial, inputs=inputs), split_data(found, model, trial, folder, options.tokenizer)


def _choose_variants(subject: Subject) -> tuple[Sequence[Variant], Sequence[str]]:
    """Return the variants to try, the cheap ones first, and sentences on what is not tried."""
    preset, samples = subject.preset, subject.samples
    proposed: list[tuple[int, Variant]] = []
    left_out: list[str] = [preset.unknown] if preset.unknown else []
    for runtime in preset.runtimes:
        own = replace(subject, runtime=runtime)
        label = own.label if runtime != preset.runtimes[0] else ""
        proposed.append((0, Variant(f"source{label}", runtime, is_source=True)))
        for order, each in propose_variants(own):
            if isinstance(each, Variant):
                proposed.append((order, each))
            elif each not in left_out:
                left_out.append(each)
    if not samples.search:
        left_out.append("Accuracy is judged on random inputs, and is only as good as these.")
    elif sum(samples.counts) < FEW_FILES:
        left_out.append(f"Only {counted(sum(samples.counts), 'sample')} of data: rare inputs may not be among them.")
    return [variant for _, variant in sorted(proposed, key=lambda pair: pair[0])], left_out
