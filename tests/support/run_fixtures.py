"""Run folders as the runner leaves them, made from records: quickstart-like, failed, big, hostile."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.profiles.read.onnxruntime_profile import onnxruntime_traits
from ndld_flow.records.accuracy import Accuracy, OutputAgreement
from ndld_flow.records.document import Record
from ndld_flow.records.inspection import Finding, Findings
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord, KeyParts
from ndld_flow.records.measurement import Machine, Metric
from ndld_flow.records.model_diff import GraphChange, GraphSummary
from ndld_flow.records.outcomes import Outcome
from ndld_flow.records.profile import Layer, LayerRole, Profile, ProfileRun, Roofs, Span, TensorInfo
from ndld_flow.records.run_record import GateResult, RunRecord, RunStep, SourceRecord, StepRecord

STARTED = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
MIB = 1024 * 1024

MACHINE = Machine(
    system="Linux 6.12",
    architecture="x86_64",
    cpu="AMD EPYC 9B14",
    cpu_count=2,
    memory_bytes=8 * 1024 * MIB,
    python="3.11.9",
)
VERSIONS = {
    "ndld-flow": "0.1.0",
    "onnx": "1.23.2",
    "onnxruntime-gpu": "1.31.1",
    "onnx-ir": "1.1.0",
    "polygraphy": "0.53.6",
    "numpy": "2.4.6",
}

SOURCE_TYPES = {
    "Constant": 287,
    "Conv": 62,
    "Mul": 81,
    "Add": 75,
    "Div": 34,
    "HardSigmoid": 10,
    "Clip": 24,
    "Relu": 19,
    "Shape": 20,
    "Slice": 16,
    "Concat": 11,
    "Cast": 9,
    "Resize": 6,
    "ConvTranspose": 2,
    "BatchNormalization": 3,
    "GlobalAveragePool": 10,
    "Sigmoid": 1,
    "Identity": 2,
}
CLEAN_TYPES = {
    "Conv": 62,
    "Mul": 81,
    "Add": 75,
    "Div": 34,
    "Clip": 24,
    "Relu": 19,
    "HardSigmoid": 10,
    "GlobalAveragePool": 10,
    "Resize": 6,
    "Concat": 2,
    "BatchNormalization": 3,
    "ConvTranspose": 2,
    "Sigmoid": 1,
}
HALF_TYPES = CLEAN_TYPES | {"Cast": 8}

Documents = Mapping[str, Record]


@dataclass(frozen=True)
class StepSketch:
    """The few things about a step that a test cares for; the rest is filled in."""

    name: str
    step: str
    kind: str = "onnx"
    outcome: Outcome = "done"
    reason: str = "forced"
    parents: Mapping[str, str] = field(default_factory=lambda: {"from": "source"})
    summary: str = ""
    passed: bool = True
    size_bytes: int = 2000
    wall_s: float = 0.4
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    change: GraphChange | None = None
    log: str = ""
    detail: str = ""
    started_s: float = 0.0
    """Seconds after the run's start; negative for what an earlier run made."""


def digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def artifact(kind: str, name: str, size_bytes: int) -> ArtifactRecord:
    file = ArtifactFile(path="model.onnx", digest=digest_of(name + "file"), size_bytes=size_bytes)
    return ArtifactRecord(kind=kind, digest=digest_of(name), files=(file,))


def run_step(sketch: StepSketch) -> RunStep:
    """A step's place in a run, with its record unless it was skipped."""
    record = None if sketch.outcome == "skipped" else step_record(sketch)
    return RunStep(
        name=sketch.name,
        step=sketch.step,
        outcome=sketch.outcome,
        reason=sketch.reason,
        detail=sketch.detail,
        wall_s=sketch.wall_s,
        record=record,
    )


