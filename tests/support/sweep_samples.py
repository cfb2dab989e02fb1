"""Sweeps as the runner records them, made up: session settings, builds, batches, variants, big and hostile ones."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import JsonValue

from ndld_flow.records.measurement import Metric
from ndld_flow.records.outcomes import PointOutcome
from ndld_flow.records.run_record import GateResult
from ndld_flow.records.sweep import (
    MeasuredAgain,
    MeasurementSession,
    PointStep,
    SweepAxis,
    SweepObjective,
    SweepPoint,
    SweepRecord,
)
from ndld_flow.sweep_search.ranking import Contender, Goal, rank_points
from ndld_flow.sweep_search.space import all_tried
from tests.support.run_fixtures import HOSTILE_NAMES, MACHINE, MIB, STARTED, VERSIONS, digest_of

Values = dict[str, JsonValue]


@dataclass(frozen=True)
class Measured:
    """The result of a synthetic point."""

    metrics: Mapping[str, Metric]
    outcome: PointOutcome = "passed"
    reason: str = ""
    failed_step: str = ""
    constraints: tuple[GateResult, ...] = ()


@dataclass(frozen=True)
class Sketch:
    """A sweep, before it is a record."""

    name: str
    axes: tuple[SweepAxis, ...]
    objectives: tuple[SweepObjective, ...]
    points: Sequence[Values]
    measure: Callable[[Values], Measured]
    steps: tuple[tuple[str, str], ...] = (("sanitize", "sanitize"), ("speed", "profile"))
    """(name, type)"""
    measured_steps: tuple[str, ...] = ("speed",)
    winners: int = 3
    method: str = "grid"
    stopped_because: str = ""
    constraints: tuple[str, ...] = ()
    recipe: dict[str, JsonValue] = field(default_factory=dict)
    description: str = ""
    device: str = "cpu:0-1"
    excluded_count: int = 0


def ms(value: float) -> Metric:
    return Metric(value=round(value, 5), unit="ms")


def axis(name: str, *values: JsonValue, log: bool = False) -> SweepAxis:
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    key = name if name.startswith("inputs.") else f"steps.{name}"
    return SweepAxis(name=name, keys=(key,), values=values, numeric=numeric, log=log)


def grid(*axes: SweepAxis) -> list[Values]:
    """All combinations, the last axis changing first."""
    names = [axis.name for axis in axes]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def latency(center_ms: float, rng: random.Random, step: str = "speed", batch: int = 1) -> dict[str, Metric]:
    """Return the metrics of a profile under the runner's names."""
    low = center_ms * (1 + 0.008 * abs(rng.gauss(0, 1)))
    result = {
        "latency.min": ms(low * 0.985),
        "latency.median": ms(low * 1.02),
        "latency.mean": ms(low * 1.031),
        "latency.p90": ms(low * 1.08),
        "latency.p99": ms(low * 1.31),
        "latency.spread": Metric(value=round(0.01 + 0.02 * rng.random(), 5)),
        "throughput.median": Metric(value=round(batch * 1000 / (low * 1.02), 3), unit="1/s"),
        "memory.peak_bytes": Metric(value=round((180 + 8 * batch + 20 * rng.random()) * MIB), unit="bytes"),
    }
    return {f"{step}.{name}": metric for name, metric in result.items()}


def record(sketch: Sketch) -> SweepRecord:
    """The record of a sketched sweep, ranked as the runner ranks."""
    goals = [Goal(objective.direction, 0.03) for objective in sketch.objectives]
    points = [_point(sketch, number, values) for number, values in enumerate(sketch.points, 1)]
    points = _ranked(points, goals)
    again = [point.number for point in points if point.rank is not None and point.rank <= sketch.winners]
    if len(again) > 1:
        points = _ranked(_again(points, again, sketch), goals)
    first = next((point.number for point in points if point.rank == 1), None)
    done = sum(step.outcome == "done" for point in points for step in point.steps)
    return SweepRecord(
        id="20261121T093000Z-5a1f3c",
        recipe_name=sketch.name,
        description=sketch.description,
        recipe=sketch.recipe,
        identity=digest_of(sketch.name),
        command=("ndld-flow", "run", f"pipelines/{sketch.name}.yaml"),
        directory="/home/ada/models",
        started_at=STARTED,
        wall_s=41.5 * len(points),
        own_s=0.021 * len(points),
        method=sketch.method,
        seed=0,
        axes=sketch.axes,
        objectives=sketch.objectives,
        constraints=sketch.constraints,
        points=tuple(points),
        sessions=tuple(_sittings(points, again if len(again) > 1 else [], sketch)),
        best=first,
        stopped_because=sketch.stopped_because or all_tried(len(points)),
        excluded_count=sketch.excluded_count,
        steps_done=done,
        steps_shared=max(0, len(points) - 1),
        steps_reused=1,
        machine=MACHINE,
        versions=VERSIONS,
        passed=any(point.outcome == "passed" for point in points),
    )


