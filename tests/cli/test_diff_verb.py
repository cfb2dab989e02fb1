"""`ndld-flow diff`: text, JSON, Markdown and page of two models, and of the steps of a run."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from playwright.sync_api import Browser, Page, expect

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError, RequestError
from ndld_flow.cli.app import program
from ndld_flow.records.model_diff import PARTS, ModelDiff
from ndld_flow.report.run_page import draw_report
from tests.support.message_files import CheckMessage
from tests.support.models import make_ext
from tests.support.models_run import write_model
from tests.support.report_browser import Watch, rows_of
from tests.support.run_fixtures import HOSTILE_NAMES, quickstart_steps, run_record, write_run

BEFORE = """g (float[2, 3] x) => (float[2, 3] y) <float[3] b = {1, 2, 3}> {
    [add] s = Add(x, b)
    [act] r = Relu(s)
    [out] y = Softmax <axis = 1> (r)
}"""
AFTER = """g (float[2, 3] x) => (float[2, 3] y) <float[3] b = {1, 2.5, 3}> {
    [add] s = Add(x, b)
    [new] i = Identity(s)
    [relu] r = Relu(i)
    [out] y = Softmax <axis = 0> (r)
}"""
RECIPE = """
name: two
model: before.onnx
steps:
  sanitize: {}
  half: {step: convert_fp16}
"""


@pytest.fixture
def pair(in_folder: Path) -> tuple[str, str]:
    """Return two model files in the current directory."""
    write_model(in_folder / "before.onnx", BEFORE)
    write_model(in_folder / "after.onnx", AFTER)
    return "before.onnx", "after.onnx"


def diff(*arguments: str) -> Result:
    """Run the verb; what it raises is the result's exception."""
    return CliRunner().invoke(program, ["diff", *arguments], standalone_mode=False)


def said(*arguments: str) -> str:
    result = diff(*arguments)
    assert result.exception is None, result.exception
    return result.output


def test_text_lists_the_changes_for_a_reviewer(pair: tuple[str, str]) -> None:
    assert said(*pair) == (
        "A  before.onnx\n"
        "B  after.onnx\n"
        "\n"
        "nodes: 1 node added, 1 renamed, 1 with other attributes, 1 rewired as a consequence\n"
        "+ Identity new  (s) -> (i)\n"
        "~ Softmax out  axis: 1 -> 0\n"
        "~ Relu act -> relu  input 0: s -> i (as a consequence)\n"
        "\n"
        "weights: 1 weight changed\n"
        "~ b float32 3  1 of 3 values differ, by 0.5 at most  values: [1, 2, 3] -> [1, 2.5, 3]\n"
        "\n"
        "1 node added, 1 renamed, 1 with other attributes; 1 weight changed\n"
    )


def test_equal_models_are_one_line(pair: tuple[str, str]) -> None:
    assert said(pair[0], pair[0]) == "no differences\n"


def test_json_is_the_diff_record(pair: tuple[str, str]) -> None:
    record = ModelDiff.model_validate_json(said(*pair, "--json"))
    assert record == api.diff(*pair)
    assert record.nodes.counts["added"] == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 0), (["--exit-code"], 1), (["--exit-code", "--only", "functions,opsets"], 0), (["--exit-code", "--json"], 1)],
)
def test_exit_codes(pair: tuple[str, str], arguments: list[str], code: int) -> None:
    assert diff(*pair, *arguments).return_value == code
    assert diff(pair[0], pair[0], "--exit-code").return_value == 0


def test_sections_and_values_can_be_left_out(pair: tuple[str, str]) -> None:
    only = json.loads(said(*pair, "--only", "weights", "--json"))
    assert only["weights"]["counts"] == {"changed": 1, "values": 1}
    assert only["nodes"]["counts"] == {}
    assert "weights were not compared" in said(*pair, "--no-weights")
    assert "weight changed" not in said(*pair, "--no-weights")
    assert set(only) == {"document", "format_version", *PARTS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["before.onnx", "missing.onnx"], "missing.onnx: "),
        (["before.onnx", "nothing"], "no such run, tag"),
        (["before.onnx", "after.onnx", "--only", "node"], 'did you mean "nodes"?'),
        (["before.onnx", "after.onnx", "--only", ","], "--only: name"),
        (["before.onnx", "after.onnx", "--json", "--markdown"], "give one of them"),
        (["before.onnx", "empty.onnx"], "model file is empty"),
    ],
)
def test_invalid_requests_are_reported(pair: tuple[str, str], arguments: list[str], message: str) -> None:
    Path("empty.onnx").touch()
    error = diff(*arguments).exception
    assert isinstance(error, NdldFlowError)
    assert message in str(error)


