"""Confidence of matches by their evidence.

The numbers are shares of correct matches, measured with known truth on models that were edited, renamed and run again
(`python -m tests.benchmarks.bench_matching` repeats it). Only evidence that was never wrong there has 1.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ndld_flow.records.comparison import MatchMethod

Evidence: TypeAlias = Literal[
    "weights", "weight names", "nodes", "name", "surroundings", "surroundings in order", "flow", "in order",
    "in order, ambiguous", "reads the same", "put in, in order", "anywhere",
]  # fmt: skip
NAMELESS: frozenset[Evidence] = frozenset(["weights", "surroundings", "surroundings in order", "flow"])
"""Evidence that layers of different networks hardly ever have."""
ALIKE = 0.99
"""Confidence for layers at the same position of two profiles with equal features, without weights as proof."""

_METHODS: dict[Evidence, MatchMethod] = {
    "weights": "weights",
    "weight names": "weights",
    "nodes": "onnx nodes",
    "name": "name and type",
    "surroundings": "surroundings",
    "flow": "surroundings",
    "reads the same": "surroundings",
    "anywhere": "type and dims",
}
_SUPPORTED, _HALF_SUPPORTED = 0.8, 0.4
_ALIKE = 0.1
"""Below this share of layers matched by nameless evidence, two profiles may be of different networks."""

_Shares = tuple[float, float, float]
"""Shares for nearly all neighbours matched consistently, about half of them, few of them."""
_Table = dict[Evidence, tuple[_Shares, _Shares, _Shares]]
"""Shares for names that agree, names missing on the other side, names of other layers."""
_OF_ALIKE: _Table = {
    "weights": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "weight names": ((0.97, 0.97, 0.95), (0.97, 0.97, 0.95), (0.9, 0.9, 0.8)),
    "nodes": ((0.99, 0.99, 0.92), (0.99, 0.99, 0.92), (0.9, 0.9, 0.8)),
    "name": ((0.96, 0.95, 0.9), (0.96, 0.95, 0.9), (0.9, 0.9, 0.8)),
    "surroundings": ((0.99, 0.99, 0.97), (0.99, 0.99, 0.95), (0.99, 0.97, 0.95)),
    "surroundings in order": ((0.99, 0.99, 0.95), (0.98, 0.97, 0.9), (0.95, 0.7, 0.7)),
    "flow": ((0.99, 0.99, 0.99), (0.99, 0.98, 0.97), (0.98, 0.97, 0.9)),
    "in order": ((0.99, 0.98, 0.9), (0.98, 0.87, 0.88), (0.94, 0.4, 0.5)),
    "in order, ambiguous": ((0.97, 0.97, 0.8), (0.72, 0.72, 0.72), (0.25, 0.3, 0.2)),
    "reads the same": ((0.99, 0.98, 0.85), (0.99, 0.97, 0.88), (0.99, 0.97, 0.85)),
    "put in, in order": ((0.9, 0.8, 0.8), (0.75, 0.75, 0.6), (0.58, 0.4, 0.3)),
    "anywhere": ((0.7, 0.7, 0.6), (0.95, 0.95, 0.7), (0.7, 0.7, 0.25)),
}
_OF_UNLIKE: _Table = {
    "weights": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
    "weight names": ((0.7, 0.7, 0.5), (0.7, 0.7, 0.5), (0.5, 0.5, 0.3)),
    "nodes": ((0.95, 0.85, 0.25), (0.95, 0.85, 0.25), (0.5, 0.5, 0.2)),
    "name": ((0.9, 0.8, 0.5), (0.9, 0.8, 0.5), (0.5, 0.5, 0.2)),
    "surroundings": ((0.94, 0.94, 0.9), (0.84, 0.84, 0.8), (0.8, 0.66, 0.5)),
    "surroundings in order": ((0.94, 0.94, 0.9), (0.84, 0.84, 0.8), (0.8, 0.66, 0.5)),
    "flow": ((0.5, 0.8, 0.8), (0.8, 0.8, 0.8), (0.5, 0.5, 0.5)),
    "in order": ((0.95, 0.95, 0.3), (0.58, 0.6, 0.6), (0.4, 0.05, 0.02)),
    "in order, ambiguous": ((0.97, 0.9, 0.5), (0.45, 0.28, 0.2), (0.02, 0.01, 0.01)),
    "reads the same": ((0.95, 0.6, 0.9), (0.3, 0.05, 0.15), (0.75, 0.06, 0.18)),
    "put in, in order": ((0.3, 0.1, 0.1), (0.05, 0.05, 0.05), (0.02, 0.02, 0.02)),
    "anywhere": ((0.7, 0.7, 0.6), (0.8, 0.7, 0.5), (0.5, 0.3, 0.3)),
}


def method_of(evidence: Evidence) -> MatchMethod:
    """Return the displayed method of the evidence."""
    return _METHODS.get(evidence, "type and dims in order")


def confidence_of(evidence: Evidence, support: float, names_agree: bool | None, similarity: float) -> float:
    """Return the probability that a match is correct.

    `support` is the share of neighbours matched consistently, `similarity` the share of all layers matched by nameless
    evidence. `names_agree` is None if the names of one side do not occur on the other.
    """
    table = _OF_ALIKE if similarity >= _ALIKE else _OF_UNLIKE
    shares = table[evidence][(True, None, False).index(names_agree)]
    return shares[0 if support >= _SUPPORTED else 1 if support >= _HALF_SUPPORTED else 2]
