"""The instructions of CONTRIBUTING.md, followed literally: each file works in the place that the page names."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import onnx
import pytest

from docs import reference
from ndld_flow import api, records, runtimes, steps, verbs
from ndld_flow.base import user_code
from ndld_flow.base.errors import RecipeError
from ndld_flow.base.settings import describe_settings
from ndld_flow.cli.verbs import list_verbs
from ndld_flow.graph.edit import catalogue, operations
from ndld_flow.graph.lint import check, checks
from ndld_flow.profiles.diagnose import lints
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.recipe import step_types
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import find_documents, read_document
from ndld_flow.records.inspection import Findings
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.report import panels
from ndld_flow.report.panel import find_panels
from ndld_flow.report.render import bundle, environment, report_files
from ndld_flow.report.run_page import draw_report
from ndld_flow.runtimes import registry
from ndld_flow.step import _annotations
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import Onnx
from tests.support import runtime_contract as contract
from tests.support.command_line import ndld_flow
from tests.support.compare_samples import profile_of
from tests.support.models import make_cnn, make_tiny
from tests.support.page_data import data_of
from tests.support.run_fixtures import write_quickstart

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILES = {
    path: text
    for text in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for path in re.findall(r"\A# (\S+)\n", text)
}


def of_folder(folder: str) -> tuple[str, str]:
    """Return the name and the text of the page's file in a folder of the package."""
    [(path, text)] = [(path, text) for path, text in FILES.items() if str(Path(path).parent) == folder]
    return Path(path).name, text


