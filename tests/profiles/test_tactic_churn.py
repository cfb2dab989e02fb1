"""Several builds of one engine, compared layer by layer: synthetic, from the stand-in, and exported by TensorRT."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.profiles.compare.tactic_churn import Rebuild, find_churn, request_of
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.build import Build, TimingCacheUse
from ndld_flow.records.comparison import TacticChurn
from ndld_flow.records.profile import Layer, LayerTimes, Profile, ProfileRun
from ndld_flow.records.sweep import PointStep, SweepAxis, SweepPoint, SweepRecord
from ndld_flow.report.render import environment
from ndld_flow.report.sweep.collect_effects import ChurnView, collect_churn
from tests.support.a100_exports import a100_exports
from tests.support.engine_samples import BUILT_AT, build, detector, tensor, write_engine_run
from tests.support.message_files import CheckMessage
from tests.support.run_fixtures import MACHINE, digest_of
from tests.support.text_facts import numbers_in

LAYERS = detector(4)
CONVOLUTIONS = [index for index, layer in enumerate(LAYERS) if layer.type == "CaskConvolution"]


def churn_of(*builds: Sequence[Layer]) -> TacticChurn:
    return find_churn([rebuild(number, layers) for number, layers in enumerate(builds, 1)])


def rebuild(number: int, layers: Sequence[Layer], times_ms: Mapping[int, float] | None = None) -> Rebuild:
    """A build of these layers; with times it was measured, and layers that have none take 1 ms."""
    built = build(layers=tuple(layers), engine_digest=digest_of(f"{layers}"), engine_bytes=1000 + number)
    if times_ms is None:
        return Rebuild(f"attempt {number}", built)
    timed = [layer.model_copy(update={"samples_ms": (times_ms.get(index, 1.0),)}) for index, layer in enumerate(layers)]
    latency = (sum(layer.samples_ms[0] for layer in timed),)
    measured = built.as_profile().model_copy(update={"layers": tuple(timed), "runs": (ProfileRun(latency_ms=latency),)})
    return Rebuild(f"attempt {number}", built, measured)


def other_tactic(layers: Sequence[Layer], *places: int) -> tuple[Layer, ...]:
    return tuple(
        layer.model_copy(update={"tactic": f"{layer.tactic}_splitk"}) if index in places else layer
        for index, layer in enumerate(layers)
    )


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sets(st.sampled_from(CONVOLUTIONS), max_size=4), min_size=1, max_size=4), st.randoms())
def test_exactly_the_planted_changes_are_found(changes: list[set[int]], rng: random.Random) -> None:
    builds = [LAYERS, *(other_tactic(LAYERS, *indices) for indices in changes)]
    rng.shuffle(builds)
    churn = churn_of(*builds)
    assert {item.name for item in churn.changed} == {LAYERS[index].name for index in set().union(*changes)}
    assert {item.change for item in churn.changed} <= {"tactic"}
    assert {item.variants for item in churn.changed} <= {2}
    assert churn.layer_share == pytest.approx(len(set().union(*changes)) / len(LAYERS))
    assert churn.different_engines == len(set(builds))
    assert churn.time_share is None


def test_the_same_builds_have_no_churn() -> None:
    churn = churn_of(LAYERS, LAYERS)
    assert (churn.changed, churn.layer_share, churn.different_engines) == ((), 0.0, 1)
    assert churn.row_count == len(LAYERS)
    assert churn.tells_tactics


def test_one_build_is_refused(check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        churn_of(LAYERS)
    check_message(caught.value)


def test_a_changed_format_outranks_a_changed_tactic() -> None:
    at = CONVOLUTIONS[0]
    linear = other_tactic(LAYERS, at)[at].model_copy(
        update={"outputs": (LAYERS[at].outputs[0].model_copy(update={"format": "chw32"}),)}
    )
    (changed,) = churn_of(LAYERS, (*LAYERS[:at], linear, *LAYERS[at + 1 :])).changed
    assert changed.change == "format"
    assert [item.rpartition(" -> ")[2] for item in changed.built] == ["float16 hwc8", "float16 chw32"]


def test_differently_fused_layers_are_found() -> None:
    at = CONVOLUTIONS[0]
    nodes = LAYERS[at].onnx_nodes
    parts = [
        LAYERS[at].model_copy(update={"name": f"part {number}", "onnx_nodes": some})
        for number, some in enumerate((nodes[:1], nodes[1:]))
    ]
    (changed,) = churn_of(LAYERS, (*LAYERS[:at], *parts, *LAYERS[at + 1 :])).changed
    assert changed.change == "layers"
    assert changed.built == (LAYERS[at].name, "part 0 + part 1")


def test_a_node_that_moves_to_another_layer_is_found() -> None:
    first, second = (LAYERS[convolution] for convolution in CONVOLUTIONS[:2])
    moved = first.onnx_nodes[-1]
    less = first.model_copy(update={"onnx_nodes": first.onnx_nodes[:-1]})
    more = second.model_copy(update={"onnx_nodes": (moved, *second.onnx_nodes)})
    changed = churn_of((first, second), (less, more)).changed
    assert {item.change for item in changed} == {"layers"}


def test_a_reformat_in_some_builds_is_found() -> None:
    copy = Layer(index=0, name="Reformatting CopyNode for y", type="Reformat", role="reformat", samples_ms=())
    copied = copy.model_copy(update={"outputs": (tensor("y", 9, 9),)})
    (changed,) = churn_of(LAYERS, (*LAYERS, copied), LAYERS).changed
    assert (changed.change, changed.built) == ("layers", ("", copied.name, ""))


def test_layers_without_tactics_are_compared() -> None:
    silent = tuple(layer.model_copy(update={"tactic": ""}) for layer in LAYERS)
    churn = churn_of(silent, silent)
    assert not churn.tells_tactics
    assert not churn.changed


def test_shares_of_time_need_measurements_of_all_builds() -> None:
    slow, quick = CONVOLUTIONS[:2]
    times = {slow: 50.0, quick: 3.0}
    first, second = rebuild(1, LAYERS, times), rebuild(2, other_tactic(LAYERS, slow, quick), times)
    churn = find_churn([first, second])
    total = len(LAYERS) - 2 + 53.0
    assert churn.basis == "engines as measured"
    assert churn.time_share == pytest.approx(53 / total)
    assert [item.time_share for item in churn.changed] == pytest.approx([50 / total, 3 / total]), "slowest first"
    assert {spread.metric: spread.relative for spread in churn.spreads}["latency.median"] == 0
    half = find_churn([first, rebuild(2, LAYERS)])
    assert (half.basis, half.time_share) == ("engines as built", None)
    assert "latency.median" not in {spread.metric for spread in half.spreads}


def test_spreads_are_relative_to_the_median() -> None:
    builds = [Rebuild(str(seconds), build(build_s=seconds)) for seconds in (90.0, 100.0, 120.0)]
    (spread,) = (spread for spread in find_churn(builds).spreads if spread.metric == "build_s")
    assert [spread.median, spread.relative] == pytest.approx([100.0, 0.3])


def with_options(**settings: object) -> Build:
    return build(options=BuildSettings.model_validate(settings).model_dump(mode="json"))


def test_only_attempts_with_equal_settings_are_compared() -> None:
    asked = request_of(with_options(attempt=1))
    assert asked == request_of(with_options(attempt=7))
    assert asked != request_of(with_options(optimization_level=5))
    assert asked != request_of(with_options().model_copy(update={"model_digest": "another"}))
    gpu = MACHINE.model_copy(update={"gpus": ("NVIDIA L4",)})
    assert asked != request_of(with_options().model_copy(update={"machine": gpu}))


def test_real_layers_of_an_a100_are_compared() -> None:
    single, half = (read_profile(a100_exports() / precision) for precision in ("fp32", "fp16"))
    assert not find_churn([measured(single), measured(single)]).changed
    layers = single.layers
    chosen = [index for index, layer in enumerate(layers) if layer.tactic and layer.role == "compute"][3:9:2]
    again = single.model_copy(update={"layers": other_tactic(layers, *chosen)})
    churn = find_churn([measured(single), measured(again)])
    assert {item.name for item in churn.changed} == {layers[index].name for index in chosen}
    times = LayerTimes(layers).ms
    assert churn.time_share == pytest.approx(sum(times[index] for index in chosen) / sum(times))
    precisions = find_churn([measured(single), measured(half)])
    assert precisions.layer_share > 0.9, "another precision is no rebuild, and nearly nothing stays"


def measured(profile: Profile) -> Rebuild:
    return Rebuild("", build(layers=()), profile)


# In the report of a sweep


def sweep_of(folder: Path, builds: Sequence[Build], axis: str = "steps.engine.attempt") -> SweepRecord:
    """A sweep with a point for each of these engines; points of equal engines share one."""
    points = []
    for number, item in enumerate(builds, 1):
        place = f"points/{number:04}"
        (folder / "points").mkdir(exist_ok=True)
        write_engine_run(folder / place, {"engine": item})
        step = PointStep(name="engine", step="build_engine", outcome="done", reason="forced", key=item.engine_digest)
        values: dict[str, JsonValue] = {axis: item.options["attempt"]}
        points.append(
            SweepPoint(number=number, values=values, changes=values, outcome="passed", steps=(step,), folder=place)
        )
    return SweepRecord(
        id="1", recipe_name="churn", recipe={}, identity="", command=(), directory="", started_at=BUILT_AT, wall_s=1,
        own_s=1, method="grid", seed=0, axes=(SweepAxis(name=axis, keys=(axis,), values=(1, 2)),), objectives=(),
        constraints=(), points=tuple(points), sessions=(), best=None, stopped_because="", steps_done=0, steps_shared=0,
        steps_reused=0, machine=MACHINE, versions={}, passed=True,
    )  # fmt: skip


def attempt(number: int, layers: tuple[Layer, ...], **more: object) -> Build:
    options = BuildSettings.model_validate({"attempt": number, **more}).model_dump(mode="json")
    return build(layers=layers, options=options, engine_digest=digest_of(f"{number} {layers} {more}"))


def views_of(folder: Path, builds: Sequence[Build], **more: str) -> tuple[ChurnView, ...]:
    return collect_churn(sweep_of(folder, builds, **more), folder)


def test_a_sweep_over_attempts_shows_its_churn(tmp_path: Path) -> None:
    cached = attempt(1, LAYERS).model_copy(
        update={"timing_cache": TimingCacheUse(file="a", loaded_bytes=9, loaded_entries=1)}
    )
    changed = other_tactic(LAYERS, CONVOLUTIONS[0])
    builds = [attempt(10, LAYERS), cached, attempt(2, changed), attempt(2, changed)]
    (view,) = views_of(tmp_path, builds)
    assert view.labels == ("attempt 1", "attempt 2", "attempt 10")
    builds_of = [column.title for column in view.spreads.columns[1:-1]]
    assert builds_of == ["attempt 1, point 2", "attempt 2, point 3", "attempt 10, point 1"], "shared ones count once"
    assert numbers_in(view.summary) == [3, 3, 1, len(LAYERS), 4.8]
    (row,) = view.rows
    assert [outcome.mark for outcome in row.outcomes] == ["A", "B", "A"]
    assert "attempt 1 took timings" in view.notes[0]


def test_attempts_with_different_settings_are_separate(tmp_path: Path) -> None:
    builds = [attempt(number, LAYERS, optimization_level=level) for level in (0, 5) for number in (1, 2)]
    views = views_of(tmp_path, builds)
    assert [[column.title[-1] for column in view.spreads.columns[1:-1]] for view in views] == [["1", "2"], ["3", "4"]]


def test_other_sweeps_have_no_churn(tmp_path: Path) -> None:
    builds = [attempt(1, LAYERS), attempt(2, LAYERS)]
    assert views_of(tmp_path, builds, axis="steps.engine.optimization_level") == ()
    (tmp_path / "second").mkdir()
    record = sweep_of(tmp_path / "second", builds)
    (tmp_path / "second/points/0001/run.json").unlink()
    assert collect_churn(record, tmp_path / "second") == (), "a point that cannot be read is left out"
    outside = record.points[1].model_copy(update={"folder": "points/../points/0002"})
    odd = record.model_copy(update={"points": (record.points[0], outside)})
    assert collect_churn(odd, tmp_path / "second") == ()


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>\x1b[2J"
    named = tuple(layer.model_copy(update={"name": bad + layer.name, "tactic": bad}) for layer in LAYERS)
    views = views_of(tmp_path, [attempt(1, named), attempt(2, other_tactic(named, *CONVOLUTIONS))])
    html = environment().get_template("sweep_churn.html.j2").module.sweep_churn(views)  # type: ignore[attr-defined]
    assert "<script" not in html
    assert "\x1b" not in html
    assert "layers that differ" in html
