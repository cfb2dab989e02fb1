"""Hostile names have no effect on a reader's browser, terminal, spreadsheet or CI system."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from playwright.sync_api import Browser
from pydantic import BaseModel

from ndld_flow import api
from ndld_flow.base.text import escaped_json
from ndld_flow.cli.guarded_output import for_coloured_file, for_file, for_terminal
from ndld_flow.records.run_record import RunRecord
from ndld_flow.report.activations.page import draw_activations
from ndld_flow.report.exports.spreadsheets import csv_text
from ndld_flow.report.run_page import draw_report
from ndld_flow.report.sweep.page import draw_sweep
from tests.reliability.packed_bytes import spoken
from tests.support import activation_samples, sweep_samples
from tests.support.command_line import ndld_flow
from tests.support.report_browser import wait_until_ready
from tests.support.run_fixtures import write_hostile
from tests.support.tally import Tally

Attack = Callable[[str], Tally]

CANARY = (
    "</script></style></title><script>window.__pwned=1</script><img src=http://127.0.0.1:9/i onerror=window.__pwned=2>"
    "\"'><svg/onload=window.__pwned=3><foreignObject><iframe srcdoc='<script>parent.__pwned=4</script>'></iframe>"
    "<a href=javascript:window.__pwned=5>x</a><style>@import 'http://127.0.0.1:9/c';*{background:url(//127.0.0.1:9/b)}"
    "</style><meta http-equiv=refresh content='0;url=http://127.0.0.1:9/r'><base href=http://127.0.0.1:9/>"
)
ESCAPES = "a\x1b]52;c;ZXZpbA==\x07b\x1b]8;;http://evil\x1b\\c\x1b[2Jd\x9b31me\u202ef\rg\bh\x00i\u2028j\u200f"
COMMANDS = "\n::error::evil\n  ::set-output name=a::b\n##[error]evil ##vso[task.setvariable]x ##teamcity[a]"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def poisoned(value: Any, keep: frozenset[str]) -> Any:
    """A record with the canary in each text that may be any text."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        free = {name for name, info in fields.items() if "str" in str(info.annotation) and name not in keep}
        return value.model_copy(
            update={
                name: poisoned(inner, keep) if name in free or not isinstance(inner, str) else inner
                for name, inner in ((name, getattr(value, name)) for name in fields if name not in keep)
            }
        )
    if isinstance(value, dict):
        return {key: poisoned(inner, keep) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(poisoned(inner, keep) for inner in value)
    return f"{value}{CANARY}" if isinstance(value, str) else value


KEPT = frozenset("document format_version id name step key digest outcome kind path from passed steps artifact".split())  # noqa: SIM905
"""What names files and is one of a few words: a record with something else there is refused."""


def run_report(folder: Path) -> Path:
    write_hostile(folder)
    run = RunRecord.model_validate_json((folder / "run.json").read_text())
    (folder / "run.json").write_text(poisoned(run, KEPT).to_json())
    return draw_report(folder)


def sweep_page(folder: Path) -> Path:
    folder.mkdir()
    return draw_sweep(
        poisoned(sweep_samples.hostile(), KEPT | {"points", "axes", "objectives", "stopped_because"}), folder
    )


def hostile_model(path: Path, text: str = CANARY) -> Path:
    """A model that has the text wherever it may have any."""
    node = helper.make_node("Odd" + text, ["x" + text], ["y" + text], text, domain=text, doc_string=text, attr=text)
    x, y = (helper.make_tensor_value_info(name + text, TensorProto.FLOAT, [1, f"n{text}"]) for name in "xy")
    graph = helper.make_graph([node], text, [x], [y], doc_string=text)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(text, 1)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, producer_name=text, doc_string=text)
    helper.set_model_props(model, {text: text})
    onnx.save(model, path)
    return path


def model_page(folder: Path) -> Path:
    folder.mkdir()
    return api.draw(hostile_model(folder / "m.onnx"), folder / "report.html")


def diff_page(folder: Path) -> Path:
    folder.mkdir()
    before, after = hostile_model(folder / "a.onnx"), hostile_model(folder / "b.onnx", CANARY * 2)
    api.diff(before, after, page=folder / "report.html", outputs=folder / "outputs")
    return folder / "report.html"


def engines_page(folder: Path) -> Path:
    folder.mkdir()
    for name in "ab":
        write_layers(folder / f"{name}.trt.json", name + CANARY)
    api.diff_engines(folder / "a.trt.json", folder / "b.trt.json", page=folder / "report.html")
    return folder / "report.html"


def write_layers(path: Path, text: str) -> None:
    """Write an export of the layers of an engine that has the text wherever it may have any."""
    tensor = {"Name": text, "Dimensions": [1, 3], "Format/Datatype": text}
    layer = {"Name": text, "LayerType": text, "TacticName": text, "Inputs": [tensor], "Outputs": [tensor]}
    path.write_text(json.dumps({"Layers": [layer, {**layer, "Name": f"{text}2"}], "Bindings": [text]}))


