"""QuantizeLinear and DequantizeLinear that run as separate layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.lint_subject import LintSubject, ends_of, float_sums, is_product, name_some, touches
from ndld_flow.profiles.diagnose.subject import Insight, layers_word

_NOTABLE_SHARE = 0.03


def unfused_quantization(subject: LintSubject) -> Iterator[Insight]:
    """Report unfused Q/DQ layers that take at least 3 % of the latency; without times, any.

    Those caused by a floating-point residual are part of `unquantized_residual`.
    """
    left = _not_of_residuals(subject)
    part = subject.share(left)
    if not left or (subject.is_timed and part < _NOTABLE_SHARE):
        return
    ends = ends_of(subject)
    at_ends = [place for place in left if touches(subject.layers[place], ends)]
    inside = [place for place in left if place not in at_ends]
    yield Insight(
        score=part / 2,
        title=f"{layers_word(len(left))} that only quantize or dequantize"
        + (f" take {share(part)} of {subject.whole}" if subject.is_timed else ""),
        evidence=f"{name_some(subject, left)}: {subject.took(left)}. " + _where(subject, at_ends, inside),
        next_step=_advice(subject, at_ends, inside),
        layers=left,
    )


def _not_of_residuals(subject: LintSubject) -> tuple[int, ...]:
    sums = float_sums(subject)
    between = {tensor.name for tensor in sums.values()}
    between |= {tensor.name for place in sums for tensor in subject.layers[place].outputs}
    return subject.longest_first(
        place
        for place, layer in enumerate(subject.layers)
        if layer.role == "quantize"
        and layer.type != "DynamicQuantizeLinear"  # `mode: dynamic` needs one at each product
        and not any(tensor.name in between for tensor in layer.inputs if tensor.name)
    )


def _where(subject: LintSubject, at_ends: Sequence[int], inside: Sequence[int]) -> str:
    places = []
    if at_ends:
        places.append(f"{len(at_ends)} at the model's inputs and outputs ({name_some(subject, at_ends, 2)})")
    if inside:
        places.append(f"{len(inside)} between layers, such as {_neighbours(subject, inside[0])}")
    return "; ".join(places) + "."


def _neighbours(subject: LintSubject, place: int) -> str:
    """Return `after TiledPooling MaxPool_12 and before CaskConvolution conv`, if tensors have names."""
    layer = subject.layers[place]
    before = [subject.makers[tensor.name] for tensor in layer.inputs if tensor.name in subject.makers]
    after = [reader for tensor in layer.outputs for reader in subject.readers.get(tensor.name, ())]
    neighbours = [f"after {subject.call(before[0])}"] if before else []
    neighbours += [f"before {subject.call(after[0])}"] if after else []
    return " and ".join(neighbours) or subject.call(place)


def _advice(subject: LintSubject, at_ends: Sequence[int], inside: Sequence[int]) -> str:
    if any(subject.layers[place].provider.startswith("CUDA") for place in (*at_ends, *inside)):
        return (
            "ONNX Runtime's CUDA provider has few integer operators: run the model there as it was before "
            "`quantize`, or build an engine from the quantized one (`build_engine`)."
        )
    advice = []
    if inside:
        advice.append(
            "Between layers, each is a boundary between 8 bits and floating point: add the operators of the neighbours "
            "that compute in floating point to `op_types` of `quantize`, or exclude small groups of 8-bit layers with "
            "`exclude` or `min_intensity`."
        )
    if at_ends and any(_leads_to_product(subject, place) for place in at_ends):
        advice.append(
            "At an input: a first layer with few channels often gains nothing from INT8; leave it out with "
            "`exclude.nodes` of `quantize` and profile both in turns."
        )
    return (
        " ".join(advice)
        or "At inputs and outputs they follow from the model's types: only other types there remove them."
    )


def _leads_to_product(subject: LintSubject, place: int) -> bool:
    written = [tensor.name for tensor in subject.layers[place].outputs if tensor.name]
    readers = (subject.layers[reader] for name in written for reader in subject.readers.get(name, ()))
    return any(is_product(layer) or bool(layer.macs) for layer in readers)
