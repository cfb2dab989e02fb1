"""Quantized convolutions whose output is read in floating point and could be read in 8 bits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.lint_subject import (
    FLOATS,
    QUANTIZED,
    LintSubject,
    ends_of,
    float_sums,
    is_product,
    is_quantized_product,
    name_some,
    short_dtype,
)
from ndld_flow.profiles.diagnose.subject import Insight, layers_word
from ndld_flow.records.profile import Layer

_TAKES_8_BITS = re.compile(r"pool|concat|resize|shuffle|slice|copy|element_?wise|point_?wise", re.IGNORECASE)
"""Types of layers that TensorRT runs in INT8 when their inputs are quantized. Softmax, normalization and unknown types
are not.
"""


def quantized_float_output(subject: LintSubject) -> Iterator[Insight]:
    """Report quantized products whose floating-point output is read by a layer that could read 8 bits.

    Ignores cases where floating point is right or another finding covers the cause: outputs of the engine, a residual
    addition, readers that quantize immediately, and readers without a kernel for 8 bits. The estimated saving is half
    of the time of the readers that do not multiply: they move four or two times the bytes.
    """
    sums, ends = float_sums(subject), ends_of(subject)
    residuals = {tensor.name for tensor in sums.values()}
    readers_of_floats: dict[int, tuple[int, ...]] = {}
    for place, layer in enumerate(subject.layers):
        written = layer.outputs[0] if layer.outputs else None
        if place in sums or not is_quantized_product(layer) or written is None or written.dtype not in FLOATS:
            continue
        if not written.name or written.name in ends or written.name in residuals:
            continue
        readers = subject.readers.get(written.name, ())
        if readers and all(_could_read_8_bits(subject.layers[reader]) for reader in readers):
            readers_of_floats[place] = readers
    if not readers_of_floats:
        return
    positions = subject.longest_first(readers_of_floats)
    readers = subject.longest_first({reader for all_ in readers_of_floats.values() for reader in all_})
    types = " and ".join(dict.fromkeys(short_dtype(subject.layers[place].outputs[0].dtype) for place in positions))
    plain = [place for place in readers if not is_product(subject.layers[place])]
    yield Insight(
        score=subject.share(plain) / 2,
        title=f"{layers_word(len(positions))} computing in 8 bits and writing {types}",
        evidence=f"{name_some(subject, positions)}: {subject.took(positions)}"
        + (f" ({share(subject.share(positions))} of {subject.whole})" if subject.is_timed else "")
        + f". {subject.call_types(readers)} ({name_some(subject, readers)}) read that: {subject.took(readers)}.",
        next_step=_advice(plain, readers),
        layers=(*positions, *readers),
    )


def _could_read_8_bits(layer: Layer) -> bool:
    if any(tensor.dtype in QUANTIZED for tensor in layer.outputs) or layer.role != "compute":
        return False  # it quantizes immediately
    return is_product(layer) or bool(_TAKES_8_BITS.search(layer.type))


def _advice(plain: list[int], readers: tuple[int, ...]) -> str:
    if not plain:
        return (
            "The layers that read it are not quantized. Quantize them too, or leave both sides in floating point: see "
            "`exclude` and `min_intensity` of `quantize`, and run `check_accuracy` afterwards."
        )
    return (
        "Quantize the inputs of these readers: add their operators (such as MaxPool) to `op_types` of `quantize` "
        "in addition to Conv, Gemm and MatMul. A QAT model with Q/DQ needs quantizers there. If everything after "
        "them is floating point on purpose, ignore this."
    )
