"""Every emitter, on every case that the onnx package has for its operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.export.pytorch.emitters import EMITTERS, FORMS
from ndld_flow.export.pytorch.export_model import operators_text
from tests.support.backend_models import (
    RANDOM,
    BackendModel,
    all_backend_models,
    one_of_each_operator,
    outputs_of_onnxruntime,
    outputs_of_reference,
)
from tests.support.exported_modules import export_proto, run_module

pytest.importorskip("torch", reason="PyTorch is not installed")

WITHOUT_CASES = {"Upsample"}
"""Operators of old opsets only, or that onnx has no case for."""
DIFFERENT = {
    # onnx's definition adds the mask as -infinity, its reference as the lowest number.
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
    # The reference stacks the scalars of a loop's bfloat16 scan as rows of one element.
    "test_range_bfloat16_type_positive_delta_expanded",
}


def is_close(found: Any, wanted: Any) -> bool:
    """Integers and bools are equal; floats to some roundings of their type, bfloat16 to two of its own."""
    first, second = np.asarray(found), np.asarray(wanted)
    tolerance = 1e-4
    if second.dtype.name == "bfloat16":
        second, tolerance = second.astype(np.float32), 1e-2
    elif second.dtype == np.float16:
        tolerance = 5e-3
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    return bool(np.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True))


def verdict(case: BackendModel, folder: Path) -> str:
    """`refused`, `equal`, `differs`, or `no reference`; an error of the written module is not caught."""
    try:
        exported = export_proto(case.model, folder)
    except RequestError:
        return "refused"
    wanted = [found for run in (outputs_of_onnxruntime, outputs_of_reference) if (found := run(case)) is not None]
    if not wanted or set(exported.inputs) - set(case.feeds):
        return "no reference"
    found = run_module(exported, case.feeds)
    # Where onnx's reference and ONNX Runtime differ, such as for indices out of range, either is right.
    return "equal" if any(all(map(is_close, found, item)) for item in wanted) else "differs"


def check(cases: list[BackendModel], folder: Path) -> dict[str, str]:
    verdicts = {case.name: verdict(case, folder) for case in cases if case.name not in DIFFERENT}
    assert [name for name, verdict in verdicts.items() if verdict == "differs"] == []
    return verdicts


def covers(case: BackendModel) -> set[str]:
    return {node.op_type for node in case.model.graph.node if not node.domain}


def test_the_first_case_of_each_operator_gives_its_outputs(tmp_path: Path) -> None:
    cases = [case for case in one_of_each_operator() if covers(case) <= EMITTERS.keys() and not covers(case) & _BLOCKS]
    verdicts = check(cases, tmp_path)
    assert list(verdicts.values()).count("equal") > 90


_BLOCKS = {word.removeprefix("::") for word in RANDOM}


@pytest.mark.thorough
def test_every_case_of_every_operator_gives_its_outputs_or_is_refused(tmp_path: Path) -> None:
    cases = list(all_backend_models())
    verdicts = check(cases, tmp_path)
    equal = {operator for case in cases if verdicts.get(case.name) == "equal" for operator in covers(case)}
    assert set(EMITTERS) - equal <= WITHOUT_CASES
    assert list(verdicts.values()).count("equal") > 1500


def test_functions_are_copied_with_what_they_call() -> None:
    text = operators_text(["max_pool"])
    names: dict[str, Any] = {}
    exec(compile(text, "onnx_operators.py", "exec"), names)  # noqa: S102  the code under test
    assert "_window_pads" in names and "resize" not in names
    import torch

    values, places = names["max_pool"](torch.arange(16.0).reshape(1, 1, 4, 4), [2, 2], [2, 2], [0] * 4, [1, 1], 0)
    assert values.tolist() == [[[[5.0, 7.0], [13.0, 15.0]]]]
    assert places.tolist() == [[[[5, 7], [13, 15]]]]


@pytest.mark.parametrize("operator", sorted(EMITTERS))
def test_every_function_that_an_emitter_may_call_exists(operator: str) -> None:
    """A misspelt name would appear only with a model that has the operator."""
    import inspect
    import re

    from ndld_flow.export.pytorch import onnx_operators

    called = re.findall(r'call\.use\(\s*"(\w+)"', inspect.getsource(EMITTERS[operator].emit))
    called += re.findall(r"ops\.(\w+)", FORMS.get(operator, ""))
    assert [name for name in called if not hasattr(onnx_operators, name)] == []