def step_record(sketch: StepSketch) -> StepRecord:
    return StepRecord(
        key=digest_of(sketch.name + "key"),
        parts=KeyParts(
            step=sketch.step,
            version="1",
            settings=dict(sketch.settings),
            inputs={},
            reads={what: digest_of(whom) for what, whom in sketch.parents.items()},
            libraries={"onnx": "1.23.2", "onnxruntime": "1.31.1"},
            machine="",
        ),
        parents=dict(sketch.parents),
        artifact=artifact(sketch.kind, sketch.name, sketch.size_bytes),
        passed=sketch.passed,
        summary=sketch.summary,
        metrics=dict(sketch.metrics),
        change=sketch.change,
        log=sketch.log,
        started_at=STARTED + timedelta(seconds=sketch.started_s),
        ended_at=STARTED + timedelta(seconds=sketch.started_s + sketch.wall_s),
        wall_s=sketch.wall_s,
    )


def run_record(
    steps: Iterable[StepSketch],
    gates: Iterable[GateResult] = (),
    name: str = "ppocr-det",
    recipe: Mapping[str, JsonValue] | None = None,
    wall_s: float = 8.2,
) -> RunRecord:
    """A run of these steps; it passed when all of them and all gates did."""
    placed = tuple(run_step(step) for step in steps)
    judged = tuple(gates)
    passed = all(step.record and step.record.passed for step in placed) and all(gate.passed for gate in judged)
    return RunRecord(
        id="20261121T093000Z-3f9a1c",
        recipe_name=name,
        recipe=dict(recipe if recipe is not None else QUICKSTART),
        identity=digest_of(name + "identity"),
        command=("ndld-flow", "run", "pipelines/quickstart.yaml", "steps.speed.passes=200"),
        directory="/home/ada/models",
        started_at=STARTED,
        wall_s=wall_s,
        source=SourceRecord(
            location="pypi:rapidocr==3.4.5/rapidocr/models/det.onnx",
            path="/home/ada/models/outputs/store/objects/4a/det.onnx",
            artifact=artifact("onnx", "source", 4_745_517),
        ),
        steps=placed,
        gates=judged,
        machine=MACHINE,
        versions=VERSIONS,
        passed=passed,
        outcome="passed" if passed else "failed",
    )


