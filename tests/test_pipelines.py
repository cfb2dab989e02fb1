"""The recipes that are shipped, on the real models."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from ndld_flow import api
from ndld_flow.base.errors import RecipeError
from ndld_flow.execution.events import RunFinished
from ndld_flow.precision.constraints.typed_model import ALREADY
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.points import Sweep
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.build import Build
from ndld_flow.records.images import RenderedImages
from ndld_flow.records.precision_search import PrecisionSearch
from ndld_flow.records.run_folder import read_sweep_record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.report.sweep.collect_effects import collect_churn
from ndld_flow.sweep_search.searches import make_search
from tests.support.pages import page_paths
from tests.support.recipes import cheaper, load_recipe
from tests.support.typed_api import plan_once, run_once

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "pipelines").glob("*.yaml"))
MODELS = {
    "quickstart": "nakdimon",
    "fp16_for_gpu": "det",
    "ppocr_int8": "det",
    "ppocr_rec": "rec",
    "ppocr_rec_int8": "rec",
    "silero_vad": "silero",
}
EDITS = {"edit_cut": "det", "edit_camera": "det", "edit_fuse": "rec", "edit_blocks": "rec", "edit_branch": "silero"}
SWEEPS = {
    "sweep_cpu": ("det", 24),
    "sweep_variants": ("rec", 6),
    "sweep_rtx_builds": ("det", 15),
    "sweep_batch": ("cls", 14),
    "sweep_profiles": ("rec", 5),
    "sweep_profiles_gpu": ("rec", 9),
    "sweep_runtimes": ("det", 3),
}
"""Recipe -> its model, and how many points it has."""
NO_PRESETS = {"ppocr_det_rtx", "inspect_activations", "render_images", "export_cpp", "denoiser", "triton", "upgrade"}
MEASURING = [path for path in RECIPES if path.stem not in NO_PRESETS | EDITS.keys() | SWEEPS.keys()]
SMALLER = {"fp16_for_gpu": ("inputs.x.shape=[1,3,96,96]", "steps.sanitize.input_shapes.x=[1,3,96,96]")}
"""Smaller inputs, where a slow test has the recipe's own."""
QUIET = ("~steps.base", "~steps.speed")
"""Measuring is tested elsewhere."""


@pytest.fixture
def checkout(in_folder: Path) -> Path:
    for name in ("pipelines", "configs"):
        shutil.copytree(ROOT / name, in_folder / name)
    return in_folder


def run(sample_model: Callable[[str], Path], recipe: str, *overrides: str) -> RunFinished:
    """Run a shipped recipe without measuring, its model taken from the tests' cache."""
    path = Path("pipelines") / f"{recipe}.yaml"
    return run_once(path, [f"model.source={sample_model(MODELS[recipe])}", *cheaper(path), *QUIET, *overrides])


def run_edits(sample_model: Callable[[str], Path], recipe: str) -> RunFinished:
    path = Path("pipelines") / f"{recipe}.yaml"
    done = run_once(path, [f"model.source={sample_model(EDITS[recipe])}", *cheaper(path)])
    assert done.passed, done.verdict
    return done


