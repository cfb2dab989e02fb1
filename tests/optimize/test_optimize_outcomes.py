"""What `optimize` concludes from a search: which variants are proved, which is delivered, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import openvino
import pytest

from ndld_flow.execution.request import Request
from ndld_flow.optimize.budget import Budget
from ndld_flow.optimize.found import TOO_NOISY
from ndld_flow.optimize.optimize import _describe_opening
from ndld_flow.optimize.proof import Proof, Prover, _is_disturbed, _judge, _used_by_others
from ndld_flow.optimize.race_search import find_hopeless
from ndld_flow.optimize.sweep_search import (
    Point,
    SweepSearch,
    describe,
    describe_untried,
)
from ndld_flow.optimize.variant import Variant
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import Gain, Optimization, Speed, TriedVariant, VariantOutcome, find_ending
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_record import GateResult
from ndld_flow.store.kinds import ProfileDocument
from tests.optimize.test_optimize_parts import ROWS, read, write
from tests.support.run_fixtures import StepSketch, profile, run_record


def proved(name: str, ratio: float, outcome: VariantOutcome = "delivered") -> Proof:
    gain = Gain(objective="latency", ratio=ratio, low=ratio, high=ratio, evidence="alternating passes")
    return Proof(Variant(name, "onnxruntime", is_source=True), Path("p.yaml"), outcome, "", gains=(gain,))


@pytest.mark.parametrize(
    ("minimize", "expected"),
    [
        (("latency",), ["not right on held-out data", "delivered"]),
        (("latency", "size"), ["not right on held-out data", "delivered", "on the front"]),
    ],
)
def test_the_first_that_passes_is_delivered_and_others_of_the_front_are_proved(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, minimize: tuple[str, ...], expected: list[str]
) -> None:
    outcomes: list[VariantOutcome] = ["not right on held-out data", *["delivered"] * 4]  # type: ignore[list-item]
    points = [
        Point(number, Variant(f"v{number}", "onnxruntime"), "passed", "", None, on_front=number in (0, 1, 3))
        for number in range(4)
    ]
    monkeypatch.setattr(Prover, "prove", lambda _, variant, *__: proved(variant.name, 0.9, outcomes.pop(0)))
    prover = Prover(read(write(ROWS), minimize=minimize), Path(), Request(Path("r.yaml")), lambda _: None)
    search = SweepSearch(prover, proved("source", 1.0), Budget(None))
    monkeypatch.setattr(search, "_sweep", lambda: search._points.extend(points))
    found = search.run()
    listed = [each.outcome for each in found.variants if each.name.startswith("v")]
    assert [outcome for outcome in listed if outcome != "not the best"] == expected
    assert found.delivered.variant.name == "v1"


def timed(name: str, ratio: float, outcome: VariantOutcome = "not the best", *, near: bool = False) -> TriedVariant:
    """Return a variant with its time as a multiple of the source's; the machine was slow when it ran."""
    metrics, speed = {"near": Metric(value=near)}, Speed(ratio=ratio, low=ratio, high=ratio, clock="cpu")
    latency = Metric(value=20 * ratio, unit="ms")
    return TriedVariant(name=name, runtime="", outcome=outcome, speed=speed, latency=latency, metrics=metrics)