def write_run(folder: Path, run: RunRecord, documents: Mapping[str, Record]) -> Path:
    """Write `run.json` and the documents (`speed/profile.json` -> record) as the runner would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(run.to_json(), encoding="utf-8")
    for place, document in documents.items():
        path = folder / place
        path.parent.mkdir(exist_ok=True)
        path.write_text(document.to_json(), encoding="utf-8")
    return folder


QUICKSTART: dict[str, JsonValue] = {
    "name": "ppocr-det",
    "model": "pypi:rapidocr==3.4.5/rapidocr/models/det.onnx",
    "sha256": "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    "inputs": {"x": {"shape": [1, 3, 320, 320], "data": "random"}},
    "steps": {
        "lint": {"fail_on": "error"},
        "sanitize": {"fold_size_threshold": "64 MiB"},
        "half": {
            "step": "convert_fp16",
            "keep_io": True,
            "block": {"op_types": ["BatchNormalization"]},
        },
        "agree": {
            "step": "check_accuracy",
            "reference": "source",
            "candidate": "half",
            "tolerance": {"cosine": 0.999, "max_abs": 0.01},
        },
        "speed": {"step": "profile", "from": "half", "passes": 200},
        "base": {"step": "profile", "from": "source", "passes": 200},
    },
    "gates": ["speed.latency.median <= 1.5 * base.latency.median", "agree.cosine >= 0.999"],
}


def graph(types: Mapping[str, int], weight_bytes: int) -> GraphSummary:
    return GraphSummary(
        nodes_by_type=dict(types),
        parameter_count=1_168_244,
        initializer_bytes=weight_bytes,
        opset=14,
        ir_version=8,
    )


def latency_samples(seed: int, center_ms: float, passes: int = 200) -> tuple[float, ...]:
    """A noisy host: a tight mode, a slow second mode, a few outliers, a small drift."""
    noise = random.Random(seed)
    samples = []
    for index in range(passes):
        value = center_ms * (1 + noise.gauss(0, 0.012) + 0.02 * index / passes)
        value *= 1.06 if noise.random() < 0.15 else 1
        value *= 1 + noise.random() if noise.random() < 0.02 else 1
        samples.append(round(value, 4))
    return tuple(samples)


def layers(number: int, total_ms: float, seed: int, precision: str, samples: int = 10) -> tuple[Layer, ...]:
    """Layers whose medians sum up to about `total_ms`, a few of them heavy."""
    rng = random.Random(seed)
    types = ("Conv", "Conv", "Conv", "Mul", "Add", "Clip", "Div", "Relu", "Resize", "Concat")
    weights = [rng.paretovariate(1.3) for _ in range(number)]
    unit = total_ms / (sum(weights) or 1)
    return tuple(
        layer(index, types[index % len(types)], weight * unit, rng, precision, samples)
        for index, weight in enumerate(weights)
    )


ROLES: Mapping[str, LayerRole] = {"Reorder": "reformat", "Cast": "cast", "Memcpy": "copy", "If": "control"}
TACTICS = {"Conv": ("nchwc_direct_3x3", "nchwc_pointwise"), "Concat": ("memcpy",)}
RATES = {"Conv": (4e6, 3.8e7), "Mul": (1e5, 9e5)}
"""Multiply-accumulate operations in a millisecond, from and to."""
ELEMENT_BYTES = {"float32": 4, "float16": 2}


def layer(place: int, op_type: str, ms: float, rng: random.Random, precision: str, samples: int) -> Layer:
    """One layer with shapes, work, and a share of the noise. Every eleventh of a type without work moves data."""
    op_type = "Reorder" if place % 37 == 36 else op_type
    channels, edge = rng.choice((16, 24, 56, 96)), rng.choice((160, 80, 40, 20))
    shape = (1, channels, edge, edge)
    size_bytes = channels * edge * edge * ELEMENT_BYTES.get(precision, 4)
    weights = channels * channels * 9 * ELEMENT_BYTES.get(precision, 4) if op_type == "Conv" else 0
    tactics = TACTICS.get(op_type, ("",))
    return Layer(
        index=place,
        name=f"p2o.{op_type}.{place}",
        type=op_type,
        provider="CPUExecutionProvider",
        precision=precision,
        inputs=(TensorInfo(name=f"t{place}", dtype=precision, shape=shape),),
        outputs=(TensorInfo(name=f"t{place + 1}", dtype=precision, shape=shape),),
        onnx_nodes=(f"p2o.{op_type}.{place}",)
        if place % 3
        else (f"p2o.{op_type}.{place}", f"p2o.BatchNormalization.{place}"),
        samples_ms=tuple(round(ms * (1 + rng.gauss(0, 0.05)), 6) for _ in range(samples)),
        role=ROLES.get(op_type, "compute"),
        tactic=tactics[place % len(tactics)],
        macs=int(ms * rng.uniform(*RATES[op_type])) if op_type in RATES else None,
        read_bytes=size_bytes + weights,
        written_bytes=size_bytes,
        weight_bytes=weights,
    )


def timeline(measured: Sequence[Layer], pause_ms: float = 0.004) -> tuple[Span, ...]:
    """One pass: the inputs arrive, layer after layer runs with pauses of the runtime between, the outputs leave."""
    spans = [Span(lane="H2D", name="x", start_ms=0.0, duration_ms=0.08, kind="transfer")]
    now = 0.08
    for index, item in enumerate(measured):
        if index % 5 == 4:
            spans.append(Span(lane="CPU", name="dispatch", start_ms=now, duration_ms=pause_ms, kind="overhead"))
            now += pause_ms
        took = item.samples_ms[0] if item.samples_ms else 0.0
        spans.append(Span(lane="CPU", name=item.name, start_ms=now, duration_ms=took, layer=index))
        now += took
    spans.append(Span(lane="D2H", name="out", start_ms=now, duration_ms=0.05, kind="transfer"))
    return tuple(spans)


ROOFS = Roofs(macs_per_s=4.2e10, bytes_per_s=2e12, how="a 1024 x 1024 MatMul and a 64 MiB copy, 2 threads")
"""Above all layers of the fixtures."""


def process_run(seed: int, center_ms: float, passes: int, turn: int) -> ProfileRun:
    """One process run, a little off as they are, that began in its turn."""
    samples = latency_samples(seed, center_ms * (1 + random.Random(seed).gauss(0, 0.006)), passes)
    starts = [0.0]
    for sample in samples[:-1]:
        starts.append(round(starts[-1] + sample + 0.02, 4))
    return ProfileRun(
        latency_ms=samples,
        load_ms=84.0 + turn,
        peak_memory_bytes=int((61 + turn / 4) * MIB),
        started_s=turn * passes * 0.025,
        starts_ms=tuple(starts),
    )


@dataclass(frozen=True)
class Sitting:
    """The measurement session of interleaved profiles: the index of a profile and their number."""

    place: int = 0
    of: int = 1
    name: str = ""


def profile(
    label: str,
    center_ms: float,
    seed: int,
    layer_count: int,
    *,
    runs: int = 1,
    passes: int = 200,
    session: Sitting = Sitting(),
) -> Profile:
    """A profile of one artifact on the fixture's machine."""
    measured = layers(layer_count, center_ms * 0.96, seed, "float16" if label == "half" else "float32")
    return Profile(
        label=label,
        model_digest=digest_of(label),
        backend="onnxruntime",
        runtime=onnxruntime_traits(("CPUExecutionProvider",)),
        providers=("CPUExecutionProvider",),
        machine=MACHINE,
        versions={"onnxruntime-gpu": "1.31.1", "numpy": "2.4.6"},
        options={"passes": 200, "warmup": 10, "threads": 2, "graph_optimization": "all"},
        conditions={"before": {"load_average": [0.4, 0.3, 0.2], "governors": ["performance"], "affinity": [0, 1]}},
        profiler="off",
        inputs=(TensorInfo(name="x", dtype="float32", shape=(1, 3, 320, 320), data="random uniform [0, 1)"),),
        outputs=(TensorInfo(name="sigmoid_0.tmp_0", dtype="float32", shape=(1, 1, 320, 320)),),
        warmup_passes=10,
        warmup_ms=center_ms * 11,
        runs=tuple(process_run(seed + run, center_ms, passes, run * session.of + session.place) for run in range(runs)),
        layers=measured,
        layer_runs=(5, 5),
        layer_pass_ms=latency_samples(seed + 100, center_ms * 1.12, 10),
        timeline=timeline(measured) if measured else (),
        timeline_basis="pass 6 of the layer pass, the median one" if measured else "",
        roofs=ROOFS.model_copy(update={"dtype": "float16" if label == "half" else "float32"}),
        measured_at=STARTED,
        session=session.name,
        peak_memory_bytes=int(61.5 * MIB),
        stopped_because="runs done" if runs == 1 else f"stable: ±0.9 % after {runs} runs",
    )


