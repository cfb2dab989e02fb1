"""Checks that judge a model on the samples that it was fitted to, by calibration or a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import Recipe, RecipeStep
from ndld_flow.samples.sample_settings import FittedSettings, JudgedSettings, SampleSettings, Seen
from ndld_flow.store.found_files import find_files
from ndld_flow.store.kinds import AccuracyDocument


def hold_out_samples(steps: Sequence[RecipeStep], inputs: Mapping[str, InputSpec]) -> list[RecipeStep]:
    """Return the steps with samples held out: fitted steps do not see these, and checks judge on them.

    A step leaves every third sample to the checks that have the same data, unless it sets `samples` or `hold_out`.
    """
    arranged = {step.name: step for step in steps}
    for check in steps:
        if isinstance(check.step, JudgedSettings) and "seen" not in check.step.model_fields_set:
            behind = [arranged[step.name] for step in _calibrated(steps, check)]
            behind = [_held_out(step) if _source(step, inputs) == _source(check, inputs) else step for step in behind]
            seen: dict[str, Seen] = {}
            for step in behind:
                if isinstance(step.step, FittedSettings):  # of other steps, the samples are unknown
                    if _source(step, inputs) == _source(check, inputs):
                        seen[step.name] = step.step.seen
                    elif not _shared(step, check, inputs):
                        seen[step.name] = Seen(first=0)
            arranged |= {step.name: step for step in behind}
            arranged[check.name] = replace(check, step=check.step.model_copy(update={"seen": seen})) if seen else check
    return list(arranged.values())


def _held_out(step: RecipeStep) -> RecipeStep:
    """Return a fitted step that leaves every third sample to checks, if nothing in the recipe chooses its samples."""
    settings = step.step
    if (
        isinstance(settings, FittedSettings)
        and settings.samples is None
        and "hold_out" not in settings.model_fields_set
    ):
        return replace(step, step=settings.model_copy(update={"hold_out": True}))
    return step


def _source(step: RecipeStep, inputs: Mapping[str, InputSpec]) -> object:
    """Return what a step's samples are read or generated from; a seed counts where no file is read."""
    settings = step.step
    if not isinstance(settings, SampleSettings):
        return step.name
    given = {**(inputs if step.inputs is None else step.inputs)}
    for name, data in settings.data.items():
        given[name] = given.get(name, InputSpec()).model_copy(update={"data": data, "values": None})
    is_read = settings.loader is not None or any(spec.data_patterns for spec in given.values())
    return settings.loader, given, None if is_read else settings.seed


def doubt_checks(recipe: Recipe) -> dict[str, str]:
    """Return check -> a sentence, for each step that compares a model on samples that a step was fitted to.

    Such a check passes what others refuse: 8 % off on the same samples was 25 to 34 % on fresh ones. A model that
    another check judges on other samples is left out, and so are checks that are known to hold samples out, whose
    results report it.
    """
    doubts: dict[str, dict[str, str]] = {}
    judged_elsewhere = set()
    for check in recipe.steps:
        if not issubclass(check.type.cls.kinds()[1], AccuracyDocument):
            continue
        known: Mapping[str, Seen] = check.step.seen if isinstance(check.step, JudgedSettings) else {}
        for step in _calibrated(recipe.steps, check):
            shared = "" if step.name in known else _shared(step, check, recipe.file.inputs)
            if shared:
                doubts.setdefault(step.name, {})[check.name] = (
                    f"{check.name} judges {step.name} on {shared} that it was fitted to, so it may pass what other "
                    "data fails: give one of the two other `data`, or for generated values another `seed`"
                )
            else:
                judged_elsewhere.add(step.name)
    return {
        check: text for name, found in doubts.items() if name not in judged_elsewhere for check, text in found.items()
    }


def _calibrated(steps: Sequence[RecipeStep], check: RecipeStep) -> Iterator[RecipeStep]:
    """Yield the fitted steps that a check judges: those behind its candidate, but not behind its reference."""
    known = {step.name: step for step in steps}
    behind: dict[bool, set[str]] = {True: set(), False: set()}
    for is_reference, found in behind.items():
        waiting = [name for key, name in check.reads.items() if key.startswith("reference") == is_reference]
        while waiting:
            name = waiting.pop()
            if name in known and name not in found:
                found.add(name)
                waiting += known[name].reads.values()
    apart = behind[False] - behind[True]
    return (step for step in steps if step.name in apart and step.step.calibrates)


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
