"""Compare two models on the same inputs: how far their outputs differ, and which is faster, in alternating passes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import shell_word, short_name
from ndld_flow.execution.events import Notice, RunFinished
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.execution.request import Request
from ndld_flow.models.external_files import declared_inputs
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.sample_files import MOST_FILES, FoundData, in_turn, measured_trial, sample_files, spread_files
from ndld_flow.recipe.write_recipe import input_lines, name_recipe, try_with_data
from ndld_flow.recipe.yaml_file import parse_yaml
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.records.optimization import describe_runtime, runtime_settings
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.runner.held_out_check import find_check
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runtimes.registry import DEFAULT
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder, write_text_atomically
from ndld_flow.sweep.run_request import run_alone

if TYPE_CHECKING:
    from ndld_flow.measure.trial_pass import InputTrial

_RECIPE = """\
# {base} against {candidate}, on the same inputs. Repeat it with:
#
#   ndld-flow run {target}
#
name: {name}
model: {model}                # relative to the current directory
models:
  candidate: {other}

inputs:
{inputs}

runtime: {runtime}

steps:
  agree:  {{step: check_accuracy, reference: source, candidate: candidate{judged}}}
  # They show where the time goes; `decide` measures both again.
  base:   {{step: profile, from: source, runs: 1, stable: 0{turns}{own}}}
  speed:  {{step: profile, from: candidate, runs: 1, stable: 0{turns}}}
  decide:
    step: compare_profiles
    base: base
    from: speed
    metric: {metric}
    threshold: {threshold}{allowed}
    gates: {gates}
gates: {conditions}
"""


@dataclass(frozen=True)
class ModelOptions:
    """The inputs and the runtime with which two models are compared."""

    data: tuple[str, ...] = ()
    """`PATH` or `INPUT=PATH`: folders, globs or files. Without, and without shapes: the samples and the conditions with
    which `optimize` proved the second model, if it is one of its results; else random values."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its shape, where the model leaves it free."""
    tokenizer: Path | None = None
    """tokenizer.json, for lines of text."""
    runtime: str | None = None
    """The runtime of both. By default, a result of `optimize` runs in the runtime that it was proved in, and the other
    model in that of the proof's source; all others run in ONNX Runtime."""


@dataclass(frozen=True)
class ComparedModels:
    """The run that compared two models; its page has the accuracy and the speed."""

    finished: RunFinished
    comparison: Comparison
    profiles: tuple[Profile, Profile]
    """Of the base and of the candidate."""


def is_model(reference: str) -> bool:
    """Return whether a reference is the path of a model's file."""
    return Path(reference).suffix == ".onnx" and Path(reference).is_file()


def compare_models(
    models: Sequence[Path],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    options: ModelOptions | None = None,
    *,
    outputs: Path = Path("outputs"),
    listener: Listener = ignore,
) -> ComparedModels:
    """Write a recipe that judges and measures two models, and run it; both are measured again each time.

    Raises RequestError unless there are two models that read the same inputs, and for data that do not fit, ModelError
    for a model that cannot be read or does not run, and as `run_alone`.
    """
    base, candidate = _two_models(models)
    options, rules = options or ModelOptions(), rules or Rules(metric="latency.median")
    fixed = _shapes_of_both(base, candidate)
    proof = find_check(base, candidate, Outputs(outputs).store)
    check = None if options.data or options.shapes or proof.lack else proof.check
    proved = proof.check if options.runtime is None else None
    generated = "" if options.data else ", when_generated: inconclusive"
    name = f"compare-{name_recipe(base)}-{name_recipe(candidate)}"[:100]
    identity = digest_json([str(base.absolute()), str(candidate.absolute()), *options.data])[:8]
    folder = outputs / "comparisons" / f"{name}-{identity}"
    recipe = folder / "recipe.yaml"
    allow = {*rules.allow, *(["versions"] if proved else [])}  # its two runtimes have their own
    allowed = f"\n    allow: {json.dumps(sorted(allow))}" if allow else ""
    compose = partial(
        _RECIPE.format,
        base=short_name(base.name),
        candidate=short_name(candidate.name),
        target=shell_word(recipe),
        name=name,
        model=json.dumps(os.path.relpath(base)),
        other=json.dumps(os.path.relpath(candidate)),
        runtime=proved.runtime if proved else options.runtime or DEFAULT,
        own=f", {runtime_settings(proved.source_runtime)}" if proved else "",
        metric=rules.metric,
        threshold=f"{100 * rules.threshold:g} %",
        gates=json.dumps(list(gates) or [f"{rules.metric} <= +{100 * rules.threshold:g} %"]),
        allowed=allowed,
        judged=proof.settings if check else generated,
        conditions=json.dumps([f"agree.{condition}" for condition in check.conditions] if check else []),
    )
    load_sweep(parse_yaml(recipe, compose(inputs="  {}", turns="")))  # a wrong gate must not wait for the passes below
    shapes = check.shapes if check else options.shapes
    data = proof.data if check else options.data
    trial, found = try_with_data(base, data, {**fixed, **shapes})
    make_folder(folder)
    files = found.files if check else sample_files(found, base, trial, folder / "samples", options.tokenizer)
    trial = measured_trial(trial, files)
    used = FoundData({name: spread_files(paths, MOST_FILES) for name, paths in files.items()})
    inputs = "\n".join(input_lines(trial, used)) or "  {}"
    write_text_atomically(recipe, compose(inputs=inputs, turns=in_turn(trial, used.files)))
    request = Request(recipe, outputs=outputs, force=("base", "speed", "decide"))
    finished = run_alone(request, listener)
    if not options.data:
        others = "; --data compares on others"
        samples = proof.describe(candidate) + others if check else _describe_generated(trial, proof.lack)
        listener(Notice(text=f"compared on {samples}"))
    if proved and proved.runtime != proved.source_runtime:
        own, other = map(describe_runtime, (proved.runtime, proved.source_runtime))
        text = f"{candidate} ran in {own}, for which it was proved, and {base} in {other}; --runtime runs both in one"
        listener(Notice(text=text))
    run = Path(finished.folder)
    profiles = read_run(run).of(Profile)
    comparison = read_document(Comparison, run / "decide" / Comparison.file_name)
    return ComparedModels(finished, comparison, (profiles["base"], profiles["speed"]))