FINDINGS = Findings(
    findings=(
        Finding(
            severity="info",
            check="shape_inference",
            message="Dimensions 0, 2 and 3 of input x are dynamic: fix them where you can.",
        ),
        Finding(
            severity="warning",
            check="unused_node",
            message="Nothing reads its output.",
            node="p2o.Identity.1",
            op_type="Identity",
        ),
        Finding(
            severity="warning",
            check="onnxruntime",
            message="Initializer batch_norm_3.w_1 is unused by any node.",
            node="p2o.BatchNormalization.2",
            op_type="BatchNormalization",
        ),
    ),
    checks_run=("onnx.checker", "shape_inference", "onnxruntime", "unused_node"),
    checks_skipped={"tensorrt": "not installed"},
)


def accuracy(cosine: float = 0.99999987, max_abs: float = 9.2e-7, failed: tuple[str, ...] = ()) -> Accuracy:
    return Accuracy(
        reference="source",
        candidate="half",
        provider_reference="CPUExecutionProvider",
        provider_candidate="CPUExecutionProvider",
        sample_count=3,
        inputs={"x": "random uniform [0, 1), seed 0, float32 1x3x320x320"},
        tolerance={"cosine": 0.999, "max_abs": 0.01},
        outputs=(
            OutputAgreement(
                output="sigmoid_0.tmp_0",
                dtype="float32",
                shape=(1, 1, 320, 320),
                judged_as="numbers",
                metrics={
                    "max_abs": max_abs,
                    "mean_abs": max_abs / 11,
                    "max_rel": max_abs * 55,
                    "cosine": cosine,
                    "snr_db": 71.3,
                    "mismatched": 0.0 if not failed else 0.41,
                },
                failed=failed,
            ),
        ),
    )


