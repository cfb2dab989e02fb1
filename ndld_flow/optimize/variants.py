"""Families of variants that `optimize` tries.

Each yields variants where they can pay, by the graph and by the time that operators take, and sentences on what is not
tried. `_FAMILIES` has their places in the search.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from ndld_flow.base.quantities import percent
from ndld_flow.optimize.goals import tolerance_of
from ndld_flow.optimize.variant import QUANTIZED, Subject, Variant
from ndld_flow.recipe.sample_files import FoundData
from ndld_flow.recipe.write_recipe import input_entry
from ndld_flow.runtimes.registry import DEFAULT

Proposals = Iterator[Variant | str]


def cleaned(subject: Subject) -> Proposals:
    """Yield the model with constants folded and operators fused, and what fixing its shapes might gain."""
    yield Variant(f"clean{subject.label}", subject.runtime_with())
    if subject.has_weights_as_inputs:
        yield "The model lists its weights as inputs: they become constants, which a caller cannot replace."
    shapes = subject.trial.free_sizes
    if any(likely.varies for likely in subject.trial.inputs):
        yield f"The samples have several sizes: passes run some of them in turn, first one of median size, {shapes}."
    elif shapes and not subject.options.fix_shapes:
        yield (
            f"Shapes stay free, and only {shapes} is measured: at another size, the first pass may take a runtime "
            "several times as long. --shape sets other sizes; with --fix-shapes, the model accepts these only, and "
            "runtimes optimize it further."
        )


def extended(subject: Subject) -> Proposals:
    """Yield the source at the level `extended` of ONNX Runtime, without its own layout of convolutions.

    Only for models with convolutions: for others, the level `all` is the same on a CPU.
    """
    if subject.runs_in_onnxruntime and "Conv" in subject.operators:
        level = subject.runtime_with("optimization: extended")
        yield Variant(f"source at the level extended{subject.label}", level, is_source=True)


_QUICK_MS = 1.0
"""Latency below which threads may wait for each other longer than they compute."""


def one_thread(subject: Subject) -> Proposals:
    """Yield the source and the cleaned model on one thread, for quick models, unless numbers of threads are given."""
    chosen = subject.options.threads or "threads" in subject.preset.speed
    if subject.races and subject.runs_in_onnxruntime and not chosen and subject.trial.pass_ms < _QUICK_MS:
        alone = subject.runtime_with("threads: 1")
        yield Variant(f"source on 1 thread{subject.label}", alone, is_source=True)
        yield Variant(f"clean on 1 thread{subject.label}", alone)


def fp16(subject: Subject) -> Proposals:
    """Yield FP16 with the exceptions that a search finds, for targets that compute in it: a CPU does so in FP32."""
    if not subject.preset.fp16:
        if subject.runtime == subject.preset.runtimes[0]:
            yield "FP16 is not tried: a CPU computes it in FP32, or no faster."
        return
    found = f"{{step: find_precision, from: clean{tolerance_of(subject.conditions)}, trials: 60, time: 2 min}}"
    made = "{step: convert_fp16, from: clean, found_by: found}"
    name = f"FP16 except what it breaks{subject.label}"
    yield Variant(name, subject.runtime_with(), {"found": found, "made": made})


_DENSE = "INT8 of dense layers"
"""The form that quantizes least."""
_MINMAX = "INT8 by minmax"
"""That of other runtimes."""
_MORE = ("INT8 of all operators", "INT8 of all layers", "INT8 by integer operators", "INT8 with one scale per weight")
"""Forms that quantize the dense layers too, in the same way or coarser."""
_LAYERS = ("Conv", "MatMul", "Gemm")
_LEAST_TIME = 0.15
_ALL_OPERATORS = (
    "Add", "AveragePool", "Clip", "Concat", "Conv", "Flatten", "Gather", "Gemm", "GlobalAveragePool", "LeakyRelu",
    "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
"""Operators that ONNX Runtime's `quantize_static` quantizes by default, and has integer kernels for; without Softmax,
whose small probabilities vanish."""


def int8(subject: Subject) -> Proposals:
    """Yield INT8 with ranges measured on real samples, if layers that it makes faster take some of the time.

    Its forms differ in speed: which one wins depends on the model.
    """
    if not _may_pay(subject) and subject.quantized_share >= QUANTIZED:
        yield f"INT8 is not tried: {percent(subject.quantized_share)} of the weights are quantized already."
        return
    if not subject.samples.search:
        yield "INT8 is not tried: it needs real samples, for ranges and to be judged; give --data."
        return
    if not subject.allows("QuantizeLinear", "DequantizeLinear"):
        yield "INT8 is not tried: the target has no QuantizeLinear and DequantizeLinear."
        return
    if not _may_pay(subject):
        share = subject.time_in(*_LAYERS)
        most = max(subject.shares, key=subject.shares.__getitem__, default="")
        instead = f"; {most} takes {percent(subject.shares[most])}" if most and most not in _LAYERS else ""
        yield f"INT8 is not tried: Conv, MatMul and Gemm take {percent(share or 0.0)} of the time{instead}."
        return
    for name, settings in _forms(subject):
        made = f"{{{subject.quantize()}{subject.quantize_target}{settings}}}"
        extends = f"{_DENSE}{subject.label}" if name in _MORE else ""
        yield Variant(f"{name}{subject.label}", subject.runtime_with(), {"made": made}, extends=extends)
    if own := subject.own_precision:
        dense = f"{{{subject.quantize()}{subject.quantize_target}, min_intensity: 64}}"
        name = f"INT8 of dense layers{subject.label} with {subject.traits.find_own_precision()}"
        yield Variant(name, own, {"made": dense})


def _may_pay(subject: Subject) -> bool:
    """Return whether layers that INT8 makes faster take some of the time, or may do so."""
    return not subject.is_quantized and subject.pays_in(_LEAST_TIME, *_LAYERS, weights=0)


def _plain_form(subject: Subject) -> str:
    """Return the name of the variant with all suitable layers in INT8, which searches for exceptions improve on."""
    return f"{_DENSE if subject.runs_in_onnxruntime else _MINMAX}{subject.label}"


def _forms(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield the name and the settings of each form."""
    if not subject.runs_in_onnxruntime:
        yield _MINMAX, ", method: minmax"
        if subject.preset.engine:
            yield "INT8 by percentile", ", method: percentile"
        return
    # Grouped convolutions, such as depthwise ones, are slower in INT8: where there are some, they stay in floats.
    own = "" if subject.has_groups else ", min_intensity: 0"
    operators = ", ".join(name for name in _ALL_OPERATORS if name in subject.operators)
    yield _DENSE, ""  # if it is wrong, so are most others
    yield "INT8 of all operators", f", op_types: [{operators}], min_intensity: 0"
    yield "INT8 of all layers", ", min_intensity: 0"
    if subject.pays_in(_LEAST_TIME, "Conv", weights=0.1) and subject.pays_in(0.03, "MatMul", "Gemm", weights=0.1):
        yield "INT8 of convolutions", f", op_types: [Conv]{own}"
    yield "INT8 without first and last layer", f", exclude: {{first: 1, last: 1}}{own}"
    if subject.allows("QLinearConv", "QLinearMatMul"):
        yield "INT8 by integer operators", f", format: qoperator{own}"
    yield "INT8 with one scale per weight", f", per_channel: false{own}"


