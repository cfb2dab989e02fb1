"""A setting that chooses another runtime, for steps that have settings of ONNX Runtime of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from ndld_flow.runtimes.registry import find_settings, plugin_versions
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.step import Context
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.runtimes.protocol import SessionRequest


@dataclass(frozen=True)
class OneRuntime:
    """Marks a setting that holds the settings of one runtime, chosen by their `backend`, or None.

    ``runtime: Annotated[RuntimeSettings | None, OneRuntime()] = None``

    A recipe may write only the name, as in `runtime: openvino`. The name of the default runtime is None: the step's own
    settings are its. So `runtime: ${steps.speed.backend}` follows a step that measures.
    """

    engines: bool = True
    """Runtimes that run files built from a model can be chosen too. Steps that run changed models cannot use these."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        usable = tuple(each for each in find_settings()[1:] if self.engines or each.builder is None)
        choice: Any = Union[usable]  # noqa: UP007 - made of a sequence
        if len(usable) > 1:
            choice = Annotated[choice, Field(discriminator="backend")]
        named = BeforeValidator(_settings_of_name, str | choice | None)
        return handler.generate_schema(Annotated[choice | None, named])


def _settings_of_name(value: object) -> object:
    if not isinstance(value, str):
        return value
    return None if value in find_settings()[0].backends() else {"backend": value}


def versions_of(runtime: RuntimeSettings | None) -> dict[str, str]:
    """Return the versions of the chosen runtime's libraries; empty for None."""
    return {} if runtime is None else runtime.library_versions() | plugin_versions(runtime)


def request_of(
    runtime: RuntimeSettings | None, model: Onnx, context: Context, key: str = "runtime"
) -> SessionRequest | None:
    """Return the request of the runtime that the setting `key` of a step chooses; None for None."""
    return None if runtime is None else runtime.request(model, lambda setting: context.read(f"{key}.{setting}"))