def _point(sketch: Sketch, number: int, values: Values) -> SweepPoint:
    measured = sketch.measure(values)
    keys = {axis.name: axis.keys for axis in sketch.axes}
    changes: dict[str, JsonValue] = {}
    for name, value in values.items():
        changes |= value if isinstance(value, dict) else dict.fromkeys(keys[name], value)
    if "variant" in values:
        changes = {"steps.speed.from": values["variant"], **{k: v for k, v in changes.items() if k != "steps.variant"}}
    objectives = [measured.metrics.get(objective.text) for objective in sketch.objectives]
    has_all = measured.outcome == "passed" or bool(objectives and all(objectives))
    return SweepPoint(
        number=number,
        values=values,
        changes=changes,
        outcome=measured.outcome,
        reason=measured.reason,
        failed_step=measured.failed_step,
        metrics=dict(measured.metrics),
        objectives=tuple(objective.value if objective else None for objective in objectives),
        constraints=measured.constraints,
        steps=tuple(_step(name, kind, number, measured) for name, kind in sketch.steps),
        session=(number - 1) // 8 + 1 if has_all else None,
        wall_s=round(3.1 + number % 5, 2),
        folder=f"points/{number:04}",
    )


def _step(name: str, kind: str, number: int, measured: Measured) -> PointStep:
    if name == measured.failed_step:
        return PointStep(name=name, step=kind, outcome="failed", reason=measured.reason, wall_s=1.2)
    if kind == "sanitize":
        shared = number > 1
        return PointStep(
            name=name,
            step=kind,
            outcome="reused" if shared else "done",
            reason="point 1 did it" if shared else "new",
            key=digest_of(name),
            wall_s=0.0 if shared else 0.6,
        )
    return PointStep(name=name, step=kind, outcome="done", reason="new", key=digest_of(f"{name}{number}"), wall_s=2.5)


def _ranked(points: Sequence[SweepPoint], goals: Sequence[Goal]) -> list[SweepPoint]:
    contenders = [
        Contender(
            number=point.number,
            passed=point.outcome == "passed",
            objectives=point.objectives,
            again=point.again.objectives if point.again else None,
            verdict=point.again.verdict if point.again else None,
        )
        for point in points
    ]
    places = rank_points(contenders, goals) if goals else {}
    return [
        point.model_copy(
            update={"rank": place.rank, "tied": place.tied, "on_front": place.on_front}
            if (place := places.get(point.number))
            else {}
        )
        for point in points
    ]


def _again(points: Sequence[SweepPoint], numbers: Sequence[int], sketch: Sketch) -> list[SweepPoint]:
    """Measured again with a little noise: within 3 % of the best is a tie."""
    rng = random.Random(7)
    names = [objective.text for objective in sketch.objectives]
    result = {}
    for point in points:
        if point.number in numbers:
            shake = 1 + 0.004 * rng.gauss(0, 1)
            result[point.number] = {
                name: metric.model_copy(update={"value": round(metric.value * shake, 5)})
                if metric.unit in ("ms", "1/s", "s")
                else metric
                for name, metric in point.metrics.items()
            }
    less = sketch.objectives[0].direction == "minimize"
    firsts = {number: metrics[names[0]].value for number, metrics in result.items()}
    best = (min if less else max)(firsts, key=lambda number: firsts[number])
    return [
        point.model_copy(update={"again": _measured_again(result[point.number], names, firsts, point.number, best)})
        if point.number in result
        else point
        for point in points
    ]


def _measured_again(
    metrics: dict[str, Metric], names: Sequence[str], firsts: Mapping[int, float], number: int, best: int
) -> MeasuredAgain:
    ratio = firsts[number] / firsts[best]
    width = 0.012 + 0.004 * (number % 3)
    tie = abs(ratio - 1) < 0.03
    return MeasuredAgain(
        metrics=metrics,
        objectives=tuple(metrics[name].value for name in names),
        verdict="best" if number == best else "tie" if tie else "worse",
        ratio=ratio,
        ratio_low=None if number == best else ratio * (1 - width),
        ratio_high=None if number == best else ratio * (1 + width),
    )


