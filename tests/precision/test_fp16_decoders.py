"""Conversion of decoders to fp16: attention with a KV cache, of ONNX and of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from ndld_flow.base.errors import RequestError
from ndld_flow.models.element_types import _CONTRIB, REGISTERED
from tests.support.decoders import STYLES, VOCABULARY, Style, decode, decoder_model, full_pass
from tests.support.fp16_checks import convert
from tests.support.message_files import CheckMessage

_TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, (1, 9))
_HALF, _FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


@pytest.mark.representatives("group-True-true", "standard-True-true")
@pytest.mark.parametrize("keep_io", ["true", "false", '["logits"]'])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("style", STYLES)
def test_a_decoder_and_its_cache_become_fp16(style: Style, quantized: bool, keep_io: str, tmp_path: Path) -> None:
    source = decoder_model(style, quantized=quantized)
    path, result = convert(source, tmp_path, f'{{"keep_io": {keep_io}}}')
    half = onnx.load(path)
    assert result.metrics["kept_fp32"] == 0
    cache = [*half.graph.input, *half.graph.output]
    kinds = {info.type.tensor_type.elem_type for info in cache if info.name.startswith(("past", "present"))}
    assert kinds == {_FLOAT if keep_io == "true" else _HALF}
    assert half.graph.output[0].type.tensor_type.elem_type == (_HALF if keep_io == "false" else _FLOAT)
    assert result.metrics["casts_added"] == {"true": 9, "false": 0, '["logits"]': 1}[keep_io]
    reference = full_pass(source, _TOKENS)
    assert np.abs(decode(half, _TOKENS) - reference).max() < 0.01 * np.abs(reference).max()


def test_a_kept_name_that_no_input_or_output_has_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        convert(decoder_model("group"), tmp_path, '{"keep_io": ["logit"]}')
    check_message(caught.value)


def test_signatures_are_those_of_onnxruntime() -> None:
    """Ports that may become fp16, ports that are always fp32, and ports without floats."""
    native = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {(schema.domain, schema.name): schema for schema in native.get_all_operator_schema()}
    for domain, table in (("com.microsoft", _CONTRIB), ("", REGISTERED)):
        for op_type, text in table.items():
            schema = schemas[domain, op_type]
            allowed = {item.type_param_str: set(item.allowed_type_strs) for item in schema.type_constraints}
            for ports, formal in zip(text.split("->"), (schema.inputs, schema.outputs), strict=True):
                for variable, port in zip(ports.split(), formal, strict=False):
                    types = allowed.get(port.typeStr, {port.typeStr})
                    assert (variable in "TUV") == ("tensor(float16)" in types), (op_type, port.name)
                    assert variable != "F" or "tensor(float)" in types, (op_type, port.name)
                    assert variable != "_" or "tensor(float)" not in types, (op_type, port.name)
