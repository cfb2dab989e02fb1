"""Reformats that a runtime inserted to change a tensor's type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.lint_subject import LintSubject, ends_of, short_dtype, touches
from ndld_flow.profiles.diagnose.subject import Insight, changes_type, layers_word

_NOTABLE_SHARE = 0.02


def type_conversions(subject: LintSubject) -> Iterator[Insight]:
    """Report reformats that change the element type and take at least 2 % of the latency."""
    positions = subject.longest_first(
        place for place, layer in enumerate(subject.layers) if layer.purpose == "reformat" and changes_type(layer)
    )
    part = subject.share(positions)
    if not positions or part < _NOTABLE_SHARE:
        return
    ends = ends_of(subject)
    outer = [place for place in positions if touches(subject.layers[place], ends)]
    inner = [place for place in positions if place not in outer]
    ways = ", ".join(_way(subject, place) for place in positions[:3])
    more = f" and {len(positions) - 3} more" if len(positions) > 3 else ""
    yield Insight(
        score=part,
        title=f"{layers_word(len(positions))} that only convert types: {share(part)} of {subject.whole}",
        evidence=f"{ways}{more}: {subject.took(positions)}.",
        next_step=_advice(outer, inner),
        layers=positions,
    )


def _way(subject: LintSubject, place: int) -> str:
    """Return `FP32 to FP16 after TiledPooling MaxPool_12`; names the reader if no layer wrote the tensor."""
    layer = subject.layers[place]
    types = f"{short_dtype(layer.inputs[0].dtype)} to {short_dtype(layer.outputs[0].dtype)}"
    maker = subject.makers.get(layer.inputs[0].name)
    if maker is not None:
        return f"{types} after {subject.call(maker)}"
    readers = subject.readers.get(layer.outputs[0].name, ())
    return f"{types} of an input, for {subject.call(readers[0])}" if readers else types


def _advice(outer: Sequence[int], inner: Sequence[int]) -> str:
    advice = []
    if outer:
        advice.append(
            "At inputs and outputs: let the caller use the engine's type. `convert_fp16` with `keep_io: false` "
            "makes the model's inputs and outputs FP16; a weakly typed engine (TensorRT before 11) takes a `dtype` in "
            "`advanced.io_formats` of `build_engine`."
        )
    if inner:
        advice.append(
            "Between layers: the two sides compute in different precisions. Give both the same: see `block` of "
            "`convert_fp16`, `op_types` and `exclude` of `quantize`, and `constrain_precision`."
        )
    return " ".join(advice)
