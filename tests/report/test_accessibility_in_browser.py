"""Every kind of page in Chromium with axe-core: nothing may be found, in light and in dark colours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from ndld_flow import api
from ndld_flow.report.activations.page import draw_activations
from ndld_flow.report.comparison.page import draw_comparison
from ndld_flow.report.profile_page import draw_profile
from ndld_flow.report.run_page import draw_report
from ndld_flow.report.sweep.page import draw_sweep
from tests.support import activation_samples, comparison_fixtures, sweep_samples
from tests.support.a100_exports import a100_exports
from tests.support.engine_samples import build, rtx_build, write_engine_run
from tests.support.metric_runs import changed, courses, write_runs
from tests.support.models import make_cnn, make_tfm
from tests.support.optimization_samples import write_optimized
from tests.support.precision_samples import RECIPE, deep_accuracy, failed_search, search_documents, search_steps
from tests.support.report_browser import wait_until_ready
from tests.support.run_fixtures import profile, run_record, write_failed, write_quickstart, write_run
from tests.support.simulated_series import simulate

pytestmark = [pytest.mark.browser, pytest.mark.thorough]

SCHEMES: dict[Literal["light", "dark"], str] = {
    "light": "{}",
    "dark": "{runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}}",
}
"""Scheme -> axe-core's options: a page differs in its colours alone."""
AXE = Path(__file__).parents[1] / "javascript" / "node_modules" / "axe-core" / "axe.min.js"


def draw_precision(folder: Path) -> Path:
    documents = search_documents(failed_search()) | {"agree/accuracy.json": deep_accuracy()}
    return draw_report(write_run(folder, run_record(search_steps(passed=False), recipe=RECIPE), documents))


def draw_pair(folder: Path) -> Path:
    pair = comparison_fixtures.pair()
    return draw_comparison(pair.comparison, pair.profiles, folder / "report.html")


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


def draw_regression(folder: Path) -> Path:
    values = [value * (1.1 if index >= 48 else 1.0) for index, value in enumerate(simulate("normal 1 %", 60, 3))]
    write_runs(folder, changed(courses(values), 48, libraries={"onnxruntime": "onnxruntime 1.32.0"}))
    api.history("nightly", outputs=folder, page=folder / "report.html")
    return folder / "report.html"


KINDS: dict[str, Callable[[Path], Path]] = {
    "run": lambda folder: draw_report(write_quickstart(folder)),
    "failed run": lambda folder: draw_report(write_failed(folder)),
    "optimization": lambda folder: draw_report(write_optimized(folder)),
    "precision": draw_precision,
    "engines": lambda folder: draw_report(write_engine_run(folder, {"engine": build(), "rtx": rtx_build()})),
    "profile": lambda folder: draw_profile(profile("half", 10, 1, 72), "half", folder / "report.html"),
    "imported profile": lambda folder: api.report(str(a100_exports() / "fp16"), to=folder / "report.html"),
    "comparison": draw_pair,
    "comparison of twelve": draw_twelve,
    "two engines": draw_two_engines,
    "sweep": lambda folder: draw_sweep(sweep_samples.session(), folder),
    "activations": lambda folder: draw_activations(activation_samples.write_pair(folder)),
    "diff": draw_diff,
    "history": draw_regression,
    "graph": lambda folder: api.draw(make_cnn(folder / "m.onnx"), folder / "report.html"),
}


def findings(browser: Browser, path: Path) -> dict[str, str]:
    """Return what axe-core finds in either scheme with all sections open: rule and scheme -> the first element."""
    if not AXE.is_file():
        pytest.skip("axe-core is missing: `npm ci` in tests/javascript installs it")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(path.as_uri())
    wait_until_ready(page)
    page.evaluate("""() => {
        for (const closed of document.querySelectorAll('.fold[aria-expanded="false"]')) closed.click();
        for (const details of document.querySelectorAll("details")) details.open = true;
    }""")
    page.evaluate(AXE.read_text("utf-8"))
    found: dict[str, str] = {}
    for scheme, options in SCHEMES.items():
        page.emulate_media(color_scheme=scheme)
        for violation in page.evaluate(f"axe.run({options}).then((found) => found.violations)"):
            found[f"{violation['id']}, {scheme}"] = violation["nodes"][0]["html"][:200]
    page.close()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(kind: str, browser: Browser, tmp_path: Path) -> None:
    assert findings(browser, KINDS[kind](tmp_path)) == {}


def test_axe_finds_text_that_is_too_pale(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(
        "<html lang=en data-ready><title>t</title><main><h1>t</h1><p style='color: #bbb; background: #fff'>pale</p>"
    )
    assert list(findings(browser, page)) == ["color-contrast, light", "color-contrast, dark"]
