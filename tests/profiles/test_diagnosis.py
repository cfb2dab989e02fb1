"""Diagnosis: each rule fires on a profile made for it, stays silent on one that is not, and gives its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ndld_flow.profiles.diagnose.diagnose import RULES, bound_of, diagnose, triage
from ndld_flow.profiles.diagnose.lints import LINTS
from ndld_flow.profiles.diagnose.published_peaks import PeakShares
from ndld_flow.profiles.diagnose.subject import Bound, Subject
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import BatchPoint, Layer, LayerTimes, Profile, ProfileRun, Roofs, Span, TensorInfo
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from tests.support.layer_passes import measure_layers
from tests.support.runtime_traits import with_traits
from tests.support.text_facts import numbers_in

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
ROOFS = Roofs(macs_per_s=1e11, bytes_per_s=1e10, how="invented", dtype="float32")
MIB = 2**20


def bound_by(profile: Profile) -> Bound:
    return bound_of(Subject(profile))


def shares_under_roofs(*layers: Layer) -> PeakShares:
    """Return the shares of the first layer."""
    return Subject(profile(layers, roofs=ROOFS)).peaks.shares(0)


def layer(kind: str = "Conv", ms: float = 1.0, **given: Any) -> Layer:
    """A layer of one sample; numbered by `profile`."""
    return Layer.model_validate(
        {"index": 0, "name": kind.lower(), "type": kind, "provider": CPU, "samples_ms": (ms,)} | given
    )


def tensor(name: str, *shape: int, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def profile(layers: Sequence[Layer] = (), latency: Sequence[float] | None = None, **given: Any) -> Profile:
    """A steady profile of these layers on a quiet machine, whose latency is the sum of its layers."""
    samples = latency if latency is not None else [sum(LayerTimes(layers).ms) or 1.0] * 30
    known = {
        "label": "made",
        "model_digest": "digest",
        "backend": "onnxruntime",
        "providers": (CPU,),
        "machine": Machine(system="Linux", architecture="x86_64", cpu="c", cpu_count=4, memory_bytes=1),
        "versions": {},
        "options": {},
        "inputs": (),
        "outputs": (),
        "warmup_passes": 5,
        "warmup_ms": 1.0,
        "runs": (ProfileRun(latency_ms=tuple(samples)),),
        "layers": tuple(layer.model_copy(update={"index": index}) for index, layer in enumerate(layers)),
    }
    return Profile.model_validate(with_traits(known | given))


def with_lanes(**lanes: float) -> Profile:
    """Thirty passes on a GPU with samples of each lane."""
    latency = lanes["h2d_ms"] + lanes["compute_ms"] + lanes["d2h_ms"]
    samples: dict[str, Any] = {name: (value,) * 30 for name, value in lanes.items()}
    run = ProfileRun(latency_ms=(latency,) * 30, **samples)
    return profile(backend="trtexec", providers=(), runs=(run,))


def runs(*samples: Sequence[float]) -> Profile:
    return profile([layer(ms=1)], runs=tuple(ProfileRun(latency_ms=tuple(sample)) for sample in samples))


def several(count: int = 8, ms: float = 1.0, **given: Any) -> list[Layer]:
    """Layers that draw no attention to themselves."""
    kinds = ("Pool", "Gemm", "Softmax", "Concat", "Resize")
    return [layer(kinds[number % 5], ms, name=f"l{number}", **given) for number in range(count)]


def interrupted(count: int) -> list[Layer]:
    """Layers of which each pass finds another one interrupted."""
    samples = [tuple(20.0 if pass_ % count == index else 1.0 for pass_ in range(2 * count)) for index in range(count)]
    return [item.model_copy(update={"samples_ms": samples[at]}) for at, item in enumerate(several(count))]


def chain(*kinds: str, ms: float = 1.0) -> list[Layer]:
    """Layers of which each reads what the one before writes."""
    return [
        layer(kind, ms, name=f"n{number}", inputs=(tensor(f"t{number}", 1, 8, 10, 10),),
              outputs=(tensor(f"t{number + 1}", 1, 8, 10, 10),))
        for number, kind in enumerate(kinds)
    ]  # fmt: skip


def scaled_convolution(constant: tuple[int, ...], *, readers: int = 1) -> list[Layer]:
    """Conv, then a Mul with a constant of this shape, then something that reads both or only the product."""
    result = tensor("c", 1, 8, 10, 10)
    product = layer(
        "Mul", name="mul", inputs=(result, tensor("k", *constant)), outputs=(tensor("m", 1, 8, 10, 10),), weight_bytes=4
    )
    others = [layer("Softmax", name=f"s{number}", inputs=(result,)) for number in range(readers - 1)]
    return [layer(outputs=(result,), inputs=(tensor("x", 1, 8, 10, 10),)), product, *others, *several(4)]


def shapes(count: int) -> list[Layer]:
    result = [layer("Shape", name=f"s{n}", outputs=(tensor(f"s{n}", 4, dtype="int64"),)) for n in range(count)]
    return [*result, layer("Concat", outputs=(tensor("c", 4, dtype="int64"),)), *several(8, ms=10)]


def padded(macs: int) -> list[Layer]:
    convolution = layer(
        inputs=(tensor("x", 1, 16, 10, 10), tensor("w", 32, 16, 1, 1)),
        outputs=(tensor("y", 1, 32, 10, 10),),
        macs=macs,
        tactic="nchwc.Conv(Relu)",
    )
    return [convolution, *several(4, ms=0.2)]


def multiplied(*precisions: str, ms: float = 1.0) -> list[Layer]:
    return [
        layer("MatMul", ms, name=f"m{number}", precision=precision, macs=1000 if precision == "float16" else 500)
        for number, precision in enumerate(precisions)
    ]


def at_roof(reached: float, macs: int = 10**8) -> Layer:
    """A layer that computes for this share of the compute roof; nothing is moved."""
    return layer(ms=macs / ROOFS.macs_per_s * 1e3 / reached, macs=macs, precision="float32")


def cast(*, put_in: bool, ms: float = 1.0) -> Layer:
    origins = () if put_in else ("cast_1",)
    tensors = {"inputs": (tensor("a", 9),), "outputs": (tensor("b", 9, dtype="float16"),)}
    return layer("Cast", ms, role="cast", onnx_nodes=origins, **tensors)


FIRES: dict[str, tuple[Profile, Profile, str]] = {
    "reformats": (
        profile([*several(), layer("ReorderInput", role="reformat", tactic="nchwc.ReorderInput")]),
        profile([*several(), layer("ReorderInput", ms=0.1, role="reformat")]),
        "Changing layouts takes 11.1 %",
    ),
    "casts": (
        profile([*several(), cast(put_in=False)]), profile([*several(), cast(put_in=False, ms=0.1)]),
        "Casts take 11.1 %",
    ),
    "copies": (
        profile([*several(), layer("MemcpyToHost", ms=0.01, role="copy")]), profile(several()), "1 layer copying",
    ),
    "control_flow_on_gpu": (
        profile([*several(), layer("If", role="control")], providers=(CUDA, CPU)),
        profile([*several(), layer("If", role="control")]),
        "Control flow on a GPU: 1 If",
    ),
    "one_layer": (
        profile([*several(6), layer("LSTM", ms=6)]), profile(several(6)), "One layer takes 50.0 %",
    ),
    "one_type": (
        profile([layer(ms=3), layer(ms=4), *several(3)]), profile([layer(ms=1), layer(ms=1), *several(4)]),
        "Conv takes 70.0 %",
    ),
    "many_tiny_layers": (
        profile(several(100, ms=0.001)), profile(several(100, ms=0.1)), "100 layers, most of them tiny",
    ),
    "layers_exceed_passes": (
        profile(several(4), latency=[0.5] * 30), profile(several(4), latency=[3.0] * 30), "The layers take 8.00 times",
    ),
    "time_outside_layers": (
        profile(several(4), latency=[8.0] * 30, layer_pass_ms=(8.5,)),
        profile(several(4), latency=[8.0] * 30),  # profiled throughout: the profiler itself needs time between layers
        "50.0 % of the latency is outside",
    ),
    "layers_explain_little": (
        profile(interrupted(4), latency=[24.0] * 8), profile(several(4), latency=[4.2] * 30),
        "The medians of the layers explain 16.7 % of the latency",
    ),
    "bound_by_enqueue": (
        with_lanes(h2d_ms=0.1, compute_ms=2, d2h_ms=0.1, enqueue_ms=1.7),
        with_lanes(h2d_ms=0.1, compute_ms=2, d2h_ms=0.1, enqueue_ms=1.5),
        "The host takes as long",
    ),
    "transfers": (
        with_lanes(h2d_ms=0.4, compute_ms=1.4, d2h_ms=0.2, enqueue_ms=0.1),
        with_lanes(h2d_ms=0.04, compute_ms=1.94, d2h_ms=0.02, enqueue_ms=0.1),
        "Copies between host and device take 30.0 %",
    ),
    "cpu_fallback": (
        profile([*several(7, provider=CUDA), layer("NonMaxSuppression")], providers=(CUDA, CPU)),
        profile(several(8, provider=CUDA), providers=(CUDA, CPU)),
        "1 layer on the CPU",
    ),
    "single_precision_remains": (
        profile(multiplied("float16", "float16", "float32")), profile(multiplied("float32", "float32", "float16")),
        "1 layer multiplying in float32",
    ),
    "half_precision_on_cpu": (
        profile([*several(), cast(put_in=True)]), profile([*several(), cast(put_in=False)]), "Half precision is cast",
    ),
    "single_precision_on_gpu": (
        profile(multiplied("float32", "float32"), providers=(CUDA,)), profile(multiplied("float32", "float32")),
        "The GPU multiplies in single precision: 2 layers in float32 or TF32",
    ),
    "far_from_roof": (
        profile([at_roof(0.1), at_roof(0.9)], roofs=ROOFS), profile([at_roof(0.5), at_roof(0.9)], roofs=ROOFS),
        "1 layer reaching less than 25.0 %",
    ),
    "padded_channels": (profile(padded(24 * 16 * 100)), profile(padded(32 * 16 * 100)), "Channels are padded"),
    "elementwise_chains": (
        profile([*chain("Add", "Clip", "Mul"), *several(4)]), profile([*chain("Add", "Pool", "Mul"), *several(4)]),
        "Chains of elementwise layers take 42.9 %",
    ),
    "shapes_at_run_time": (profile(shapes(3)), profile(shapes(2)), "4 layers computing shapes"),
    "scaling_not_folded": (
        profile(scaled_convolution((1, 8, 1, 1))), profile(scaled_convolution((10, 10))), "1 layer scaling or shifting",
    ),
    "more_threads_than_cpus": (
        profile(several(), options={"threads": 8}), profile(several(), options={"threads": 4}), "8 threads on 4 CPUs",
    ),
    "larger_batches_pay": (
        profile(batches=(BatchPoint(batch=1, inputs=(), latency_ms=(1.0,)),
                         BatchPoint(batch=8, inputs=(), latency_ms=(4.0,)))),
        profile(batches=(BatchPoint(batch=1, inputs=(), latency_ms=(1.0,)),
                         BatchPoint(batch=8, inputs=(), latency_ms=(7.9,)))),
        "Batches of 8 give 2 times",
    ),
    "profiler_overhead": (
        profile(several(), layer_pass_ms=(16.0,)), profile(several(), layer_pass_ms=(8.8,)),
        "With the profiler the model takes 2 times as long",
    ),
    "times_of_the_host": (
        profile(several(), providers=(CUDA, CPU)), profile(several(), backend="trtexec"), "Layer times are those",
    ),
    "waits_for_the_device": (
        profile(several(), providers=(CUDA,), layers_wait_for_device=True), profile(several(), providers=(CUDA,)),
        "Layer times include launching and waiting",
    ),
    "memory_beyond_weights": (
        profile(several(weight_bytes=MIB), peak_memory_bytes=400 * MIB),
        profile(several(weight_bytes=20 * MIB), peak_memory_bytes=400 * MIB),
        "Memory is 50 times the weights",
    ),
    "variation": (runs([1.0, 1.5] * 15), runs([1.0, 1.05] * 15), "Passes vary by 20.3 %"),
    "runs_disagree": (
        runs([1.0] * 9, [1.2] * 9, [1.1] * 9), runs([1.0] * 9, [1.02] * 9, [1.01] * 9), "Process runs vary by 9.1 %",
    ),
    "drift": (
        runs([1 + number / 100 for number in range(30)]), runs([1.0, 1.1] * 15), "Passes get slower within a run",
    ),
    "outliers": (runs([1.0] * 27 + [3.0] * 3), runs([1.0] * 29 + [3.0]), "3 of 30 passes are outliers"),
    "cold_start": (
        runs([2.0, *[1.0] * 9], [1.5, *[1.0] * 9]), runs([2.0, *[1.0] * 9], [1.0] * 10), "The warm-up was too short",
    ),
}  # fmt: skip
"""Rule -> a profile that it fires on, the nearest that it does not, and how its title begins."""


def fired(rule: str, result: Profile) -> list[Any]:
    return [insight for known in RULES if known.__name__ == rule for insight in known(Subject(result))]


@pytest.mark.parametrize("rule", [known.__name__ for known in RULES if known not in LINTS])
def test_a_rule_fires_when_it_should_and_only_then(rule: str) -> None:
    yes, no, title = FIRES[rule]
    result = fired(rule, yes)
    assert len(result) == 1
    assert result[0].title.startswith(title)
    assert fired(rule, no) == []
    assert fired(rule, profile()) == []


@pytest.mark.parametrize("rule", list(FIRES))
def test_insights_have_numbers_a_next_step_and_layers_that_exist(rule: str) -> None:
    yes = FIRES[rule][0]
    insight = fired(rule, yes)[0]
    assert any(letter.isdigit() for letter in insight.evidence)
    assert insight.next_step.endswith(".")
    assert 0 <= insight.score <= 1
    assert all(0 <= position < len(yes.layers) for position in insight.layers)
    assert len(set(insight.layers)) == len(insight.layers)
    assert replace(insight, name=rule) in diagnose(yes)


def test_the_largest_possible_saving_comes_first() -> None:
    insights = diagnose(profile([*several(), layer("ReorderInput", role="reformat"), cast(put_in=True)]))
    scores = [insight.score for insight in insights]
    assert scores == sorted(scores, reverse=True)
    assert len(insights) >= 3


def test_a_profiler_that_was_active_during_the_measurement_is_named() -> None:
    attached = profile(several(4), latency=[8.0] * 30).model_copy(update={"profiler": "on"})
    (insight,) = (insight for insight in diagnose(attached) if "outside layers" in insight.title)
    assert "50.0 % of the latency" in insight.title


def test_shares_never_exceed_the_explained_time() -> None:
    """In each pass another layer is interrupted: medians sum up to a sixth of what a pass takes."""
    subject = Subject(profile(interrupted(4), latency=[24.0] * 8))
    assert subject.share(range(4)) == pytest.approx(1)
    assert subject.whole == "the layers' time"
    slowed = Subject(profile(several(4), latency=[2.0] * 30, layer_pass_ms=(5.0,)))
    assert slowed.whole == "the layers' time"
    dominated = profile([layer(ms=3), layer(ms=4), *several(3)], latency=[2.0] * 30, layer_pass_ms=(5.0,))
    (title,) = (insight.title for insight in diagnose(dominated) if insight.title.startswith("Conv takes "))
    assert numbers_in(title) == [70.0]


def test_shares_are_of_the_latency() -> None:
    """A layer pass slower than the timing pass does not make shares larger than they are."""
    half_outside = Subject(profile(several(4), latency=[8.0] * 30))
    assert half_outside.share([0]) == pytest.approx(1 / 8)
    slowed = Subject(profile(several(4), latency=[2.0] * 30, layer_pass_ms=(5.0,)))
    assert slowed.share([0]) == pytest.approx(1 / 4)
    assert slowed.share(range(4)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("made", "reads"),
    [(scaled_convolution((1, 8, 1, 1), readers=2), "read by another too"), (scaled_convolution((8, 10)), "two axes")],
)
def test_a_factor_that_cannot_be_folded_is_not_reported(made: list[Layer], reads: str) -> None:
    assert fired("scaling_not_folded", profile(made)) == [], reads


def test_factors_are_found_through_reorders_and_each_other() -> None:
    result = tensor("c", 1, 8, 10, 10)
    reordered, product, total = tensor("r", 1, 8, 10, 10), tensor("m", 1, 8, 10, 10), tensor("a", 1, 8, 10, 10)
    layers = [
        layer(outputs=(result,)),
        layer("ReorderOutput", role="reformat", inputs=(result,), outputs=(reordered,)),
        layer("Mul", inputs=(tensor("k", 1), reordered), outputs=(product,), weight_bytes=4),
        layer("Add", inputs=(product, tensor("b", 1)), outputs=(total,), weight_bytes=4),
        *several(4),
    ]
    assert fired("scaling_not_folded", profile(layers))[0].layers == (2, 3)


def test_a_grouped_convolution_is_named_as_the_reason() -> None:
    slow = at_roof(0.1).model_copy(
        update={"inputs": (tensor("x", 1, 36, 9, 9), tensor("w", 36, 1, 3, 3)), "outputs": (tensor("y", 1, 36, 9, 9),)}
    )
    result = fired("far_from_roof", profile([slow, *several(4)], roofs=ROOFS))[0]
    assert "filters read 1 of 36 channels" in result.evidence
    assert "36 and 36 are not multiples" in result.evidence
    assert "10.0 % of the nearer roof" in result.evidence


OUTSIDE = profile(several(400, ms=0.02), latency=[20.0] * 9, layer_pass_ms=(21.0,))
"""Layers that take 8 ms of 20 ms, with gaps of 30 us."""


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (with_lanes(h2d_ms=0.1, compute_ms=2, d2h_ms=0.1, enqueue_ms=1.7), "host enqueue"),
        (with_lanes(h2d_ms=1, compute_ms=1.5, d2h_ms=0.6, enqueue_ms=0.1), "transfers"),
        (profile([*several(5, ms=0.5), layer("LSTM", ms=5)]), "one layer"),
        (profile([*several(6), *[layer("ReorderInput", role="reformat")] * 4]), "reformatting"),
        (profile([*several(6), *[layer("MemcpyToHost", role="copy")] * 4]), "transfers"),
        (OUTSIDE, "dispatch overhead"),
        (profile(several(), latency=[20.0] * 9, layer_pass_ms=(21.0,)), "unknown"),
        (OUTSIDE.model_copy(update={"conditions": {"during": {"cpus_used_by_others": 2.0}}}), "unknown"),
        (profile(several(500, ms=0.0015)), "dispatch overhead"),
        (profile([at_roof(0.8)] * 5 + several(2, ms=0.1), roofs=ROOFS), "compute"),
        (profile([layer("Add", read_bytes=10**7) for _ in range(6)], roofs=ROOFS), "memory bandwidth"),
        (profile([at_roof(0.05)] * 6, roofs=ROOFS), "unknown"),
        (profile(several()), "unknown"),
        (profile(), "unknown"),
        (with_lanes(h2d_ms=0.1, compute_ms=2, d2h_ms=0.1, enqueue_ms=0.1), "unknown"),
    ],
    ids=str,
)
def test_the_bounding_resource_is_named(made: Profile, word: str) -> None:
    bound = bound_by(made)
    assert bound.word == word
    assert any(letter.isdigit() for letter in bound.evidence)


def test_time_outside_layers_on_a_busy_machine_promises_no_saving() -> None:
    """A network of 77 layers in 1.2 s was bound by dispatch overhead while others used half of the CPUs."""
    busy = OUTSIDE.model_copy(update={"conditions": {"during": {"cpus_used_by_others": 2.0}}})
    (quiet,), (insight,) = fired("time_outside_layers", OUTSIDE), fired("time_outside_layers", busy)
    assert (quiet.score, insight.score) == (pytest.approx(0.3), 0.0)
    assert "50.0 % of the CPUs" in insight.evidence and "50.0 % of the CPUs" in bound_by(busy).evidence


def test_short_layers_on_a_gpu_count_when_launches_do() -> None:
    """36 layers of 24 us are no problem when launches are hidden; 1,000 of 3 us are one when that is unknown."""
    lanes = dict.fromkeys(("latency_ms", "compute_ms"), (0.86,) * 30) | {"enqueue_ms": (0.2,) * 30}
    hidden = profile(several(36, ms=0.024), backend="trtexec", runs=(ProfileRun.model_validate(lanes),))
    assert bound_by(hidden).word == "unknown"
    assert fired("many_tiny_layers", hidden) == []
    assert fired("many_tiny_layers", profile(several(36, ms=0.024), providers=(CUDA,))) == []
    assert bound_by(profile(several(1000, ms=0.003), providers=(CUDA,))).word == "dispatch overhead"


def test_launch_time_is_not_compared_with_rooflines() -> None:
    launched = [at_roof(0.1), *several(4, read_bytes=10**7, provider=CUDA)]
    result = profile(launched, latency=[100.0] * 30, layer_pass_ms=(101.0,), roofs=ROOFS, providers=(CUDA, CPU))
    assert bound_by(result).word == "unknown"
    assert "launch of the 5 layers" in bound_by(result).evidence
    assert fired("far_from_roof", result) == fired("time_outside_layers", result) == []


def test_layers_that_mostly_wait_for_the_device_have_no_roofline() -> None:
    timed = [layer(ms=ms, macs=10**8, precision="float32", name=f"{ms}") for ms in (1, 3, 5)]
    peaks = Subject(profile(timed, roofs=ROOFS, providers=(CUDA, CPU), layers_wait_for_device=True)).peaks
    assert [peaks.shares(index).compute is None for index in range(3)] == [True, True, False]


def test_copies_are_reported_once() -> None:
    run = ProfileRun(latency_ms=(10.0,) * 30, h2d_ms=(3.0,) * 30, compute_ms=(5.0,) * 30, d2h_ms=(2.0,) * 30)
    result = profile(several(5), backend="trtexec", runs=(run,))
    assert fired("transfers", result)
    assert fired("time_outside_layers", result) == []


def test_only_an_engine_has_formats_to_set() -> None:
    for backend, has_any in (("openvino", False), ("tensorrt", True)):
        (insight,) = fired("reformats", profile([*several(), layer("Reorder", role="reformat")], backend=backend))
        assert ("io_formats" in insight.next_step) is has_any


def test_a_first_pass_that_is_slow_by_chance_is_not_cold() -> None:
    interrupted_passes = [2.0, *[1.0, 1.0, 3.0] * 20]
    assert not fired("cold_start", runs(interrupted_passes, interrupted_passes))
    assert fired("cold_start", runs([4.0, *interrupted_passes], [4.0, *interrupted_passes]))


def test_layers_without_time_are_not_reported() -> None:
    renamed = [layer("NoOp", ms=0, role="reformat", name=f"n{number}") for number in range(9)]
    result = profile([*several(), layer("Reformat", role="reformat"), *renamed])
    assert fired("reformats", result)[0].evidence.startswith("1 Reformat:")


def test_a_loop_counts_as_often_as_it_runs() -> None:
    looped = several(10, ms=0.4)
    spans = tuple(Span(lane="CPU", name="n", start_ms=0, duration_ms=0.0008, layer=0) for _ in range(5000))
    assert bound_by(profile(looped)).word == "unknown"
    assert bound_by(profile(looped, timeline=spans)).word == "dispatch overhead"


def test_without_a_peak_nothing_bounds() -> None:
    """Three quick convolutions and slower ones: the quickest layer of a profile is no roof."""
    layers = [at_roof(0.9), at_roof(0.9), at_roof(0.9), at_roof(0.5), layer("Pool", ms=4, read_bytes=10**7)]
    bound = bound_by(profile(layers, backend="trtexec"))
    assert bound.word == "unknown"
    assert "device are not known" in bound.evidence
    assert bound_by(profile(layers, roofs=ROOFS.model_copy(update={"dtype": "float16"}))).word == "unknown"


@pytest.mark.parametrize(
    ("layers", "word", "compute", "bandwidth"),
    [
        ([at_roof(0.9)] * 4, "compute", 0.9, None),
        ([at_roof(0.9)] * 4 + [at_roof(1.2)], "unknown", None, None),  # it was measured on a busy machine
        ([at_roof(0.48)] * 4, "unknown", 0.48, None),
        ([at_roof(0.9)] * 2 + [at_roof(0.3)] * 2, "unknown", 0.9, None),  # a quarter of the time
        ([layer("Add", read_bytes=6 * 10**6)] * 4, "memory bandwidth", None, 0.6),
        ([layer("Add", read_bytes=6 * 10**6)] * 4 + [layer("Mul", read_bytes=2 * 10**7)], "unknown", None, None),
    ],
)
def test_a_roof_bounds_layers_that_reach_half_of_it_and_is_none_if_one_exceeds_it(
    layers: list[Layer], word: str, compute: float | None, bandwidth: float | None
) -> None:
    shares = shares_under_roofs(*layers)
    assert [shares.compute, shares.bandwidth] == pytest.approx([compute, bandwidth])
    bound = bound_by(profile(layers, roofs=ROOFS))
    assert bound.word == word
    assert ("then no roof" in bound.evidence) is (word == "unknown" and (compute or bandwidth) is None)


def test_a_moment_of_the_clock_disproves_no_roof() -> None:
    assert shares_under_roofs(at_roof(0.8, 10**10), at_roof(1.5, 10**5)).compute == pytest.approx(0.8)


def test_layers_far_from_the_roofs_need_both_peaks() -> None:
    """What an int8 product could reach is unknown, and a float32 product reads from memory at half of its rate."""
    unknown = at_roof(0.1).model_copy(update={"precision": "int8"})
    reading = at_roof(0.1).model_copy(update={"read_bytes": 5 * 10**7})
    assert fired("far_from_roof", profile([unknown, reading, at_roof(0.9)], roofs=ROOFS)) == []


def test_work_is_what_a_layer_has_to_move() -> None:
    shares = shares_under_roofs(layer(ms=2, macs=10**8, precision="float32", read_bytes=4 * 10**6, written_bytes=10**6))
    assert [shares.compute, shares.bandwidth] == pytest.approx([0.5, 0.25])
    assert shares.nearer is not None
    assert shares.nearer[0] == "compute"
    assert shares_under_roofs(layer("Reshape", read_bytes=100, written_bytes=100)).nearer is None
    assert shares_under_roofs(layer(ms=0, macs=5, precision="float32")).nearer is None
    gathered = shares_under_roofs(layer("Gather", read_bytes=10**9, written_bytes=10**6))
    assert gathered.bandwidth == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("latency", "given", "fires"),
    [
        ([4.0], {}, False),
        ([2.1], {}, False),
        ([4.0 / 207], {}, True),
        ([4.0 / 207], {"layer_pass_ms": (4.1,)}, False),  # the profiler made the pass slow
        ([4.0 / 207], {"layer_pass_ms": (1.0,)}, True),
        ([4.0 / 207], {"providers": (CUDA,), "layers_wait_for_device": True}, False),
        ([4.0 / 207], {"providers": (CUDA,)}, False),
    ],
)
def test_layers_of_another_measurement_are_reported(latency: list[float], given: dict[str, Any], fires: bool) -> None:
    measured = profile(several(4), latency=latency * 30, **given)
    assert bool(fired("layers_exceed_passes", measured)) is fires
    if fires:
        assert bound_by(measured).word == "unknown"
        assert "times as long" in bound_by(measured).evidence


def test_the_units_of_single_precision_are_named() -> None:
    tf32 = [layer("MatMul", name=f"m{n}", precision="float32", macs=9, unit="tensor core TF32") for n in range(20)]
    other = layer("MatMul", name="last", precision="float32", macs=9, unit="FP32 FMA")
    (result,) = fired("single_precision_on_gpu", profile([*tf32, other], providers=(CUDA,)))
    assert result.title.endswith(": 20 layers in TF32, 1 layer in float32")


def test_an_eliminated_layer_is_no_reformat() -> None:
    """TensorRT lists the reformats that it removed as NoOps, which take no time."""
    removed = [layer("NoOp", ms=0, role="reformat", name=f"n{number}") for number in range(10)]
    outcome = triage(profile([*several(), layer("Reformat", role="reformat"), *removed]))
    assert {group.name: group.count for group in outcome.by_role} == {"compute": 8, "reformat": 1, "eliminated": 10}
    assert layer("NoOp", ms=1, role="reformat").purpose == "reformat"


def test_triage_lists_the_longest_layers_types_and_precisions() -> None:
    result = profile(
        [layer(ms=6, precision="float16"), layer("Gemm", 2, precision="float32"), layer("Cast", 2, role="cast")]
    )
    outcome = triage(result, top=2)
    assert outcome.layers_ms == 10
    assert [(item.layer, item.share) for item in outcome.top] == [(0, 0.6), (1, 0.2)]
    assert [(group.name, group.count, group.share) for group in outcome.by_type] == [
        ("Conv", 1, 0.6),
        ("Cast", 1, 0.2),
        ("Gemm", 1, 0.2),
    ]
    assert [(group.name, group.share) for group in outcome.by_precision] == [
        ("float16", 0.6),
        ("float32", 0.2),
        ("unknown", 0.2),
    ]
    assert [(group.name, group.share) for group in outcome.by_role] == [("compute", 0.8), ("cast", 0.2)]
    assert outcome.bound == bound_by(result)
    assert outcome.insights == diagnose(result)


def test_hostile_names_stay_on_one_short_line() -> None:
    name = "</script>\n\x1b[31m\u202e" + "x" * 10_000
    insights = diagnose(profile([layer(ms=9, name=name, type="T" * 10_000), *several(4)]))
    assert insights
    for insight in insights:
        for text in (insight.title, insight.evidence, insight.next_step):
            assert len(text) < 1000
            assert "\n" not in text


SAMPLE_FEEDS: dict[str, dict[str, Any]] = {
    "det": {"x": np.zeros((1, 3, 320, 320), np.float32)},
    "silero": {
        "input": np.zeros((1, 512), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("sample", ["det", "silero"])
def test_real_models_are_diagnosed(sample: str, sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    """The layers are those of ONNX Runtime's profiler; each is given the same time, for no test depends on load."""
    layers = measure_layers(sample_model(sample), SessionSettings(threads=1), SAMPLE_FEEDS[sample], 1, tmp_path).layers
    result = triage(
        profile([layer.model_copy(update={"samples_ms": (0.0005,)}) for layer in layers], [0.00051 * len(layers)])
    )
    rules = {insight.name for insight in result.insights}
    if sample == "silero":
        assert result.bound.word == "dispatch overhead"
        assert "many_tiny_layers" in rules
    else:
        assert {"scaling_not_folded", "elementwise_chains"} <= rules


