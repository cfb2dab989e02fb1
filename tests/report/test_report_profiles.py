"""What a report collects of a profile, and how it packs it: without a browser."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.records.profile import Layer, Profile, ProfileRun, Roofs, Span, TensorInfo
from ndld_flow.report.collect_footprint import collect_footprint, tensor_bytes
from ndld_flow.report.collect_layers import collect_layers, collect_timeline, passages
from ndld_flow.report.encoding import nanoseconds, packed
from ndld_flow.report.panels.latency import MOST_PASSES, collect_profiles
from ndld_flow.report.report_data import Tensors, timed_layers
from ndld_flow.report.run_page import draw_profile, draw_report
from tests.support.page_data import data_of, unpack
from tests.support.run_fixtures import Sitting, StepSketch, profile, run_record, write_run


def tensor(name: str, *shape: int, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def layer(name: str, reads: tuple[TensorInfo, ...], writes: tuple[TensorInfo, ...], **more: Any) -> Layer:
    return Layer(index=0, name=name, type="Conv", inputs=reads, outputs=writes, **({"samples_ms": (1.0,)} | more))


def of_layers(*layers: Layer, **more: Any) -> Profile:
    return profile("half", 10, 1, 0).model_copy(update={"layers": layers} | more)


def layers_of(measured: Profile) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The layers of one profile as the page reads them, and its tensors."""
    tensors = Tensors()
    (view,) = collect_layers({"speed": measured})
    data, rows = unpack(packed([timed_layers(view, measured, tensors), tensors.rows()]))
    return data, rows


# --- summary of the process runs ---


def test_process_runs_tell_how_far_they_lie_apart() -> None:
    measured = profile("half", 10, 1, 0).model_copy(
        update={
            "runs": (
                ProfileRun(latency_ms=(9.0, 10.0, 11.0), starts_ms=(0.0, 9.5, 20.0), load_ms=5),
                ProfileRun(latency_ms=()),
                ProfileRun(latency_ms=(12.0, 12.0, 12.0), started_s=3),
            )
        }
    )
    (view,) = collect_profiles({"speed": measured})
    assert view.latency is not None
    middle = view.latency.median_ms
    assert [run.number for run in view.process_runs] == [1, 3]
    assert [run.off for run in view.process_runs] == pytest.approx([10 / middle - 1, 12 / middle - 1])
    assert view.process_runs[0].gaps_ms == pytest.approx((0, 0.5, 0.5))
    assert view.process_runs[1].gaps_ms == ()
    assert view.widest_run == pytest.approx(max(abs(10 / middle - 1), abs(12 / middle - 1)))


def test_profiles_of_one_sitting_name_each_other_and_have_a_colour_each() -> None:
    measured = {
        name: profile(name, 10, index, 0, runs=2, passes=5, session=Sitting(index, 2, session))
        for index, (name, session) in enumerate([("a", "x"), ("b", "y"), ("c", "x")])
    }
    views = collect_profiles(measured)
    assert [view.in_turns_with for view in views] == [("c",), (), ("a",)]
    assert [view.series for view in views] == [0, 1, 2]


def test_stages_of_a_pass_are_told_where_they_are_known(tmp_path: Path) -> None:
    run = ProfileRun(latency_ms=(10.0, 10.0), h2d_ms=(1.0, 2.0), compute_ms=(8.0, 7.0), d2h_ms=(1.0, 1.0))
    measured = profile("half", 10, 1, 0).model_copy(update={"runs": (run,)})
    (view,) = collect_profiles({"speed": measured})
    assert [stage.name for stage in view.stages] == ["copy to device", "device", "copy from device"]
    assert [stage.share for stage in view.stages] == pytest.approx([0.15, 0.75, 0.1])
    folder = write_run(tmp_path, run_record([StepSketch("speed", "profile")]), {"speed/profile.json": measured})
    assert "Stages of a pass" in draw_report(folder).read_text("utf-8")