def test_costly_variants_that_cannot_win_are_not_tried() -> None:
    variants = [
        Variant("source", "onnxruntime", is_source=True),
        Variant("source in OpenVINO", "openvino", is_source=True),
        Variant("INT8", "onnxruntime", {"made": "{step: quantize}"}),
        Variant("INT8 except", "onnxruntime", costly=True, unless=("INT8",), whole="INT8"),
        Variant("INT8 where", "onnxruntime", costly=True),
        Variant("INT8 where in OpenVINO", "openvino", costly=True, needs="clean in OpenVINO"),
        Variant("clean in OpenVINO", "openvino", needs="source in OpenVINO"),
    ]

    def is_comfortable(metrics: Mapping[str, Metric]) -> bool:
        return bool(metrics) and not metrics["near"].value

    def hopeless(*tried: TriedVariant) -> list[str]:
        found = find_hopeless(variants, {item.name: item for item in tried}, is_comfortable)
        return [*found]

    source = TriedVariant(name="source", runtime="", outcome="not proved", latency=Metric(value=10, unit="ms"))
    floats = (source, timed("source in OpenVINO", 0.3))
    assert hopeless(*floats) == [], "INT8 may be four times as fast"
    fast = timed("source in OpenVINO", 0.24)
    assert hopeless(source, fast) == ["INT8 except", "INT8 where"]
    unjudged = fast.model_copy(update={"metrics": {}})
    assert hopeless(source, unjudged) == [], "a fast one that nobody has judged may be wrong"
    assert hopeless(*floats, timed("INT8", 0.5)) == ["INT8 except", "INT8 where"]
    few_rounds = timed("INT8", 0.5).model_copy(update={"speed": Speed(ratio=0.5, low=0.3, high=0.8, clock="cpu")})
    assert hopeless(*floats, few_rounds) == ["INT8 except", "INT8 where"], "the bound leaves room for noise"
    assert hopeless(*floats, timed("INT8", 0.4, "not right")) == [], "a wrong one is not what exceptions would be"
    assert hopeless(*floats, timed("INT8", 0.4)) == ["INT8 except"], "the same model as INT8"
    assert hopeless(*floats, timed("INT8", 0.4, near=True)) == [], "its proof may fail on other samples"
    assert hopeless(source, timed("source in OpenVINO", 1.0, "failed")) == ["INT8 where in OpenVINO"]
    slow = timed("source in OpenVINO", 0.9)
    for low, high, lost in ((0.98, 1.1, ["INT8 except"]), (0.9, 1.1, [])):
        speed = Speed(ratio=1.0, low=low, high=high, clock="cpu")
        whole = timed("INT8", 1.0, "not right").model_copy(update={"speed": speed})
        assert hopeless(source, slow, whole) == lost, "without some of its layers, it is no faster"


@pytest.mark.parametrize(
    ("inconclusive", "gate_passed", "outcome"),
    [
        (True, True, "not judged"),
        (True, False, "not right on held-out data"),
        (False, True, "not right on held-out data"),
    ],
)
def test_a_check_that_decides_nothing_does_not_hide_a_condition_that_fails(
    inconclusive: bool, gate_passed: bool, outcome: VariantOutcome
) -> None:
    gate = GateResult(gate="held.cosine >= 0.99", passed=gate_passed, left=0.9, right=0.99)
    record = run_record([StepSketch("held", "check_accuracy", passed=False, summary="undecided")], [gate])
    (step,) = record.steps
    assert step.record is not None
    judged = step.record.model_copy(update={"inconclusive": inconclusive})
    found, why = _judge(record.model_copy(update={"steps": (step.model_copy(update={"record": judged}),)}), {})
    assert (found, "cosine" in why) == (outcome, not gate_passed)


def record_of(*variants: TriedVariant) -> Optimization:
    return Optimization(
        model="model.onnx", target="onnxruntime", search_samples=8, held_samples=4, random_inputs=False,
        variants=variants, stopped_because="the time limit of 1 s was reached", delivered="source",
        ending=find_ending(variants, faster=False), runtime="onnxruntime", digest="d", size_bytes=2, source_bytes=2,
        file="m.onnx", recipe="r.yaml", command="ndld-flow run r",
        run="r/1", started_at=datetime(2026, 11, 27, tzinfo=UTC), wall_s=60.0,
    )  # fmt: skip


def concluded(*variants: TriedVariant) -> str:
    """Return the line on the gain of a record without one."""
    return record_of(*variants).conclude()[1]


def variant_with(name: str, outcome: VariantOutcome) -> TriedVariant:
    return TriedVariant(name=name, runtime="onnxruntime", outcome=outcome)


@pytest.mark.parametrize(
    ("ms", "runtime", "told"),
    [(0.06, "openvino", True), (0.06, "{backend: onnxruntime, threads: 1}", False), (6.0, "openvino", False)],
)
def test_calls_of_another_runtime_are_named_for_short_passes(ms: float, runtime: str, told: bool) -> None:
    """1.18x with bound inputs was 0.81x with `request.infer(inputs)`, whose call took a third of the time."""
    latency = Metric(value=ms, unit="ms")
    fast = TriedVariant(name="fast", runtime=runtime, outcome="delivered", latency=latency)
    found = record_of(variant_with("source", "not the best"), fast)
    found = found.model_copy(update={"ending": "faster", "delivered": "fast", "runtime": runtime})
    assert any("bound inputs" in line for line in found.conclude_fully()) is told


def test_a_file_that_is_delivered_unchanged_is_said_to_be() -> None:
    speed = Speed(ratio=0.5, low=0.45, high=0.55, clock="wall")
    found = record_of(variant_with("source in OpenVINO", "delivered")).model_copy(update={"speed": speed})
    for ending, delivered, unchanged in (
        ("faster", "source in OpenVINO", True),
        ("faster", "clean in OpenVINO", False),
        ("nothing pays", "source", True),
    ):
        ship = found.model_copy(update={"ending": ending, "delivered": delivered}).conclude()[0]
        assert ("unchanged" in ship) is unchanged


