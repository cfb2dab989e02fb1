"""Metric names and units in gates and goals are checked before anything runs, and steps return what they declare."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.recipe.gates import GateError, parse_gate
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.records.measurement import Metric
from ndld_flow.records.run_folder import read_run_record
from tests.steps.test_steps_contract import check_metrics
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

RECIPE = """
name: named
model: model.onnx
steps:
  clean: {step: sanitize}
  half: {step: convert_fp16}
  agree: {step: check_accuracy, reference: source, candidate: half, tolerance: {cosine: 0.9}}
  speed: {step: profile, runs: 1, stable: 0, duration: 0, passes: 5, batches: [4]}
gates:
"""


def mistakes(folder: Path, *gates: str, recipe: str = RECIPE) -> list[str]:
    make_cnn(folder / "model.onnx")
    path = folder / "named.yaml"
    path.write_text(recipe.lstrip() + "".join(f"  - {json.dumps(gate)}\n" for gate in gates))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    return [f"{problem.where.rpartition(':')[2]} {problem.path}: {problem}" for problem in caught.value.problems]


@pytest.mark.representatives(
    "clean.node <= 3",
    "gone.nodes <= 3",
    "agree.cosin >= 0.9",
)
@pytest.mark.parametrize(
    "gate",
    [
        "speed.latency.p42 <= 3 ms",
        "speed.latency.medain <= 3 ms",
        "agree.cosin >= 0.9",
        "agree.cosine.output0 >= 0.9",
        "agree.top3 >= 0.9",
        "agree.accuracy >= 0.9",
        "speed.batch_8.latency.median <= 3 ms",
        "speed.device.median <= 3 ms",
        "speed.compute.median <= 3 ms",
        "clean.node <= 3",
        "gone.nodes <= 3",
        "speed.latency.median <= 64 MiB",
        "speed.latency.median <= 5 %",
        "agree.cosine >= 3 ms",
        "speed.latency.median + clean.initializer_bytes <= 3",
        "speed.latency.median / clean.nodes <= 1 MiB",
    ],
)
def test_an_unknown_name_or_wrong_unit_is_reported_before_anything_runs(
    gate: str, tmp_path: Path, check_message: CheckMessage
) -> None:
    (result,) = mistakes(tmp_path, gate)
    assert result.startswith("9 gates.0: ")
    check_message(result)


@pytest.mark.representatives("agree.top5 >= 90 %", "speed.latency.p99 <= 3", "speed.latency.p99 <= 3 ms")
@pytest.mark.parametrize(
    "gate",
    [
        "speed.latency.p99 <= 3 ms",
        "speed.latency.p99 <= 3",
        "speed.batch_4.latency.median <= 105 % * 4 * speed.latency.median",
        "speed.layers.sum / speed.latency.median <= 120 %",
        "speed.throughput.median >= 100",
        "agree.logits.cosine >= 0.9",
        "agree.top5 >= 90 %",
        "clean.initializer_bytes + 1 KiB <= 64 MiB",
        "half.initializer_bytes <= 0.6 * clean.initializer_bytes",
    ],
)
def test_a_declared_name_passes(gate: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, gate, "gone.nodes <= 1"))
    assert [problem.path for problem in caught.value.problems] == ["gates.1"]


def write(folder: Path, *gates: str) -> Path:
    make_cnn(folder / "model.onnx")
    path = folder / "named.yaml"
    path.write_text(RECIPE.lstrip() + "".join(f"  - {json.dumps(gate)}\n" for gate in gates))
    return path


def test_all_are_reported_together_and_by_plan_too(in_folder: Path) -> None:
    recipe = RECIPE.replace("passes: 5", "pases: 5").replace("name: named", "name: named\nwidth: ${agree_name}")
    recipe = recipe.replace("width: ${agree_name}\n", "")
    texts = mistakes(in_folder, "clean.node <= 3", "agree.cosin >= 1", "speed.anything <= 1", recipe=recipe)
    assert [text.partition(" ")[2].partition(":")[0] for text in texts] == ["steps.speed.pases", "gates.0", "gates.1"]
    ran = ndld_flow("plan", "named.yaml", cwd=in_folder)
    assert ran.returncode == 2
    assert "gates.0" in ran.stderr and "gates.1" in ran.stderr
    assert not (in_folder / "outputs/runs/named").exists()


def test_an_interpolated_name_is_checked_after_interpolation(in_folder: Path, check_message: CheckMessage) -> None:
    write(in_folder)
    path = in_folder / "named.yaml"
    path.write_text(path.read_text() + '  - "${steps.agree.candidate}.nodez <= 3"\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    check_message(caught.value)


def test_a_gate_on_a_step_that_an_override_removed_is_reported(in_folder: Path, check_message: CheckMessage) -> None:
    write(in_folder, "speed.latency.median <= 1 s")
    ran = ndld_flow("plan", "named.yaml", "~steps.speed", cwd=in_folder)
    assert ran.returncode == 2
    check_message(ran.stderr)


def test_goals_of_a_sweep_are_checked_except_for_values_that_points_vary(in_folder: Path) -> None:
    write(in_folder)
    path = in_folder / "named.yaml"
    head = path.read_text().replace("gates:\n", "")
    sweep = "sweep:\n  over: {agree.topk: [3, 5]}\n  minimize: speed.latency.mediam\n  subject_to: [%s]\n"
    path.write_text(head + sweep % "agree.top3 >= 0.5, agree.top5 >= 5 ms")
    with pytest.raises(RecipeError) as caught:
        load_sweep(path)
    problems = {problem.path: str(problem) for problem in caught.value.problems}
    assert set(problems) == {"sweep.minimize", "sweep.subject_to.1"}
    assert 'did you mean "latency.median"' in problems["sweep.minimize"]
    path.write_text(head + sweep.replace("mediam", "median") % "agree.top3 >= 0.5")
    assert load_sweep(path)


def test_gates_of_compare_profiles_are_checked_too(in_folder: Path, check_message: CheckMessage) -> None:
    write(in_folder)
    path = in_folder / "named.yaml"
    step = "  decide: {step: compare_profiles, base: speed, gates: [%s]}\n"
    for gate in ("latency.medain <= +5 %", "load <= 5 MiB"):
        path.write_text(RECIPE.lstrip().replace("gates:\n", step % gate))
        with pytest.raises(RecipeError) as caught:
            load_recipe(path)
        check_message(caught.value)


@pytest.mark.parametrize(
    ("gate", "passed", "left", "right", "unit"),
    [
        ("engine.build_s <= 2 min", True, 90_000, 120_000, "ms"),
        ("engine.build_s <= 1 min", False, 90_000, 60_000, "ms"),
        ("engine.build_s <= 100", True, 90, 100, "s"),
        ("engine.build_s / speed.latency.median >= 30", True, 30, 30, ""),
        ("speed.latency.median <= engine.build_s", True, 3000, 90_000, "ms"),
    ],
)
def test_seconds_and_milliseconds_are_compared_as_durations(
    gate: str, passed: bool, left: float, right: float, unit: str
) -> None:
    known = {"engine.build_s": Metric(value=90, unit="s"), "speed.latency.median": Metric(value=3000, unit="ms")}
    result = parse_gate(gate).decide(known)
    assert (result.passed, result.left, result.right, result.unit) == (passed, left, right, unit)


def test_quantities_have_no_other_attributes() -> None:
    for text in ("(1).real <= 2", "1.5.imag <= a.b", "a.b <= (2).percent.ms"):
        with pytest.raises(GateError):
            parse_gate(text)


STEP = """
from pathlib import Path
from ndld_flow.plugin import Context, Onnx, Result, Step, metrics