def _two_models(models: Sequence[Path]) -> Sequence[Path]:
    """Return the two models. Raises RequestError unless there are two."""
    wrong = next((path for path in models if not is_model(str(path))), None)
    if wrong is None and len(models) == 2:
        return models
    problem = f"{counted(len(models), 'model')} given"
    if wrong is not None:
        problem = f"there is no file {wrong}" if wrong.suffix == ".onnx" else f"{wrong} is not a model"
    raise RequestError(f"compare: {problem}. Name two models, MODEL.onnx FASTER.onnx, or runs that measured them.")


def _describe_generated(trial: InputTrial, lack: str) -> str:
    """Return a sentence on generated values; `lack` is why no samples of a proof are used."""
    from ndld_flow.models.tensors import shape_text  # imports numpy

    sizes = [f", {short_name(each.spec.name)} {shape_text(each.shape)}" for each in trial.inputs if each.shape]
    shape = "; --shape sets other sizes" if trial.free_sizes else ""
    why = f" ({lack})" if lack else ""
    return f"generated values{''.join(sizes)}{why}; --data DIR compares on your samples{shape}"


def _shapes_of_both(base: Path, candidate: Path) -> dict[str, Sequence[int]]:
    """Return input -> its shape, where the base leaves sizes free and the candidate has fixed them.

    Raises RequestError if the models have inputs of different names or sizes, ModelError for one that cannot be read.
    """
    mine, theirs = map(declared_inputs, (base, candidate))
    _refuse_other_names(base, candidate, mine.keys(), theirs.keys())
    shapes: dict[str, Sequence[int]] = {}
    for name, spec in mine.items():
        own, other = spec.shape, theirs[name].shape
        if own is None or other is None:
            continue
        sizes = [{size for size in pair if isinstance(size, int)} for pair in zip(own, other, strict=False)]
        if len(own) != len(other) or any(len(each) > 1 for each in sizes):
            from ndld_flow.models.tensors import shape_text  # imports numpy

            raise RequestError(
                f"compare: two models are compared on the same inputs: {short_name(name)} is {shape_text(own)} in "
                f"{base}, and {shape_text(other)} in {candidate}. Export both with one size, or compare the "
                "runs of `ndld-flow profile` with `--allow batch`: their speed, without their outputs."
            )
        if all(sizes) and not all(isinstance(size, int) for size in own):
            shapes[name] = [each.pop() for each in sizes]
    return shapes


def _refuse_other_names(base: Path, candidate: Path, first: Set[str], second: Set[str]) -> None:
    """Raise RequestError if two models have inputs of different names."""
    if first == second:
        return
    own = "; ".join(
        f"{path} alone has {short_name(', '.join(sorted(names)), 200)}"
        for path, names in ((base, first - second), (candidate, second - first))
        if names
    )
    remedy = "make the input a constant by the operation `remove_inputs` of `edit`, if that is what the other does"
    if first - second and second - first:
        remedy = "if these are the same inputs, give them the same names by the operation `rename_tensors` of `edit`"
    raise RequestError(f"compare: two models are compared on the same inputs: {own}; {remedy}.")