def test_long_lists_are_shortened_unless_all_is_requested(in_folder: Path) -> None:
    for name, prefix in (("a.onnx", "a"), ("b.onnx", "b")):
        nodes = "".join(f"[{prefix}{n}] v{n + 1} = Relu(v{n})\n" for n in range(60))
        write_model(in_folder / name, f"g (float[2] v0) => (float[2] v60) {{ {nodes} }}")
    assert "… 55 more" in said("a.onnx", "b.onnx")
    assert said("a.onnx", "b.onnx", "--all").count("~ Relu") == 60


def test_markdown_folds_long_lists_and_escapes_names(in_folder: Path) -> None:
    write_hostile_pair(in_folder)
    text = said("a.onnx", "b.onnx", "--markdown")
    assert text.startswith("### ")
    assert "<script" not in text
    assert "<img" not in text
    assert re.search(r"(?<![\\&#;\w])@\w", text) is None
    assert len(text) < 65_536
    assert text.count("<details>") == text.count("</details>")


def test_the_steps_of_a_run_are_diffed(pair: tuple[str, str], check_message: CheckMessage) -> None:
    Path("two.yaml").write_text(RECIPE, encoding="utf-8")
    api.run("two.yaml")
    assert api.diff("two:source", "before.onnx").is_empty
    assert api.diff("two:sanitize", "two:sanitize").is_empty
    found = api.diff("two:source", "two:half")
    assert found.weights.counts["dtype"] == 1
    assert api.diff("two:source", "two") == found
    with pytest.raises(RequestError) as caught:
        api.diff("two:source", "two:hlaf")
    check_message(caught.value)
    write_model(Path("before.onnx"), AFTER)
    with pytest.raises(RequestError) as caught:
        api.diff("two:source", "two:half")
    check_message(caught.value)


def test_a_run_without_its_store_still_has_its_models(pair: tuple[str, str], check_message: CheckMessage) -> None:
    Path("two.yaml").write_text(RECIPE, encoding="utf-8")
    api.run("two.yaml")
    shutil.rmtree("outputs/store/objects")
    assert not api.diff("before.onnx", "two:half").is_empty
    shutil.rmtree(next(Path("outputs/runs/two").glob("*/half")))
    with pytest.raises(RequestError) as caught:
        api.diff("before.onnx", "two:half")
    check_message(caught.value)


def test_a_folder_with_one_model_is_that_model(in_folder: Path) -> None:
    (in_folder / "kept").mkdir()
    make_ext(in_folder / "kept" / "model.onnx")
    assert api.diff("kept", "kept/model.onnx").is_empty


def write_hostile_pair(folder: Path) -> None:
    """Every hostile name as a node's, a tensor's, a weight's, an attribute's value and a metadata key."""
    for path, kind, suffix in (("a.onnx", "Relu", ""), ("b.onnx", "Sigmoid", "*")):
        nodes, before = [], "x"
        for number, name in enumerate(HOSTILE_NAMES):
            value = f"{name}{number}"
            node = onnx.helper.make_node(kind, [before], [value], name=f"{name}{suffix}")
            node.attribute.append(onnx.helper.make_attribute("said", f"{name}{suffix}".encode()))
            nodes.append(node)
            before = value
        info = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in ("x", before)]
        graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:])
        model = onnx.helper.make_model(graph, ir_version=8)
        for name in HOSTILE_NAMES:
            model.metadata_props.add(key=f"{name}{suffix}", value=name)
        (folder / path).write_bytes(model.SerializeToString())


def test_hostile_names_do_not_reach_the_terminal(in_folder: Path) -> None:
    write_hostile_pair(in_folder)
    text = said("a.onnx", "b.onnx", "--all")
    assert {letter for letter in text if unicodedata.category(letter) == "Cc"} == {"\n"}
    assert "\u202e" not in text


