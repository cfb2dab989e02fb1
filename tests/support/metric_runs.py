"""Outputs with many runs of one recipe whose metrics follow a given course."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2s
from pathlib import Path
from typing import Any

from ndld_flow.records.key_parts import ArtifactRecord, KeyParts
from ndld_flow.records.measurement import Machine, Metric
from ndld_flow.records.run_record import RunRecord, RunStep, SourceRecord, StepRecord
from ndld_flow.runs.outputs import Outputs

STARTED = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
MACHINE = "Linux 6.12 x86_64, AMD EPYC x 8, RTX 4090, driver 570.1; host: lab (1a2b); governor: performance"
_MACHINE = Machine(system="Linux", architecture="x86_64", cpu="AMD EPYC", cpu_count=8, memory_bytes=None)


@dataclass(frozen=True)
class Course:
    """One run: its latency and what differs from the others."""

    latency_ms: float
    nodes: int = 120
    machine: str = MACHINE
    libraries: Mapping[str, str] = field(default_factory=lambda: {"onnxruntime": "onnxruntime 1.31.0"})
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    model: str = "a" * 64
    key: str = ""
    """Equal keys are one measurement."""
    concurrent: Sequence[str] = ()
    commit: str = ""
    failed: bool = False
    gates: Sequence[str] = ()


def courses(latencies: Sequence[float], **same: Any) -> list[Course]:
    """Runs that differ in their latency only."""
    return [Course(latency, **same) for latency in latencies]


def changed(runs: Sequence[Course], start: int, **others: Any) -> list[Course]:
    """The runs, with other values from `start` on."""
    return [replace(run, **others) if index >= start else run for index, run in enumerate(runs)]


def write_runs(root: Path, runs: Sequence[Course], recipe: str = "nightly", first: int = 0) -> Outputs:
    """Write a run for each course, an hour each, with the steps `half` (exact) and `speed` (measured)."""
    outputs = Outputs(root)
    for index, course in enumerate(runs, first):
        record = _run(recipe, index, course)
        folder = outputs.run_folder(record)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(record.to_json())
    return outputs


def run_id(place: int) -> str:
    return f"{STARTED + timedelta(hours=place):%Y%m%dT%H%M%SZ}-{place:06x}"


def _run(recipe: str, place: int, course: Course) -> RunRecord:
    started = STARTED + timedelta(hours=place)
    half = KeyParts(
        step="convert_fp16",
        version="1" if course.nodes == 120 else "2",
        settings={"keep_io": True},
        inputs={},
        reads={"from": course.model},
        libraries={"onnx": "1.23.2"},
        machine="",
    )
    speed = KeyParts(
        step="profile",
        version="5",
        settings={"backend": "onnxruntime", "provider": "cuda", "threads": 0, "runs": 5, **course.settings},
        inputs=dict(course.inputs),
        reads={"from": f"{course.nodes:064d}"},
        libraries=dict(course.libraries),
        machine=course.machine,
    )
    steps = (
        _step(
            "half",
            half,
            f"{course.model[:2]}{course.nodes}",
            {"from": "source"},
            {"nodes": Metric(value=course.nodes)},
            (STARTED, ()),
        ),
        _step(
            "speed",
            speed,
            course.key or f"key{place}",
            {"from": "half"},
            {
                "latency.median": Metric(value=course.latency_ms, unit="ms"),
                "throughput.median": Metric(value=1e3 / course.latency_ms, unit="1/s"),
            },
            (STARTED if course.key else started, course.concurrent),
        ),
    )
    return RunRecord(
        id=run_id(place),
        recipe_name=recipe,
        recipe={"model": "m.onnx", "gates": list(course.gates)},
        identity=f"{place:064x}",
        command=("ndld-flow", "run", f"{recipe}.yaml"),
        directory="/work",
        commit=course.commit,
        started_at=started,
        wall_s=1.0,
        source=SourceRecord(
            location="m.onnx", path="/m.onnx", artifact=ArtifactRecord(kind="onnx", digest=course.model, files=())
        ),
        steps=steps if not course.failed else (steps[0].model_copy(update={"record": _failed(steps[0])}), steps[1]),
        gates=(),
        machine=_MACHINE,
        versions={},
        passed=not course.failed,
        outcome="failed" if course.failed else "passed",
    )


def _failed(step: RunStep) -> StepRecord:
    assert step.record is not None
    return step.record.model_copy(update={"passed": False})


def _step(
    name: str,
    parts: KeyParts,
    key: str,
    parents: dict[str, str],
    metrics: dict[str, Metric],
    measured: tuple[datetime, Sequence[str]],
) -> RunStep:
    record = StepRecord(
        key=blake2s(key.encode()).hexdigest(),
        parts=parts,
        parents=parents,
        artifact=ArtifactRecord(kind="onnx", digest="a" * 64, files=()),
        passed=True,
        summary="",
        metrics=metrics,
        started_at=measured[0],
        ended_at=measured[0],
        wall_s=1.0,
        concurrent=tuple(measured[1]),
    )
    return RunStep(name=name, step=parts.step, outcome="done", reason="", wall_s=1.0, record=record)