@pytest.mark.parametrize(("times_ms", "is_told"), [((8.8, 18.5), True), ((8.8, 9.0), False), (None, False)])
def test_sizes_that_are_slow_when_they_are_new_are_told(times_ms: tuple[float, float] | None, is_told: bool) -> None:
    """An encoder was 1.2 times as fast as its source at lengths that repeat, and half as fast at each new one."""
    speed = Speed(ratio=0.8, low=0.75, high=0.85, clock="wall")
    found = record_of(variant_with("clean in OpenVINO", "delivered"))
    update = {"ending": "faster", "delivered": "clean in OpenVINO", "speed": speed, "new_size_ms": times_ms}
    lines = found.model_copy(update=update).conclude_fully()
    assert any("18.5 ms" in line and "8.80 ms" in line for line in lines) is is_told
    assert any("a size that is new" in line for line in lines) is is_told


@pytest.mark.parametrize(("load", "outcome", "advised"), [(0.4, "not proved", True), (0.007, "not proved", False)])
def test_a_quiet_machine_is_advised_only_if_this_one_is_busy(
    load: float, outcome: VariantOutcome, advised: bool
) -> None:
    found = record_of(variant_with("source", "delivered"), variant_with("INT8", outcome))
    gain = found.model_copy(update={"budget_s": 60.0, "load_of_others": load}).conclude()[1]
    assert ("40 %" in gain) is advised


def test_the_load_of_reused_profiles_is_not_that_of_later_rounds(tmp_path: Path) -> None:
    """Profiles of a loaded machine were reused, and 58 % of its CPUs were said to be in use, which were idle."""
    quiet = profile("half", 2.0, 1, 4)
    during = {"cpus_used_by_others": 0.5 * (quiet.machine.cpu_count or 1)}
    busy = quiet.model_copy(update={"conditions": {**quiet.conditions, "during": during}})
    assert busy.share_used_by_others == 0.5
    for name in ("base", "speed"):
        (tmp_path / name).mkdir()
        busy.write(tmp_path / name)
    record = run_record([StepSketch(name, "profile") for name in ("base", "speed", "versus")])
    assert _used_by_others(tmp_path, record) == 0.5
    reused = [step if step.name == "versus" else step.model_copy(update={"outcome": "reused"}) for step in record.steps]
    assert _used_by_others(tmp_path, record.model_copy(update={"steps": tuple(reused)})) == 0.0
    for measured, disturbed in ((busy, True), (quiet, False)):  # which a proof measures again
        measured.write(tmp_path / "base")
        artifacts = {"base": ProfileDocument(tmp_path / "base" / Profile.file_name, "base", "")}
        run: Any = SimpleNamespace(artifacts=artifacts)
        assert [_is_disturbed(run, step) for step in record.steps] == [disturbed, False, False]


def test_what_may_make_variants_run_is_said_once() -> None:
    hint = "OpenVINO accepts this model only with fixed sizes: --fix-shapes tries it"
    failed = [variant_with(name, "failed").model_copy(update={"hint": hint}) for name in ("a", "b")]
    record = record_of(variant_with("source", "delivered"), *failed)
    assert record.conclude_fully().count(hint) == 1
    assert record.conclude_page(200)[1].count(hint) == 1


def test_nothing_pays_only_if_everything_was_tried() -> None:
    source, slow = variant_with("source", "delivered"), variant_with("clean", "not faster")
    hopeless_one = variant_with("INT8 where it pays", "cannot win")
    assert concluded(source, slow, hopeless_one).startswith("Nothing pays: of 1 variant,")
    equal = concluded(source, variant_with("clean", "the same"), variant_with("source in OpenVINO", "failed"))
    assert "1 the same, 1 failed" in equal, "nothing was timed, so that nothing is known to be no faster"
    for outcome in ("not tried", "not proved", "not judged", "not found"):
        some = concluded(source, slow, variant_with("INT8", outcome))
        assert some.startswith("Not decided")
        assert f"INT8 ({outcome})" in some
        assert " 1 s" in some
    for known in ((source,), ()):
        assert concluded(*known, variant_with("INT8", "not tried")).startswith("Not decided")


@pytest.mark.parametrize(("ratio", "ending"), [(0.8, "not decided"), (0.995, "nothing pays")])
def test_what_more_samples_may_show_to_be_right_and_faster_is_open(ratio: float, ending: str) -> None:
    """A wake word's INT8 was 1.25 times as fast and right on all 60 samples, and nothing was said to pay."""
    near = variant_with("INT8", "near the bound").model_copy(
        update={"speed": Speed(ratio=ratio, low=ratio, high=ratio, clock="cpu")}
    )
    assert find_ending([near], faster=False) == ending
    assert ("more samples decide it" in concluded(near)) == (ending == "not decided")


