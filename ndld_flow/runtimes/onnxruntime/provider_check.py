"""A test that an execution provider loads and runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from ndld_flow.base.errors import BackendError
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model


def try_provider(provider: str) -> str:
    """Run a model of one node on a provider and return the provider's full name.

    Raises `BackendError` with the loader's reason when it does not load.
    """
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(_one_node_model(), path)
        try:
            opened = open_model(path, SessionSettings(provider=provider))
        except BackendError as error:
            raise BackendError(str(error).replace(str(path), "a model of one node")) from None
        opened.bind({"x": np.ones((1, 4), np.float32)}).run()
        return opened.providers[0]


def _one_node_model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one_node", [x], [y])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
