"""`site`: what it writes, what it leaves alone, and what a browser shows of it."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, expect

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.site import JOURNAL, MANIFEST
from tests.support.metric_runs import Course, changed, courses, run_id, write_runs
from tests.support.report_browser import wait_until_ready
from tests.support.simulated_series import simulate

HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def write(root: Path) -> Outputs:
    noise = simulate("normal 1 %", 40, 3)
    runs = changed(courses([value * (1.1 if place >= 28 else 1.0) for place, value in enumerate(noise)]), 28, nodes=118)
    outputs = write_runs(root, runs)
    write_runs(root, [*courses([5.0, 5.1]), Course(5.0, failed=True)], recipe="Weekly")
    for folder in outputs.folders():
        (folder / "report.html").write_text(
            '<a href="./speed/model.onnx">model</a> <a href="./speed/comparison.html#a">page</a> <a href="#x">x</a>'
        )
    (outputs.runs / "nightly" / run_id(39) / "speed").mkdir()
    (outputs.runs / "nightly" / run_id(39) / "speed" / "comparison.html").write_text("compared")
    return outputs


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    return write(tmp_path / "outputs")


def site(outputs: Outputs, **options: object) -> api.SiteWritten:
    return api.site(outputs.root.parent / "site", outputs=outputs.root, **options)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


def dead_links(folder: Path) -> list[str]:
    dead = []
    for page in folder.rglob("*.html"):
        links = _Links()
        links.feed(page.read_text())
        for link in links.found:
            path = unquote(link.partition("#")[0])
            if path and not path.startswith("data:") and not (page.parent / path).is_file():
                dead.append(f"{page}: {link}")
    return dead


def test_every_run_recipe_model_and_machine_has_a_place(outputs: Outputs) -> None:
    written = site(outputs, title="Vision")
    root = Path(written.folder)
    assert (written.run_count, written.report_count, written.removed) == (43, 43, 0)
    index = (root / "index.html").read_text()
    assert "2 of 2 recipes need attention" in index
    assert re.search(r"speed\.latency\.median \+\d+(\.\d)? %", index)
    recipe = (root / "recipes/nightly.html").read_text()
    assert "History of nightly" in recipe and f"../runs/nightly/{run_id(39)}/report.html" in recipe
    assert len(list((root / "models").iterdir())) == len(list((root / "machines").iterdir())) == 1
    assert dead_links(root) == []
    report = (root / "runs/nightly" / run_id(39) / "report.html").read_text()
    assert "model.onnx" not in report and "./speed/comparison.html#a" in report
    assert 'ndld_flow_passed{recipe="Weekly",machine="AMD EPYC"} 0' in (root / "metrics.txt").read_text()


def test_a_second_site_writes_what_has_changed(outputs: Outputs) -> None:
    first = site(outputs)
    root = Path(first.folder)
    before = files(root)
    again = site(outputs)
    assert (again.written, again.unchanged, again.removed) == (0, first.written, 0)
    assert files(root) == before
    write_runs(outputs.root, courses([11.0]), first=40)
    assert site(outputs).written == 5, "index, recipe, model, machine, metrics"
    assert site(outputs, reports=0).report_count == 0
    assert not (root / "runs").exists()


def test_runs_that_are_gone_disappear_and_files_of_others_stay(outputs: Outputs) -> None:
    root = Path(site(outputs).folder)
    (root / "notes.txt").write_text("mine")
    (root / "runs/nightly" / run_id(0) / "mine.txt").write_text("mine")
    changed_page = root / "runs/nightly" / run_id(1) / "report.html"
    changed_page.write_text("edited")
    for number in (0, 1, 2):
        shutil.rmtree(outputs.runs / "nightly" / run_id(number))
    shutil.rmtree(outputs.runs / "Weekly")
    written = site(outputs)
    assert written.kept == (f"runs/nightly/{run_id(1)}/report.html",)
    assert changed_page.read_text() == "edited"
    assert sorted(path.name for path in (root / "runs/nightly" / run_id(0)).iterdir()) == ["mine.txt"]
    assert not (root / "runs/nightly" / run_id(2)).exists()
    assert [path.name for path in (root / "recipes").iterdir()] == ["nightly.html"]
    assert (root / "notes.txt").read_text() == "mine"
    assert "Weekly" not in (root / "index.html").read_text()


def test_what_others_have_written_is_not_replaced(outputs: Outputs) -> None:
    root = outputs.root.parent / "site"
    root.mkdir()
    (root / "index.html").write_text("home page")
    with pytest.raises(RequestError, match=r"index\.html exists, and `ndld-flow site` has not written it"):
        site(outputs)
    assert (root / "index.html").read_text() == "home page"
    (root / "index.html").unlink()
    site(outputs)
    (root / "recipes/nightly.html").write_text("edited")
    with pytest.raises(RequestError, match=r"nightly\.html exists"):
        site(outputs)
    (root / "recipes/nightly.html").unlink()
    outside = root.parent / "outside"
    shutil.move(root / "models", outside)
    (root / "models").symlink_to(outside)
    write_runs(outputs.root, courses([11.0]), first=40)
    with pytest.raises(RequestError, match="leads out of the site"):
        site(outputs)


@pytest.mark.thorough
def test_a_site_that_was_copied_goes_on_and_one_that_was_stopped_is_readable(
    outputs: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(site(outputs).folder)
    before = files(root)
    copy = root.with_name("copy")
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    for path in copy.rglob("*.html"):
        os.utime(path, (1, 1))
    assert api.site(copy, outputs=outputs.root).written == 0
    write_runs(outputs.root, courses([11.0]), first=40)
    shutil.rmtree(outputs.runs / "Weekly")

    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ndld_flow.runner.site.draw_index", stop)
        with pytest.raises(KeyboardInterrupt):
            site(outputs)
    assert (root / "index.html").read_bytes() == before["index.html"]
    assert dead_links(root) == []
    assert site(outputs).removed > 0
    assert dead_links(root) == []


def test_a_damaged_list_of_files_replaces_nothing(outputs: Outputs) -> None:
    root = Path(site(outputs).folder)
    (root / MANIFEST).write_text('{"site": 1, "files": {"index.html": 3}}')
    with pytest.raises(RequestError, match="has not written it"):
        site(outputs)


def test_a_site_whose_program_was_killed_is_continued(outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(site(outputs).folder)
    write_runs(outputs.root, courses([11.0]), first=40)
    with monkeypatch.context() as patch:
        patch.setattr("ndld_flow.runner.site._Folder.save", lambda self: None)  # as if it had been killed before
        site(outputs)
    assert (root / JOURNAL).exists()
    write_runs(outputs.root, courses([11.0]), first=41)
    site(outputs)
    assert not (root / JOURNAL).exists()
    assert "45 runs" in (root / "index.html").read_text()


@pytest.mark.parametrize("path", ["../outside.txt", "/outside.txt"])
def test_a_list_of_files_that_leads_out_of_the_site_removes_nothing(outputs: Outputs, path: str) -> None:
    import json

    root = Path(site(outputs).folder)
    outside = root.parent / "outside.txt"
    outside.write_text("mine")
    listed = json.loads((root / MANIFEST).read_text())
    status = outside.stat()
    name = path if path.startswith("..") else str(outside)
    listed["files"][name] = {"digest": "", "size": status.st_size, "mtime_ns": status.st_mtime_ns, "inputs": ""}
    (root / MANIFEST).write_text(json.dumps(listed))
    with pytest.raises(RequestError, match="has not written it"):
        site(outputs)
    assert outside.read_text() == "mine"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    outputs = write_runs(tmp_path / "outputs", courses([10.0]), recipe="a b#c%41")
    path = next(outputs.folders()) / "run.json"
    path.write_text(
        path.read_text()
        .replace('"m.onnx"', f'"{HOSTILE.replace(chr(34), "")}.onnx"')
        .replace("AMD EPYC", "</script><b>")
    )
    root = Path(site(outputs, title=HOSTILE).folder)
    assert dead_links(root) == []
    for page in root.rglob("*.html"):
        assert "<img" not in page.read_text() and "</script><b>" not in page.read_text()


@pytest.mark.thorough
def test_two_names_never_share_a_page(tmp_path: Path) -> None:
    for recipe in ("Nightly", "nightly", "NIGHTLY"):
        outputs = write_runs(tmp_path / "outputs", courses([10.0]), recipe=recipe)
    names = [path.name.lower() for path in (Path(site(outputs).folder) / "recipes").iterdir()]
    assert len(set(names)) == 3


def test_without_outputs_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no outputs folder"):
        api.site(tmp_path / "site", outputs=tmp_path / "outputs")
    assert not (tmp_path / "site").exists()
    (tmp_path / "outputs").mkdir()
    assert "No runs yet" in Path(api.site(tmp_path / "site", outputs=tmp_path / "outputs").index).read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a site below a path of a web server."""
    root = tmp_path_factory.mktemp("served")
    api.site(root / "team" / "site", outputs=write(root / "outputs").root)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/team/site/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.browser
@pytest.mark.parametrize("width", [pytest.param(390, marks=pytest.mark.thorough), 1400])
def test_a_browser_filters_runs_and_opens_their_pages(browser: Browser, served: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, asked, complaints = context.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{served}index.html")
    wait_until_ready(page)
    expect(page.locator("#runs output")).to_have_text("43 rows")
    page.keyboard.press("/")
    page.keyboard.type("outcome=failed")
    expect(page.locator("#runs output")).to_have_text("1 of 43 rows")
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.locator("#recipes").get_by_role("link", name="nightly").click()
    wait_until_ready(page)
    expect(page.locator("#chart svg")).to_be_visible()
    page.get_by_role("link", name="All 40 runs, with a filter").click()
    wait_until_ready(page)
    expect(page.locator("#runs output")).to_have_text("40 of 43 rows")
    page.locator("#runs").get_by_role("link", name=run_id(39)).click()
    expect(page.get_by_role("link", name="page")).to_be_visible()
    assert all(url.startswith((served, "data:")) for url in asked)
    assert complaints == []
    context.close()