def _ms(value: float) -> Metric:
    return Metric(value=value, unit="ms")


def quickstart_steps() -> list[StepSketch]:
    """Lint, sanitize, half, agree, speed, base: the first two reused from three days ago."""
    source, clean, half = (
        graph(SOURCE_TYPES, 4_672_976),
        graph(CLEAN_TYPES, 4_630_112),
        graph(HALF_TYPES, 2_318_400),
    )
    return [
        StepSketch(
            "lint",
            "lint",
            "lint",
            "reused",
            "reused",
            summary="no errors, 2 warnings",
            wall_s=0.002,
            started_s=-259_200,
            settings={"fail_on": "error", "time_limit": "60 s"},
        ),
        StepSketch(
            "sanitize",
            "sanitize",
            outcome="reused",
            reason="reused",
            summary="672 -> 329 nodes in 0.31 s",
            wall_s=0.004,
            size_bytes=4_702_333,
            started_s=-300_000,
            change=GraphChange(
                before=source,
                after=clean,
                notes=("287 Constant nodes became initializers.", "Shape chains folded: 20 Shape, 16 Slice."),
            ),
            settings={"fold": True, "fold_size_threshold": "64 MiB", "passes": "auto"},
            metrics={"nodes": Metric(value=329), "initializer_bytes": Metric(value=4_630_112, unit="bytes")},
            log="folding: 343 nodes removed\ncleanup: 0 dead nodes\nchecker: passed\n",
        ),
        StepSketch(
            "half",
            "convert_fp16",
            parents={"from": "sanitize"},
            reason="settings changed",
            detail="block.op_types: [] -> [BatchNormalization]",
            summary="329 -> 337 nodes, 8 casts added, 3 nodes kept in fp32",
            wall_s=0.62,
            size_bytes=2_391_040,
            change=GraphChange(
                before=clean,
                after=half,
                casts_added=8,
                notes=("3 BatchNormalization nodes stay in fp32 (blocked by type).",),
            ),
            settings={
                "keep_io": True,
                "block": {"op_types": ["BatchNormalization"], "nodes": []},
                "min_positive": 1e-7,
                "max_finite": 65504.0,
            },
            metrics={"casts_added": Metric(value=8)},
            log="blocked: p2o.BatchNormalization.0\nblocked: p2o.BatchNormalization.1\n",
        ),
        StepSketch(
            "agree",
            "check_accuracy",
            "accuracy",
            parents={"reference": "source", "candidate": "half"},
            reason="input changed",
            summary="cosine 0.9999999, max abs 9.2e-07: within tolerance",
            wall_s=0.9,
            settings={"tolerance": {"cosine": 0.999, "max_abs": 0.01}, "samples": 3},
        ),
        StepSketch(
            "speed",
            "profile",
            "profile",
            parents={"from": "half"},
            reason="input changed",
            summary="median 18.2 ms on CPU, 200 passes",
            wall_s=4.4,
            started_s=2,
            settings={"passes": 200, "threads": 2},
            metrics={"latency.median": _ms(18.2), "throughput.median": Metric(value=54.9, unit="1/s")},
        ),
        StepSketch(
            "base",
            "profile",
            "profile",
            parents={"from": "source"},
            reason="input changed",
            summary="median 14.3 ms on CPU, 200 passes",
            wall_s=3.4,
            started_s=6,
            settings={"passes": 200, "threads": 2},
            metrics={"latency.median": _ms(14.3)},
        ),
    ]


