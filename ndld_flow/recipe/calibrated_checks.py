"""Checks that judge a model on the samples that it was calibrated on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.store.found_files import find_files
from ndld_flow.store.kinds import AccuracyDocument


def doubt_checks(recipe: Recipe) -> dict[str, str]:
    """Return check -> a sentence, for each step that compares a model on samples that a step calibrated it on.

    Such a check passes what others refuse: 8 % off on the same samples was 25 to 34 % on fresh ones. A model that
    another check judges on other samples is left out.
    """
    doubts: dict[str, dict[str, str]] = {}
    judged_elsewhere = set()
    for check in recipe.steps:
        if not issubclass(check.type.cls.kinds()[1], AccuracyDocument):
            continue
        for step in _calibrated(recipe, check):
            shared = _shared(step, check, recipe.file.inputs)
            if shared:
                doubts.setdefault(step.name, {})[check.name] = (
                    f"{check.name} judges {step.name} on {shared} that it is calibrated on, so it may pass what other "
                    "data fails: give one of the two other `data`, or for generated values another `seed`"
                )
            else:
                judged_elsewhere.add(step.name)
    return {
        check: text for name, found in doubts.items() if name not in judged_elsewhere for check, text in found.items()
    }


def _calibrated(recipe: Recipe, check: RecipeStep) -> Iterator[RecipeStep]:
    """Yield the steps whose calibration a check judges: those behind its candidate, but not behind its reference."""
    steps = {step.name: step for step in recipe.steps}
    behind: dict[bool, set[str]] = {True: set(), False: set()}
    for is_reference, found in behind.items():
        waiting = [name for key, name in check.reads.items() if key.startswith("reference") == is_reference]
        while waiting:
            name = waiting.pop()
            if name in steps and name not in found:
                found.add(name)
                waiting += steps[name].reads.values()
    return (step for step in recipe.steps if step.name in behind[False] - behind[True] and step.step.calibrates)


def _shared(step: RecipeStep, check: RecipeStep, inputs: Mapping[str, InputSpec]) -> str:
    """Return the samples that both steps read, in words; empty if there are none."""
    one, other = step.step, check.step
    if not (isinstance(one, SampleSettings) and isinstance(other, SampleSettings)):
        return ""
    if one.loader is not None or other.loader is not None:
        return f"the samples of {one.loader}" if one.loader == other.loader else ""
    first, second = _files(step, inputs), _files(check, inputs)
    if not first and not second:
        seeds = [range(each.seed, each.seed + (each.samples or 1)) for each in (one, other)]
        return "generated values" if set(seeds[0]) & set(seeds[1]) else ""
    common = {name: set(first.get(name, ())) & set(second.get(name, ())) for name in first.keys() | second.keys()}
    if not all(common.values()):  # a constant input, such as one mask for all images, may be the same
        return ""
    most = max(second, key=lambda name: len(second[name]))
    count, files = len(common[most]), counted(len(second[most]), "file")
    return files if count == len(second[most]) else f"{count} of {files}"


def _files(step: RecipeStep, inputs: Mapping[str, InputSpec]) -> dict[str, list[str]]:
    """Return the files of a step's samples by input, as far as they exist."""
    settings = step.step
    assert isinstance(settings, SampleSettings)
    own = {name: InputSpec(data=data) for name, data in settings.data.items()}
    found = {}
    for name, spec in {**(inputs if step.inputs is None else step.inputs), **own}.items():
        try:
            files = find_files(spec.data_patterns)
        except RequestError:  # the step reports them
            continue
        if files:
            found[name] = [str(file.path.resolve()) for file in files][: settings.samples]
    return found