def test_first_and_later_steps_of_a_sequence_are_shown_apart(tmp_path: Path) -> None:
    sequence = (30.0, *(1.0 + 0.5 * step for step in range(8)))
    run = ProfileRun(latency_ms=sequence * 3)
    measured = profile("decoder", 10, 1, 0).model_copy(update={"runs": (run, run), "sequence_steps": 9})
    (view,) = collect_profiles({"speed": measured})
    assert [(part.name, part.latency.median_ms, part.latency.sample_count) for part in view.steps] == [
        ("first step", 30.0, 6),
        ("later steps", 2.75, 48),
        ("steps 2 to 3", 1.25, 12),
        ("steps 4 to 5", 2.25, 12),
        ("steps 6 to 7", 3.25, 12),
        ("steps 8 to 9", 4.25, 12),
    ]
    assert [part.share for part in view.steps[:2]] == pytest.approx([30 / 52, 22 / 52])
    folder = write_run(tmp_path, run_record([StepSketch("speed", "profile")]), {"speed/profile.json": measured})
    assert "steps 8 to 9" in draw_report(folder).read_text("utf-8")
    short = measured.model_copy(update={"sequence_steps": 3})
    assert [part.name for part in collect_profiles({"speed": short})[0].steps] == ["first step", "later steps"]
    assert collect_profiles({"speed": profile("cnn", 10, 1, 0)})[0].steps == ()


# --- memory ---


def test_activations_live_from_the_layer_that_writes_them_to_their_last_reader() -> None:
    x, weight = tensor("x", 1, 4), tensor("w", 4, 4)
    a, b, c, d = (tensor(name, 1, size) for name, size in (("a", 100), ("b", 10), ("c", 10), ("d", 1)))
    measured = of_layers(
        layer("0", (x, weight), (a,), weight_bytes=64),
        layer("1", (a,), (b,)),
        layer("2", (b,), (c,)),
        layer("3", (a, c), (d,)),
        outputs=(tensor("d", 1, 1),),
    )
    found = collect_footprint(measured)
    assert found is not None
    # 400 bytes of a live through all; b and c meet in layer 2.
    assert found.peak_bytes == 400 + 40 + 40
    assert found.peak == 2
    assert found.activation_bytes == 400 + 40 + 40 + 4
    assert found.weight_bytes == 64
    assert [big.tensor.name for big in found.tensors] == ["a", "b", "c", "d"]
    assert found.weights == (0,)
    assert [round(y * 480) for _, y in found.curve] == [400, 440, 480, 444]


def test_there_is_no_footprint_without_shapes() -> None:
    assert collect_footprint(of_layers(layer("0", (), ()))) is None
    assert collect_footprint(of_layers(layer("0", (), (tensor("a", 3, dtype="string"),)))) is None


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *(("float32", 24), ("FLOAT16", 12), ("int4", 3), ("bool", 6), ("string", 0), ("", 0), ("double", 48)),
        *(("float8_e4m3fn", 6), ("float8e5m2", 6), ("fp8", 6), ("tf32", 24), ("complex64", 48), ("float4_e2m1fn", 3)),
    ],
)
def test_tensors_have_the_size_of_their_type(dtype: str, size: int) -> None:
    assert tensor_bytes(tensor("t", 2, 3, dtype=dtype)) == size


# --- roll-ups and findings ---


def test_layers_that_only_move_data_are_added_up() -> None:
    measured = of_layers(
        layer("a", (), (), samples_ms=(6.0,)),
        layer("b", (), (), samples_ms=(3.0,), role="reformat", read_bytes=5, written_bytes=7),
        layer("c", (), (), samples_ms=(1.0,), role="cast", tactic="fast"),
        layer("d", (), (), samples_ms=(2.0,), role="control"),
    )
    (view,) = collect_layers({"speed": measured})
    assert [(group.name, group.count, group.sum_ms) for group in view.movers] == [("reformat", 1, 3), ("cast", 1, 1)]
    assert view.movers[0].moved_bytes == 12
    assert view.moving_ms == 4
    assert [group.name for group in view.tactics] == ["fast"]
    assert not view.has_work


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Run `sanitize` first", (("Run ", False), ("sanitize", True), (" first", False))),
        ("`all`", (("all", True),)),
        ("one ` alone", (("one ` alone", False),)),
        ("`a` and ` alone", (("a", True), (" and ` alone", False))),
        ("a longer --budget", (("a longer ", False), ("--budget", True))),
        ("`-o x --fix-shapes`, a--b", (("-o x --fix-shapes", True), (", a--b", False))),
        ("plain", (("plain", False),)),
        ("", ()),
    ],
)
def test_code_in_a_finding_is_told_apart(text: str, parts: tuple[tuple[str, bool], ...]) -> None:
    assert passages(text) == parts


