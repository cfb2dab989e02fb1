"""Checks that the C++ program can run an engine."""

from __future__ import annotations

from collections.abc import Sequence

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.records.build import Build
from ndld_flow.records.profile import TensorInfo

_DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float16", "bfloat16", "float32")
"""Types of inputs and outputs that TensorRT and the program have."""


def check_engine(build: Build, model_digest: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise `RequestError` for an engine of another model, or with a property that the C++ program does not support."""
    where = f"the engine {short_name(build.label)}"
    if build.model_digest != model_digest:
        raise RequestError(
            f"{where} was built from another model than the one that this step reads: set `from:` to the step that "
            "`build_engine` reads."
        )
    if build.marked_outputs:
        raise RequestError(
            f"{where} has tensors marked as outputs for inspection (`mark_outputs`), and fuses layers differently: "
            "name a step that builds it without them."
        )
    needs = {
        "plugins": bool(build.options.get("plugins")),
        "weights: strip": build.options.get("weights") == "strip",
        "version_compatible: true": bool(build.options.get("version_compatible")),
    }
    if needed := [setting for setting, is_set in needs.items() if is_set]:
        raise RequestError(
            f"{where} was built with `{needed[0]}`, which the C++ program does not support: it loads no plugins, no "
            f"weights and no embedded code. Export the ONNX model for ONNX Runtime, or build an engine without it."
        )
    _check_tensors(where, "input", build.inputs, inputs)
    _check_tensors(where, "output", build.outputs, outputs)


def _check_tensors(where: str, kind: str, built: Sequence[TensorInfo], specs: Sequence[TensorSpec]) -> None:
    found = {tensor.name: tensor for tensor in built}
    for spec in specs:
        name = f'{kind} "{short_name(spec.name)}"'
        if spec.name not in found:
            raise RequestError(f"{where} has no {name} of its model, so that the C++ program cannot run it.")
        tensor = found[spec.name]
        if tensor.dtype != spec.dtype or tensor.dtype not in _DTYPES or tensor.format not in ("", "linear"):
            raise RequestError(
                f"{where} has the {name} as {tensor.dtype} {tensor.format or 'linear'}, its model as {spec.dtype}: the "
                f"C++ program needs equal types, of {', '.join(_DTYPES)}, and linear memory."
            )
    if extra := set(found) - {spec.name for spec in specs}:
        raise RequestError(f'{where} has an {kind} "{short_name(min(extra))}" that its model does not have.')
