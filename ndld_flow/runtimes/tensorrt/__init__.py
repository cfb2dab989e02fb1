"""TensorRT and TensorRT-RTX: engines that run a model, layers from their profiler and inspector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ndld_flow.runtimes.registry import Runtime

if TYPE_CHECKING:
    from pathlib import Path

    from ndld_flow.machine.host import Check
    from ndld_flow.runtimes.environments import KeptLibrary
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.runtimes.settings import RuntimeSettings


class _TensorRt(Runtime):
    def settings(self) -> type[RuntimeSettings]:
        from ndld_flow.runtimes.tensorrt.settings import TensorrtSettings

        return TensorrtSettings

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        from ndld_flow.runtimes.tensorrt.request import EngineRequest

        return EngineRequest.from_json(values)

    def examine(self, library: Path | None) -> Iterable[Check]:
        from ndld_flow.runtimes.tensorrt.probe import examine

        return examine(library)

    def kept_libraries(self) -> Iterable[KeptLibrary]:
        from ndld_flow.runtimes.tensorrt.required_library import find_kept_libraries

        return find_kept_libraries()


RUNTIME: Runtime = _TensorRt()