# --- timeline ---


def test_a_lane_is_busy_for_its_outermost_spans() -> None:
    spans = (
        Span(lane="CPU", name="pass", start_ms=0, duration_ms=10, kind="pass"),
        Span(lane="CPU", name="If", start_ms=1, duration_ms=6, layer=0, depth=1),
        Span(lane="CPU", name="body", start_ms=2, duration_ms=3, depth=2),
        Span(lane="CPU", name="wait", start_ms=7, duration_ms=2, kind="overhead", depth=1),
        Span(lane="D2H", name="out", start_ms=9, duration_ms=3, kind="transfer"),
    )
    found = collect_timeline(of_layers(timeline=spans))
    assert found is not None
    cpu, d2h = found.lanes
    assert (cpu.busy_ms, cpu.overhead_ms, cpu.longest, cpu.spans) == (8, 2, "If", 4)
    assert (d2h.name, d2h.busy_ms) == ("D2H", 3)
    assert (found.length_ms, found.rows) == (12, 4)


# --- the data of the page ---


def unpacked_starts(timeline: dict[str, Any]) -> list[int]:
    end, starts = 0, []
    for gap, duration in zip(timeline["gap_ns"], timeline["duration_ns"], strict=True):
        starts.append(end + gap)
        end = starts[-1] + duration
    return starts


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e4), st.floats(0, 1e3), st.none() | st.integers(-3, 9), st.sampled_from(["CPU", "D2H"])
        ),
        max_size=20,
    )
)
def test_a_timeline_is_read_back_as_it_was(rows: list[tuple[float, float, int | None, str]]) -> None:
    spans = tuple(
        Span(lane=lane, name=f"s{index}", start_ms=start, duration_ms=took, layer=of)
        for index, (start, took, of, lane) in enumerate(rows)
    )
    layers = [layer(f"l{index}", (), ()) for index in range(5)]
    data, _ = layers_of(of_layers(*layers, timeline=spans))
    if not spans:
        assert data["timeline"] is None
        return
    found = data["timeline"]
    assert unpacked_starts(found) == [round(start * 1e6) for start, _, _, _ in rows]
    assert [found["lanes"][lane] for lane in found["lane"]] == [lane for *_, lane in rows]
    assert found["layer"] == [of if of is not None and 0 <= of < 5 else None for _, _, of, _ in rows]
    assert found["name"] == [f"s{index}" for index in range(len(rows))]


def test_layers_are_read_back_as_they_were() -> None:
    measured = profile("half", 10, 3, 40)
    data, tensors = layers_of(measured)
    columns = data["columns"]
    assert columns["name"] == [layer.name for layer in measured.layers]
    assert columns["index"] == [layer.index for layer in measured.layers]
    assert columns["macs"] == [layer.macs for layer in measured.layers]
    assert [tensors[reads[0]]["name"] for reads in columns["inputs"]] == [
        layer.inputs[0].name for layer in measured.layers
    ]
    low = [median - below for median, below in zip(columns["median_ns"], columns["below_ns"], strict=True)]
    assert low == [round(min(layer.samples_ms) * 1e6) for layer in measured.layers]
    assert set(columns["stream"]) == {None}  # none is recorded
    # A span that is called as its layer is needs no name of its own.
    assert set(data["timeline"]["name"]) == {"", "x", "out", "dispatch"}


@pytest.mark.parametrize(
    ("given", "missed"),
    [
        ({"asked_precision": "fp16"}, True),
        ({"asked_precision": "fp16", "onnx_nodes": ("a", "b")}, True),  # its kernels compute in what they write
        ({"asked_precision": "fp16", "onnx_nodes": ("a", "b"), "provider": ""}, False),
        ({"asked_precision": "fp32"}, False),
        ({"asked_precision": "fp16, fp32"}, False),
        ({"asked_precision": "int8"}, False),
        ({"asked_precision": "fp16", "precision": "int64"}, False),
        ({"asked_precision": "fp16", "role": "cast"}, False),
        ({"asked_precision": "no such precision"}, False),
        ({}, False),
    ],
)
def test_layers_that_did_not_get_the_precision_that_was_asked_for(given: dict[str, Any], missed: bool) -> None:
    usual = {"precision": "float32", "provider": "CPUExecutionProvider", "onnx_nodes": ("a",)}
    measured = of_layers(layer("a", (), ()).model_copy(update=usual | given))
    data, _ = layers_of(measured)
    assert data["missed"] == ([0] if missed else [])
    assert data["columns"]["asked"] == [given.get("asked_precision", "")]
    assert bool(collect_layers({"a": measured})[0].slowest.bad) == missed