def write_quickstart(folder: Path) -> Path:
    """A run that passed, as `pipelines/quickstart.yaml` gives it."""
    gates = (
        GateResult(
            gate="speed.latency.median <= 1.5 * base.latency.median",
            passed=True,
            left=18.41,
            right=21.63,
            unit="ms",
        ),
        GateResult(gate="agree.cosine >= 0.999", passed=True, left=0.99999987, right=0.999),
    )
    documents = {
        "lint/findings.json": FINDINGS,
        "agree/accuracy.json": accuracy(),
        "speed/profile.json": profile("half", 18.2, 1, 337, runs=5, passes=80, session=Sitting(0, 2, "one")),
        "base/profile.json": profile("source", 14.3, 2, 330, runs=5, passes=80, session=Sitting(1, 2, "one")),
    }
    return write_run(folder, run_record(quickstart_steps(), gates), documents)


def write_failed(folder: Path) -> Path:
    """Write the run of a naive conversion: outputs disagree, profiles are skipped, one gate fails."""
    steps = quickstart_steps()
    steps[3] = StepSketch(
        "agree",
        "check_accuracy",
        "accuracy",
        "failed",
        "input changed",
        parents={"reference": "source", "candidate": "half"},
        summary="cosine 0.031, max abs 1: outside tolerance",
        passed=False,
        log="sigmoid_0.tmp_0: cosine 0.031 is below 0.999\nsigmoid_0.tmp_0: max_abs 1 is above 0.01\n",
    )
    steps[4] = StepSketch("speed", "profile", outcome="skipped", reason="agree failed", wall_s=0)
    steps[5] = StepSketch("base", "profile", outcome="skipped", reason="agree failed", wall_s=0)
    gates = (GateResult(gate="agree.cosine >= 0.999", passed=False, left=0.0312, right=0.999),)
    sentences = ("cosine 0.0312 is below 0.999", "max_abs 1 is above 0.01")
    documents = {
        "lint/findings.json": FINDINGS,
        "agree/accuracy.json": accuracy(0.0312, 0.99987, sentences),
    }
    return write_run(folder, run_record(steps, gates, wall_s=2.1), documents)


def write_big(folder: Path, layer_count: int = 5000, profiles: int = 10) -> Path:
    """Many profiles of a model with many layers."""
    names = [f"speed{index}" for index in range(profiles)]
    recipe: dict[str, JsonValue] = {
        "name": "big",
        "model": "big.onnx",
        "steps": {name: {"step": "profile"} for name in names},
    }
    steps = [StepSketch(name, "profile", "profile", summary="median") for name in names]
    documents = {
        f"{name}/profile.json": profile(name, 40.0 + index, index, layer_count) for index, name in enumerate(names)
    }
    return write_run(folder, run_record(steps, name="big", recipe=recipe, wall_s=610), documents)


TAG_BREAKER = "</script><img src=x onerror=alert(1)>"
HOSTILE_NAMES = (
    TAG_BREAKER,
    "</style></title></body></html>--><!--",
    "\"'><svg/onload=alert(2)>",
    "{{ 7 * 7 }}{% raw %}${alert(3)}`",
    "x" * 10_000,
    "שלום עולם \u202eevil\u202c",
    "🚀👩‍👩‍👧‍👦 conv",
    "nul\x00bell\x07esc\x1b[31mred",
    "=cmd|' /C calc'!A0",
    "+1+2",
    "-2+3",
    '@SUM(1,"2")',
    'comma, quote " and\r\nnewline',
    "javascript:alert(4)",
    "&lt;b&gt; &amp; &#x3c;",
    "",
)


