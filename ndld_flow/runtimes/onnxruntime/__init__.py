"""ONNX Runtime: sessions on its execution providers, layers from its profiler, roofs of the device."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import BackendError, NdldFlowError
from ndld_flow.runtimes.registry import Runtime

if TYPE_CHECKING:
    from ndld_flow.machine.host import Check
    from ndld_flow.runtimes.protocol import SessionRequest
    from ndld_flow.runtimes.settings import RuntimeSettings


_TRIED = ("cpu", "cuda", "tensorrt")


class _OnnxRuntime(Runtime):
    def settings(self) -> type[RuntimeSettings]:
        from ndld_flow.runtimes.onnxruntime.settings import OnnxruntimeSettings

        return OnnxruntimeSettings

    def read_request(self, values: Mapping[str, Any]) -> SessionRequest:
        from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest

        return OnnxruntimeRequest(**{**values, "custom_ops": tuple(values.get("custom_ops", ()))})

    def examine(self, library: Path | None) -> Iterable[Check]:
        from ndld_flow.machine.host import Check

        for provider in _TRIED:
            name = f"onnxruntime {provider}"
            try:
                yield Check(name=name, state="ok", found=f"{try_provider(provider)} loads and runs")
            except NdldFlowError as error:
                yield Check(name=name, state="broken" if provider == "cpu" else "absent", found=str(error))


def try_provider(provider: str) -> str:
    """Run a model of one node on a provider and return the provider's full name.

    Raises `BackendError` with the loader's reason when it does not load.
    """
    import numpy as np
    import onnx

    from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model

    text = '<ir_version: 8, opset_import: ["": 17]> one_node (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }'
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        try:
            opened = open_model(path, SessionSettings(provider=provider))
        except BackendError as error:
            raise BackendError(str(error).replace(str(path), "a model of one node")) from None
        opened.bind({"x": np.ones((1, 4), np.float32)}).run()
        return opened.providers[0]


RUNTIME: Runtime = _OnnxRuntime()