@pytest.mark.parametrize(
    ("clock", "share", "named"), [("wall", 0.61, True), ("wall", 0.02, False), ("cpu", 0.61, False)]
)
def test_a_gain_in_wall_time_on_a_busy_machine_is_said_to_be_one(clock: str, share: float, named: bool) -> None:
    """Under load, OpenVINO was 1.6 times as fast as the source; on the same machine without load it was slower."""
    speed = Speed(ratio=0.6, low=0.5, high=0.7, clock=clock)
    found = record_of(variant_with("clean in OpenVINO", "delivered"))
    busy = found.model_copy(update={"ending": "faster", "speed": speed, "used_by_others": share})
    assert ("61 % of the CPUs" in busy.conclude()[1]) is named


@pytest.mark.parametrize(
    ("outcome", "stopped_because", "advised"),
    [
        ("not tried", "all variants tried", True),
        ("not proved", "the budget of 1 min is used up", True),
        ("not proved", TOO_NOISY, False),
    ],
)
def test_a_longer_budget_is_advised_only_if_time_was_short(
    outcome: VariantOutcome, stopped_because: str, advised: bool
) -> None:
    """A search that noise ended after a fourth of its budget advised three times that budget."""
    found = record_of(variant_with("INT8", outcome), variant_with("source", "delivered"))
    found = found.model_copy(update={"budget_s": 60.0, "stopped_because": stopped_because})
    assert ("--budget '3 min'" in found.conclude()[1]) is advised


def test_a_variant_that_was_raced_and_not_proved_was_tried() -> None:
    outcomes: tuple[VariantOutcome, ...] = ("not proved", "not tried", "cannot win", "failed")
    found = record_of(*(variant_with(outcome, outcome) for outcome in outcomes), variant_with("source", "delivered"))
    assert found.describe_search().startswith("2 of 4 variants tried")
    assert ": 1 not proved, 1 failed; 1 not tried, 1 cannot win" in found.conclude()[3], "the numbers add up"


@pytest.mark.parametrize(
    ("outcome", "cosine", "ratio", "keep", "bound"),
    [
        ("not right", 0.9999, 0.5, (), "cosine >= 0.999"),
        ("not right on held-out data", 0.9999, 0.5, (), "cosine >= 0.999"),
        ("not right", 0.9997, 0.5, (), "cosine >= 0.99"),  # near 0.999, other samples may be below
        ("not right", 0.9931, 0.5, (), ""),
        ("not right", 1 - 1e-8, 0.5, (), ""),  # single values: a cosine of 1 shows nothing
        ("not right", 0.9997, 1.1, (), ""),  # it is slower
        ("not right", 0.9997, 0.5, ("slice_rms <= 5 %",), ""),  # the user has decided
        ("not the best", 0.9997, 0.5, (), ""),
    ],
)
def test_what_only_a_cosine_would_allow_is_offered(
    outcome: VariantOutcome, cosine: float, ratio: float, keep: tuple[str, ...], bound: str
) -> None:
    """A classifier in INT8 was 2.8 times as fast with the same classes, and nothing named the option that allows it."""
    lost = variant_with("INT8", outcome).model_copy(
        update={
            "metrics": {"cosine": Metric(value=cosine)},
            "speed": Speed(ratio=ratio, low=ratio, high=ratio, clock="cpu"),
        }
    )
    found = record_of(lost, variant_with("source", "delivered")).model_copy(update={"keep": keep})
    for text in (" ".join(found.conclude_fully()), " ".join(found.conclude_page(300)[1])):
        assert ("--keep" in text) is bool(bound)
        assert bound in text


def test_variants_that_the_search_did_not_reach_are_listed(in_folder: Path) -> None:
    composer = read(write(ROWS), threads=(1, 2))
    alone = next(each for each in composer.variants if each.name == "clean on 1 thread")
    listed = {item.name: item.outcome for item in describe_untried(composer, [Point(1, alone, "passed", "", None)])}
    assert listed["clean on 2 threads"] == listed["source on 1 thread"] == "not tried"
    assert not {"source", "clean on 1 thread"} & listed.keys()


