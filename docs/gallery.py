"""Take pictures of every kind of page: at four widths, light, dark and on paper: `python docs/gallery.py FOLDER`.

Whoever changes a page runs this and looks at the pictures. It also prints what each page requests, its errors, what
axe-core finds (`npm ci` in tests/javascript installs it), and text that is wider than the window. The runs stay in
FOLDER, so that a second call only draws again. It needs `[dev]`, Chromium, and a few minutes the first time.
"""

from __future__ import annotations

import argparse
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (390, 768, 1024, 1440)
AXE_WIDTHS = (390, 1440)
_PATIENCE_MS = 180_000.0
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
TESTS = Path(__file__).parents[1] / "tests"
AXE = TESTS / "javascript/node_modules/axe-core/axe.min.js"
EXPORTS = TESTS / "golden/trtexec-resnet-a100.tar.xz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="pages whose name contains this")
    parser.add_argument("--whole", action="store_true", help="the whole page, not only its first screen")
    options = parser.parse_args()
    pages = dict(make_pages(options.folder))
    chosen = {name: page for name, page in pages.items() if options.only in name}
    complaints = take(chosen, options.folder, options.whole)
    for complaint in complaints:
        print(complaint)
    print(
        f"{len(chosen) * len(WIDTHS) * (len(SCHEMES) + 1)} pictures in {options.folder}, {len(complaints)} complaints"
    )


def make_pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run recipes of `pipelines/`, and yield the name and the path of each page."""
    outputs = folder / "outputs"
    run = finish("pipelines/fp16_for_gpu.yaml", ("+steps.decide={step: compare_profiles, base: base}",), outputs)
    yield "run", run / "report.html"
    yield "comparison", run / "decide" / "comparison.html"
    model = run / "sanitize" / "model.onnx"
    api.diff(f"{run.name}:source", f"{run.name}:sanitize", outputs=outputs, page=folder / "diff.html")
    yield "diff", folder / "diff.html"
    yield "graph", api.draw(model, folder / "graph.html")
    yield "profile", api.report(str(run / "base" / "profile.json"), to=folder / "profile.html")
    yield "sweep", finish("pipelines/sweep_cpu.yaml", ("steps.speed.passes=3",), outputs) / "report.html"
    inspected = finish("pipelines/inspect_activations.yaml", (), outputs)
    yield "activations", inspected / "look" / "activations.html"
    for name in ("render_images", "export_cpp"):
        yield name, finish(f"pipelines/{name}.yaml", (), outputs) / "report.html"
    failed = finish("pipelines/fp16_for_gpu.yaml", ("steps.agree.tolerance={slice_rms: 1e-9}", "gates=[]"), outputs)
    yield "failed", failed / "report.html"
    yield "reduced", reduced_page(folder, outputs)
    yield from engine_pages(folder, outputs)
    yield from imported_pages(folder, outputs)
    yield from long_pages(folder, outputs)


def reduced_page(folder: Path, outputs: Path) -> Path:
    """Reduce the model of the recipe whose search is left out, which FP16 breaks, and return its page."""
    overrides = ("~steps.search", "~steps.half.found_by", "~steps.base", "~steps.speed", "gates=[]")
    target = folder / "reduced.zip"
    return Path(api.reduce("pipelines/fp16_for_gpu.yaml", overrides, to=target, outputs=outputs).page)


def engine_pages(folder: Path, outputs: Path) -> Iterator[tuple[str, Path]]:
    """Build engines without a GPU, and yield their report and the page of their differences."""
    engine = finish("pipelines/ppocr_det_rtx.yaml", (), outputs)
    yield "engines", engine / "report.html"
    overrides = ("steps.precise.op_types={BatchNormalization: fp32, Conv: fp32}", "gates=[]")
    other = finish("pipelines/ppocr_det_rtx.yaml", overrides, outputs)
    api.diff_engines(f"{engine.name}:engine", f"{other.name}:engine", outputs=outputs, page=folder / "two_engines.html")
    yield "two_engines", folder / "two_engines.html"


def imported_pages(folder: Path, outputs: Path) -> Iterator[tuple[str, Path]]:
    """Yield the pages of three engines that trtexec measured on an A100."""
    with tarfile.open(EXPORTS) as archive:
        archive.extractall(folder, filter="data")
    exports = [folder / "trtexec-resnet-a100" / name for name in ("fp32", "fp16", "qat")]
    yield "imported", api.report(str(exports[1]), to=folder / "imported.html")
    rules = api.Rules(allow=frozenset({"unknown"}))
    compared = api.compare(list(map(str, exports)), rules=rules, outputs=outputs)
    yield "imported_comparison", compared.report


def long_pages(folder: Path, outputs: Path) -> Iterator[tuple[str, Path]]:
    """Yield the page of all runs of a recipe: its history."""
    api.history("fp16_for_gpu", outputs=outputs, every=True, page=folder / "history.html")
    yield "history", folder / "history.html"


def finish(recipe: str, overrides: Sequence[str], outputs: Path) -> Path:
    """Run a recipe, whatever its verdict, and return the folder of its run or sweep."""
    try:
        return Path(api.run(recipe, overrides, outputs=outputs).folder)
    except NdldFlowError as error:
        raise SystemExit(f"{recipe}: {error}") from error


def take(pages: dict[str, Path], folder: Path, whole: bool) -> list[str]:
    """Write `PAGE-WIDTH-SCHEME.png` and `PAGE-WIDTH-print.png` for each page, and return the complaints about them."""
    from playwright.sync_api import sync_playwright

    complaints: list[str] = []
    with sync_playwright() as playwright:
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, path in pages.items():
            for width in WIDTHS:
                found = dict.fromkeys(pictures(browser, path, folder / f"{name}-{width}", whole))
                complaints += [f"{name}-{width}: {complaint}" for complaint in found]
        browser.close()
    return complaints


def pictures(browser: Browser, path: Path, to: Path, whole: bool) -> Iterator[str]:
    """Write the pictures of one width, and yield the complaints about the page."""
    width = int(to.name.rpartition("-")[2])
    seen: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("pageerror", lambda error: seen.append(f"error {error}"))
    page.on("request", lambda request: seen.append(f"request {request.url}") if "file:" not in request.url else None)
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(400)
        page.screenshot(path=f"{to}-{scheme}.png", full_page=whole, timeout=_PATIENCE_MS)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            yield "is wider than the window"
        if width in AXE_WIDTHS:
            yield from (f"{scheme} {violation}" for violation in violations(page))
    page.emulate_media(media="print", color_scheme="light")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_timeout(400)
    page.screenshot(path=f"{to}-print.png", full_page=True, timeout=_PATIENCE_MS)
    page.close()
    yield from seen


def violations(page: Page) -> Iterator[str]:
    """Yield what axe-core finds, with the first element of each finding."""
    if not AXE.is_file():
        return
    page.evaluate(AXE.read_text("utf-8"))
    for violation in page.evaluate("axe.run().then((found) => found.violations)"):
        yield f"axe {violation['id']}: {violation['nodes'][0]['html'][:150]} ({len(violation['nodes'])})"


if __name__ == "__main__":
    main()
