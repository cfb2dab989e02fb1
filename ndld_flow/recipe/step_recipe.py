"""Write a recipe with one step, for a step that is used as a command."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import OutputsError
from ndld_flow.base.text import short_name
from ndld_flow.recipe.step_types import StepType
from ndld_flow.recipe.write_recipe import RecipeOptions, input_lines, name_recipe, try_data
from ndld_flow.step import Reads, Step
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.kinds import Onnx

_TEMPLATE = """\
# One step, written by `ndld-flow {step}`. Add others, and run it with:
#
#   ndld-flow run {target}
#
# `ndld-flow init` writes a recipe that also checks and measures the result.
name: {name}
model: {model}                # relative to the current directory
{models}{inputs}
steps:
  {step}:{settings}
"""


@dataclass(frozen=True)
class StepRecipe:
    """A step with the model and the settings that it is used with."""

    kind: StepType
    model: str
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """Setting -> value; a setting that names a step has the path of a model instead."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its shape."""
    data: Sequence[str] = ()
    """`PATH` or `INPUT=PATH`: the values of inputs."""

    @property
    def name(self) -> str:
        """The recipe's name: that of the step and of the model."""
        return f"{self.kind.name}-{name_recipe(Path(self.model.rpartition(':')[2]))}"[:100]

    def write(self, target: Path) -> None:
        """Write the recipe. A model that the step will run is run once, to find the sizes of its inputs.

        Raises ModelError for a model that cannot be read, RequestError for shapes and files that do not fit it.
        """
        read = {name for name in self.kind.cls.marked(Reads) if name in self.settings}
        models = {name: _locate(str(self.settings[name])) for name in read}
        settings = {name: name if name in read else value for name, value in self.settings.items()}
        text = _TEMPLATE.format(
            step=self.kind.name,
            target=short_name(str(target)),
            name=self.name,
            model=json.dumps(_locate(self.model)),
            models=f"models: {json.dumps(models)}\n" if models else "",
            inputs=self._inputs(),
            settings="".join(f"\n    {name}: {json.dumps(value)}" for name, value in settings.items()) or " {}",
        )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(target, text)
        except OSError as error:
            raise OutputsError(f"{target}: the recipe cannot be written ({error.strerror}).") from None

    def _inputs(self) -> str:
        """Return the recipe's `inputs:`; empty if the step reads none."""
        if self.kind.cls.sets_shapes:  # of the result, so that no trial can know them
            given = [f"  {json.dumps(name)}: {{shape: {list(shape)}}}" for name, shape in self.shapes.items()]
            return "\n".join(["\ninputs:", *given, ""]) if given else ""
        if not self.kind.cls.may_read_inputs() or not Path(self.model).is_file():
            return ""
        trial, found = try_data(Path(self.model), RecipeOptions(data=self.data, shapes=self.shapes))
        lines = list(input_lines(trial, found.given))
        return "\n".join(["\ninputs:", *lines, ""]) if lines else ""


def settings_as_options(cls: type[Step[Any, Any]]) -> dict[str, dict[str, Any]]:
    """Return setting -> its JSON Schema, of the settings that a single step can have: none that names another step,
    except for one that names a model.
    """
    reads = cls.marked(Reads)
    properties: dict[str, dict[str, Any]] = cls.model_json_schema().get("properties", {})
    return {name: schema for name, schema in properties.items() if name not in reads or reads[name].kind is Onnx}


def _locate(model: str) -> str:
    """Return the path of a file relative to the current directory; other sources, such as `package:`, as they are."""
    return os.path.relpath(model) if Path(model).exists() else model
