"""Loops of TensorFlow that are LSTMs, as LSTM: one kernel instead of twenty in each step."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import percent
from ndld_flow.optimize.variant import Subject, Variant

ORDER = 15
_NAME = "loops as LSTM"
_LEAST_TIME = 0.2
"""Share of the time in Loops from which an LSTM, twice to five times as fast, can pay."""
_EDITED = "{step: edit, from: clean, operations: [{loop_to_lstm: {allow_empty: true}}]}"
"""If no Loop is an LSTM, the model is the same."""


def propose(subject: Subject) -> Iterator[Variant | str]:
    """Yield the rewritten model, and with real samples its dynamic INT8, which makes an LSTM faster again."""
    if "Loop" not in subject.operators or subject.preset.engine or not subject.allows("LSTM"):
        return
    share = subject.time_in("Loop")
    if share is not None and share <= _LEAST_TIME:
        yield f"Loops are not rewritten as LSTM: they take {percent(share)} of the time."
        return
    rewritten = f"{_NAME}{subject.label}"
    yield Variant(rewritten, subject.runtime, {"made": _EDITED})
    if subject.samples.search and subject.runs_in_onnxruntime and subject.allows("DynamicQuantizeLSTM"):
        dynamic = "{step: quantize, from: found, mode: dynamic, op_types: [Gemm, LSTM, MatMul]}"
        steps = {"found": _EDITED, "made": dynamic}
        yield Variant(f"{_NAME} in dynamic INT8{subject.label}", subject.runtime, steps, needs=rewritten)