def hostile_layers() -> tuple[Layer, ...]:
    """One layer for each hostile name, which is also its type, tensor and node."""
    return tuple(
        Layer(
            index=index,
            name=name,
            type=name,
            provider=name,
            precision=name,
            inputs=(TensorInfo(name=name, dtype=name, shape=(1,)),),
            outputs=(TensorInfo(name=name, dtype=name, shape=(1, index)),),
            onnx_nodes=(name, name),
            samples_ms=(0.5 + index, 0.5 + index, 0.6 + index),
            tactic=name,
            macs=10**index,
            read_bytes=4,
            written_bytes=4 * index,
            weight_bytes=4,
        )
        for index, name in enumerate(HOSTILE_NAMES)
    )


def hostile_timeline() -> tuple[Span, ...]:
    """A lane for each hostile name, which is also what ran in it."""
    return tuple(
        Span(lane=name, name=name, start_ms=index, duration_ms=1.5, layer=index, depth=index % 3)
        for index, name in enumerate(HOSTILE_NAMES)
    )


def write_hostile(folder: Path) -> Path:
    """Write the run of a hostile model: every free name is an attack."""
    bad = TAG_BREAKER
    findings = Findings(
        findings=tuple(
            Finding(severity="error", check=name, message=name * 2, node=name, op_type=name) for name in HOSTILE_NAMES
        ),
        checks_run=HOSTILE_NAMES,
        checks_skipped={bad: bad},
    )
    doubtful = accuracy(float("inf"), 1e300, (bad,)).outputs[0]
    agreement = accuracy().model_copy(
        update={
            "reference": bad,
            "candidate": HOSTILE_NAMES[5],
            "inputs": {bad: bad},
            "outputs": tuple(doubtful.model_copy(update={"output": name, "dtype": name}) for name in HOSTILE_NAMES),
        }
    )
    hostile_profile = profile(bad, 9.0, 5, 1).model_copy(
        update={
            "layers": hostile_layers(),
            "timeline": hostile_timeline(),
            "timeline_basis": bad,
            "session": bad,
            "roofs": ROOFS.model_copy(update={"how": bad}),
            "providers": HOSTILE_NAMES[:3],
            "options": {bad: bad, "list": [bad, {bad: bad}]},
            "conditions": {bad: bad},
            "notes": HOSTILE_NAMES,
            "stopped_because": bad,
        }
    )
    types = dict.fromkeys(HOSTILE_NAMES, 3)
    change = GraphChange(before=graph(types, 10), after=graph({bad: 9}, 5), notes=HOSTILE_NAMES, casts_added=1)
    steps = [
        StepSketch(
            "lint", bad, "lint", "failed", bad, summary=bad, passed=False, detail=bad, log="\n".join(HOSTILE_NAMES)
        ),
        StepSketch(
            "change",
            bad,
            summary=HOSTILE_NAMES[4],
            change=change,
            settings={bad: bad},
            parents={bad: bad, "from": "source"},
        ),
        StepSketch("agree", bad, "accuracy", summary=HOSTILE_NAMES[5], parents={"from": "change"}),
        StepSketch("speed", bad, "profile", summary=HOSTILE_NAMES[6], metrics={bad: Metric(value=1, unit=bad)}),
        StepSketch("base", "profile", "profile", summary=HOSTILE_NAMES[6]),
        StepSketch(bad, "profile", outcome="skipped", reason=HOSTILE_NAMES[7]),
        StepSketch("../../outside", "profile", "profile"),
    ]
    gates = [GateResult(gate=name, passed=False, left=1, right=2, unit=name) for name in HOSTILE_NAMES]
    documents = {
        "lint/findings.json": findings,
        "agree/accuracy.json": agreement,
        "speed/profile.json": hostile_profile,
        "base/profile.json": profile(HOSTILE_NAMES[5], 12.0, 6, 40),
    }
    recipe: dict[str, JsonValue] = {bad: bad, "gates": list(HOSTILE_NAMES), "steps": [bad]}
    run = run_record(steps, gates, name=bad, recipe=recipe)
    return write_run(folder, run, documents)