_DYNAMIC = "INT8 with dynamic ranges"


def int8_dynamic(subject: Subject) -> Proposals:
    """Yield INT8 of matrix products and LSTMs, with ranges that are computed in every inference.

    Variants differ in the operators and the scales. Convolutions become slower that way.
    """
    if not subject.samples.search or not subject.runs_in_onnxruntime or subject.is_quantized:
        return
    if not subject.allows("MatMulInteger", "DynamicQuantizeLinear"):
        return
    products = subject.pays_in(_LEAST_TIME, "MatMul", "Gemm", weights=0.25)
    if products:
        for name, per_channel in (("", "false"), (" by channels", "true")):
            yield _dynamic(subject, name, f"op_types: [Gemm, MatMul], per_channel: {per_channel}")
    if subject.pays_in(0.1, "LSTM", weights=0.25):
        yield _dynamic(subject, " of LSTM too" if products else "", "op_types: [Gemm, LSTM, MatMul]")
    if subject.aims_at("size") and subject.weights.get("Gather"):
        yield _dynamic(subject, " of embedding tables too", "op_types: [Gather, Gemm, LSTM, MatMul]")
    elif (
        not products
        and subject.quantized_share < QUANTIZED
        and (share := subject.time_in("MatMul", "Gemm")) is not None
    ):
        yield f"{_DYNAMIC} is not tried for MatMul and Gemm: they take {percent(share)} of the time."


