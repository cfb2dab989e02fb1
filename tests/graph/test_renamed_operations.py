"""Former names of operations and settings are refused with a hint that names the present ones."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ndld_flow.steps.edit import Edit


@pytest.mark.parametrize(
    ("operation", "hint"),
    [
        ({"rename_inputs": {"names": {"x": "y"}}}, "`rename_tensors: {names: ...}`"),
        ("fix_dims", "`set_shapes`"),
        ({"split_gemm": {}}, "`decompose: {select: {op_type: Gemm}}`"),
        ({"remove_inputs": {"inputs": "x"}}, "the setting `inputs` is now called `select`"),
    ],
)
def test_a_former_name_is_refused_with_the_present_one(operation: object, hint: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Edit.model_validate({"operations": (operation,)})
    assert hint in str(refused.value)