def test_a_variant_that_no_proof_reached_is_not_slower() -> None:
    points = [Point(number, Variant(f"v{number}", "onnxruntime"), "passed", "", None) for number in range(4)]
    source = proved("source", 1.0)

    def outcomes(proofs: dict[int, Proof]) -> list[str]:
        return [item.outcome for item in describe(points, proofs, source, faster=False)]

    assert outcomes({0: proved("v0", 1.0, "not right on held-out data")}) == [
        "not right on held-out data", "not proved", "not proved", "not proved"
    ]  # fmt: skip
    two = {number: proved(f"v{number}", 1.0, "not faster") for number in range(2)}
    assert outcomes(two)[2:] == ["not the best", "not the best"], (
        "they were slower in the search than what is not faster"
    )


@pytest.mark.parametrize(
    ("outcome", "cut", "stopped_because", "ending"),
    [
        ("not proved", False, TOO_NOISY, "not decided"),
        ("not proved", True, f"the limit was reached and {TOO_NOISY}", "not decided"),
        ("not faster", False, "the limit was reached", "nothing pays"),
    ],
)
def test_a_search_that_noise_leaves_open_does_not_say_that_all_was_tried(
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: VariantOutcome,
    cut: bool,
    stopped_because: str,
    ending: str,
) -> None:
    composer = read(write(ROWS), minimize=("latency", "size"), threads=(1, 2))
    tried = [*reversed(composer.variants)][: 1 if cut else None]
    variant = composer.variants[-1]
    monkeypatch.setattr(Prover, "prove", lambda *_: proved(variant.name, 1.0, outcome))
    search = SweepSearch(
        Prover(composer, Path(), Request(Path("r.yaml")), lambda _: None), proved("source", 1.0), Budget(None)
    )
    search._points = [
        Point(number, each, "failed" if number else "passed", "", None) for number, each in enumerate(tried)
    ]
    search._stopped_because = "the limit was reached"
    monkeypatch.setattr(search, "_sweep", lambda: None)
    found = search.run()
    assert found.stopped_because == stopped_because
    assert find_ending(found.variants[:1], faster=False) == ending


@pytest.mark.representatives("0.99-0.95-1.033-True")
@pytest.mark.parametrize(
    ("ratio", "low", "high", "is_open"),
    [
        (0.99, 0.95, 1.033, True),
        (1.02, 0.96, 1.08, True),  # as likely slower, but a gain of 4 % is not ruled out
        (1.0, 0.99, 1.01, False),  # equal
        (0.985, 0.975, 0.995, False),  # less than 3 %
        (0.9, 0.85, 0.95, False),  # proved
        (0.96, 0.96, 0.96, False),  # without an interval, it is no measurement in turns
    ],
)
def test_noise_that_hides_a_gain_is_not_called_not_faster(ratio: float, low: float, high: float, is_open: bool) -> None:
    gain = Gain(objective="latency", ratio=ratio, low=low, high=high, evidence="alternating passes")
    assert gain.is_open == is_open


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        ("onnxruntime", {}),
        ("{backend: onnxruntime, threads: 1}", {"threads": 1, "level": "ORT_ENABLE_ALL"}),
        (
            "{backend: onnxruntime, threads: 2, optimization: extended}",
            {"threads": 2, "level": "ORT_ENABLE_EXTENDED"},
        ),
        ("openvino", {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}),
        ("{backend: openvino, threads: 1, inference_precision: default}", {"INFERENCE_NUM_THREADS": "1"}),
    ],
)
def test_the_printed_python_opens_the_model_as_it_was_measured(
    in_folder: Path, runtime: str, expected: Mapping[str, object]
) -> None:
    """OpenVINO computes in bfloat16 by default where it can, which is another model than the one that was proved."""
    path = write(ROWS)
    proof = Proof(Variant("source", runtime, is_source=True), Path("p.yaml"), "delivered", "")
    code = _describe_opening(read(path), proof)
    if not expected:
        assert code == ""
        return
    *lines, last = code.split("; ")
    names: dict[str, Any] = {"onnxruntime": onnxruntime, "openvino": openvino}
    names["inputs"] = {"x": np.zeros((1, 8), np.float32)}
    for line in lines:
        exec(line, names)  # noqa: S102 - the line is what a user copies
    result = eval(last, names)  # noqa: S307
    opened = names.get("request", result)
    if "level" in expected:
        used = opened.get_session_options()
        found = {"threads": used.intra_op_num_threads, "level": used.graph_optimization_level.name}
    else:
        found = {name: _name_of(opened.get_compiled_model().get_property(name)) for name in expected}
    assert found == expected


def _name_of(value: Any) -> str:
    name = getattr(value, "get_type_name", None) or getattr(value, "name", None)
    return str(name() if callable(name) else name or value)