def _dynamic(subject: Subject, name: str, settings: str) -> Variant:
    made = {"made": f"{{{subject.quantize()}, mode: dynamic, {settings}}}"}
    return Variant(f"{_DYNAMIC}{name}{subject.label}", subject.runtime_with(), made)


_SEARCH_SHARE, _PLACEMENT_SHARE = 0.15, 0.2
"""Shares of the budget that the search for exceptions, and the placement, may take."""
_SEARCH_MS, _PLACEMENT_MS = 120_000.0, 60_000.0
"""Their time without a budget."""


def int8_exceptions(subject: Subject) -> Proposals:
    """Yield INT8 except the layers that it breaks, which a search finds, with real samples.

    The most expensive family, and so among the last.
    """
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear")
    if not subject.samples.search or not quantized or not _may_pay(subject):
        return
    time_ms = subject.limit_ms(_SEARCH_SHARE, _SEARCH_MS)
    target = subject.quantize_target
    found = (
        f"{{step: find_precision, from: clean, precision: int8, int8: {{method: minmax{target}}}"
        f"{tolerance_of(subject.conditions)}, trials: 60, time: {time_ms:g} ms}}"
    )
    made = f"{{{subject.quantize()}{target}, found_by: found}}"
    name = f"INT8 except what it breaks{subject.label}"
    plain, steps = _plain_form(subject), {"found": found, "made": made}
    yield Variant(name, subject.runtime_with(), steps, costly=True, unless=(plain,), whole=plain, needs=plain)


def int8_placed(subject: Subject) -> Proposals:
    """Yield INT8 where it pays, with real samples, for runtimes that measure here.

    A region is quantized only if the target is faster with it, and the outputs stay right.
    """
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear") and _may_pay(subject)
    if not subject.samples.search or not quantized or subject.preset.engine or subject.preset.remote:
        return
    time_ms = subject.limit_ms(_PLACEMENT_SHARE, _PLACEMENT_MS)
    # The step takes the settings of another runtime from the recipe.
    threads = f", threads: {subject.threads}" if subject.runtime == DEFAULT else ""
    placed = f"{{objective: latency, time: {time_ms:g} ms{threads}}}"
    scheme = f"{subject.quantize()}{subject.quantize_target}"
    made = f"{{{scheme}, optimize: {placed}{tolerance_of(subject.conditions)}}}"
    yield Variant(f"INT8 where it pays{subject.label}", subject.runtime_with(), {"made": made}, costly=True)


def int8_smoothed(subject: Subject) -> Proposals:
    """Yield INT8 after SmoothQuant, with real samples, for mostly matrix products, as in transformers."""
    quantized = subject.allows("QuantizeLinear", "DequantizeLinear", "Mul")
    products = not subject.is_quantized and subject.pays_in(0.3, "MatMul", "Gemm")
    if not subject.samples.search or not quantized or not products:
        return
    smoothed = "{step: smooth_activations, from: clean}"
    made = f"{{{subject.quantize('found')}{subject.quantize_target}}}"
    name, plain = f"INT8 of smoothed activations{subject.label}", _plain_form(subject)
    steps = {"found": smoothed, "made": made}
    yield Variant(name, subject.runtime_with(), steps, costly=True, unless=(plain,), whole=plain, needs=plain)


_WHOLE_WEIGHTS = 2**20
"""Bytes of weights of matrix products from which the memory's bandwidth may limit the latency."""


def int8_weights(subject: Subject) -> Proposals:
    """Yield weights of matrix products in INT8, where the memory that they are read from limits the speed.

    For the size, those in INT4 too: these are less right and no faster.
    """
    if not subject.samples.search or not subject.runs_in_onnxruntime or not subject.allows("MatMulNBits"):
        return
    matrices = subject.weights.get("MatMul", 0) + subject.weights.get("Gemm", 0)
    is_worth = subject.pays_in(_LEAST_TIME, "MatMul", "Gemm", weights=0.25)
    if matrices < _WHOLE_WEIGHTS or subject.is_quantized or not is_worth:
        return
    for weights in ("int8", "int4") if subject.aims_at("size") else ("int8",):
        settings = f"mode: weight_only, weights: {weights}, block_size: 128, accuracy_level: 4"
        made = {"made": f"{{{subject.quantize()}, {settings}}}"}
        yield Variant(f"weights in {weights.upper()}{subject.label}", subject.runtime_with(), made)


