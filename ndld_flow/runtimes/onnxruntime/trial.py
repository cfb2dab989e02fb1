"""Trials of ONNX Runtime on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ndld_flow.base.errors import BackendError, NdldFlowError
from ndld_flow.machine.description import Check
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model

_PROVIDERS = ("cpu", "cuda", "tensorrt")


def examine() -> Iterator[Check]:
    """Try the execution providers."""
    for provider in _PROVIDERS:
        name = f"onnxruntime {provider}"
        try:
            yield Check(name=name, state="ok", found=f"{try_provider(provider)} loads and runs")
        except NdldFlowError as error:
            yield Check(name=name, state="broken" if provider == "cpu" else "absent", found=str(error))


def try_provider(provider: str) -> str:
    """Run a model of one node on a provider and return the provider's full name.

    Raises `BackendError` with the loader's reason when it does not load.
    """
    import onnx

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
