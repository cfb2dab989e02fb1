"""A trial of whether a runtime rounds tensors to fp16 and bf16, as models that emulate stored precision need.

Runtimes may remove a Cast to a narrower type and back, as OpenVINO does with fp16 on a CPU.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.protocol import SessionRequest

_VALUES = np.array([1 + 2**-12, 1 + 3 * 2**-10, 3.14159, 1e-3, 1e5], np.float32)
"""Numbers that the narrow formats lack; 1e5 overflows in fp16."""
_TYPES: dict[str, np.dtype[np.generic]] = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def rounds_to(request: SessionRequest, precision: str) -> bool:
    """Return True if a Cast of fp32 to `fp16` or `bf16` and back rounds, between two operators, in this runtime.

    Raises as `SessionRequest.open` does.
    """
    with np.errstate(over="ignore"):
        rounded = _VALUES.astype(_TYPES[precision]).astype(np.float32)
    computed = _run(request, precision)
    return computed is not None and np.array_equal(computed, rounded)


def _run(request: SessionRequest, precision: str) -> Array | None:
    """Return the values after a negation, the pair of Casts, and another negation."""
    import onnx

    narrow = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.BFLOAT16
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        rounding (float[{len(_VALUES)}] x) => (float[{len(_VALUES)}] y) {{
            negative = Neg(x)
            narrow = Cast<to = {narrow}>(negative)
            wide = Cast<to = {onnx.TensorProto.FLOAT}>(narrow)
            y = Neg(wide)
        }}""")
    with tempfile.TemporaryDirectory(prefix="ndld_flow-") as folder:
        path = Path(folder) / "rounding.onnx"
        onnx.save(model, path)
        session = request.open(path)
        binding = session.bind({"x": _VALUES})
        binding.run()
        values = binding.outputs()["y"]
        session.close()
    return values
