"""Compose the recipes of `optimize`: a sweep over variants of a model, and the recipe that proves one of them.

Both have the same steps with the same settings, so that the second reuses what the first has computed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.quantities import counted, parse_duration_ms
from ndld_flow.base.text import first_of, joined, shell_word, short_name
from ndld_flow.optimize.goals import AT_LEAST, SLOWER, choose_objectives, read_conditions
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.presets import read_preset
from ndld_flow.optimize.variant import CLEAN, MADE, Subject, Variant
from ndld_flow.optimize.variants import propose_variants
from ndld_flow.recipe.sample_files import (
    FEW_FILES,
    RANDOM_SAMPLES,
    FoundData,
    in_turn,
    is_scaled,
    measured_trial,
    split_data,
    spread_files,
)
from ndld_flow.recipe.write_recipe import HELD_SEED, input_lines, name_recipe, try_with_data
from ndld_flow.records.optimization import runtime_settings
from ndld_flow.records.run_record import HeldOutCheck
from ndld_flow.runner.held_out_check import relative_to_model
from ndld_flow.runtimes.registry import settings_of
from ndld_flow.store.digest import sha256_of

SOURCE = "source"
"""The name of the variant that is the model itself."""
_AFTER_DYNAMIC = 9
"""Order of the source in another runtime: before its other variants, and after dynamic INT8."""
SEARCH_SHARE = 0.5
"""Share of the budget after which no variant starts: the rest is for the proofs."""
_ROUNDS_SHARE, _MEASURED_SHARE = 0.75, 0.5
"""Share of what is left of the budget that the alternating passes of a proof may take: after its profiles, so that the
rest is for its report, and after its check."""
ProofPart = Literal["check", "profiles", "all"]
"""The steps of a proof up to its check on held-out samples, up to the profiles that it compares, or all."""


class ProofTime(NamedTuple):
    """The time for the parts of a proof, in seconds."""

    left_s: float = math.inf
    """The rest of the budget when the part starts."""
    spare_s: float = math.inf
    """The part of the rest that the proof can do without: planted faults and made samples may use it."""
    rounds: int = 12
    """The most alternating rounds."""


WORTH_SHARE = 0.1
"""Share of the budget that planted faults may take in a proof, and made samples too."""
_MADE_PASSES = 40
"""Passes that choosing and judging made samples takes, about."""
_NO_WORTH = (
    "What the check of a proof would notice is not measured, and no samples are made for it: a tenth of the budget is "
    "too short for that."
)
_PIXELS = (
    "Pixels of images become 0 to 1. If the model expects others, all is judged on wrong inputs: give arrays, or set "
    "`mean:` and `std:` in the sweep of --write."
)
_QUICK = ", runs: 1, passes: 10, layer_passes: 3, duration: 0, stable: 0"
"""Settings of `profile` for what is measured in rounds as well: they show where the time is."""
_PROBED_SAMPLES = 3
"""Number of samples on which the source is judged against itself."""
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
{variants}
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
#   ndld-flow run {target}{output}
#
{head}
gates:
{gates}
"""
_PROBED = """\
# The source of an optimization: judged against itself, and profiled, before any variant is tried.
#
{head}
"""
_BOARD = "board"
"""The name of the other machine among a recipe's targets."""


