"""Comparisons by the real engine: usual, three reports of two models, other hardware, hostile, big."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.records.comparison import Comparison, Subject
from ndld_flow.records.profile import Layer, Profile, ProfileRun
from tests.support.run_fixtures import (
    HOSTILE_NAMES,
    STARTED,
    TAG_BREAKER,
    hostile_layers,
    latency_samples,
    layers,
    profile,
    timeline,
)


@dataclass(frozen=True)
class Compared:
    """A comparison with the profiles it was made from, as the page wants them."""

    comparison: Comparison
    profiles: tuple[tuple[Profile, ...], ...]


def in_turns(label: str, center_ms: float, seed: int, turn: int = 0, runs: int = 6) -> Profile:
    """Several process runs that took turns with those of other profiles, and a layer pass in three of them."""
    result = profile(label, center_ms, seed, 0)
    measured_layers = layers(60, center_ms * 0.96, 7, "float32", samples=12)
    measured = tuple(
        ProfileRun(
            latency_ms=latency_samples(seed * 100 + run, center_ms * (1 + 0.002 * (run % 3)), 40),
            load_ms=80.0 + run,
            started_s=float(10 * run + 2 * turn),
            peak_memory_bytes=60_000_000 + 1000 * run,
        )
        for run in range(runs)
    )
    return result.model_copy(
        update={
            "runs": measured,
            "model_digest": f"{label}-{seed}",
            "layers": measured_layers,
            "timeline": timeline(measured_layers),
            "layer_runs": (4, 4, 4),
            "session": "one session",
            "measured_at": STARTED,
        }
    )


def halved(outcome: Profile, seed: int) -> Profile:
    """Return the profile after a conversion to fp16: faster convolutions, fused layers, casts at both ends."""
    rng = random.Random(seed)
    kept = [_half(layer, rng) for layer in outcome.layers if layer.index != 4]
    fused = kept[3].model_copy(update={"onnx_nodes": (*kept[3].onnx_nodes, *outcome.layers[4].onnx_nodes)})
    result = [_cast(0, kept[0]), *kept[:3], fused, *kept[4:], _cast(1, kept[-1])]
    placed = tuple(layer.model_copy(update={"index": index}) for index, layer in enumerate(result))
    return outcome.model_copy(
        update={
            "layers": placed,
            "timeline": timeline(placed),
            "model_digest": "half",
            "options": outcome.options | {"fp16": True},
        }
    )


def _half(layer: Layer, rng: random.Random) -> Layer:
    factor = {"Conv": 0.5, "Resize": 1.6}.get(layer.type, 1.0)
    times = tuple(round(sample * factor * (1 + rng.gauss(0, 0.01)), 6) for sample in layer.samples_ms)
    precision = "float32" if layer.type == "Resize" else "float16"
    tactic = f"sm80_{precision}_{layer.index % 3}" if layer.type == "Conv" else ""
    return layer.model_copy(update={"samples_ms": times, "precision": precision, "tactic": tactic})


def _cast(place: int, like: Layer) -> Layer:
    return like.model_copy(
        update={"name": f"cast.{place}", "type": "Cast", "onnx_nodes": (), "role": "cast", "tactic": ""}
    )


def subject(label: str, place: int = 0) -> Subject:
    return Subject(
        label=label,
        location=f"outputs/runs/ppocr/20261121T09300{place}Z",
        kind="run",
        run_id=f"20261121T09300{place}Z-3f9a1c",
        measured_at=STARTED + timedelta(minutes=place),
    )


def compared(
    subjects: Sequence[Subject],
    sections: dict[str, dict[int, Profile]],
    rules: Rules | None = None,
    gates: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> Compared:
    """`sections`: profile name -> subject -> its profile."""
    measured = {
        name: [Measured(place, name, profile) for place, profile in profiles.items()]
        for name, profiles in sections.items()
    }
    comparison = compare(subjects, measured, rules or Rules(), gates, left_out)
    return Compared(comparison, tuple(tuple(profiles.values()) for profiles in sections.values()))


def pair() -> Compared:
    """Two reports of one model, measured in turns: the second is surely quicker."""
    source = in_turns("source", 14.0, 1)
    half = halved(in_turns("half", 10.0, 2, turn=1), 3)
    return compared(
        [subject("main"), subject("half", 1)],
        {"speed": {0: source, 1: half}},
        gates=["latency.median <= +5 %", "memory.peak <= -20 %"],
    )


def three() -> Compared:
    """Return three reports of two profiles; the third report lacks the second profile, and one pair is inconclusive."""
    det = {
        0: in_turns("det", 14.0, 1),
        1: halved(in_turns("det", 10.0, 2, turn=1), 3),
        2: in_turns("det", 14.5, 4, turn=2),
    }
    rec = {0: in_turns("rec", 30.0, 5), 1: halved(in_turns("rec", 33.0, 6, turn=1), 7)}
    return compared(
        [subject("main"), subject("half", 1), subject("tuned", 2)],
        {"det": det, "rec": rec},
        gates=["latency.median <= +5 %"],
        left_out=["tuned has no profile `rec`: it is left out there."],
    )


def elsewhere() -> Compared:
    """Return a comparison with another machine, which is incomparable."""
    source = in_turns("source", 14.0, 1)
    machine = source.machine.model_copy(update={"cpu": "Intel Xeon 8481C", "cpu_count": 4})
    other = in_turns("source", 10.0, 2).model_copy(update={"machine": machine, "session": ""})
    return compared([subject("laptop"), subject("server", 1)], {"speed": {0: source, 1: other}})


def hostile() -> Compared:
    """Return a hostile comparison: every free name is an attack."""
    bad = TAG_BREAKER
    base = in_turns(bad, 9.0, 5).model_copy(update={"layers": hostile_layers(), "layer_runs": (3,)})
    odd = {name: name for name in HOSTILE_NAMES if name} | {bad: [bad, {bad: bad}]}
    turned = tuple(layer.model_copy(update={"precision": bad, "tactic": bad}) for layer in hostile_layers()[::-1])
    strange = tuple(layer.model_copy(update={"onnx_nodes": ()}) for layer in turned)
    candidate = base.model_copy(
        update={
            "options": odd,
            "conditions": odd,
            "versions": dict.fromkeys(HOSTILE_NAMES, bad),
            "layers": strange,
            "runs": (ProfileRun(latency_ms=(1e-9, 1e9, 5.0)),),
            "session": bad,
        }
    )
    third = base.model_copy(update={"layers": (), "layer_runs": (), "runs": (ProfileRun(latency_ms=(4.0,)),)})
    subjects = [
        Subject(label=label, location=label * 2, kind="profile", run_id=label)
        for label in (bad, HOSTILE_NAMES[4], HOSTILE_NAMES[5])
    ]
    sections = {bad: {0: base, 1: candidate, 2: third}, HOSTILE_NAMES[4]: {0: base, 1: candidate}}
    return compared(subjects, sections, left_out=HOSTILE_NAMES)


def big(layer_count: int = 5000, reports: int = 10) -> Compared:
    """Many reports of a model with many layers."""
    profiles = {
        index: profile(f"report {index}", 40.0 + index, index, layer_count, runs=5).model_copy(
            update={"layer_runs": (2, 2, 2, 2, 2)}
        )
        for index in range(reports)
    }
    return compared([subject(f"report {profile}", profile) for profile in profiles], {"big": profiles})