def test_hostile_names_stay_text_on_the_page(in_folder: Path) -> None:
    write_hostile_pair(in_folder)
    said("a.onnx", "b.onnx", "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 3
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.browser
class TestInBrowser:
    """Pages in a real Chromium."""

    @pytest.fixture
    def watch(self) -> Iterator[Watch]:
        watch = Watch()
        yield watch
        watch.check()

    def open(self, browser: Browser, watch: Watch, folder: Path, **options: object) -> Page:
        api.diff("before.onnx", "after.onnx", page=folder / "report.html")
        return watch.open(browser, folder / "report.html", **options)

    @pytest.mark.thorough
    def test_the_page_can_be_searched(
        self, browser: Browser, watch: Watch, in_folder: Path, pair: tuple[str, str]
    ) -> None:
        page = self.open(browser, watch, in_folder)
        rows = page.locator(".grid-row")
        expect(rows).to_have_count(4)
        with page.expect_download() as waiting:
            page.get_by_role("button", name=re.compile("^CSV")).click()
        table = rows_of(Path(waiting.value.path()).read_bytes())
        assert table[0] == ["Change", "Part", "Type", "Name", "What"], "no change is in a body or a function"
        assert ["added", "nodes", "Identity", "new", "(s) -> (i)"] in table
        page.keyboard.press("/")
        page.keyboard.type("softmax")
        expect(rows).to_have_count(1)
        rows.first.click()
        expect(page.locator(".detail")).to_contain_text("axis")
        page.get_by_label("Filter differences").fill("part:weights")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("1 of 3 values differ, by 0.5 at most")
        page.get_by_label("Filter differences").fill("")
        page.get_by_label("renames and consequences").uncheck()
        expect(rows).to_have_count(3)
        page.context.close()

    def test_without_scripts_the_page_is_a_list(
        self, browser: Browser, watch: Watch, in_folder: Path, pair: tuple[str, str]
    ) -> None:
        page = self.open(browser, watch, in_folder, java_script_enabled=False)
        expect(page.locator(".diff-rows > li")).to_have_count(4)
        expect(page.locator(".diff-rows")).to_have_count(2)
        page.context.close()

    def test_hostile_names_are_only_shown(self, browser: Browser, watch: Watch, in_folder: Path) -> None:
        write_hostile_pair(in_folder)
        api.diff("a.onnx", "b.onnx", page=in_folder / "report.html")
        page = watch.open(browser, in_folder / "report.html")
        for number in range(3):
            page.locator(".grid-row").nth(number).click()
        assert page.locator("main img, main script, main a[href^=javascript]").count() == 0
        page.context.close()

    @pytest.mark.parametrize("rows", [4, 400])
    def test_the_report_of_a_run_shows_what_a_step_changed(
        self, browser: Browser, watch: Watch, in_folder: Path, pair: tuple[str, str], rows: int
    ) -> None:
        if rows > 4:
            write_hostile_pair(in_folder)
        found = api.diff("before.onnx", "after.onnx") if rows == 4 else api.diff("a.onnx", "b.onnx")
        page = watch.open(browser, draw_report(write_run_with(in_folder / "run", found)))
        step = page.locator("#step-2")
        step.locator("summary").first.click()
        expect(step.locator(".diff-sum")).to_have_text(found.one_line.replace("->", "→"))
        step.locator("details.diff > summary").click()
        if rows == 4:
            expect(step.locator(".diff-rows > li")).to_have_count(4)
        else:
            step.get_by_label("Filter differences").fill("operator:")
            expect(step.locator(".grid-row").first).to_be_visible()
        page.context.close()


def write_run_with(folder: Path, found: ModelDiff) -> Path:
    """Write the run of the quickstart, in which the step `sanitize` records its changes node by node."""
    sketches = quickstart_steps()
    run = run_record(sketches)
    steps = [
        step
        if step.name != "sanitize" or step.record is None or step.record.change is None
        else step.model_copy(
            update={
                "record": step.record.model_copy(
                    update={"change": step.record.change.model_copy(update={"diff": found})}
                )
            }
        )
        for step in run.steps
    ]
    return write_run(folder, run.model_copy(update={"steps": tuple(steps)}), {})