numbers = st.one_of(
    st.floats(0, 1e6), st.sampled_from([0.0, 1e-300, 1e300, math.inf, math.nan]), st.floats(allow_nan=True)
)
samples = st.lists(numbers, max_size=8).map(tuple)
sizes = st.integers(-(2**70), 2**70)
tensors = st.lists(
    st.builds(
        TensorInfo,
        name=st.sampled_from(["", "a", "b", "c"]),
        dtype=st.sampled_from(["float32", "float16", "int64", ""]),
        shape=st.lists(st.integers(-2, 2**40), max_size=4).map(tuple),
    ),
    max_size=3,
).map(tuple)
layer_lists = st.lists(
    st.builds(
        Layer,
        index=st.just(0),
        name=st.text(max_size=5),
        type=st.sampled_from(
            ["Conv", "Mul", "Add", "Sigmoid", "Shape", "Cast", "BatchNormalization", "If", "ReorderInput"]
        ),
        provider=st.sampled_from([CPU, CUDA, ""]),
        precision=st.sampled_from(["float32", "float16", ""]),
        inputs=tensors,
        outputs=tensors,
        samples_ms=samples,
        role=st.sampled_from(["compute", "reformat", "cast", "copy", "control"]),
        tactic=st.sampled_from(["", "nchwc.Conv"]),
        macs=st.none() | sizes,
        read_bytes=sizes,
        written_bytes=sizes,
        weight_bytes=sizes,
    ),
    max_size=6,
)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Anything that a file may hold."""
    latency, lanes = draw(samples), draw(samples)
    value = st.one_of(numbers, st.lists(numbers, max_size=3), st.lists(st.text(max_size=3), max_size=3), st.none())
    surroundings = st.dictionaries(st.sampled_from(["load_average", "governors", "cpus_used_by_others"]), value)
    return profile(
        draw(layer_lists),
        runs=(ProfileRun(latency_ms=latency, h2d_ms=lanes, compute_ms=lanes, d2h_ms=lanes, enqueue_ms=lanes),) * 3,
        providers=draw(st.sampled_from([(), (CPU,), (CUDA, CPU)])),
        backend=draw(st.sampled_from(["onnxruntime", "trtexec"])),
        roofs=draw(st.none() | st.builds(Roofs, macs_per_s=numbers, bytes_per_s=numbers, how=st.just(""))),
        conditions=draw(st.dictionaries(st.sampled_from(["before", "during"]), surroundings | value)),
        layer_pass_ms=lanes,
        batches=(BatchPoint(batch=1, inputs=(), latency_ms=latency), BatchPoint(batch=2, inputs=(), latency_ms=lanes)),
        options={"threads": draw(value)},
    )


# Failing cases are not made smaller: with so many numbers that takes minutes.
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(made=profiles())
def test_any_profile_is_diagnosed(made: Profile) -> None:
    for insight in triage(made).insights:
        assert 0 <= insight.score <= 1
        assert insight.evidence