def in_package(package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the page's file of a package into a folder that the package also has; return the module's word."""
    name, text = of_folder(package.__name__.replace(".", "/"))
    (tmp_path / name).write_text(text)
    importlib.invalidate_caches()  # a file created within one tick of the clock would be missed
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    return Path(name).stem


@pytest.fixture(autouse=True)
def leaving_no_modules() -> Iterator[None]:
    """Remove the page's modules again: later tests of this process would take them for those of a user's step."""
    yield
    own = Path(api.__file__).parent
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if name.startswith("ndld_flow.") and file is not None and not Path(file).is_relative_to(own):
            del sys.modules[name]


@pytest.fixture
def forgetting() -> Iterator[None]:
    """Names of built-in steps, operations and panels are remembered: forget them before and after."""
    remembered = (
        step_types._built_in_names,
        catalogue._built_in,
        catalogue.operation_names,
        catalogue.find_operation,
        find_panels,
        environment,
        list_verbs,
    )
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.mark.usefixtures("forgetting")
def test_a_verb_is_one_file(in_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        word = in_package(verbs, tmp_path_factory.mktemp("verbs"), patch)
        make_cnn(in_folder / "model.onnx")
        helped, shown = ndld_flow("--help", cwd=in_folder), ndld_flow(word, "model.onnx", cwd=in_folder)
        printed = ndld_flow(word, "model.onnx", "--json", cwd=in_folder)
        refused = ndld_flow(word, "nowhere.onnx", "--json", cwd=in_folder)
        found, schema = getattr(api, word)("model.onnx"), api.schema(verb=word)
        pages = (reference._verbs(), reference._api(), reference._outputs())
    assert re.search(rf"^  {word} +List the operators of a model\.$", helped.stdout, re.MULTILINE)
    assert "Conv" in found == json.loads(printed.stdout) == shown.stdout.splitlines()
    assert (refused.returncode, json.loads(refused.stdout)["kind"]) == (2, "ModelError")
    for line in (printed.stdout, refused.stdout):
        jsonschema.validate(json.loads(line), schema)
    assert all(f"## {word} {{ #{word} }}" in page for page in pages)


@pytest.mark.usefixtures("forgetting")
def test_a_step_is_one_file(in_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        word = in_package(steps, tmp_path_factory.mktemp("steps"), patch)
        make_cnn(in_folder / "model.onnx")
        recipe: dict[str, Any] = {"name": "r", "model": "model.onnx", "steps": {word: {"producer": "me"}}}
        recipe["gates"] = [f"{word}.name_length == 2"]
        (in_folder / "r.yaml").write_text(json.dumps(recipe))
        done = api.run("r.yaml")
        assert done.passed
        assert onnx.load(Path(done.folder, word, "model.onnx")).producer_name == "me"
        assert word in {found.name for found in api.steps()}


@pytest.mark.usefixtures("forgetting")
def test_an_operation_is_one_file(in_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        word = in_package(operations, tmp_path_factory.mktemp("operations"), patch)
        path = make_cnn(in_folder / "model.onnx")
        model = onnx.load(path)
        model.graph.node[0].doc_string = "a"
        model.graph.node[1].doc_string = "b"
        onnx.save(model, path)
        recipe = {"name": "r", "model": "model.onnx", "steps": {"clean": {"step": "edit", "operations": [word]}}}
        (in_folder / "r.yaml").write_text(json.dumps(recipe))
        done = api.run("r.yaml")
        cleaned = onnx.load(Path(done.folder, "clean", "model.onnx"))
        assert not any(node.doc_string for node in cleaned.graph.node)
        assert word in catalogue.operation_names()


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
@pytest.mark.usefixtures("fewest_rounds")
def test_a_runtime_is_one_file(in_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is found in this process and in measuring processes, which `sitecustomize` prepares."""
    place = tmp_path_factory.mktemp("runtimes")
    (place / "sitecustomize.py").write_text(f"import ndld_flow.runtimes as r; r.__path__.append({str(place)!r})\n")
    # ONNX's reference implementation takes a second for a small CNN.
    make_tiny(in_folder / "model.onnx")
    quick = {"runs": 1, "passes": 4, "duration": 0, "stable": 0, "warmup": 0, "layer_passes": 4}
    with pytest.MonkeyPatch.context() as patch:
        # Files of users that earlier tests have loaded must not make a user's module of what a package has.
        patch.setattr(sys, "meta_path", [item for item in sys.meta_path if item is not user_code._FINDER])
        patch.setattr(
            sys, "path_hooks", [path_hook for path_hook in sys.path_hooks if path_hook is not user_code._open_folder]
        )
        word = in_package(runtimes, place, patch)
        patch.setenv("PYTHONPATH", str(place))
        forget_runtimes()
        recipe = {"name": "r", "model": "model.onnx", "steps": {"speed": {"step": "profile", "backend": word, **quick}}}
        (in_folder / "r.yaml").write_text(json.dumps(recipe))
        first = api.run("r.yaml", ["steps.speed.repeats=2"])
        second = api.run("r.yaml", ["steps.speed.repeats=2"], force=["speed"])
        compared = api.compare([first.folder, second.folder])
        measured_again = api.compare([first.folder, second.folder], measure=lambda _: None)
        settings = api.schema()["$defs"]["step_profile"]["properties"]
    forget_runtimes()
    for comparison in (compared.comparison, measured_again.comparison):
        assert comparison.verdict != "incomparable", comparison.why
        assert not any(difference.forbids for matched in comparison.profiles for difference in matched.differences)
    assert not {"engine", "GPU clocks locked"} & set(details_of(compared.comparison))
    folder = first.folder
    assert settings["repeats"]["default"] == 1
    assert word in settings["backend"]["enum"]
    profile = read_document(Profile, Path(folder, "speed", "profile.json"))
    assert (profile.backend, profile.providers, profile.options["repeats"]) == (word, ("Reference",), 2)
    assert [(layer.type, len(layer.samples_ms)) for layer in profile.layers] == [("Graph", 4)]
    assert len(profile.outputs) == 1
    assert "threads" not in profile.options
    assert profile.versions["onnx"]
    with pytest.raises(RecipeError, match="'onnxruntime', 'openvino', 'tensorrt', 'tensorrt_rtx'"):
        api.plan("r.yaml")


def test_the_runtime_of_the_page_keeps_what_every_runtime_owes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = in_package(runtimes, tmp_path, monkeypatch)
    runtime = importlib.import_module(f"{runtimes.__name__}.{word}").RUNTIME
    artifact = Onnx(contract.write_model(tmp_path), "source", "digest")
    request = runtime.settings().model_validate({"backend": word}).request(artifact, lambda _: artifact)
    contract.check_description(request, artifact.path)
    contract.check_outputs(request, artifact.path)
    contract.check_refusals(request, artifact.path, tmp_path)
    contract.check_request(runtime, request)
    contract.check_layers(request, artifact.path, tmp_path)
    contract.check_inside(request, artifact.path, tmp_path)


def details_of(comparison: Comparison) -> list[str]:
    return [difference.detail for matched in comparison.profiles for difference in matched.differences]


def forget_runtimes() -> None:
    """Let the step `profile` find the runtimes that are there now."""
    describe_settings.cache_clear()
    _annotations.cache_clear()
    registry._built_in_names.cache_clear()
    ProfileModel.model_rebuild(force=True)


def test_a_lint_on_layers_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = in_package(lints, tmp_path, monkeypatch)
    found = {lint.__name__: lint for lint in lints._find_lints()}
    assert set(found) == {lint.__name__ for lint in lints.LINTS} | {word}
    quick, copied = (profile_of([[1.0]], [layer("CopyNode", copy_ms), layer("Conv", 1.0)]) for copy_ms in (0.001, 0.5))
    assert list(found[word](Subject(quick))) == []
    [insight] = found[word](Subject(copied))
    assert insight.layers == (0,)
    importlib.import_module(f"{lints.__name__}.{word}")


def layer(kind: str, ms: float) -> Layer:
    return Layer(index=0, name=kind, type=kind, samples_ms=(ms,))


_LINT_WITH_ONE_MORE = """
import sys
from pathlib import Path
from ndld_flow.graph.lint import checks
checks.__path__.append(sys.argv[1])
from ndld_flow.graph.lint.check import lint_file
from ndld_flow.graph.lint.settings import LintSettings
from ndld_flow.steps.lint import Lint
assert sys.argv[2] in str(Lint.model_json_schema())
print(lint_file(Path(sys.argv[3]), LintSettings(checks=(sys.argv[2],)), {}, lambda *_: None).to_json())
"""


def test_a_check_of_models_is_one_file(tmp_path: Path) -> None:
    name, text = of_folder(checks.__name__.replace(".", "/"))
    (tmp_path / name).write_text(text)
    path = make_cnn(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.node[0].name = "n" * 201
    onnx.save(model, path)
    word = Path(name).stem
    # Names of checks are types, which are built when the settings are imported.
    command = [sys.executable, "-c", _LINT_WITH_ONE_MORE, str(tmp_path), word, str(path)]
    findings = Findings.model_validate_json(subprocess.run(command, check=True, capture_output=True).stdout)
    assert findings.checks_run == (word,)
    [finding] = findings.findings
    assert (finding.severity, finding.check, finding.node) == ("info", word, "n" * 201)
    assert set(findings.checks_skipped) == {item.name for item in check.all_checks()}


_SEARCH_WITH_ONE_MORE = """
import sys
from ndld_flow.sweep_search import methods
methods.__path__.append(sys.argv[1])
from ndld_flow.recipe.sweep_section import SweepSection
from ndld_flow.sweep_search.search import SearchOptions
from ndld_flow.sweep_search.searches import make_search
from ndld_flow.sweep_search.space import Choices, Space
help = SweepSection.model_json_schema()["properties"]["method"]
assert sys.argv[2] in help["enum"] and f"`{sys.argv[2]}`: all combinations, in random order." in help["description"]
section = SweepSection(method=sys.argv[2])
print(make_search(Space((Choices("a", tuple(range(20))),)), SearchOptions(section.method, points=15)).ask(20))
"""


def test_a_search_of_sweeps_is_one_file(tmp_path: Path) -> None:
    name, text = of_folder("ndld_flow/sweep_search/methods")
    (tmp_path / name).write_text(text)
    # Names of methods are a type, which is built when the settings are imported.
    command = [sys.executable, "-c", _SEARCH_WITH_ONE_MORE, str(tmp_path), Path(name).stem]
    asked = [
        point["a"] for point in literal_eval(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ]
    assert len(asked) == len(set(asked)) == 15
    assert asked != sorted(asked)


_STEP_WITH_DOCUMENT = """
from pathlib import Path
from ndld_flow.plugin import Context, Onnx, Result, Step
from ndld_flow.records.weight_names import WeightNames

class NameWeights(Step[Onnx, Onnx]):
    '''Name the weights.'''

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        WeightNames(names=("first weight", "w")).write(out)
        return Result("named")
"""
_PANEL_WITH_DOCUMENT = """
from ndld_flow.records.weight_names import WeightNames
from ndld_flow.report.panel import Panel
from ndld_flow.report.tables import Column, Table

def collect(documents):
    rows = tuple((step, name) for step, found in documents.of(WeightNames).items() for name in found.names)
    return Table((Column("Step", "name"), Column("Weight", "name")), rows)

PANEL = Panel("Weights", collect, after="steps")
"""


@pytest.mark.usefixtures("forgetting")
def test_a_document_is_one_file(in_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step writes it; it is verified, read, shown and described, and refused if it is of another version."""
    (tmp_path / "records").mkdir()
    word = in_package(records, tmp_path / "records", monkeypatch)
    (tmp_path / "panels").mkdir()
    (tmp_path / "panels/weights.py").write_text(_PANEL_WITH_DOCUMENT)
    monkeypatch.setattr(panels, "__path__", [*panels.__path__, str(tmp_path / "panels")])
    make_cnn(in_folder / "model.onnx")
    (in_folder / "name_weights.py").write_text(_STEP_WITH_DOCUMENT)
    steps_of = {"steps_from": ["name_weights.py"], "steps": {"named": {"step": "name_weights"}}}
    recipe = {"name": "r", "model": "model.onnx", **steps_of}
    (in_folder / "r.yaml").write_text(json.dumps(recipe))
    folder = Path(api.run("r.yaml", trust=True).folder)
    [kind] = [kind for kind in find_documents() if kind.__module__.endswith(word)]
    assert read_run(folder).of(kind)["named"].model_dump()["names"] == ("first weight", "w")
    assert api.verify().all_well
    page = (folder / "report.html").read_text("utf-8")
    assert "<bdi>first weight</bdi>" in page
    assert f'href="./named/{kind.file_name}"' in page
    assert f"[`{kind.kind_name()}`]" in reference._records()
    path = folder / "named" / kind.file_name
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    page = draw_report(folder).read_text("utf-8")
    assert "first weight" not in page
    assert "its format is 2," in page
    [sentence] = read_run(folder).unreadable
    assert f"named/{kind.file_name}: " in sentence


@pytest.mark.usefixtures("forgetting")
def test_a_panel_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_quickstart(tmp_path / "run")
    before = draw_report(folder).read_text("utf-8")
    find_panels.cache_clear()
    (tmp_path / "panels").mkdir()
    word = in_package(panels, tmp_path / "panels", monkeypatch)
    page = draw_report(folder).read_text("utf-8")
    assert f'id="{word}"' not in before
    sections = re.findall(r'<section id="(\w+)"', page)
    assert sections.index(word) == sections.index("steps") + 1
    table = page[page.index(f'<section id="{word}"') :].partition("</section>")[0]
    assert "<bdi>lint</bdi></th>" in table
    assert table.index("speed") < table.index("lint")
    assert f'<a href="#{word}">Durations</a>' in page


_PANEL_WITH_DATA = """
from dataclasses import dataclass
from ndld_flow.report.panel import Panel

@dataclass(frozen=True)
class Slowest:
    name: str
    seconds: float | None

def collect(documents):
    return tuple(Slowest(step.name, step.wall_s) for step in documents.run.steps)

def data(view: tuple[Slowest, ...]) -> list[Slowest]:
    return list(view[:1])

PANEL = Panel("Slowest", collect, after="steps", data=data)
"""


@pytest.mark.usefixtures("forgetting")
def test_a_panel_has_its_template_and_the_data_of_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slowest.py").write_text(_PANEL_WITH_DATA)
    rows = "{% for row in panel.view %}<i>{{ row.name }}</i>{% endfor %}"
    (tmp_path / "slowest.html.j2").write_text(f'<section id="slowest">{rows}</section>')
    monkeypatch.setattr(panels, "__path__", [*panels.__path__, str(tmp_path)])
    find_panels.cache_clear()
    environment.cache_clear()
    page = draw_report(write_quickstart(tmp_path / "run")).read_text("utf-8")
    environment.cache_clear()
    assert "<i>sanitize</i>" in page.partition('<section id="slowest">')[2]
    [row] = data_of(page)["panels"]["slowest"]
    assert row["name"] and row["seconds"] >= 0


def test_the_script_of_a_panel_is_next_to_it(tmp_path: Path) -> None:
    copy = tmp_path / "report"
    shutil.copytree(str(report_files()), copy)
    (copy / "panels/durations.js").write_text(
        'import { make } from "../static/elements.js";\nexport function show() { make("b"); }\n'
    )
    started = bundle("static/report/page.js", copy, "panels").splitlines()[-1]
    assert 'modules["panels/durations.js"]' in started
    assert 'modules["panels/layers.js"]' in started


def test_a_panel_after_an_unknown_panel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgetting: None
) -> None:
    text = (
        'from ndld_flow.report.panel import Panel\n\nPANEL = Panel("Lost", lambda documents: None, after="nowhere")\n'
    )
    (tmp_path / "lost.py").write_text(text)
    monkeypatch.setattr(panels, "__path__", [*panels.__path__, str(tmp_path)])
    find_panels.cache_clear()
    with pytest.raises(ValueError, match="follow no panel"):
        find_panels()


@pytest.mark.parametrize("path", FILES)
def test_the_files_of_the_page_pass_the_linter(path: str) -> None:
    for command in (["check"], ["format", "--check"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--no-cache",
            "--quiet",
            "--stdin-filename",
            str(ROOT / path),
            "-",
        ]
        done = subprocess.run(
            ruff, check=False, input=FILES[path].partition("\n")[2], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def test_the_files_of_the_page_import_what_their_rooms_may() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [forbidden] = [contract for contract in contracts if "numpy" in contract.get("forbidden_modules", ())]
    for path, text in FILES.items():
        if ".".join(path.split("/")[:2]) in forbidden["source_modules"]:
            imported = set(re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE))
            assert not imported & {*forbidden["forbidden_modules"]}, path


def test_every_path_on_the_page_exists() -> None:
    named = set(re.findall(r"`((?:ndld_flow|tests|pipelines)/[\w/.*]*)`", PAGE))
    rooms = {
        name
        for row in re.findall(r"^\| (`[\w/.`, ]+`) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`([\w/]+[/.]\w*)`", row)
    }
    assert len(named) > 10 and len(rooms) > 10
    missing = [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    files = set(re.findall(r"`(?!ndld_flow|tests|docs)([\w]+/[\w/.]+\.(?:py|j2))`", PAGE))
    missing += [name for name in rooms | files if not (ROOT / "ndld_flow" / name).exists()]
    assert not missing


def test_all_rooms_are_listed() -> None:
    rooms = {path.name for path in (ROOT / "ndld_flow").iterdir() if (path / "__init__.py").exists()}
    listed = set(re.findall(r"`(\w+)/`", PAGE))
    assert rooms - listed == set()


def test_commands_on_the_page_name_existing_targets() -> None:
    justfile = (ROOT / "justfile").read_text()
    for recipe in re.findall(r"`just (\w+)", PAGE):
        assert re.search(rf"^{recipe}\b.*:$", justfile, re.MULTILINE), recipe


def test_each_path_from_yaml_to_html_has_at_most_twelve_files() -> None:
    paths = re.findall(r"^- \*\*an? \w+\*\*: ((?:`[\w/.]+`[,\s]*)+)", PAGE, re.MULTILINE)
    assert len(paths) == 3
    assert all(len(re.findall("`[^`]+`", path)) <= 12 for path in paths)