def picture(folder: Path) -> Path:
    folder.mkdir()
    return api.draw(hostile_model(folder / "m.onnx"), folder / "m.svg")


PAGES = {
    "run": run_report,
    "sweep": sweep_page,
    "activations": lambda folder: draw_activations(activation_samples.write_hostile(folder)),
    "model": model_page,
    "diff": diff_page,
    "engines": engines_page,
    "svg": picture,
}


@pytest.mark.browser
@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("run", "sweep", "model") else pytest.param(kind, marks=pytest.mark.slow) for kind in PAGES],
)
def test_hostile_text_in_a_page_does_nothing(kind: str, browser: Browser, tmp_path: Path, tally: Attack) -> None:
    """No injected script runs, nothing is requested, and no injected element exists."""
    count = tally("hostile text in pages")
    page_file = PAGES[kind](tmp_path / kind)
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    if page_file.suffix == ".html":
        wait_until_ready(page)
    assert page.evaluate("window.__pwned") is None
    assert [url for url in asked if not url.startswith((page_file.as_uri(), "data:", "blob:"))] == []
    assert page.locator("foreignObject, iframe, object, embed, base, meta[http-equiv=refresh]").count() == 0
    assert page.locator("[onerror], [onload], a[href^='javascript:' i], img[src^=http]").count() == 0
    page.context.close()
    result = b"".join(spoken(page_file.read_bytes()))
    assert b"__pwned" in result or b"onerror=" in result, "nothing was attacked"
    count.survived += 1


def test_output_streams_contain_no_control_sequences(tally: Attack) -> None:
    count = tally("hostile text in tables and terminals")
    for change, colours in ((for_file, False), (for_terminal, True), (for_coloured_file, True)):
        shown = change(f"\x1b[31m{ESCAPES}\x1b[0m{COMMANDS}\n")
        assert "\x1b]" not in shown
        left = re.sub(r"\x1b\[[0-9;]*[mJ]|\r", "", shown) if colours else shown
        assert not FORBIDDEN.search(left), change
        if change is not for_terminal:
            assert not re.search(r"^\s*::|##\w*\[", shown, re.MULTILINE)
        count.survived += 1


VERBS = (
    ["inspect", "m.onnx"],
    ["inspect", "m.onnx", "--json"],
    ["diff", "m.onnx", "other.onnx"],
    ["diff", "m.onnx", "other.onnx", "--json"],
    ["diff", "a.trt.json", "b.trt.json"],
    ["draw", "m.onnx"],
    ["init", "m.onnx"],
    ["plan", "recipe.yaml"],
    ["run", "recipe.yaml"],
    ["run", "recipe.yaml", "--json"],
    ["run", "recipe.yaml", f"steps.lint.{ESCAPES}=1"],
    ["run", f"no{ESCAPES}{COMMANDS}.yaml"],
    ["ops", "--model", "m.onnx"],
    ["runs"],
    [f"verb{ESCAPES}{COMMANDS}"],
)


def test_verbs_print_nothing_to_terminals_and_ci(tmp_path: Path, tally: Attack) -> None:
    count = tally("hostile text in tables and terminals")
    hostile_model(tmp_path / "m.onnx", ESCAPES.replace("\x00", "") + COMMANDS)
    hostile_model(tmp_path / "other.onnx", COMMANDS)
    write_layers(tmp_path / "a.trt.json", ESCAPES + COMMANDS)
    write_layers(tmp_path / "b.trt.json", COMMANDS)
    (tmp_path / "recipe.yaml").write_text("model: m.onnx\nsteps: {lint: {polygraphy: never}}\n")
    for arguments in VERBS:
        done = ndld_flow(*[argument.replace("\x00", "") for argument in arguments], cwd=tmp_path)
        result = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2), result
        assert not FORBIDDEN.search(result), (arguments, FORBIDDEN.search(result))
        assert not re.search(r"^\s*::|##\w*\[", result, re.MULTILINE), arguments
        count.survived += 1


def test_escaped_json_has_the_same_meaning() -> None:
    value = {"name": ESCAPES + COMMANDS}
    text = escaped_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert not FORBIDDEN.search(text)


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", " =", "\uff1d"])
def test_no_cell_is_a_formula(begin: str, tally: Attack) -> None:
    text = csv_text([(f"{begin}cmd|' /C calc'!A0\n\"x", -1.5, 3)])
    ((name, *numbers),) = csv.reader(io.StringIO(text, newline=""))
    assert name.startswith("'")
    assert numbers == ["-1.5", "3"]
    tally("hostile text in tables and terminals").survived += 1