@dataclass(frozen=True)
class Composer(Subject):
    """The model and what is asked of it, for the first runtime, from which the recipes of one search are composed."""

    @property
    def variants(self) -> Sequence[Variant]:
        """Return the variants to try, the cheap ones first."""
        return self._chosen[0]

    @property
    def left_out(self) -> Sequence[str]:
        """Return sentences on what is not tried, and why."""
        return [*self._chosen[1], *([_NO_WORTH] if self._worth_s() == 0 else [])]

    @cached_property
    def _chosen(self) -> tuple[Sequence[Variant], Sequence[str]]:
        """Choose when it is needed: a race waits for the shares of the source's time."""
        return choose_variants(self)

    @property
    def name(self) -> str:
        """Return the name of the recipes."""
        return f"optimize-{name_recipe(self.model)}"

    @property
    def fixed_shapes(self) -> str:
        """Return the only shapes that all variants but the source accept; empty if these stay free."""
        return self.trial.free_sizes if self.options.fix_shapes else ""

    @property
    def may_fix_sizes(self) -> bool:
        """Return whether sizes are free that `--fix-shapes` would fix: all samples have one size."""
        varies = any(likely.varies for likely in self.trial.inputs)
        return bool(self.trial.free_sizes) and not varies and not self.options.fix_shapes

    def compose_sweep(self, target: Path, *, limit_ms: float | None = None) -> str:
        """Return the text of the sweep over all variants, for a file, those that need minutes last.

        After `limit_ms`, by default the search's share of the budget, no variant starts.
        """
        ordered = sorted(self.variants, key=lambda each: (each.name != SOURCE, each.costly))
        variants = "\n".join(f"      {json.dumps(each.name)}: {{{self._changes(each)}}}" for each in ordered)
        if limit_ms is None and self.options.budget:
            limit_ms = parse_duration_ms(self.options.budget) * SEARCH_SHARE
        short = ", ".join(f"speed.{name}: {value}" for name, value in _SHORT.items())
        limits = ["fits"] if self._limits() else []
        goals = {}
        for direction in ("minimize", "maximize"):
            metrics = [each.metric for each in self.objectives if each.direction == direction]
            if metrics:
                goals[direction] = metrics[0] if len(metrics) == 1 else json.dumps(metrics)
        return _SEARCH.format(
            model_name=short_name(self.model.name),
            target=shell_word(target),
            judge="` or `".join([*limits, "agree"]),
            notes="".join(f"# {note}\n" for note in self.left_out),
            head=self._head(self.name, self.runtime_with(), self._steps(), _PROFILED),
            variants=variants,
            objectives="\n".join([f"  {direction}: {text}" for direction, text in goals.items()]),
            conditions=json.dumps([*self.conditions.of("agree"), *self._sizes()]),
            again="" if self.preset.built_only else _AGAIN.format(short=f"{{{short}}}", winners=_WINNERS),
            time=f"  time: {limit_ms:g} ms\n" if limit_ms is not None else "",
        )

    def compose_proof(
        self,
        variant: Variant,
        target: Path,
        output: Path,
        *,
        part: ProofPart = "all",
        time: ProofTime | None = None,
    ) -> str:
        """Return the text of the recipe that checks a variant on held-out samples, and compares it with the source, by
        default without a limit.
        """
        gates = [*([] if self.races else self.conditions.of("agree")), *self.conditions.of("held")]
        if part == "all":
            gates += [*self._sizes(), *self.gain_gates()]
        quick = part != "check" and not self.preset.built_only and not self.races
        profiled = _PROFILED + "\n  - profiling@steps.base: quick" if quick else ""
        return _PROOF.format(
            variant=variant.name,
            target=shell_word(target),
            output="" if variant.is_source else f" -o {shell_word(output)}",  # no step produces the source
            head=self._head(
                f"{self.name}-proof",
                variant.runtime,
                self._proof_steps(variant, part, time or ProofTime()),
                profiled,
            ),
            gates="\n".join(f"  - {json.dumps(gate)}" for gate in gates) or "  []",
        )

    def describe_check(self, variant: Variant) -> HeldOutCheck | None:
        """Return the check of a proof, for `compare`; None if it runs an engine or a metric of the user's own."""
        if self.options.metric is not None or self.preset.engine:
            return None
        held = {name: [Path(file) for file in files] for name, files in self.samples.held.items()}
        return HeldOutCheck(
            samples={
                name: {relative_to_model(file, self.model): sha256_of(file) for file in files}
                for name, files in held.items()
            },
            shapes={name: tuple(shape) for name, shape in self.options.shapes.items()},
            conditions=tuple(f"{metric} {bound}" for metric, bound in self.conditions.accuracy),
            runtime=variant.runtime,
            source_runtime=self.runtime_with(),
        )

    def compose_probe(self) -> str:
        """Return the text of a recipe that judges the source against itself, as the search does, and profiles it."""
        source = Variant(SOURCE, self.runtime_with(), is_source=True)
        steps = [step for step in self._steps(source) if not step.startswith(("engine:", "speed:"))]
        if self.races:
            first = {name: spread_files(files, _PROBED_SAMPLES) for name, files in self.samples.search.items()}
            data = f", data: {json.dumps(first)}" if first else ""
            # Made samples and planted faults would take as long as several variants, and say nothing about these.
            count = min(map(len, first.values()), default=None)
            judged = f"{self._judged(False, count)}{data}, made: off, power: off"
            agree = f"agree: {{step: check_accuracy, reference: source, candidate: source{judged}}}"
            steps = [agree, *self._measuring("source", _QUICK, "base")]
        return _PROBED.format(head=self._head(f"{self.name}-source", self.runtime_with(), steps, ""))

    def gain_gates(self) -> list[str]:
        """Return the conditions by which a proof shows a gain: in the only objective, or none in one of several, as
        each of these is a gain. The latency may not grow, unless it is traded for throughput.
        """
        gates = []
        (first, *others) = self.objectives
        if not others and first.evidence != "single builds":
            gates.append(f"{first.ratio.format(end='_high')} <= {AT_LEAST}")
        names = {each.name for each in self.objectives}
        allowed = self.conditions.latency
        if not self.preset.built_only and (allowed is not None or not names & {"latency", "throughput"}):
            gates.append(f"versus.latency.median.ratio_high <= {allowed if allowed is not None else SLOWER}")
        return gates

    def _head(self, name: str, runtime: str, steps: Sequence[str], profiled: str) -> str:
        host = f"\ntargets: {{{_BOARD}: {{host: {json.dumps(self.options.on)}}}}}" if self.preset.remote else ""
        return _HEAD.format(
            name=name,
            profiled="" if self.preset.built_only else profiled,
            model=json.dumps(os.path.relpath(self.model)),
            targets=host,
            inputs="\n".join(input_lines(self.trial, FoundData(self.samples.search))) or "  {}",
            runtime=runtime,
            steps="\n".join(f"  {step}" for step in steps),
        )

    def _steps(self, variant: Variant | None = None) -> list[str]:
        """Return the steps of the search: those of one variant, or those that all variants change."""
        steps = variant.steps if variant is not None else {}
        result = variant.result if variant is not None else MADE
        lines = []
        if variant is None or not variant.is_source:
            read = "source"
            if self.has_weights_as_inputs:
                lines.append(f"own: {{step: edit, from: {read}, operations: [{{remove_initializer_inputs: {{}}}}]}}")
                read = "own"
            if self.fixed_shapes:
                lines.append(f"fixed: {{step: fix_shapes, from: {read}}}")
                read = "fixed"
            lines.append(f"clean: {{step: sanitize, from: {read}}}   # fold constants, fuse operators")
            lines += [] if variant is not None and "found" not in steps else [f"found: {steps.get('found', CLEAN)}"]
            if variant is None or MADE in steps:
                note = "" if variant is not None else "   # variants replace it"
                lines.append(f"made: {steps.get(MADE, CLEAN)}{note}")
        lines += [f"fits: {{step: edit, from: {result}, operations: [{limits}]}}" for limits in self._limits()]
        lines.append(f"agree: {{step: check_accuracy, reference: source, candidate: {result}{self._judged(False)}}}")
        return [*lines, *self._measuring(result, variant.speed if variant is not None else "")]

    def _measuring(self, result: str, own: str = "", name: str = "") -> list[str]:
        """Return the steps that measure a model, by default `engine` and `speed`."""
        on = f", on: {_BOARD}" if self.preset.remote else ""
        engine = ", ".join(f"{key}: {json.dumps(value)}" for key, value in self.preset.engine.items())
        built = f"{name}_engine" if name and self.preset.remote else name or "engine"
        lines = [f"{built}: {{step: build_engine, from: {result}, {engine}{on}}}"] if engine else []
        if self.preset.built_only:
            return lines
        runs = f", backend: {self.preset.engine['backend']}, engine: {built}" if engine else ""
        turns = in_turn(self.trial, self.samples.search)
        return [*lines, f"{name or 'speed'}: {{step: profile, from: {result}{runs}{own}{turns}{on}}}"]

    def _proof_steps(self, variant: Variant, part: ProofPart, time: ProofTime) -> list[str]:
        """Return the steps of the search, and those on held-out samples and against the source."""
        steps = self._steps(variant)
        measuring = len(self._measuring(variant.result))
        checked, speed = steps[:-measuring], steps[-measuring:]
        if self.races:  # the race has judged it on the samples of the search
            checked = [step for step in checked if not step.startswith("agree:")]
            speed = self._measuring(variant.result, variant.speed + _QUICK)
        settings = f"reference: source, candidate: {variant.result}{self._judged(True)}{self._worth(time.spare_s)}"
        checked.append(f"held: {{step: check_accuracy, {settings}}}   # other samples")
        if part == "check":
            return checked
        # The runtime of the recipe is the variant's.
        in_runtime = "" if self.preset.engine else f", {runtime_settings(self.runtime_with())}"
        base = self._measuring("source", in_runtime + (_QUICK if self.races else ""), "base")
        if self.preset.built_only or part == "profiles":
            return [*checked, *base, *speed]
        rounds = f", rounds: {0 if self.preset.remote else time.rounds}"
        if math.isfinite(time.left_s):
            share = _ROUNDS_SHARE if self.races else _MEASURED_SHARE
            rounds += f", budget: {max(time.left_s * share, 1):.0f} s"
        allow = "[versions, batch, inputs]" if variant.speed else "[versions]"
        versus = f"{{step: compare_profiles, base: base, from: speed, threshold: 1 %, allow: {allow}{rounds}}}"
        return [*checked, *base, *speed, f"versus: {versus}"]

    def _judged(self, held: bool, most: int | None = None) -> str:
        """Return the settings of a check of accuracy on either part of the samples, by default on all of it."""
        text = ", tolerance: null" if self.conditions.accuracy else ""
        text += "" if held else ", seen: {}"  # all variants are judged on the same samples
        if not self.samples.search:
            text += f", samples: {RANDOM_SAMPLES}" + (f", seed: {HELD_SEED}" if held else "")
        elif held:
            text += f", data: {json.dumps(self.samples.held)}"
        if self.options.metric is not None:
            labels = {"metric": str(self.options.metric), "labels": str(self.options.labels)}
            count = most if most is not None else self.samples.counts[held]
            text += f", samples: {count}" if self.samples.search else ""  # the labels of others may be left over
            text += "".join(f", {key}: {json.dumps(value)}" for key, value in labels.items())
        return text

    def _worth(self, spare_s: float) -> str:
        """Return the settings by which the check of a proof keeps to its share of the budget."""
        limit_s = self._worth_s(spare_s)
        if limit_s is None:
            return ""
        return f", power_time: {limit_s:.3g} s" if limit_s else ", made: off, power: off"

    def _worth_s(self, spare_s: float = math.inf) -> float | None:
        """Return the seconds for planted faults in a proof; 0 if they are too few, None without a limit."""
        if not self.races or self.budget_s is None:
            return None
        limit_s = max(min(self.budget_s * WORTH_SHARE, spare_s), 0.0)
        is_short = limit_s * 1e3 < _MADE_PASSES * self.trial.pass_ms and self.options.metric is None
        return 0.0 if is_short else limit_s

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
        if variant.result != MADE:
            reading = ["agree.candidate", "engine.from" if self.preset.engine else "speed.from"]
            reading += ["fits.from"] if self._limits() else []
            changes += [f"{key}: {variant.result}" for key in reading]
        changes += [f"speed.{setting}" for setting in [variant.speed.removeprefix(", ")] if setting]
        return ", ".join([*changes, *(f"{name}: {text}" for name, text in variant.steps.items())])


