"""Write a change that a finding suggests into the text of a recipe, and keep the rest as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import RecipeError
from ndld_flow.profiles.diagnose.recipe_change import RecipeChange
from ndld_flow.recipe.apply_point import (
    REMOVED,
    CannotEditError,
    differences,
    insert_before,
    is_same,
    open_text,
    remove_key,
    set_value,
)
from ndld_flow.recipe.resolved import write_yaml

_CHECK = "check_accuracy"
_READS = ("from", "candidate")
"""Settings that name a model; without them, a step reads that of the steps before it."""


@dataclass(frozen=True)
class ChangedRecipe:
    """The text of a recipe before and after a change."""

    before: str
    after: str
    step: str
    """Name of the step that profiles."""
    reason: str = ""
    """The reason why the recipe was written in full, without comments; empty if only the change was written."""


@dataclass(frozen=True)
class _Edit:
    """A change, with names for its new steps."""

    step: str
    change: RecipeChange
    source: str
    """Name of the step or model that the step reads now."""
    taken: tuple[str, ...]
    """Names of the recipe's steps and models."""
    recorded: Mapping[str, Any]
    """Step -> its resolved settings."""

    @property
    def new_steps(self) -> dict[str, dict[str, JsonValue]]:
        """Return name -> settings of the steps to insert, in order, each reading the one before."""
        steps: dict[str, dict[str, JsonValue]] = {}
        source = self.source
        for added in self.change.steps:
            name = self._free_name(added.step, steps)
            kind = {"step": added.step} if name != added.step else {}
            steps[name] = {**kind, "from": source, **added.settings}
            source = name
        if self.change.needs_check:
            name = self._free_name(_CHECK, steps)
            kind = {"step": _CHECK} if name != _CHECK else {}
            steps[name] = {**kind, "reference": self.source, "candidate": source}
        return steps

    @property
    def settings(self) -> dict[str, JsonValue]:
        """Return the new values of the step that profiles."""
        changed = [name for name, settings in self.new_steps.items() if "from" in settings]
        return {**({"from": changed[-1]} if changed else {}), **self.change.settings}

    def pins(self, steps: Mapping[str, Any]) -> dict[str, dict[str, JsonValue]]:
        """Return later step -> what it reads now, where it would read an inserted step instead."""
        names = list(steps)
        later = names[names.index(self.step) + 1 :] if self.new_steps else []
        pinned = {
            name: {
                key: self.source
                for key in _READS
                if key not in (steps[name] or {}) and self.recorded.get(name, {}).get(key) == self.source
            }
            for name in later
        }
        return {name: reads for name, reads in pinned.items() if reads}  # type: ignore[misc]

    def _free_name(self, wanted: str, others: Mapping[str, object]) -> str:
        used = {*self.taken, *others}
        numbered = (wanted if number == 1 else f"{wanted}_{number}" for number in range(1, len(used) + 2))
        return next(name for name in numbered if name not in used)

    def in_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe's values with the change."""
        steps: dict[str, Any] = {}
        changed = {self.step: self.settings, **self.pins(values["steps"])}
        for name, settings in values["steps"].items():
            if name == self.step:
                steps |= self.new_steps
            steps[name] = {**(settings or {}), **changed[name]} if name in changed else settings
        return {**values, "steps": steps}

    def in_text(self, text: str, steps: Mapping[str, Any]) -> str:
        """Return a recipe's text with the change; `steps` are its values. Raises CannotEditError."""
        for name, settings in self.new_steps.items():
            text = insert_before(text, ("steps", self.step), name, settings)
        for step, values in {self.step: self.settings, **self.pins(steps)}.items():
            for name, value in values.items():
                text = set_value(text, ("steps", step, name), value)
        return text


def change_file(
    path: Path, overrides: Sequence[str], change: RecipeChange, step: str, source: str, recorded: Mapping[str, Any]
) -> ChangedRecipe:
    """Return a recipe's own text with a change and the overrides of its run; comments stay.

    `source` is the model or step that the step read, and `recorded` the resolved recipe of the run. A recipe that
    cannot be changed in place is written in full from the record. Raises RecipeError for a file that is not a recipe.
    """
    raw = path.read_bytes().decode("utf-8-sig")
    text = raw.replace("\r\n", "\n")
    wanted = open_text(path, text, overrides)
    values = wanted.values({})
    edit = _edit_of(values, change, step, source, recorded)
    try:
        if wanted.composed.values.get("sweep") is not None:
            raise CannotEditError("it has a `sweep:`")
        edited = text
        for words, value in differences(open_text(path, text).written, wanted.written):
            edited = remove_key(edited, words) if value is REMOVED else set_value(edited, words, value)  # type: ignore[arg-type]
        edited = edit.in_text(edited, values["steps"])
        if not is_same(open_text(path, edited), edit.in_values(wanted.written), edit.in_values(values)):
            raise CannotEditError("its presets or aliases set other values")
    except (CannotEditError, RecipeError, RecursionError) as error:
        why = f"{path.name} could not be changed only at these places ({' '.join(str(error).split())[:200]})"
        return change_record(recorded, change, step, source, why)
    ending = "\r\n" if "\r\n" in raw else "\n"
    return ChangedRecipe(raw, edited.replace("\n", ending), step)


def change_record(
    recorded: Mapping[str, Any], change: RecipeChange, step: str, source: str, reason: str
) -> ChangedRecipe:
    """Return the resolved recipe of a run with a change, written in full."""
    values = {key: value for key, value in recorded.items() if key != "sweep"}
    after = _edit_of(values, change, step, source, values).in_values(values)
    return ChangedRecipe(
        write_yaml(values, ""), write_yaml(after, f"{reason},\nso it is written in full."), step, reason
    )


def _edit_of(
    values: Mapping[str, Any], change: RecipeChange, step: str, source: str, recorded: Mapping[str, Any]
) -> _Edit:
    taken = (*values["steps"], *(values.get("models") or ()), "source")
    return _Edit(step, change, source, taken, recorded.get("steps") or {})
