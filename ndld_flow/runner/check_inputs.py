"""Check the recipe's inputs against the models that are known before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ndld_flow.base.errors import NdldFlowError, Problem, RecipeError, RequestError
from ndld_flow.base.text import suggest
from ndld_flow.inputs import InputSpec, names_one_file
from ndld_flow.models.external_files import DeclaredInput, declared_inputs
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.store.found_files import find_files
from ndld_flow.store.kinds import Artifact, Engine, Onnx

Inputs = Mapping[str, DeclaredInput]
"""The inputs of a model by name."""


def refuse_wrong_inputs(recipe: Recipe, models: Mapping[str, Path]) -> None:
    """Raise RecipeError with all inputs that their models lack or do not accept, where that is known before a run."""
    problems = find_wrong_inputs(recipe, models, {})
    if problems:
        raise RecipeError(problems)


def find_wrong_inputs(recipe: Recipe, models: Mapping[str, Path], known: dict[Path, Inputs | None]) -> list[Problem]:
    """Return a problem for each input that a step's model does not have, or whose shape or array it does not accept.

    `models` are the recipe's, by name. The inputs of an edited model are known only after the edit, whose reader raises
    the error then. `known` has the inputs of models that were read, and is filled.
    """
    if not recipe.file.inputs and all(step.inputs is None for step in recipe.steps):
        return []
    return _find_problems(recipe, _models_of_steps(recipe, models, known))


def refuse_missing_data(recipe: Recipe) -> None:
    """Raise RecipeError with all data files of inputs that do not exist; called before a model is fetched, and before
    a step is computed."""
    problems: dict[str, Problem] = {}
    for step in recipe.steps:
        for name, given in step.used_inputs(recipe.file.inputs).items():
            place = _place_of(step, name)
            try:
                files = [path for file in find_files(given.data_patterns) for path in file.contents.values()]
                what = next((f"there is no file {path}" for path in files if not path.exists()), "")
            except RequestError as error:
                what = str(error)
            if what:
                hint = f"paths are relative to the current directory, {Path.cwd()}"
                problems.setdefault(place, Problem(recipe.where(place), place, what, hint))
    if problems:
        raise RecipeError(list(problems.values()))


def refuse_inputs_of(recipe: Recipe, step: RecipeStep, artifacts: Mapping[str, Artifact]) -> None:
    """Raise RecipeError with the inputs that the models of a step lack or do not accept.

    `artifacts` are those that the step reads: call it when the step has failed, as edited models are known only then.
    """
    read = [_inputs_of(artifacts[key].path, {}) for key in step.own_reads if isinstance(artifacts[key], Onnx)]
    models = [_without_shapes(each) if step.type.cls.sets_shapes else each for each in read if each is not None]
    problems = _find_problems(recipe, [(step, models)]) if models and len(models) == len(read) else []
    if problems:
        raise RecipeError(problems, step=step.name)


def _find_problems(recipe: Recipe, reading: Iterable[tuple[RecipeStep, list[Inputs]]]) -> list[Problem]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for step, read in reading:
        names = sorted(frozenset[str]().union(*read))
        for name, given in sorted(step.used_inputs(recipe.file.inputs).items()):
            place = _place_of(step, name)
            if name not in names:
                found.setdefault((place, "", suggest(name, names)), []).append(step.name)
            for model in read:
                what = _misfit(name, model[name], given) if name in model else ""
                if what:
                    found.setdefault((place, what, ""), []).append(step.name)
    return [
        Problem(recipe.where(place), place, what or f"no input of the model of {' and '.join(steps)}", hint)
        for (place, what, hint), steps in found.items()
    ]


def _models_of_steps(
    recipe: Recipe, models: Mapping[str, Path], known: dict[Path, Inputs | None]
) -> Iterator[tuple[RecipeStep, list[Inputs]]]:
    """Yield the steps that read only models whose inputs are known, with these; shapes are left out where a step sets
    them.
    """
    inputs = {name: _inputs_of(path, known) for name, path in models.items()}
    for step in recipe.steps:
        cls = step.type.cls
        read = [inputs[name] for name in step.own_reads.values() if name in inputs]
        models_read = [_without_shapes(each) if cls.sets_shapes else each for each in read if each is not None]
        if issubclass(cls.kinds()[1], Onnx | Engine):
            kept = inputs.get(step.reads[cls.read_key]) if cls.keeps_inputs else None
            inputs[step.name] = _without_shapes(kept) if kept is not None and cls.sets_shapes else kept
        if models_read and len(models_read) == len(read):
            yield step, models_read


def _without_shapes(inputs: Inputs) -> Inputs:
    return {name: replace(spec, shape=None) for name, spec in inputs.items()}


def _place_of(step: RecipeStep, name: str) -> str:
    """Return the dotted path of an input in the recipe: in the section of the step that gives it, or the recipe's."""
    owners: Sequence[str] = step.inputs_of or ((step.name,) if step.inputs is not None else ())
    return f"steps.{owners[0]}.inputs.{name}" if owners else f"inputs.{name}"


def _misfit(name: str, declared: DeclaredInput, given: InputSpec) -> str:
    """Return what an input does not accept: a shape, or the array of a `.npy` file; empty if nothing is known to be
    wrong. Of the file at most the header is read.
    """
    if given.fed_from is not None or given.first_shape is not None or given.grow is not None:
        return ""  # the shapes of a sequence depend on its step
    shapes = list(filter(None, (given.shape, given.min, given.opt, given.max)))
    has_array = isinstance(given.data, str) and names_one_file(given.data) and given.data.endswith(".npy")
    if not shapes and not has_array:
        return ""
    from ndld_flow.models.tensors import TensorSpec
    from ndld_flow.samples.wanted_inputs import WantedInput

    wanted = WantedInput(TensorSpec(name, declared.dtype, declared.shape), given, declared.shape)
    try:
        for shape in shapes:
            wanted.check_shape(shape, "the recipe has")
        if has_array:
            from ndld_flow.samples.file_samples import open_file

            (file,) = find_files((str(given.data),))
            open_file(replace(wanted, pattern=given.run_shape or declared.shape), file).count(1)
    except RequestError as error:
        return str(error).removeprefix(f'input "{name}": ')
    return ""


def _inputs_of(path: Path, known: dict[Path, Inputs | None]) -> Inputs | None:
    """Return a model's inputs; None if it cannot be read, which the step that reads it reports."""
    if path not in known:
        try:
            known[path] = declared_inputs(path)
        except NdldFlowError:
            known[path] = None
    return known[path]