_PROFILED = "\n  - profiling@steps.speed: quick"


def read_model(model: Path, options: OptimizeOptions, folder: Path) -> Composer:
    """Read a model as `init` does, and split the data.

    A single file of many samples is split into files in `folder`. Raises RequestError for unusable options, before the
    model runs, and ModelError for a model that cannot be read or does not run.
    """
    if options.tokenizer is not None:
        require("text", f"--tokenizer {options.tokenizer}")
    # Without any of its runtimes, a run reports the lack of all of them.
    known = read_preset(options.target)
    names = tuple(name for name in known.runtimes if not _lack_of(name))
    preset = known.model_copy(update={"runtimes": names or known.runtimes})
    if preset.engine and options.threads:
        raise RequestError(f"--threads: --for {options.target} runs engines, which have no number of threads.")
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
    trial, found = try_with_data(model, options.data, options.shapes)
    varied = next((likely.spec.name for likely in trial.inputs if likely.varies), None)
    if varied is not None and (options.fix_shapes or preset.engine):
        what = "--fix-shapes" if options.fix_shapes else f"--for {options.target}"
        raise RequestError(f"{what}: the samples of {short_name(varied)} have several sizes. Give samples of one size.")
    samples = split_data(found, model, trial, folder, options.tokenizer)
    if len({likely.shape[0] for likely in trial.inputs if likely.shape}) != 1:  # there is no number of items
        objectives = tuple(replace(each, metric=each.metric.replace(".items", ".median")) for each in objectives)
    return Composer(
        model=model,
        options=options,
        conditions=conditions,
        objectives=objectives,
        preset=preset,
        samples=samples,
        runtime=preset.runtimes[0],
        threads=options.threads[0] if len(options.threads) == 1 else 0,
        trial=measured_trial(trial, samples.search),
    )