_LEAST_TIME_IN_LOOPS = 0.2
"""Share of the time in Loops from which an LSTM, twice to five times as fast, can pay."""
_EDITED = "{step: edit, from: clean, operations: [{loop_to_lstm: {allow_empty: true}}]}"
"""If no Loop is an LSTM, the model is the same."""


def loops_as_lstm(subject: Subject) -> Proposals:
    """Yield Loops of TensorFlow that are LSTMs as LSTM: one kernel instead of twenty in each step.

    With real samples, its dynamic INT8 too, which makes an LSTM faster again.
    """
    if "Loop" not in subject.operators or subject.preset.engine or not subject.allows("LSTM"):
        return
    share = subject.time_in("Loop")
    if share is not None and share <= _LEAST_TIME_IN_LOOPS:
        yield f"Loops are not rewritten as LSTM: they take {percent(share)} of the time."
        return
    rewritten = f"loops as LSTM{subject.label}"
    yield Variant(rewritten, subject.runtime_with(), {"made": _EDITED})
    if subject.samples.search and subject.runs_in_onnxruntime and subject.allows("DynamicQuantizeLSTM"):
        dynamic = "{step: quantize, from: found, mode: dynamic, op_types: [Gemm, LSTM, MatMul]}"
        steps = {"found": _EDITED, "made": dynamic}
        yield Variant(f"loops as LSTM in dynamic INT8{subject.label}", subject.runtime_with(), steps, needs=rewritten)


def own_precision(subject: Subject) -> Proposals:
    """Yield the source and the cleaned model in the precision that a runtime chooses by itself.

    OpenVINO computes in bfloat16 on some CPUs. What it fuses decides what it rounds.
    """
    own, title = subject.own_precision, subject.traits.title
    if not own:
        return
    if (precision := subject.traits.find_own_precision()) == "float32":
        yield f"{title}'s default precision is not tried: on this CPU it is {precision}, as in the other variants."
    else:
        yield Variant(f"source{subject.label} with {precision}", own, is_source=True)
        yield Variant(f"clean{subject.label} with {precision}", own)


_BATCHES = (4, 16)


def throughput(subject: Subject) -> Proposals:
    """Yield ways to run the cleaned model on several items, if throughput is an objective.

    These are concurrent inferences in OpenVINO, and batches in ONNX Runtime.
    """
    if not subject.aims_at("throughput"):
        return
    if concurrent := subject.traits.concurrency:
        yield Variant(f"clean in concurrent streams{subject.label}", subject.runtime_with(), speed=f", {concurrent}")
        return
    if subject.options.fix_shapes:
        yield "Batches are not tried in ONNX Runtime: --fix-shapes fixes the first dimension."
        return
    if not subject.batched:
        yield "Batches are not tried in ONNX Runtime: the model fixes the first dimension of an input."
        return
    for batch in _BATCHES:
        several = (replace(likely, shape=(batch, *(likely.shape or ())[1:])) for likely in subject.trial.inputs)
        entries = ((json.dumps(likely.spec.name), input_entry(likely, FoundData())) for likely in several)
        inputs = ", ".join(f"{name}: {{{entry}}}" for name, entry in entries)
        yield Variant(
            f"clean in batches of {batch}{subject.label}", subject.runtime_with(), speed=f", inputs: {{{inputs}}}"
        )


_FAMILIES: dict[Callable[[Subject], Proposals], int] = {
    cleaned: 10,
    extended: 12,
    fp16: 20,
    int8: 30,
    int8_dynamic: 8,
    int8_exceptions: 90,
    int8_placed: 95,
    int8_smoothed: 92,
    int8_weights: 27,
    loops_as_lstm: 15,
    one_thread: 11,
    own_precision: 20,
    throughput: 15,
}
"""Family -> its place in the search: likely winners come first; what takes long is last, so that a budget ends that."""


def propose_variants(subject: Subject) -> Iterator[tuple[int, Variant | str]]:
    """Yield the variants of all families with the place of each, and sentences on what is not tried."""
    for family, place in _FAMILIES.items():
        yield from ((place, proposed) for proposed in family(subject))
