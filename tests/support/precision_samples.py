"""Precision searches and comparisons layer by layer, made by code: small ones, hostile ones, and of 5,000 layers."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from ndld_flow.records.accuracy import (
    Accuracy,
    LabelledMetric,
    LayerDivergence,
    OutputAgreement,
    SampleAgreement,
    SequenceAgreement,
    StepErrors,
    TensorRange,
)
from ndld_flow.records.document import Record
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.records.precision_search import Evidence, KeptNode, PrecisionSearch, Trial
from ndld_flow.records.profile import TensorInfo
from tests.support.run_fixtures import (
    CLEAN_TYPES,
    HALF_TYPES,
    HOSTILE_NAMES,
    TAG_BREAKER,
    StepSketch,
    accuracy,
    graph,
    profile,
)

LARGEST = 65504.0
TYPES = ("Conv", "Conv", "BatchNormalization", "Relu", "Add", "Clip", "Mul")
BREAKING = 40
"""Where the sample model begins to diverge: at its first BatchNormalization that is too wide, as PP-OCR det does."""


def layer_name(position: int) -> tuple[str, str]:
    """(operator, node)"""
    op_type = "BatchNormalization" if position % BREAKING == 0 and position else TYPES[position % 2]
    return op_type, f"p2o.{op_type}.{position}"


def value_range(position: int, seed: int = 0) -> TensorRange:
    """Every fourth layer has small values; what comes out of the wide ones is beyond fp16."""
    rng = random.Random(seed + position)
    wide = position % BREAKING == 0 and position > 0
    largest = 9.8e7 if wide else 10 ** rng.uniform(-0.5, 2.5)
    return TensorRange(
        tensor=f"t{position}",
        elements=409_600,
        minimum=-largest if position % 3 else 0.0,
        maximum=largest,
        rms=largest / 4,
        smallest_abs=largest * 10 ** rng.uniform(-9, -5),
        beyond_share=0.19 if wide else 0.0,
        subnormal_share=0.02 if position % 4 == 3 else 0.0005,
        vanishing_share=0.013 if position % 12 == 7 else 0.0,
    )


def divergences(layers: int, errors: Sequence[float], with_ranges: bool = True) -> tuple[LayerDivergence, ...]:
    """Return a divergence for each layer with these `errors` (relative rms); NaN marks non-finite values."""
    result = []
    for position, error in zip(range(layers), errors, strict=True):
        op_type, node = layer_name(position)
        finite = math.isfinite(error)
        result.append(
            LayerDivergence(
                position=position,
                node=node,
                op_type=op_type,
                tensor=f"t{position}",
                shape=(1, 64, 80, 80),
                metrics={
                    "relative_rms": error,
                    "cosine": 1 / math.sqrt(1 + error * error) if finite else math.nan,
                    "snr_db": (-20 * math.log10(error) if error > 0 else math.inf) if finite else math.nan,
                    "max_abs": error * 12,
                },
                nonfinite=0 if finite else 900,
                range=value_range(position) if with_ranges else None,
            )
        )
    return tuple(result)


def errors_whole(layers: int, start: int = BREAKING, nonfinite: range = range(0)) -> list[float]:
    """Rounding until `start`, then far off."""
    rng = random.Random(7)
    return [
        math.nan
        if position in nonfinite
        else 10 ** (rng.gauss(-3.3, 0.15) if position < start else rng.gauss(-0.25, 0.18))
        for position in range(layers)
    ]


def errors_found(layers: int) -> list[float]:
    rng = random.Random(8)
    return [10 ** rng.gauss(-3.2 + 0.4 * position / layers, 0.12) for position in range(layers)]


def kept_node(position: int, cause: str = "overflow", without: Mapping[str, float] | None = None) -> KeptNode:
    op_type, node = layer_name(position)
    sentences = {
        "overflow": "its variances up to 9.8e+07 are clamped to 65504",
        "sensitivity": "alone in fp16 it takes the cosine to 0.9971",
    }
    return KeptNode(
        node=node,
        op_type=op_type,
        outputs=(f"t{position}",),
        cause=cause,
        evidence=(
            Evidence(
                cause=cause,
                sentence=sentences.get(cause, "it does not fit"),
                tensor=f"batch_norm_{position}.w_2",
                value=9.8e7,
                limit=LARGEST,
            ),
            Evidence(cause="overflow", sentence="19 % of its output's values are beyond 65504", tensor=f"t{position}"),
        ),
        without=dict({"cosine": 0.9132, "max_abs": 0.71} if without is None else without),
    )


def trials(kept: Sequence[int], layers: int, bound: float = 0.999) -> tuple[Trial, ...]:
    """All of it, without the suspects, bisected, shrunk, looked at once more."""
    rng = random.Random(3)
    tried: list[tuple[str, str, range | Sequence[int], float]] = [
        ("whole", "every node in fp16", (), 0.7712),
        ("suspects", "with 9 suspects", range(40, 49), 0.99999),
        ("op_types", "without BatchNormalization", tuple(range(40, layers, 40)), 0.99999),
        ("regions", f"nodes 1 to {layers // 2}", range(layers // 2), 0.93),
        *(
            ("shrink", f"without node {40 + index}", range(40 + index, 49), rng.choice((0.9999, 0.83)))
            for index in range(6)
        ),
        ("shrink", "without the wide ones", (), math.nan),
        ("nodes", "could not be built", (1, 2, 3), -2),
        ("verify", f"{len(kept)} nodes on all samples", kept, 0.99998),
    ]
    return tuple(
        Trial(
            number=number,
            phase=phase,
            what=what,
            kept_count=len(nodes),
            kept=tuple(nodes),
            metrics={} if cosine == -2 else {"cosine": cosine, "max_abs": 2 * (1 - cosine)},
            passed=cosine >= bound,
            wall_s=0.3 + 0.02 * number,
            remembered=number == 2,
            trouble="ONNX Runtime: no kernel for Foo(17)" if cosine == -2 else "",
        )
        for number, (phase, what, nodes, cosine) in enumerate(tried, start=1)
    )


def search(layers: int = 320, kept: Sequence[int] = (40, 80, 120), **changes: object) -> PrecisionSearch:
    """A search that found what it looked for; `changes` are fields of the record, `kept_nodes` its `kept`."""
    precision_search = PrecisionSearch(
        model="sanitize",
        precision="fp16",
        tolerance={"cosine": 0.999},
        sample_count=4,
        inputs={"x": "calibration/*.png, 4 of 12 files, float32 1x3x320x320"},
        settings={"keep_io": True},
        node_count=layers + 6,
        candidate_count=layers,
        always_kept={"p2o.Resize.0": "no fp16 kernel", "p2o.Resize.1": "no fp16 kernel", "p2o.If.2": "has bodies"},
        kept=tuple(kept_node(position) for position in kept),
        passed=True,
        metrics_whole={"cosine": 0.7712, "max_abs": 0.98},
        metrics_found={"cosine": 0.99998, "max_abs": 0.0041},
        layers_whole=divergences(layers, errors_whole(layers)),
        layers_found=divergences(layers, errors_found(layers)),
        first_divergent=layer_name(BREAKING)[1],
        trials=trials(kept, layers),
        kept_macs_share=0.0042,
        wall_s=21.4,
    )
    changes["kept"] = changes.pop("kept_nodes", precision_search.kept)
    return precision_search.model_copy(update=changes)


def failed_search(layers: int = 320) -> PrecisionSearch:
    """The budget ended first; what it gives with everything reduced is not even a number."""
    return search(
        layers,
        kept=range(40, 300, 20),
        passed=False,
        metrics_whole={"cosine": math.nan, "max_abs": math.inf},
        metrics_found={"cosine": 0.9871, "max_abs": 0.31},
        layers_whole=divergences(layers, errors_whole(layers, nonfinite=range(45, 300))),
        notes=("The budget of 12 trials was used up.",),
    )


def deep_accuracy(layers: int = 320) -> Accuracy:
    """A comparison with all there is: samples, a labelled set, layers."""
    compared = divergences(layers, errors_whole(layers, start=200), with_ranges=False)
    cosines = (0.99991, 0.99984, 0.9971, 0.99989, 0.99993, 0.9999)
    return Accuracy(
        reference="source",
        candidate="half",
        provider_reference="CPUExecutionProvider",
        provider_candidate="CPUExecutionProvider",
        arithmetic="stored",
        emulated=("candidate",),
        sample_count=len(cosines),
        inputs={"x": "receipts/*.png, 6 files, float32 1x3x320x320"},
        tolerance={"cosine": 0.999, "max_abs": 0.1},
        output_tolerance={"boxes": {"cosine": 0.99}},
        outputs=(
            OutputAgreement(
                output="sigmoid_0.tmp_0",
                dtype="float32",
                shape=(1, 1, 320, 320),
                judged_as="numbers",
                metrics={"cosine": 0.9971, "max_abs": 0.062, "mean_abs": 2e-4, "rmse": 9e-4, "psnr_db": 61.0,
                         "snr_db": 37.4, "kl": 1.2e-6},
                worst_samples={"cosine": "receipt-3.png", "max_abs": "receipt-3.png"},
                failed=("cosine 0.9971 is less than 0.999",),
            ),
            OutputAgreement(
                output="boxes",
                dtype="float32",
                shape=(1, 100, 4),
                judged_as="numbers",
                metrics={"cosine": 0.99999, "max_abs": 0.012, "mean_abs": 1e-4, "rmse": 3e-4, "top1": 0.98},
            ),
        ),
        samples=tuple(
            SampleAgreement(
                sample=f"receipt-{index + 1}.png",
                outputs={
                    "sigmoid_0.tmp_0": {"cosine": cosine, "max_abs": 20 * (1 - cosine), "snr_db": 40.0 - index},
                    "boxes": {"cosine": 0.99999, "max_abs": 0.01 + 0.0004 * index},
                },
                label="total 12.40" if index % 2 else "total 7.00",
                scores_reference={"accuracy": 1.0},
                scores_candidate={"accuracy": float(index != 2)},
            )
            for index, cosine in enumerate(cosines)
        ),
        worst_sample="receipt-3.png",
        metric_file="metric.py",
        labelled=(
            LabelledMetric(name="accuracy", reference=1.0, candidate=5 / 6, bounds={"drop": 0.2, "min": 0.8}),
            LabelledMetric(name="f1", reference=0.92, candidate=0.81, bounds={"relative_drop": 0.01},
                           failed=("f1 dropped by 12 %, more than 1 %",)),
        ),
        layers=compared,
        layers_compared=layers,
        first_divergent=compared[200] if layers > 200 else None,
        divergence_bounds={"cosine": 0.999},
        notes=("Sizes of input x were assumed.",),
    )  # fmt: skip


def sequence_accuracy(steps: int = 60, name: str = "probability") -> Accuracy:
    """Return the agreement of a model with states, whose error grows with the steps."""
    errors = tuple(None if step == 20 else 1e-4 * 1.2 ** (step % 60) for step in range(steps))
    outputs = (
        StepErrors(
            output=name,
            metric="slice_rms",
            errors=errors,
            bound=0.05,
            divergent_count=steps - 35,
            first_divergent=35,
            flipped=(40, 41),
            flipped_count=2,
            decision="more than 0.5",
            early_error=1e-4,
            late_error=2.0,
        ),
        StepErrors(output="stateN", state="state", metric="slice_rms", errors=(0.0,) * steps),
    )
    sequence = SequenceAgreement(
        labels=("a.wav", "b.wav"),
        lengths=(30, steps - 30),
        feedback={"state": "stateN"},
        states="own",
        outputs=outputs,
    )
    return deep_accuracy().model_copy(update={"sequence": sequence})


def search_steps(passed: bool = True) -> list[StepSketch]:
    """Search, conversion, comparison, profile of what was converted."""
    clean, half = graph(CLEAN_TYPES, 4_630_112), graph(HALF_TYPES | {"Cast": 6}, 2_318_400)
    return [
        StepSketch("search", "find_precision", "precision", passed=passed, summary="keeps 3 nodes", wall_s=21.4),
        StepSketch(
            "half",
            "convert_fp16",
            parents={"from": "source", "found_by": "search"},
            change=GraphChange(before=clean, after=half, casts_added=6),
            settings={"found_by": "search"},
        ),
        StepSketch("agree", "check_accuracy", "accuracy", parents={"reference": "source", "candidate": "half"}),
        StepSketch("speed", "profile", "profile", parents={"from": "half"}),
        StepSketch("base", "profile", "profile", parents={"from": "source"}),
    ]


def search_documents(precision_search: PrecisionSearch) -> dict[str, Record]:
    """Return the documents of the steps of `search_steps`; the layers of the profile come from the searched nodes."""
    measured = profile("half", 18.2, 1, 330)
    nodes = [layer_name(position)[1] for position in range(330)]
    named = tuple(
        layer.model_copy(
            update={
                "name": node,
                "onnx_nodes": (node,),
                "outputs": (TensorInfo(name=f"t{index}", dtype="float16", shape=(1, 8)),),
            }
        )
        for index, (layer, node) in enumerate(zip(measured.layers, nodes, strict=True))
    )
    return {
        "search/precision.json": precision_search,
        "agree/accuracy.json": accuracy().model_copy(update={"arithmetic": "stored"}),
        "speed/profile.json": measured.model_copy(update={"layers": named}),
        "base/profile.json": profile("source", 14.3, 2, 330),
    }


RECIPE: dict[str, JsonValue] = {
    "name": "ppocr-det",
    "model": "det.onnx",
    "steps": {
        "search": {"step": "find_precision", "precision": "fp16", "tolerance": {"cosine": 0.999}},
        "half": {"step": "convert_fp16", "found_by": "search"},
        "agree": {"step": "check_accuracy", "reference": "source", "candidate": "half"},
        "speed": {"step": "profile", "from": "half"},
        "base": {"step": "profile", "from": "source"},
    },
}


def hostile_search() -> PrecisionSearch:
    """Return a search on a hostile model: every free name is an attack."""
    plain = kept_node(40)
    named = zip(HOSTILE_NAMES, divergences(len(HOSTILE_NAMES), errors_found(len(HOSTILE_NAMES))), strict=True)
    layers = tuple(each.model_copy(update={"node": name, "op_type": name, "tensor": f"{name}{index}"})
                   for index, (name, each) in enumerate(named))  # fmt: skip
    tried = zip(HOSTILE_NAMES, trials((1,), 320), strict=False)
    return search(
        model=TAG_BREAKER,
        kept_precision=TAG_BREAKER,
        inputs={TAG_BREAKER: TAG_BREAKER},
        settings={TAG_BREAKER: TAG_BREAKER},
        always_kept={name: HOSTILE_NAMES[(index + 1) % 5] for index, name in enumerate(HOSTILE_NAMES)},
        kept_nodes=tuple(
            plain.model_copy(
                update={
                    "node": name,
                    "op_type": name,
                    "outputs": (f"{name}{index}",),
                    "evidence": (plain.evidence[0].model_copy(update={"sentence": name, "tensor": name}),),
                    "without": {name: 0.5},
                }
            )
            for index, name in enumerate(HOSTILE_NAMES)
        ),
        tolerance={TAG_BREAKER: 1.0},
        metrics_whole={TAG_BREAKER: 0.5},
        metrics_found={TAG_BREAKER: 0.7},
        layers_whole=layers,
        layers_found=layers[:3],
        first_divergent=TAG_BREAKER,
        trials=tuple(
            item.model_copy(update={"what": name, "trouble": name, "metrics": {name: 0.5}}) for name, item in tried
        ),
        notes=HOSTILE_NAMES,
    )


def hostile_accuracy() -> Accuracy:
    plain = deep_accuracy(len(HOSTILE_NAMES))
    output = plain.outputs[0]
    return plain.model_copy(
        update={
            "reference": TAG_BREAKER,
            "candidate": TAG_BREAKER,
            "metric_file": TAG_BREAKER,
            "worst_sample": TAG_BREAKER,
            "outputs": tuple(
                output.model_copy(update={"output": name, "worst_samples": {"cosine": name}, "failed": (name,)})
                for name in HOSTILE_NAMES
            ),
            "samples": tuple(
                plain.samples[0].model_copy(update={"sample": name, "label": name, "scores_candidate": {name: 1.0}})
                for name in HOSTILE_NAMES
            ),
            "labelled": tuple(
                plain.labelled[1].model_copy(update={"name": name, "bounds": {name: 1.0}, "failed": (name,)})
                for name in HOSTILE_NAMES
            ),
            "layers": hostile_search().layers_whole,
            "notes": HOSTILE_NAMES,
        }
    )