def _sittings(points: Sequence[SweepPoint], again: Sequence[int], sketch: Sketch) -> list[MeasurementSession]:
    rows: list[tuple[tuple[int, ...], bool]] = []
    for number in sorted({point.session for point in points if point.session}):
        rows.append((tuple(point.number for point in points if point.session == number), False))
    if again:
        rows.append((tuple(again), True))
    return [
        MeasurementSession(
            number=index,
            points=numbers,
            steps=sketch.measured_steps,
            device=sketch.device,
            again=is_again,
            reused=index == 1 and len(rows) > 3,
            started_at=STARTED + timedelta(seconds=70 * index),
            ended_at=STARTED + timedelta(seconds=70 * index + 8 * len(numbers)),
            concurrent=("sanitize of point 12 in worker 2",) if index == 2 else (),
        )
        for index, (numbers, is_again) in enumerate(rows, 1)
    ]


# --- sweeps ---

AGREES = "agree.cosine >= 0.999"


def session() -> SweepRecord:
    """ORT session settings of PP-OCR's detector: a full grid of 24 points on CPU, one of which times out."""
    axes = (
        axis("speed.threads", 1, 2),
        axis("speed.optimization", "basic", "extended", "all"),
        axis("speed.execution", "sequential", "parallel"),
        axis("speed.arena", True, False),
    )
    rng = random.Random(3)

    def measure(values: Values) -> Measured:
        center = 18.6 * {"basic": 1.0, "extended": 0.78, "all": 0.765}[str(values["speed.optimization"])]
        center *= {1: 1.0, 2: 0.61}[int(str(values["speed.threads"]))]
        center *= 1.13 if values["speed.execution"] == "parallel" else 1.0
        center *= 1.0 if values["speed.arena"] else 1.012
        if values == {
            "speed.threads": 1,
            "speed.optimization": "basic",
            "speed.execution": "parallel",
            "speed.arena": False,
        }:
            return Measured({}, "failed", "speed: no answer within 10 min; its processes were ended.", "speed")
        return Measured(latency(center, rng))

    return record(
        Sketch(
            name="ppocr_det_session",
            description="Which session settings run PP-OCR's detector quickest on this CPU?",
            axes=axes,
            objectives=(SweepObjective(text="speed.latency.min", direction="minimize", unit="ms"),),
            points=grid(*axes),
            measure=measure,
            recipe={
                "name": "ppocr_det_session",
                "model": "models/ppocr_det.onnx",
                "steps": {
                    "sanitize": {},
                    "speed": {"threads": 1, "optimization": "all", "execution": "sequential", "arena": True},
                },
                "sweep": {"over": {axis.name: list(axis.values) for axis in axes}, "minimize": "speed.latency.min"},
            },
        )
    )


def builds() -> SweepRecord:
    """RTX build settings by build time and engine size: two objectives, some builds fail, some points are refused."""
    axes = (
        axis("engine.optimization_level", 0, 1, 2, 3, 4, 5),
        axis("engine.aux_streams", 0, 2),
        axis("engine.tiling", "none", "fast", "full"),
        axis("engine.workspace", "64 MiB", "1 GiB"),
    )
    rng = random.Random(5)

    def measure(values: Values) -> Measured:
        level = int(str(values["engine.optimization_level"]))
        full = {"none": 0, "fast": 1, "full": 2}[str(values["engine.tiling"])]
        if full == 2 and values["engine.workspace"] == "64 MiB" and level > 3:
            need = 90 + 10 * level
            reason = (
                f"engine: the builder needs {need} MiB of workspace and may use 64 MiB. Give it more by `workspace`."
            )
            return Measured({}, "failed", reason, "engine")
        build_s = 2.0 * 1.6**level * (1 + 0.5 * full) * (1 + 0.02 * rng.random())
        size = 14.0 * MIB * (1 - 0.03 * level) * (1 + 0.02 * full + 0.01 * rng.random())
        cosine = 0.99991 - 0.0004 * level * (full == 2)
        agrees = GateResult(gate=AGREES, passed=cosine >= 0.999, left=cosine, right=0.999)
        metrics = {
            "engine.build_s": Metric(value=round(build_s, 4), unit="s"),
            "engine.engine_bytes": Metric(value=round(size), unit="bytes"),
            "engine.layers": Metric(value=120 - 6 * level),
            "agree.cosine": Metric(value=cosine),
            **latency(3.6 * 0.94**level * (1 - 0.02 * full), rng),
        }
        if not agrees.passed:
            return Measured(metrics, "refused", f"{AGREES}: {cosine:.5f}", constraints=(agrees,))
        return Measured(metrics, constraints=(agrees,))

    return record(
        Sketch(
            name="rtx_build",
            description="How long is building worth?",
            axes=axes,
            objectives=(
                SweepObjective(text="speed.latency.median", direction="minimize", unit="ms"),
                SweepObjective(text="engine.build_s", direction="minimize", unit="s"),
            ),
            points=grid(*axes),
            measure=measure,
            steps=(
                ("sanitize", "sanitize"),
                ("engine", "build_engine"),
                ("agree", "check_accuracy"),
                ("speed", "profile"),
            ),
            constraints=(AGREES,),
            device="gpu:0 NVIDIA RTX 6000",
            excluded_count=6,
            recipe={"name": "rtx_build", "steps": {"engine": {"step": "build_engine", "optimization_level": 3}}},
        )
    )


