"""ONNX Runtime: sessions on its execution providers, layers from its profiler, roofs of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ndld_flow.runtimes.registry import Runtime

if TYPE_CHECKING:
    from pathlib import Path

    from ndld_flow.machine.description import Check
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.runtimes.settings import RuntimeSettings


class _OnnxRuntime(Runtime):
    def settings(self) -> type[RuntimeSettings]:
        from ndld_flow.runtimes.onnxruntime.settings import OnnxruntimeSettings

        return OnnxruntimeSettings

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        return OnnxruntimeRequest(**{**values, "custom_ops": tuple(values.get("custom_ops", ()))})

    def examine(self, library: Path | None) -> Iterable[Check]:
        from ndld_flow.runtimes.onnxruntime.trial import examine

        return examine()


RUNTIME: Runtime = _OnnxRuntime()