def _lack_of(runtime: str) -> str:
    """Return why a runtime is not tried, with the command that installs it; empty if it is installed."""
    settings = settings_of(runtime)
    return "" if settings is None else settings.lack(f"a search in {settings.title} too")


def choose_variants(subject: Subject) -> tuple[Sequence[Variant], Sequence[str]]:
    """Return the variants to try, the cheap ones first, and sentences on what is not tried."""
    preset = subject.preset
    proposed: list[tuple[int, Variant]] = []
    left_out: list[str] = [preset.unknown] if preset.unknown else []
    known = read_preset(subject.options.target).runtimes
    left_out += [_lack_of(runtime) for runtime in known if runtime not in preset.runtimes]
    several = subject.options.threads if len(subject.options.threads) > 1 else ()
    proposed.append((0, Variant(SOURCE, subject.runtime_with(), is_source=True)))
    for runtime, threads in itertools.product(preset.runtimes, several or (subject.threads,)):
        own = replace(subject, runtime=runtime, threads=threads)
        label = own.label if several or runtime != preset.runtimes[0] else ""
        if label:  # to compile and judge a large model in another runtime takes long
            proposed.append((_AFTER_DYNAMIC, Variant(f"{SOURCE}{label}", own.runtime_with(), is_source=True)))
        # The runtime may refuse free sizes, which only the source has then.
        first = f"{'clean' if subject.options.fix_shapes else SOURCE}{label}" if label else ""
        for order, each in propose_variants(own):
            if isinstance(each, Variant):
                proposed.append((order, replace(each, needs=each.needs or (first if each.name != first else ""))))
            elif each not in left_out:
                left_out.append(each)
    left_out += _describe_data(subject)
    return [variant for _, variant in sorted(proposed, key=lambda pair: pair[0])], left_out


def _describe_data(subject: Subject) -> Iterator[str]:
    """Yield sentences on what the samples cannot show."""
    samples, inputs = subject.samples, subject.trial.inputs
    if not samples.search:
        yield "Accuracy is judged on random inputs, and is only as good as these."
        return
    if sum(samples.counts) < FEW_FILES:
        yield f"Only {counted(sum(samples.counts), 'sample')} of data: rare inputs may not be among them."
    filled = [
        f"{short_name(each.spec.name, 40)} by {each.data}" for each in inputs if each.spec.name not in samples.search
    ]
    if filled:
        yield f"Inputs without data are filled: {joined(filled)}; `--data INPUT=PATH` gives them values."
    if states := [short_name(each.spec.name, 40) for each in inputs if each.state_after]:
        yield f"{first_of(states, 3)} may be states of a sequence: each sample is judged as a step of its own."
    if any(is_scaled(each, samples.search.get(each.spec.name, ())) for each in inputs):
        yield _PIXELS