class Score(Step[Onnx, Onnx]):
    '''Score.'''
    %s
    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        return %s
"""


def run_step(folder: Path, returned: str, gate: str = "score.score >= 0.5", declared: str = "") -> Path:
    make_cnn(folder / "model.onnx")
    (folder / "score.py").write_text(STEP % (declared, returned))
    recipe = f"name: s\nmodel: model.onnx\nsteps_from: [score.py]\nsteps: {{score: {{}}}}\ngates: ['{gate}']\n"
    (folder / "s.yaml").write_text(recipe)
    return Path(api.run(folder / "s.yaml", outputs=folder / "outputs", trust=True).folder)


def test_a_user_defined_step_may_return_plain_numbers(in_folder: Path) -> None:
    folder = run_step(in_folder, 'Result("scored", metrics={"score": 0.9, "count": 3})')
    (step,) = read_run_record(folder).steps
    assert step.record is not None
    assert step.record.metrics == {"score": Metric(value=0.9), "count": Metric(value=3)}


def test_declared_metrics_are_checked_and_others_left_to_the_run(in_folder: Path, check_message: CheckMessage) -> None:
    returned = 'Result("scored", metrics={"score": 0.9})'
    with pytest.raises(RecipeError) as rejected:
        run_step(in_folder, returned, "score.scor >= 0.5", 'returns = metrics("score")')
    check_message(rejected.value)
    with pytest.raises(RequestError) as refused:
        run_step(in_folder, returned, "score.scor >= 0.5")
    check_message(refused.value)


@pytest.mark.parametrize(
    "returned",
    [
        "None",
        "'well'",
        "Result(3)",
        "Result('x', passed=1)",
        "Result('x', metrics=[1])",
        "Result('x', metrics={float('nan'): 1.0})",
        "Result('x', metrics={'score': '0.9'})",
        "Result('x', metrics={'score': None})",
    ],
)
def test_an_invalid_return_value_is_reported_with_the_steps_name(
    returned: str, in_folder: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        run_step(in_folder, returned)
    assert str(caught.value).startswith("step score: `score` (")
    check_message(caught.value)


@pytest.mark.thorough
def test_an_invalid_result_fails_only_its_point_of_a_sweep(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    returned = 'Result("scored", metrics={"score": self.given})'
    (in_folder / "score.py").write_text(STEP % ("given: float | str = 0.5", returned))
    (in_folder / "s.yaml").write_text(
        "name: s\nmodel: model.onnx\nsteps_from: [score.py]\nsteps: {score: {}}\n"
        "sweep: {over: {score.given: [0.5, much, 0.7]}, maximize: score.score}\n"
    )
    done = api.sweep("s.yaml", trust=True)
    assert done.outcomes == {"passed": 2, "failed": 1}
    assert done.best == 3


def test_help_lists_metrics() -> None:
    ran = ndld_flow("steps", "profile", cwd=Path.cwd())
    assert "latency.p99" in ran.stdout
    assert "batch_{size}.latency.median  [ms]   when `batches`" in ran.stdout


@pytest.mark.thorough
def test_steps_return_what_they_declare(in_folder: Path) -> None:
    """The families that defaults do not reach: layers, batches, references, searches, comparisons, per-output names."""
    make_cnn(in_folder / "model.onnx")
    (in_folder / "all.yaml").write_text(
        textwrap.dedent(
            """
            name: all
            model: model.onnx
            steps:
              search: {step: find_precision, tolerance: {cosine: 0.9, topk: 50 %}}
              half: {step: convert_fp16, from: source}
              agree: {step: check_accuracy, reference: source, candidate: half, layers: true, topk: 3}
              inside: {step: inspect_activations, from: half, reference: source}
              base: {step: profile, from: source, runs: 2, passes: 6, duration: 0 ms, stable: 0 %, layer_passes: 3}
              speed: {step: profile, from: half, runs: 2, passes: 6, duration: 0 ms, stable: 0 %, layer_passes: 3}
              decide: {step: compare_profiles, base: base, from: speed, rounds: 0, when_undecided: pass}
            """
        )
    )
    recipe = load_recipe(in_folder / "all.yaml")
    record = read_run_record(Path(api.run("all.yaml").folder))
    types = StepTypes()
    for step, settings in zip(record.steps, recipe.steps, strict=True):
        result = types.find(step.step)
        assert result is not None and step.record is not None
        check_metrics(result, settings.step, step.record)