def test_numbers_that_nothing_measured_harm_nothing(tmp_path: Path) -> None:
    awful = (float("nan"), float("inf"), -float("inf"), 1e300, -1e300)
    layers = [
        layer(
            f"l{index}",
            (tensor("in", 10**30),),
            (tensor("out", -4, 2**70),),
            samples_ms=(value, value),
            macs=10**40,
            read_bytes=-(10**20),
            depth=10**9,
        )
        for index, value in enumerate(awful)
    ]
    spans = tuple(
        Span(lane="CPU", name="s", start_ms=value, duration_ms=value, depth=index * 10**8)
        for index, value in enumerate(awful)
    )
    measured = of_layers(
        *layers,
        timeline=spans,
        layer_runs=(),
        runs=(ProfileRun(latency_ms=awful, starts_ms=awful, started_s=awful[0], load_ms=awful[1]),),
        roofs=Roofs(macs_per_s=float("nan"), bytes_per_s=float("inf"), how="guessed"),
    )
    folder = write_run(tmp_path, run_record([StepSketch("speed", "profile")]), {"speed/profile.json": measured})
    text = draw_report(folder).read_text("utf-8")
    data = data_of(text)
    assert data["layers"][0]["roofs"] is None
    assert data["panels"]["latency"] == []
    assert nanoseconds(awful) == [0, 0, 0, 0, 0]


def test_the_box_of_latencies_fits_their_percentiles() -> None:
    """Where one of three runs is slow, the third quartile of all passes is beyond p90, the median of the runs'."""
    runs = tuple(ProfileRun(latency_ms=(ms,) * 10) for ms in (10.0, 11.0, 30.0))
    (view,) = collect_profiles({"speed": profile("half", 10, 1, 0).model_copy(update={"runs": runs})})
    assert view.latency is not None
    assert view.quartiles_ms == (11.0, 11.0)
    assert view.latency.p90_ms == 11.0


@pytest.mark.thorough
def test_of_very_many_passes_a_part_is_drawn_and_all_are_counted(tmp_path: Path) -> None:
    """A model of 3 µs runs half a million times: the page stays small, and what it counts is of all passes."""
    noise = random.Random(7)
    samples = [3e-3 * (1 + noise.gauss(0, 0.05)) for _ in range(150_000)]
    samples[777], samples[40_011] = 5.0, 1.0
    starts = [0.0, *accumulate(ms + 1e-4 for ms in samples)][:-1]
    run = ProfileRun(latency_ms=tuple(samples), starts_ms=tuple(starts))
    measured = profile("half", 10, 1, 3).model_copy(update={"runs": (run, run)})
    page = draw_profile(measured, "half", tmp_path / "page.html")
    assert page.stat().st_size < 600_000
    (charts,) = data_of(page.read_text("utf-8"))["panels"]["latency"]
    first = charts["runs"][0]
    assert sum(len(run["number"]) for run in charts["runs"]) <= MOST_PASSES + 2
    assert (first["count"], charts["latency"]["sample_count"]) == (150_000, 300_000)
    assert {777, 40_011} <= set(first["number"])
    assert first["ms"][first["number"].index(777)] == 5.0
    ordered = sorted(samples)
    quartiles = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    fence = quartiles[1] + 3 * (quartiles[1] - quartiles[0])
    assert charts["outliers"] == 2 * sum(ms > fence for ms in samples)
    # Gaps lead to the true start of each drawn pass.
    now, known = 0.0, []
    for gap, ms in zip(first["gaps_ns"], first["ms"], strict=True):
        known.append(now + gap / 1e6)
        now = known[-1] + ms
    assert known[-1] == pytest.approx(starts[first["number"][-1]], rel=1e-3)
