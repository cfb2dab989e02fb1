"""Formulas of computed dimensions in the names of input dimensions: `past + seq`, `2*seq + 1`, `ceil(height/32)`.

Shape inference computes with numbers, not with names. The inputs get several concrete sizes, and a dimension gets the
formula that yields its inferred size for all of them; they are more than determine the formula. Sizes from 2 to 99991
show limits, and sizes next to multiples of 64 show how a quotient is rounded. Other dimensions stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import prod

import onnx
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.models.shape_inference import infer_proto, is_invented_name, light_proto

_SIZES = (320, 2, 641, 127, 3, 10007, 449, 1009, 640, 67, 191, 99991, 5003, 30, 960, 401, 2001)
"""A prime number of sizes, so that those of several symbols meet in all combinations."""
_MOST_SYMBOLS = 4
_MOST_NODES = 3_000
"""Larger models keep unknown dimensions: inferring the shapes of more for each size takes several seconds."""
_MOST_TERMS = 3
_DIVISORS = (2, 4, 8, 16, 32, 64)
_NAME = re.compile(r"[A-Za-z_][\w.]*")

Sizes = Mapping[str, int]
_Monomial = tuple[str, ...]


def name_computed_dims(model: ir.Model) -> None:
    """Name unknown dimensions of computed tensors in the main graph by their formulas. Shapes must be inferred."""
    values = [value for node in model.graph for value in node.outputs if value.name and _unknown(value)]
    named = [dim for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)]
    symbols = list(dict.fromkeys(dim.value for dim in named if dim.value and _NAME.fullmatch(dim.value)))
    if not values or not 0 < len(symbols) <= _MOST_SYMBOLS or len(model.graph) > _MOST_NODES:
        return
    try:
        proto = light_proto(model)
    except ModelError:
        return
    samples = list(_samples(symbols))
    shapes = [_shapes(proto, sizes) for sizes in samples]
    formulas = _Formulas(symbols, samples)
    for value in values:
        seen = [shape.get(value.name or "") for shape in shapes]
        if value.shape is None or any(shape is None or len(shape) != len(value.shape) for shape in seen):
            continue
        dims = list(value.shape)
        for axis in _unknown(value):
            formula = formulas.of(tuple(shape[axis] for shape in seen if shape is not None))
            dims[axis] = ir.SymbolicDim(formula) if formula else dims[axis]
        value.shape = ir.Shape(dims)


def _unknown(value: ir.Value) -> list[int]:
    """Return the axes whose dimension has neither a size nor a plain name of the model."""
    return [
        axis
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
        and (dim.value is None or is_invented_name(dim) or _NAME.fullmatch(dim.value) is None)
    ]


def _samples(symbols: Sequence[str]) -> Iterator[Sizes]:
    """Yield sizes for the symbols; each takes all sizes."""
    for index in range(len(_SIZES)):
        yield {name: _SIZES[index * (place + 1) % len(_SIZES)] for place, name in enumerate(symbols)}


def _shapes(proto: onnx.ModelProto, sizes: Sizes) -> dict[str, list[int | None]]:
    """Return the inferred shapes for concrete sizes; of recorded shapes only those of inputs are used."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    inferred = infer_proto(model)
    if inferred is None:
        return {}
    return {
        info.name: [dim.dim_value if dim.HasField("dim_value") else None for dim in info.type.tensor_type.shape.dim]
        for info in (*inferred.graph.value_info, *inferred.graph.output)
        if info.type.tensor_type.HasField("shape")
    }


class _Formulas:
    """Finds the formula of a dimension from its sizes for all samples."""

    def __init__(self, symbols: Sequence[str], samples: Sequence[Sizes]) -> None:
        monomials: list[_Monomial] = [(), *((name,) for name in symbols), *combinations(symbols, 2)]
        self._basis = {
            "*".join(names): [prod(sample[name] for name in names) for sample in samples] for names in monomials
        }
        self._rounded = [
            {
                f"{word}({name}/{divisor})": [(sample[name] + offset) // divisor for sample in samples]
                for divisor in _DIVISORS
                for word, offset in (("ceil", divisor - 1), ("floor", 0))
            }
            for name in symbols
        ]
        self._known: dict[tuple[int | None, ...], str] = {}

    def of(self, sizes: tuple[int | None, ...]) -> str:
        """Return the formula that yields these sizes; empty if none does."""
        if sizes not in self._known:
            given = [size for size in sizes if size is not None]
            found = len(given) == len(sizes) and len(set(given)) > 1
            self._known[sizes] = (self._polynomial(given) or self._quotient(given)) if found else ""
        return self._known[sizes]

    def _polynomial(self, sizes: Sequence[int]) -> str:
        for chosen in (*([name] for name in self._basis if name), list(self._basis)):
            coefficients = _solve(list(zip(*(self._basis[name] for name in chosen), strict=True)), sizes)
            if coefficients is not None and sum(map(bool, coefficients)) <= _MOST_TERMS:
                return _text(chosen, coefficients)
        return ""

    def _quotient(self, sizes: Sequence[int]) -> str:
        """Return a formula with one rounded quotient, or with the product of two."""
        ones = [1] * len(sizes)
        for quotients in self._rounded:
            for name, column in quotients.items():
                coefficients = _solve(list(zip(column, ones, strict=True)), sizes)
                if coefficients is not None:
                    return _text([name, ""], coefficients)
        for first, second in combinations(self._rounded, 2):
            for (name, column), (other, others) in product(first.items(), second.items()):
                factor = sizes[0] // (column[0] * others[0]) if column[0] * others[0] else 0
                if factor and all(factor * a * b == size for a, b, size in zip(column, others, sizes, strict=True)):
                    return _text([f"{name}*{other}"], [factor])
        return ""


def _solve(rows: Sequence[Sequence[int]], results: Sequence[int]) -> list[int] | None:
    """Return the only integers x with rows * x = results, in exact arithmetic; None if there are none."""
    width = len(rows[0])
    matrix = [[*map(Fraction, row), Fraction(result)] for row, result in zip(rows, results, strict=True)]
    for column in range(width):
        pivot = next((index for index in range(column, len(matrix)) if matrix[index][column]), None)
        if pivot is None:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        matrix[column] = [item / matrix[column][column] for item in matrix[column]]
        for index, row in enumerate(matrix):
            if index != column and row[column]:
                matrix[index] = [a - row[column] * b for a, b in zip(row, matrix[column], strict=True)]
    if any(row[-1] for row in matrix[width:]) or any(row[-1].denominator != 1 for row in matrix[:width]):
        return None
    return [int(row[-1]) for row in matrix[:width]]


def _text(names: Sequence[str], coefficients: Sequence[int]) -> str:
    """Return `2*seq + 1`: the constant last, and no negative term first if another can be."""
    terms = [(factor, name) for name, factor in zip(names, coefficients, strict=True) if factor]
    terms.sort(key=lambda term: (not term[1], term[0] < 0))
    text = ""
    for factor, name in terms:
        size = abs(factor)
        written = str(size) if not name else name if size == 1 else f"{size}*{name}"
        sign = "-" if factor < 0 else "+"
        text += f" {sign} {written}" if text else (f"-{written}" if sign == "-" else written)
    return text
