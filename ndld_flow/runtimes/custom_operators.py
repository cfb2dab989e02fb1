"""Custom operators of a recipe: one place for an operator's library and its TensorRT plugin."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from ndld_flow.base.settings import Settings, flat_union
from ndld_flow.runtimes.registry import find_settings, settings_of
from ndld_flow.step import DataFile, RunsCode

OperatorName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]+::)?[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
"""`com.acme::Scaled`; `Scaled` in the default domain, where TensorRT's plugins are."""


class CustomOperator(Settings):
    """The implementations of a custom operator."""

    library: Annotated[Path | None, DataFile(), RunsCode()] = None
    """ONNX Runtime's library with the operator, such as `libacme.so`. It needs a trusted recipe."""
    plugin: Annotated[Path | None, DataFile(), RunsCode()] = None
    """TensorRT's plugin: a library, or a `.py` with `tensorrt.plugin`. It needs a trusted recipe."""

    @model_validator(mode="after")
    def _check_given(self) -> "CustomOperator":
        if self.library is None and self.plugin is None:
            raise ValueError("give a `library`, a `plugin`, or both")
        return self


def share_operators(entry: Mapping[str, Any], cls: type[Settings], operators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a step, with those of the recipe's custom operators that the step has and does not set."""
    fields, given = set(cls.model_fields), dict(entry)
    if flat_union(cls) is not None:
        runtime = settings_of(str(entry["backend"])) if "backend" in entry else find_settings()[0]
        fields.update(() if runtime is None else runtime.model_fields)
    shared = {
        "custom_ops": _paths("library", operators.values()),
        "plugins": _paths("plugin", operators.values()),
    }
    return given | {name: value for name, value in shared.items() if value and name in fields and name not in given}


def _paths(kind: str, operators: Iterable[Any]) -> list[str]:
    """Return the distinct paths of one kind; operators with mistakes are left to the check of the recipe."""
    named = (operator.get(kind) for operator in operators if isinstance(operator, Mapping))
    return list(dict.fromkeys(path for path in named if isinstance(path, str)))
