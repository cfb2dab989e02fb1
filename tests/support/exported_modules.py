"""Modules that `export_pytorch` wrote, run in this process, for tests of many small models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ndld_flow.export.pytorch.export_model import ExportedModule, export_module
from ndld_flow.models.nodes import constant_tensor


def export_proto(model: onnx.ModelProto, folder: Path) -> ExportedModule:
    """Return the code of a model that is not yet a file."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return export_module(path)


def module_of(exported: ExportedModule) -> Any:
    """Return an instance of the written class with its weights."""
    import torch

    from ndld_flow.export.pytorch import onnx_operators

    sys.modules["onnx_operators"] = onnx_operators
    names: dict[str, Any] = {"__name__": "written", "__file__": __file__}
    exec(compile(exported.code, "model.py", "exec"), names)  # noqa: S102  the code under test
    module = names["Model"]()
    tensors = {key: constant_tensor(value) for key, value in exported.weights.items()}
    state = {key: torch.tensor(0) if tensor is None else to_torch(tensor.numpy()) for key, tensor in tensors.items()}
    module.load_state_dict(state)
    return module.eval()


def run_module(exported: ExportedModule, feeds: dict[str, Any]) -> list[Any]:
    """Return the outputs as arrays."""
    import torch

    module = module_of(exported)
    with torch.no_grad():
        outputs = module(*(to_torch(np.asarray(feeds[name])) for name in exported.inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [to_numpy(output) for output in outputs]


def to_torch(array: Any) -> Any:
    """Return a tensor of an array, of bfloat16 too."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def to_numpy(tensor: Any) -> Any:
    """Return an array of a tensor; bfloat16 becomes float32."""
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
