"""Every kind of page: from records made by hand, and from a run of a small model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import numpy as np
from PIL import Image

from ndld_flow import api
from ndld_flow.report.activations.page import draw_activations
from ndld_flow.report.comparison.page import draw_comparison
from ndld_flow.report.run_page import draw_profile, draw_report
from ndld_flow.report.sweep.page import draw_sweep
from tests.support import activation_samples, comparison_fixtures, sweep_samples
from tests.support.a100_exports import a100_exports
from tests.support.engine_samples import build, rtx_build, write_engine_run
from tests.support.metric_runs import changed, courses, write_runs
from tests.support.models import make_cnn, make_tfm
from tests.support.optimization_samples import write_optimized
from tests.support.placement_samples import PLACEMENT
from tests.support.precision_samples import RECIPE, failed_search, search_documents, search_steps, sequence_accuracy
from tests.support.run_fixtures import StepSketch, profile, run_record, write_failed, write_quickstart, write_run
from tests.support.simulated_series import simulate

SMALL_RUN = """
name: small
model: cnn.onnx
inputs: {x: {shape: [1, 3, 16, 16], data: photos}}
steps:
  base: {step: profile, from: source, runs: 2, passes: 20, duration: 50 ms, stable: 0 %, layer_passes: 3}
  clean: {step: sanitize}
  agree: {step: check_accuracy, power: 4}
  speed: {step: profile, from: clean, runs: 2, passes: 20, duration: 50 ms, stable: 0 %, layer_passes: 3}
  half: {step: convert_fp16, from: clean}
  look: {step: inspect_activations, from: half, reference: source}
  pictures: {step: render_images, from: half, reference: source, images: {seen: {tensor: x, range: [0, 255]}}}
  to_cpp: {step: export_cpp, from: clean}
gates: [agree.cosine >= 0.999, clean.nodes <= 10]
"""
"""A recipe whose run has panels that the records made by hand lack, and a gate that fails."""

BROKEN = """
name: broken
model: cnn.onnx
inputs: {x: {shape: [1, 3, 16, 16], data: photos}}
steps:
  half: {step: convert_fp16}
  agree: {step: check_accuracy, tolerance: {slice_rms: 1e-9}}
"""
"""A recipe whose bounds no conversion to FP16 meets."""


def write_model(folder: Path) -> None:
    """Write the model of the recipes, and four photos."""
    make_cnn(folder / "cnn.onnx")
    (folder / "photos").mkdir(exist_ok=True)
    for index in range(4):
        pixels = np.random.default_rng(index).integers(0, 255, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{index}.png")


def draw_real(folder: Path) -> Path:
    write_model(folder)
    (folder / "small.yaml").write_text(SMALL_RUN, "utf-8")
    with chdir(folder):
        return Path(api.run("small.yaml").report).resolve()


def draw_reduced(folder: Path) -> Path:
    write_model(folder)
    (folder / "broken.yaml").write_text(BROKEN, "utf-8")
    with chdir(folder):
        return Path(api.reduce("broken.yaml").page).resolve()


def draw_precision(folder: Path) -> Path:
    documents = search_documents(failed_search()) | {
        "agree/accuracy.json": sequence_accuracy(),
        "half/placement.json": PLACEMENT,
        "decide/comparison.json": comparison_fixtures.pair().comparison,
    }
    steps = [*search_steps(passed=False), StepSketch("decide", "compare_profiles", "comparison")]
    return draw_report(write_run(folder, run_record(steps, recipe=RECIPE), documents))


def draw_pair(folder: Path) -> Path:
    pair = comparison_fixtures.pair()
    return draw_comparison(pair.comparison, pair.profiles, folder / "report.html")


def draw_exports(folder: Path) -> Path:
    """Compare three engines that trtexec measured on an A100."""
    exports = [str(a100_exports() / name) for name in ("fp32", "fp16", "qat")]
    return api.compare(exports, rules=api.Rules(allow=frozenset({"unknown"})), outputs=folder).report


def draw_twelve(folder: Path) -> Path:
    """Draw a comparison of more subjects than there are colours."""
    subjects = [comparison_fixtures.subject(f"v{index}", index) for index in range(12)]
    profiles = {index: comparison_fixtures.in_turns("x", 10.0 + index, 1 + index, turn=index) for index in range(12)}
    twelve = comparison_fixtures.compared(subjects, {"x": profiles})
    return draw_comparison(twelve.comparison, twelve.profiles, folder / "report.html")


def draw_diff(folder: Path) -> Path:
    api.diff(str(make_cnn(folder / "cnn.onnx")), str(make_tfm(folder / "tfm.onnx")), page=folder / "report.html")
    return folder / "report.html"


def draw_two_engines(folder: Path) -> Path:
    fp32, fp16 = (a100_exports() / name / "resnet.onnx.engine.graph.json" for name in ("fp32", "fp16"))
    api.diff_engines(fp32, fp16, page=folder / "report.html")
    return folder / "report.html"


def draw_history(folder: Path, runs: int = 60) -> Path:
    """Draw the history of a recipe that a new library slows down after 48 runs."""
    values = [value * (1.1 if index >= 48 else 1.0) for index, value in enumerate(simulate("normal 1 %", runs, 3))]
    write_runs(folder, changed(courses(values), 48, libraries={"onnxruntime": "onnxruntime 1.32.0"}))
    api.history("nightly", outputs=folder, page=folder / "report.html")
    return folder / "report.html"


KINDS: dict[str, Callable[[Path], Path]] = {
    "run": lambda folder: draw_report(write_quickstart(folder)),
    "failed-run": lambda folder: draw_report(write_failed(folder)),
    "real-run": draw_real,
    "optimization": lambda folder: draw_report(write_optimized(folder)),
    "precision": draw_precision,
    "engines": lambda folder: draw_report(write_engine_run(folder, {"engine": build(), "rtx": rtx_build()})),
    "profile": lambda folder: draw_profile(profile("half", 10, 1, 72), "half", folder / "report.html"),
    "imported-profile": lambda folder: api.report(str(a100_exports() / "qat"), to=folder / "report.html"),
    "comparison": draw_pair,
    "comparison-of-exports": draw_exports,
    "comparison-of-twelve": draw_twelve,
    "two-engines": draw_two_engines,
    "sweep": lambda folder: draw_sweep(sweep_samples.session(), folder),
    "activations": lambda folder: draw_activations(activation_samples.write_pair(folder)),
    "diff": draw_diff,
    "history": draw_history,
    "short-history": lambda folder: draw_history(folder, 9),
    "graph": lambda folder: api.draw(make_tfm(folder / "tfm.onnx"), folder / "report.html"),
    "reduced": draw_reduced,
}
"""Name -> draws the page into an empty folder, and returns its path."""
