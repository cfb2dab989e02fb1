"""Multiply-accumulates of operators that small models do not show, and of shapes that files may hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.profiles.read.layer_work import _FORMULAS, count_macs

B, S, L, H = 2, 6, 10, 16
"""Batch, length, length of keys and values, hidden size."""


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "attributes", "macs"),
    [
        ("QLinearConv", [(1, 3, 8, 8), (), (), (4, 3, 3, 3)], [(1, 4, 6, 6)], {}, 4 * 36 * 27),
        ("NhwcFusedConv", [(1, 8, 8, 3), (4, 3, 3, 3)], [(1, 6, 6, 4)], {}, 4 * 36 * 27),
        ("ConvTranspose", [(1, 6, 5, 5), (6, 2, 2, 2)], [(1, 4, 10, 10)], {"group": 2}, 6 * 25 * 2 * 4),
        ("FusedMatMul", [(5, 7), (7, 3)], [(5, 3)], {"transB": 0}, 5 * 3 * 7),
        ("FusedMatMul", [(2, 5, 7), (2, 7, 3)], [(2, 5, 3)], {"transBatchA": 1}, None),
        ("MatMul", [(7,), (7, 3)], [(3,)], {}, 3 * 7),
        ("MatMulNBits", [(4, 64), None], [(4, 32)], {"K": 64, "N": 32}, 4 * 32 * 64),
        ("MatMulNBits", [(4, 64), None], [(4, 32)], {}, None),
        ("GRU", [(3, 2, 5), (1, 12, 5), (1, 12, 4)], [(3, 1, 2, 4)], {}, 3 * 2 * 12 * 9),
        # com.microsoft: projection to Q, K and V, then scores and the weighted sum.
        ("Attention", [(B, S, H), (H, 3 * H)], [(B, S, H)], {"num_heads": 4}, B * S * (H * 3 * H + 2 * S * H)),
        (
            "Attention",
            [(B, S, H), (H, 3 * H), None, None, (2, B, 4, L, H // 4)],
            [(B, S, H)],
            {},
            B * S * (H * 3 * H + 2 * (S + L) * H),
        ),
        (
            "Attention",
            [(B, S, H), (H, 56)],
            [(B, S, 24)],
            {"qkv_hidden_sizes": [16, 16, 24]},
            B * S * (H * 56 + S * 40),
        ),
        # ONNX: Q, K and V given.
        ("Attention", [(B, 4, S, 8), (B, 4, L, 8), (B, 4, L, 12)], [(B, 4, S, 12)], {}, B * 4 * S * L * (8 + 12)),
        ("MultiHeadAttention", [(B, S, H), (B, L, H), (B, L, H)], [(B, S, H)], {}, B * S * L * 2 * H),
        ("Einsum", [(2, 3), (3, 4)], [(2, 4)], {"equation": b"ij, jk -> ik"}, 24),
        ("Einsum", [(2, 3)], [(2,)], {"equation": "ij->i"}, None),
        ("Einsum", [(2, 3), (3, 4)], [(2, 4)], {"equation": "...j,jk->...k"}, None),
        ("Relu", [(5,)], [(5,)], {}, None),
        ("Conv", [(1, 3, 8, 8), None], [(1, 4, 6, 6)], {}, None),
        ("Conv", [], [], {}, None),
        ("Gemm", [(4, -1), (8, 2)], [(4, 2)], {}, None),
    ],
)
def test_formulas(
    kind: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, object], macs: int | None
) -> None:
    assert count_macs(kind, inputs, outputs, attributes) == macs


shapes = st.lists(st.none() | st.lists(st.integers(-3, 9), max_size=5).map(tuple), max_size=5)


@given(
    kind=st.sampled_from(sorted(_FORMULAS)),
    inputs=shapes,
    outputs=shapes,
    attributes=st.dictionaries(
        st.sampled_from(["transA", "K", "equation", "qkv_hidden_sizes", "transBatchA"]),
        st.integers()
        | st.text(max_size=9)
        | st.binary(max_size=9)
        | st.lists(st.integers(-3, 9), max_size=4)
        | st.none(),
    ),
)
def test_no_shape_breaks_it(kind: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, object]) -> None:
    counted = count_macs(kind, inputs, outputs, attributes)
    assert counted is None or counted >= 0
