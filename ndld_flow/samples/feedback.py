"""Outputs of a model that become inputs of the next step: states as they are, and tokens chosen from logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ndld_flow.base.errors import ModelError
from ndld_flow.base.text import suggest
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype, shape_text

if TYPE_CHECKING:
    from ndld_flow.inputs import InputSpec


@dataclass(frozen=True)
class FedFrom:
    """The output that an input is fed from, and how its value is computed."""

    output: str
    apply: str = ""
    """`argmax`: the input gets the index of the largest element; empty: the output itself."""
    axis: int = -1
    """Axis of the output along which `apply` chooses."""
    shape: tuple[int, ...] = ()
    """Shape of the input at the next step, for `apply`."""

    def value(self, output: Array | None, spec: TensorSpec) -> Array:
        """Return the value of an input at the next step. Raises `ModelError` for an output that is no tensor."""
        dtype = numpy_dtype(spec.dtype)
        if output is None or dtype is None:
            raise ModelError(f'output "{self.output}" is not a tensor of numbers, and cannot become "{spec.name}".')
        if self.apply:
            chosen = self.choose(output)
            return np.asarray(chosen if chosen.ndim == len(self.shape) else chosen[..., np.newaxis], dtype)
        with np.errstate(over="ignore"):
            return output.astype(dtype, copy=False)

    def choose(self, output: Array) -> Array:
        """Return the index of the largest element at each of the last positions."""
        return np.asarray(np.argmax(self._last(output), axis=-1))

    def margins(self, output: Array) -> Array:
        """Return the largest element minus the second largest at each of the last positions."""
        values = self._last(output).astype(np.float64)
        if values.shape[-1] < 2:
            return np.full(values.shape[:-1], np.inf)
        largest = np.partition(values, -2, axis=-1)[..., -2:]
        return np.asarray(largest[..., 1] - largest[..., 0])

    def _last(self, output: Array) -> Array:
        """Return as many of the last positions as the input has, with the axis of `apply` at the end.

        An output of the input's rank has a single position.
        """
        rows = np.moveaxis(output, self.axis, -1)
        has_positions = rows.ndim == len(self.shape) + 1
        return rows[..., -self.shape[-1] :, :] if has_positions else rows


Feedback = Mapping[str, FedFrom]
"""Input -> the output whose value it has at the next step."""


def find_feedback(given: Mapping[str, InputSpec]) -> dict[str, FedFrom]:
    """Return the inputs with `from:`; empty if a recipe has no sequences."""
    return {
        name: FedFrom(spec.fed_from, spec.apply or "", spec.axis, spec.run_shape or ())
        for name, spec in given.items()
        if spec.fed_from is not None
    }


def states_only(feedback: Feedback) -> dict[str, FedFrom]:
    """Return the inputs that get outputs as they are."""
    return {name: fed for name, fed in feedback.items() if not fed.apply}


def check_feedback(
    feedback: Feedback, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], model: str
) -> Iterator[tuple[str, str, str]]:
    """Yield input, mistake and hint for each output that a model does not have, and each that its input cannot take.

    Dimensions that are not known agree with all.
    """
    known, states = {spec.name: spec for spec in outputs}, {spec.name: spec for spec in inputs}
    for name, fed in feedback.items():
        output = fed.output
        if output not in known:
            is_input = " (it is an input)" if output in states else ""
            yield name, f'"{output}" is not an output of {model}{is_input}', suggest(output, list(known))
        elif name in states and fed.apply and (why := _unfit_tokens(fed, states[name], known[output])):
            yield name, f'`apply: {fed.apply}` of output "{output}" of {model}: {why}', ""
        elif name in states and not fed.apply and (why := _disagreement(states[name], known[output])):
            is_chosen = states[name].dtype in ("int32", "int64") and known[output].dtype.startswith(("float", "bfloat"))
            hint = "`apply: argmax` chooses the next token" if is_chosen else ""
            yield name, f'output "{output}" of {model} is {why}', hint


def _unfit_tokens(fed: FedFrom, tokens: TensorSpec, logits: TensorSpec) -> str:
    if not tokens.dtype.startswith(("int", "uint")):
        return f"it chooses integers, and the input is {tokens.dtype}"
    if tokens.shape is None or logits.shape is None:
        return ""
    rank = len(logits.shape)
    if not -rank <= fed.axis < rank:
        return f"the output is {logits.shape_text}, and has no axis {fed.axis}"
    if len(tokens.shape) not in (rank - 1, rank):
        return f"the output is {logits.shape_text}, and the input {tokens.shape_text}: ranks differ by at most 1"
    return ""


def _disagreement(state: TensorSpec, output: TensorSpec) -> str:
    if state.dtype != output.dtype:
        return f"{output.dtype}, and the input {state.dtype}"
    if state.shape is None or output.shape is None:
        return ""
    sizes = zip(state.shape, output.shape, strict=False)
    same = all(mine == theirs for mine, theirs in sizes if isinstance(mine, int) and isinstance(theirs, int))
    if same and len(state.shape) == len(output.shape):
        return ""
    return f"{shape_text(output.shape)}, and the input {shape_text(state.shape)}"