def batches() -> SweepRecord:
    """Batch sizes until throughput is saturated, for two numbers of threads."""
    shapes: list[JsonValue] = [[size, 3, 320, 320] for size in (1, 2, 4, 8, 16, 32)]
    axes = (axis("speed.threads", 1, 2), axis("inputs.x.shape", *shapes))
    rng = random.Random(9)
    points = [item for item in grid(*axes) if item != {"speed.threads": 1, "inputs.x.shape": shapes[-1]}]

    def measure(values: Values) -> Measured:
        shape = values["inputs.x.shape"]
        assert isinstance(shape, list)
        batch, threads = int(str(shape[0])), int(str(values["speed.threads"]))
        center = 13.0 / (1 + 0.62 * (threads - 1)) * batch * (0.52 + 0.48 / min(batch, 8))
        return Measured(latency(center, rng, batch=batch))

    return record(
        Sketch(
            name="ppocr_det_batches",
            axes=axes,
            objectives=(SweepObjective(text="speed.throughput.median", direction="maximize", unit="1/s"),),
            points=points,
            measure=measure,
            stopped_because="saturated: two values in a row gained less than 2 % along inputs.x.shape",
            recipe={
                "name": "ppocr_det_batches",
                "inputs": {"x": {"shape": [1, 3, 320, 320], "data": "random"}},
                "steps": {"speed": {"step": "profile", "threads": 2}},
                "sweep": {"saturation": {"gain": 0.02, "points": 2, "along": "inputs.x.shape"}},
            },
        )
    )


def variants(count: int = 30) -> SweepRecord:
    """Three objectives over an axis of variants and two more; found by TPE."""
    axes = (
        SweepAxis(name="variant", keys=("steps.speed.from",), values=("source", "half", "int8")),
        axis("speed.threads", 1, 2),
        axis("half.keep", *range(0, 40, 4)),
    )
    rng = random.Random(2)
    points = [{axis.name: rng.choice(axis.values) for axis in axes} for _ in range(count)]

    def measure(values: Values) -> Measured:
        kind = ("source", "half", "int8").index(str(values["variant"]))
        keep = int(str(values["half.keep"]))
        center = (14.0, 16.1, 9.2)[kind] / (0.7 + 0.3 * int(str(values["speed.threads"]))) * (1 + keep / 300)
        size = (4.7, 2.4, 1.3)[kind] * MIB * (1 + keep / 60)
        error = (1e-9, 2e-6, 4e-4)[kind] * (1 - keep / 50) * (1 + 0.1 * rng.random())
        metrics = {
            **latency(center, rng),
            "agree.cosine": Metric(value=1 - error),
            "half.initializer_bytes": Metric(value=round(size), unit="bytes"),
        }
        return Measured(metrics)

    return record(
        Sketch(
            name="ppocr_det_variants",
            axes=axes,
            objectives=(
                SweepObjective(text="speed.latency.min", direction="minimize", unit="ms"),
                SweepObjective(text="half.initializer_bytes", direction="minimize", unit="bytes"),
                SweepObjective(text="agree.cosine", direction="maximize"),
            ),
            points=points,
            measure=measure,
            method="tpe",
            stopped_because=f"{count} of 600 points: the budget",
        )
    )


