"""The runtime and the custom operators that a recipe sets for all of its steps."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import AfterValidator, Discriminator, Field, GetCoreSchemaHandler, Tag, ValidationError, model_validator
from pydantic_core import CoreSchema

from ndld_flow.base.settings import Settings, fields_of, flat_union
from ndld_flow.runtimes.registry import find_settings, plugin_versions, settings_of
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.step import Context, DataFile, RunsCode
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.runtimes.protocol import SessionRequest

_SETTING = "runtime"
"""The setting of steps that `OneRuntime` marks, and of recipes."""
_OWN_CHOICES = (_SETTING, "backend", "provider", "provider_library")
"""Settings of a step that choose its runtime, whatever the recipe's is."""


@dataclass(frozen=True)
class OneRuntime:
    """Marks a setting that holds the settings of one runtime, chosen by their `backend`, or None.

    ``runtime: Annotated[RuntimeSettings | None, OneRuntime()] = None``

    A recipe may write only the name, as in `runtime: openvino`. The name of the default runtime is None: the step's own
    settings are its. So `runtime: ${steps.speed.backend}` follows a step that measures.
    """

    engines: bool = True
    """Engines, which are built from a model, can run too. Steps that run changed models cannot use these."""
    more: tuple[type[RuntimeSettings], ...] = ()
    """Further settings that can be chosen."""
    with_default: bool = False
    """The default runtime has settings too, and its name chooses these."""
    follows: Callable[[Mapping[str, Any]], bool] = lambda entry: True
    """Returns whether a step with these settings runs in the recipe's `runtime:` if it names none itself."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        usable = dict.fromkeys(self.choices().values())
        choice: Any = Union[tuple(usable)]  # noqa: UP007 - made of a sequence
        if len(usable) > 1:
            choice = Annotated[choice, Field(discriminator="backend")]
        known = tuple(dict.fromkeys((*find_settings()[0].backends(), *self.choices())))
        names = Annotated[Literal[known], AfterValidator(self._settings_of_name)]  # type: ignore[valid-type]
        form = Discriminator(lambda value: "name" if isinstance(value, str) else "settings")
        both = Annotated[Annotated[names, Tag("name")] | Annotated[choice, Tag("settings")], form]
        return handler.generate_schema(both | None)

    def choices(self) -> dict[str, type[RuntimeSettings]]:
        """Return the name of each runtime that can be chosen with settings -> their class."""
        default, *others = find_settings()
        usable = [each for each in others if self.engines or each.builder is None]
        usable = [*([default] if self.with_default or self.engines else []), *usable, *self.more]
        return {name: each for each in usable for name in each.backends()}

    def _settings_of_name(self, name: str) -> RuntimeSettings | None:
        chosen = self.choices().get(name)
        if chosen is None or (name in find_settings()[0].backends() and not self.with_default):
            return None
        try:
            return chosen.model_validate({"backend": name})
        except ValidationError as error:  # it needs more settings
            raise error.errors()[0].get("ctx", {}).get("error", error) from None


def share_runtime(
    entry: Mapping[str, Any], cls: type[Settings], chosen: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]] | None:
    """Return the settings of a step with those of the recipe's runtime, and the names of all that a runtime may set.

    None for a step that names a runtime itself, or runs in none. Of the default runtime's settings, a step gets those
    that it has.
    """
    if not entry.keys().isdisjoint(_OWN_CHOICES):
        return None
    info = cls.model_fields.get(_SETTING)
    marks = info.metadata if info is not None else ()
    fields, mark = fields_of(cls), next((mark for mark in marks if isinstance(mark, OneRuntime)), None)
    default, *others = find_settings()
    if flat_union(cls) is not None and "backend" in fields:
        shared, determined = dict(chosen), {name for each in (default, *others) for name in each.model_fields}
    elif mark is None or not mark.follows(entry):
        return None
    else:
        known = {name: value for name, value in chosen.items() if name in fields}
        shared = known if chosen["backend"] in default.backends() else {_SETTING: dict(chosen)}
        determined = default.model_fields.keys() & fields
    return {**shared, **entry}, frozenset({*_OWN_CHOICES, *determined} - entry.keys())


def versions_of(runtime: RuntimeSettings | None) -> dict[str, str]:
    """Return the versions of the chosen runtime's libraries; empty for None."""
    return {} if runtime is None else runtime.library_versions() | plugin_versions(runtime)


def request_of(
    runtime: RuntimeSettings | None, model: Onnx, context: Context, key: str = "runtime"
) -> "SessionRequest | None":
    """Return the request of the runtime that the setting `key` of a step chooses; None for None."""
    return None if runtime is None else runtime.request_in(model, context, key)


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
    shared = {"custom_ops": _paths("library", operators.values()), "plugins": _paths("plugin", operators.values())}
    return given | {name: value for name, value in shared.items() if value and name in fields and name not in given}


def _paths(kind: str, operators: Iterable[Any]) -> list[str]:
    """Return the distinct paths of one kind; operators with mistakes are left to the check of the recipe."""
    named = (operator.get(kind) for operator in operators if isinstance(operator, Mapping))
    return list(dict.fromkeys(path for path in named if isinstance(path, str)))
