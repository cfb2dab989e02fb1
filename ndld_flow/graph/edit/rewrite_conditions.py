"""Conditions on the inputs and attributes of a pattern, under which a match is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.settings import Settings
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.selection import Words

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.pattern_matching import Match
    from ndld_flow.graph.edit.rewrite_text import RuleText


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class RewriteConditions(Settings):
    """Conditions on inputs and attributes of a pattern."""

    constants: dict[str, JsonValue] = Field(default={})
    """Input -> its constant value, a number or lists of numbers; `null` means any constant."""
    dtypes: dict[str, Words] = Field(default={})
    """Input -> its element type, such as `float16`, or a list of alternatives."""
    ranks: dict[str, int] = Field(default={})
    """Input -> its number of dimensions."""
    shapes: dict[str, tuple[int | str | None, ...]] = Field(default={})
    """Input -> its dimensions: numbers, names of dynamic ones, or `null` for any."""
    attributes: dict[str, Annotated[tuple[JsonValue, ...], BeforeValidator(_listed)]] = Field(default={})
    """Variable, without its `$` -> its value, or a list of alternatives; `{perm: [[0, 2, 1]]}` is one alternative."""
    single_use: Words = ()
    """Inputs that only the match reads."""

    @property
    def need_shapes(self) -> bool:
        """True when the conditions require inferred shapes and types."""
        return bool(self.dtypes or self.ranks or self.shapes)

    def check(self, pattern: RuleText) -> None:
        """Raise `RequestError` for names that the pattern lacks, unknown types, and constants that are not numeric."""
        from ndld_flow.graph.edit.dtype_names import parse_dtype
        from ndld_flow.graph.edit.matched_values import is_numeric

        for name in (*self.constants, *self.dtypes, *self.ranks, *self.shapes, *self.single_use):
            pattern.input(name, "where")
        for name, wanted in self.constants.items():
            if not is_numeric(wanted):
                raise RequestError(f"`where`: constant {name!r} is a number, or even lists of numbers, not {wanted!r}")
        for dtypes in self.dtypes.values():
            for dtype in dtypes:
                parse_dtype(dtype)
        variables = pattern.variables()
        for name in self.attributes:
            if name not in variables:
                nearest = suggest(name, variables) or "it has none"
                raise RequestError(f"`where`: ${name} is not an attribute of the pattern; {nearest}")

    def hold_for(self, name: str, value: ir.Value, tolerance: float) -> bool:
        """Return whether a tensor meets the conditions on the pattern's input of that name."""
        import numpy as np

        from ndld_flow.graph.edit.dtype_names import parse_dtype
        from ndld_flow.graph.edit.matched_values import constant_tensor, has_shape, is_close

        if name in self.constants:
            tensor, wanted = constant_tensor(value), self.constants[name]
            if tensor is None or (wanted is not None and not is_close(np.asarray(wanted), tensor, tolerance)):
                return False
        if name in self.dtypes and value.dtype not in [parse_dtype(dtype) for dtype in self.dtypes[name]]:
            return False
        if name in self.ranks and (value.shape is None or len(value.shape) != self.ranks[name]):
            return False
        return name not in self.shapes or has_shape(value.shape, self.shapes[name])

    def allow(self, attributes: Mapping[str, ir.Attr], match: Match, pattern: RuleText) -> bool:
        """Return whether a match meets the conditions on attributes and on the uses of its inputs."""
        from ndld_flow.graph.edit.matched_values import has_value

        for name, allowed in self.attributes.items():
            attribute = attributes.get(name)
            if attribute is None or not any(has_value(attribute, each) for each in allowed):
                return False
        taken = set(match.nodes.values())
        values = {value.name: match.values[value] for value in pattern.inputs if value in match.values}
        alone = (values[name] for name in self.single_use if name in values)
        return all(not v.is_graph_output() and all(use.node in taken for use in v.uses()) for v in alone)