def large(count: int = 1000, metrics: int = 60) -> SweepRecord:
    """Many points with many metrics, two objectives, half a dozen axes of all kinds."""
    axes = (
        axis("speed.threads", 1, 2, 4, 8),
        axis("speed.optimization", "basic", "extended", "all"),
        axis("speed.execution", "sequential", "parallel"),
        axis("speed.spin", True, False),
        axis("speed.passes", *sorted({round(10 * 1000 ** (index / count)) for index in range(count)}), log=True),
        axis("speed.arena_mib", *(round(1 + index * 0.37, 2) for index in range(count))),
    )
    rng = random.Random(1)
    points = [{axis.name: rng.choice(axis.values) for axis in axes} for _ in range(count)]

    def measure(values: Values) -> Measured:
        center = (
            20 / float(str(values["speed.threads"])) ** 0.7 * (1.2 if values["speed.execution"] == "parallel" else 1)
        )
        center *= 1 + 0.2 * math.sin(float(str(values["speed.arena_mib"])) / 50)
        result = latency(center, rng)
        more = {
            f"speed.counter_{index}": Metric(value=rng.random() * 10**index) for index in range(metrics - len(result))
        }
        if rng.random() < 0.03:
            return Measured({}, "failed", f"speed: process {rng.randrange(1000, 9999)} was ended by SIGKILL.", "speed")
        return Measured(result | more)

    return record(
        Sketch(
            name="large",
            axes=axes,
            objectives=(
                SweepObjective(text="speed.latency.min", direction="minimize", unit="ms"),
                SweepObjective(text="speed.memory.peak_bytes", direction="minimize", unit="bytes"),
            ),
            points=points,
            measure=measure,
            method="random",
        )
    )


def single() -> SweepRecord:
    """One point."""
    axes = (axis("speed.threads", 2),)
    rng = random.Random(1)
    objectives = (SweepObjective(text="speed.latency.min", direction="minimize", unit="ms"),)
    return record(Sketch("single", axes, objectives, grid(*axes), lambda values: Measured(latency(8.0, rng))))


def none_tried() -> SweepRecord:
    """Stopped before the first point came to anything."""
    axes = (SweepAxis(name="speed.threads", keys=("steps.speed.threads",), values=(), numeric=True),)
    objectives = (SweepObjective(text="speed.latency.min", direction="minimize"),)
    return record(Sketch("none", axes, objectives, [], lambda values: Measured({}), stopped_because="time"))


def failed_only() -> SweepRecord:
    """Every point failed or was refused."""
    axes = (axis("speed.threads", 1, 2, 4),)

    def measure(values: Values) -> Measured:
        if values["speed.threads"] == 4:
            cosine = GateResult(gate=AGREES, passed=False, left=0.91, right=0.999)
            return Measured({"agree.cosine": Metric(value=0.91)}, "refused", f"{AGREES}: 0.91", constraints=(cosine,))
        return Measured({}, "failed", "sanitize: the graph has a cycle at node p2o.Conv.7.", "sanitize")

    objectives = (SweepObjective(text="speed.latency.min", direction="minimize"),)
    return record(Sketch("failed", axes, objectives, grid(*axes), measure, constraints=(AGREES,)))


def no_objective() -> SweepRecord:
    """Return a sweep without objectives, which only runs all points."""
    axes = (axis("speed.threads", 1, 2), axis("speed.optimization", "basic", "all"))
    rng = random.Random(4)
    return record(
        Sketch(
            "look",
            axes,
            (),
            grid(*axes),
            lambda values: Measured(latency(9.0 / int(str(values["speed.threads"])), rng)),
        )
    )


def hostile() -> SweepRecord:
    """Every name that can be chosen is chosen badly."""
    names = HOSTILE_NAMES
    axes = tuple(SweepAxis(name=name, keys=(f"steps.{name}",), values=(name, name * 2)) for name in names[:4])
    rng = random.Random(4)

    def measure(values: Values) -> Measured:
        bad = rng.choice(names)
        gate = GateResult(gate=bad, passed=False, left=math.inf, right=math.nan)
        metrics = {
            name: Metric(value=math.nan if index == 3 else rng.random(), unit=name[:20])
            for index, name in enumerate(names)
        }
        if rng.random() < 0.4:
            return Measured(metrics, "failed", bad * 2, bad, constraints=(gate,))
        return Measured(metrics | {names[0]: Metric(value=1 + rng.random(), unit="ms")}, constraints=(gate,))

    result = record(
        Sketch(
            name=names[0],
            description=names[2],
            axes=axes,
            objectives=(SweepObjective(text=names[0], direction="minimize", unit=names[3]),),
            points=grid(*axes),
            measure=measure,
            steps=((names[0], names[1]), ("speed", "profile")),
            method=names[4],
            stopped_because=names[9],
            constraints=names[:3],
            device=names[6],
            recipe={names[0]: names[1]},
        )
    )
    bad_folder = "javascript:alert(5)"
    points = tuple(point.model_copy(update={"folder": bad_folder}) for point in result.points)
    return result.model_copy(update={"points": points, "id": names[8], "command": names[8:10]})