@pytest.mark.representatives("upgrade", "ppocr_rec", "ppocr_int8")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_gates_or_goals_and_a_description(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_sweep(path, trust=True)
    assert recipe.objectives if isinstance(recipe, Sweep) else recipe.gates
    assert (recipe.base if isinstance(recipe, Sweep) else recipe).file.description


@pytest.mark.representatives("ci", "ppocr_int8")
@pytest.mark.parametrize("path", MEASURING, ids=lambda path: path.stem)
def test_every_recipe_that_measures_uses_the_presets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    recipe = load_recipe(path)
    profiled = [step for step in recipe.steps if step.type.name == "profile"]
    # What decides is measured as the step does by itself: a preset is added to it, and replaced elsewhere.
    enough, preset = ((5, 100), "+profiling") if path.stem == "ci" else ((3, 30), "profiling")
    if path.stem == "quickstart":  # its rounds decide: what is profiled before shows where the time is
        enough = (1, 30)
    assert [(step.settings["runs"], step.settings["passes"]) for step in profiled] == [enough] * 2
    thorough = load_recipe(path, [f"{preset}@steps.speed=thorough"])
    assert next(step for step in thorough.steps if step.name == "speed").settings["passes"] == 500
    with pytest.raises(RecipeError, match="profiling/fast"):
        load_recipe(path, [f"{preset}@steps.speed=fast"])


PAGES = "\n".join(path.read_text() for path in page_paths())


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", [name for name in MODELS if f"run pipelines/{name}.yaml" not in PAGES])
def test_every_recipe_passes(checkout: Path, sample_model: Callable[[str], Path], recipe: str) -> None:
    done = run(sample_model, recipe, *SMALLER.get(recipe, ()))
    assert done.passed, done.verdict


@pytest.mark.parametrize("recipe", ["edit_branch", pytest.param("edit_camera", marks=pytest.mark.thorough)])
def test_every_recipe_of_edits_passes(checkout: Path, sample_model: Callable[[str], Path], recipe: str) -> None:
    """Pages run `edit_cut`."""
    run_edits(sample_model, recipe)


def sweep(sample_model: Callable[[str], Path], recipe: str, *overrides: str) -> SweepRecord:
    """Run a shipped sweep, measuring as little as can be."""
    source = f"model.source={sample_model(SWEEPS[recipe][0])}"
    done = api.sweep(Path("pipelines") / f"{recipe}.yaml", [source, "sweep.winners=0", *overrides])
    return read_sweep_record(Path(done.folder))


LEAST = ("steps.speed.runs=1", "steps.speed.passes=1", "+steps.speed.warmup=0", "+steps.speed.warmup_passes=0")


def test_every_sweep_is_known() -> None:
    assert {path.stem for path in RECIPES if path.stem.startswith("sweep_")} == SWEEPS.keys()


@pytest.mark.representatives("sweep_batch", "sweep_variants")
@pytest.mark.parametrize("recipe", SWEEPS)
def test_every_sweep_has_the_expected_points(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = load_sweep(Path("pipelines") / f"{recipe}.yaml")
    assert isinstance(found, Sweep)
    search = make_search(found.space, found.options)
    assert search.size == SWEEPS[recipe][1]
    for point in search.ask(1000):
        assert found.point(point).steps


def test_the_best_session_settings_are_found(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    record = sweep(sample_model, "sweep_cpu", *LEAST, "sweep.method=random", "+sweep.points=2")
    assert [point.outcome for point in record.points] == ["passed"] * 2
    assert record.best in {1, 2}
    assert len(record.sessions) == 1


@pytest.mark.slow
def test_variants_are_checked_before_they_are_measured(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    bound = "sweep.subject_to='agree.max_abs <= 0.0001'"
    record = sweep(sample_model, "sweep_variants", *LEAST, bound)
    outcomes = {str(point.values["variant"]): point for point in record.points}
    assert {name for name, point in outcomes.items() if point.outcome == "passed"} == {"source", "fixed", "clean"}
    assert all("speed.latency.min" not in outcomes[name].metrics for name in ("fp16", "int8", "fp16 everywhere"))
    cleaned = [step for point in record.points for step in point.steps if step.name == "clean" and step.wall_s]
    assert len(cleaned) == 1, "what they share is done once"


@pytest.mark.thorough
def test_a_batch_sweep_counts_items(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    points = "sweep.over={inputs.x.shape.0: [1, 4]}"
    record = sweep(sample_model, "sweep_batch", *LEAST, "~sweep.over", f"+{points}")
    for point in record.points:
        batch, passes = point.values["inputs.x.shape.0"], point.metrics["speed.throughput.median"].value
        assert point.metrics["speed.throughput.items"].value == pytest.approx(float(str(batch)) * passes)


@pytest.mark.thorough
def test_a_destroyed_detector_looks_destroyed(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    recipe, model = "pipelines/render_images.yaml", f"model.source={sample_model('det')}"
    assert api.run(recipe, [model, "steps.pictures.samples=1"]).passed
    plain = api.run(recipe, [model, "steps.pictures.samples=1", "~steps.half.block"])
    assert not plain.passed
    found = RenderedImages.model_validate_json(Path(plain.folder, "pictures", "images.json").read_text())
    (text,) = [image for image in found.images if image.name == "text"]
    reference, candidate = text.rows[0].files
    assert reference.captions[1].startswith("9 regions")
    assert not candidate.captions[1].startswith("9 regions")


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="TensorRT-RTX is not installed here")
def test_rebuilding_gives_the_same_engine(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    """An engine whose profiles cover all shapes is not rebuilt for each shape."""
    points = "+sweep.over={engine.attempt: [1, 2], inputs.x.data: [random, zeros]}"
    shapes = "{x: {min: [1, 3, 320, 320], opt: [1, 3, 320, 320], max: [1, 3, 320, 320]}}"
    quick = ("steps.engine.compute_capabilities=['8.9']", f"+steps.engine.profiles=[{shapes}]", "sweep.method=grid")
    record = sweep(sample_model, "sweep_rtx_builds", "~sweep.over", points, *quick)
    assert len({step.key for point in record.points for step in point.steps if step.name == "engine"}) == 2
    (churn,) = collect_churn(record, Path("outputs/sweeps/sweep-rtx-builds/latest"))
    assert churn.labels == ("attempt 1", "attempt 2")
    assert churn.summary.startswith("2 builds, ")
    assert "Tactic churn" in Path("outputs/sweeps/sweep-rtx-builds/latest/report.html").read_text()


@pytest.mark.thorough
def test_a_shared_block_is_written_once(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    done = run_edits(sample_model, "edit_blocks")
    model = onnx.load(Path(done.folder, "blocks", "model.onnx"))
    calls = [node for node in model.graph.node if node.domain == "svtr"]
    assert len(calls) == 2
    assert len({node.op_type for node in calls}) == 1
    assert sum(node.op_type == "Softmax" for node in model.functions[0].node) == 1, "one attention in each block"


@pytest.mark.thorough
def test_rules_of_a_recipe_fuse_activations(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    done = run_edits(sample_model, "edit_fuse")
    fused = Counter(node.op_type for node in onnx.load(Path(done.folder, "fused", "model.onnx")).graph.node)
    assert (fused["HardSwish"], fused["QuickGelu"], fused["Clip"]) == (28, 7, 0)


@pytest.mark.slow
def test_the_nodes_that_a_search_finds_repair_the_model(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    done = run(sample_model, "fp16_for_gpu")
    assert done.passed, done.verdict
    search = PrecisionSearch.model_validate_json(Path(done.folder, "search", "precision.json").read_text())
    assert {(kept.op_type, kept.cause) for kept in search.kept} == {("BatchNormalization", "range")}
    assert len(search.kept) <= 3
    assert search.metrics_whole["cosine"] < 0.9
    assert search.first_divergent == search.kept[0].outputs[0]

    assert not run(sample_model, "fp16_for_gpu", "~steps.search", "~steps.half.found_by").passed
    accuracy = Accuracy.model_validate_json(Path("outputs/runs/fp16_for_gpu/latest/agree/accuracy.json").read_text())
    assert accuracy.outputs[0].metrics["cosine"] < 0.9


@pytest.mark.thorough
def test_activations_show_where_the_model_breaks(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    # The tensors before and behind it, on a small picture: all that is chosen without takes longer.
    few = ["inputs.x.shape=[1, 3, 96, 96]", "+steps.look.tensors=['conv2d_49?.tmp_0', 'batch_norm_[01].tmp_3']"]
    done = api.run("pipelines/inspect_activations.yaml", [f"model.source={sample_model('det')}", *few])
    assert done.passed, "no NaN, no infinity: only beside the source it is seen"
    found = Activations.model_validate_json(Path(done.folder, "look", "activations.json").read_text())
    first = next(layer for layer in found.divergence if layer.metrics["cosine"] < 0.99)
    assert (first.op_type, first.tensor) == ("BatchNormalization", "batch_norm_0.tmp_3")


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="TensorRT-RTX is not installed here")
def test_engines_are_built_for_three_generations(checkout: Path, sample_model: Callable[[str], Path]) -> None:
    recipe, model = Path("pipelines/ppocr_det_rtx.yaml"), f"model.source={sample_model('det')}"
    done = api.run(recipe, [model])
    assert done.passed, done.verdict
    build = Build.model_validate_json(Path(done.folder, "engine", "build.json").read_text())
    assert build.compute_capabilities == ("8.6", "8.9", "12.0")
    assert build.profiles[0].inputs["x"].max == (4, 3, 960, 960)
    outcomes = Counter((constraint.precision, constraint.outcome) for constraint in build.constraints)
    assert outcomes == {("fp16", "Casts in the model"): 327, ("fp32", ALREADY): 3}
    report = Path(done.report).read_text()
    for text in (
        "8.6, 8.9, 12.0",
        "1\u00d73\u00d7640\u00d7640",
        "STRONGLY_TYPED",
        "Precision constraints",
        "Layers by precision",
    ):
        assert text in report
    # What computes in FP16 alone is a model that is silently destroyed, and the recipe says so.
    bare = ("~steps.precise.op_types", "~steps.engine", "gates=['agree.cosine >= 0.999']")
    assert not api.run(recipe, [model, *bare]).passed


@pytest.mark.parametrize(
    ("release", "message"),
    [
        ("10.8", "weakly typed: TF32; constraints obeyed"),
        ("10.16", "weakly typed: TF32; constraints obeyed"),
        ("11.4", "strongly typed, constraints as Casts"),
    ],
)
def test_the_recipe_can_be_planned_for_every_generation(
    checkout: Path, sample_model: Callable[[str], Path], release: str, message: str
) -> None:
    overrides = (
        f"model.source={sample_model('det')}",
        "engine@steps.engine=tensorrt",
        f"steps.engine.release='{release}'",
    )
    engine = plan_once(Path("pipelines/ppocr_det_rtx.yaml"), overrides)[-1].step.step.foresee()
    title, _, effect = engine.notes[0].partition(": ")
    assert title.startswith(f"TensorRT {release}")
    assert effect.startswith(message)
    assert not engine.problems


@pytest.mark.slow
def test_the_denoiser_is_trained_and_removes_noise(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    program = "[python3,'$File{train.py}',--module,$Module,--weights,$Weights,--steps,'60']"
    overrides = [f"steps.trained.command={program}", *([] if find_spec("tensorrt_rtx") else ["~steps.engine"])]
    done = run_once(Path("pipelines/denoiser.yaml"), overrides, trust=True)
    assert done.exit_code == 0
    steps = {
        step.name: step.record
        for step in RunRecord.model_validate_json((Path(done.folder) / "run.json").read_text()).steps
    }
    pictures, module = steps["pictures"], steps["module"]
    assert pictures is not None and module is not None
    assert pictures.metrics["noisy.psnr"].value < 21
    assert pictures.metrics["denoised.psnr"].value > 23
    assert module.metrics["max_abs"].value < 1e-2
    assert len(list((Path(done.folder) / "pictures" / "denoised").glob("*-candidate.png"))) == 8
