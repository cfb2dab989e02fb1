"""The key of a user's code: every file in its folder and below, and the modules that it imports from elsewhere."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from ndld_flow import api
from ndld_flow.base import user_code
from ndld_flow.base.errors import RequestError
from ndld_flow.execution.execute import Work, execute_steps
from ndld_flow.execution.keys import describe_key
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.recipes import load_recipe
from tests.support.toys import Toy, make_toy, started

STEP = '''
from pathlib import Path
%s
from ndld_flow.plugin import Context, Onnx, Result, Step


class Word(Step[Onnx, Onnx]):
    """Stamp a model with a word of another module."""

    libraries = ("onnx",)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        import onnx
        %s
        model = onnx.load(source.path)
        model.doc_string = str(word())
        onnx.save(model, out / Onnx.main)
        return Result("done")
'''
RECIPE = "name: toy\nmodel: model.onnx\nsteps_from: [word.py]\nsteps: {first: {step: word}}\n"


def make(folder: Path, top: str = "", late: str = "pass", files: Mapping[str, str] | None = None) -> Toy:
    """Return a toy whose step is `word.py`, with `files` next to it."""
    toy = make_toy(folder, RECIPE)
    (folder / "word.py").write_text(STEP % (top, late))
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return toy


def word(toy: Toy) -> tuple[str, list[str]]:
    """Run a toy; return the word that its step stamped, and the names of the steps that were computed."""
    done, events = toy.run()
    return onnx.load(Path(done.folder) / "first" / "model.onnx").doc_string, started(events)


TWO = "def word(): return 2\n"
THREE = "def word(): return 3\n"
WAYS = {
    "absolute": ("from helper import word", "pass", "helper", {}),
    "late": ("", "from helper import word", "helper", {}),
    "in a package": ("from tools.inner import word", "pass", "tools/inner", {"tools/__init__.py": ""}),
    "package and relative": (
        "from tools import word",
        "pass",
        "tools/inner",
        {"tools/__init__.py": "from .inner import word"},
    ),
    "relative of two levels": (
        "from tools.a.b import word",
        "pass",
        "tools/inner",
        {"tools/__init__.py": "", "tools/a/__init__.py": "", "tools/a/b.py": "from ..inner import word"},
    ),
    "transitive and late": (
        "from outer import word",
        "pass",
        "helper",
        {"outer.py": "def word():\n    import helper\n    return helper.word()"},
    ),
    "by its path": (
        "import importlib.util",
        "spec = importlib.util.spec_from_file_location('near', Path(__file__).with_name('helper.py')); "
        "near = importlib.util.module_from_spec(spec); spec.loader.exec_module(near); word = near.word",
        "helper",
        {},
    ),
    "namespace package": ("import spaces.inner", "word = spaces.inner.word", "spaces/inner", {}),
    "import_module": ("import importlib", "word = importlib.import_module('helper').word", "helper", {}),
    "folder added to the path": (
        "import sys; HERE = Path(__file__).parent; sys.path.insert(0, str(HERE / 'lib'))\nfrom inlib import word",
        "pass",
        "lib/inlib",
        {},
    ),
    "os.path": (
        "import os, sys\nsys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib'))",
        "from inlib import word",
        "lib/inlib",
        {},
    ),
}


@pytest.fixture(autouse=True)
def keep_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps change it, in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.representatives("late", "import_module")
@pytest.mark.parametrize("way", WAYS)
def test_a_changed_module_recomputes_with_its_new_contents(in_folder: Path, way: str) -> None:
    """The two contents have one length and are written within one second, which misleads caches of compiled files."""
    top, late, module, files = WAYS[way]
    toy = make(in_folder, top, late, files)
    path = in_folder / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TWO)
    assert word(toy) == ("2", ["first"])
    assert word(toy) == ("2", [])
    path.write_text(THREE)
    assert toy.plan()["first"][0] == "input changed"
    assert module.split("/")[0] in toy.plan()["first"][1]
    assert word(toy) == ("3", ["first"])
    path.write_text(TWO)
    assert word(toy) == ("2", [])


SPELLINGS = {
    "parent": ("", "text = (Path(__file__).parent / 'table.txt').read_text()"),
    "with_name": ("", "text = Path(__file__).with_name('table.txt').read_text()"),
    "resolve": ("", "text = Path(__file__).resolve().parent.joinpath('table.txt').read_text()"),
    "constant": ("HERE = Path(__file__).parent", "text = (HERE / 'table.txt').read_text()"),
    "local": ("", "here = Path(__file__).parent; text = (here / 'table.txt').read_text()"),
    "dirname": ("import os", "text = open(os.path.join(os.path.dirname(__file__), 'table.txt')).read()"),
    "abspath": ("import os", "text = open(os.path.dirname(os.path.abspath(__file__)) + '/table.txt').read()"),
    "f-string": ("", "text = open(f'{Path(__file__).parent}/table.txt').read()"),
    "format": ("", "text = open('{}/table.txt'.format(Path(__file__).parent)).read()"),
    "glob": ("", "text = next(Path(__file__).parent.glob('*.txt')).read_text()"),
    "inspect": (
        "import inspect, sys",
        "text = Path(inspect.getfile(sys.modules[type(self).__module__])).with_name('table.txt').read_text()",
    ),
    "another function": (
        "def near(name): return Path(__file__).parent / name",
        "text = near('table' + '.txt').read_text()",
    ),
    "a helper": ("from helper import text as load", "text = load()"),
}
"""Ways in which a step reads a file next to it."""


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_next_to_a_step_counts_however_it_is_read(in_folder: Path, spelling: str) -> None:
    top, late = SPELLINGS[spelling]
    helper = "from pathlib import Path\ndef text(): return Path(__file__).with_name('table.txt').read_text()\n"
    toy = make(in_folder, top, f"{late}; word = lambda: text", {"steps/helper.py": helper})
    (in_folder / "word.py").rename(in_folder / "steps" / "word.py")
    toy.recipe.write_text(RECIPE.replace("word.py", "steps/word.py"))
    for text in ("one", "two"):
        (in_folder / "steps" / "table.txt").write_text(text)
        assert word(toy) == (text, ["first"])
    assert toy.plan()["first"][0] == "reused"
    (in_folder / "steps" / "table.txt").write_text("one")
    assert word(toy) == ("one", [])


@pytest.mark.parametrize(
    "name", ["other.py", "lists/a.txt", "lists/deeper/b.bin", ".hidden", "shop/store/records/a.csv"]
)
def test_every_file_of_the_folder_and_below_counts(in_folder: Path, name: str) -> None:
    """No program can know which of them the step reads."""
    toy = make(in_folder, "from helper import word", files={"helper.py": TWO, name: "1"})
    assert word(toy) == ("2", ["first"])
    (in_folder / name).write_text("2")
    decision, reason = toy.plan()["first"][:2]
    assert decision == "input changed" and name.split("/", maxsplit=1)[0] in reason
    assert word(toy) == ("2", ["first"])
    assert word(toy) == ("2", [])
    (in_folder / name).unlink()
    assert toy.plan()["first"][0] == "input changed"


@pytest.mark.parametrize(
    "name",
    [".git/HEAD", "outputs/note.txt", "__pycache__/a.pyc", "results/runs/a.json", "venv/lib/a.py", "runs/a.json"],
)
def test_what_programs_write_next_to_a_step_does_not_count(in_folder: Path, name: str) -> None:
    files = {"helper.py": TWO, name: "1", "venv/pyvenv.cfg": "", "results/store/FORMAT": "", "store/FORMAT": ""}
    toy = make(in_folder, "from helper import word", files=files)
    assert word(toy) == ("2", ["first"])
    (in_folder / name).write_text("2")
    (in_folder / name).with_name("another").write_text("3")
    assert word(toy) == ("2", [])


def test_a_linked_folder_counts_although_its_target_does(in_folder: Path) -> None:
    """The link may be made to point to another folder that counts."""
    toy = make(in_folder, "from helper import word", files={"helper.py": TWO, "a1/x": "1", "a2/x": "2", "z/y": "3"})
    (in_folder / "z" / "around").symlink_to("..")  # a loop
    for target in ("a1", "a2"):
        (in_folder / "z" / "now").unlink(missing_ok=True)
        (in_folder / "z" / "now").symlink_to(f"../{target}")
        assert word(toy) == ("2", ["first"])
    assert word(toy) == ("2", [])


def test_a_result_is_not_kept_if_a_file_appears_next_to_the_code_before_it_is_read(
    in_folder: Path, check_message: CheckMessage
) -> None:
    """It may come while the step waits for its device: the key is of a folder without it."""
    late = "Path(__file__).with_name('late.txt').touch(); word = lambda: len([*Path(__file__).parent.glob('*.txt')])"
    with pytest.raises(RequestError) as caught:
        make(in_folder, late=late).run()
    check_message(caught.value)


def test_a_result_that_is_exported_next_to_the_code_is_reused(in_folder: Path) -> None:
    """The second run sees files that the first one has written, which then stay as they are."""
    toy = make(in_folder, late="word = lambda: 1")
    toy.recipe.write_text(f"{RECIPE}export: {{faster.onnx: first}}\n")
    assert [started(toy.run()[1]) for _ in range(3)] == [["first"], ["first"], []]


def test_files_next_to_a_script_count_and_the_script_is_not_imported(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    (in_folder / "tools").mkdir()
    (in_folder / "tools" / "helper.py").write_text(TWO)
    (in_folder / "tools" / "tool.py").write_text(
        "import pathlib, shutil, sys, helper\n"
        "if __name__ != '__main__': pathlib.Path('imported').touch()\n"
        "shutil.copy(*sys.argv[1:])\n"
    )
    step = "{step: run_tool, command: [$Python, '$File{tool.py}', $Model, $Output], files: [tools/tool.py]}"
    toy.recipe.write_text(f"model: model.onnx\nsteps: {{copy: {step}}}\n")
    assert started(toy.run()[1]) == ["copy"]
    assert toy.plan()["copy"][0] == "reused"
    (in_folder / "tools" / "helper.py").write_text(THREE)
    assert toy.plan()["copy"][0] != "reused"
    assert started(toy.run()[1]) == ["copy"]
    assert not (in_folder / "imported").exists()


def test_a_folder_too_large_to_read_is_refused(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make(in_folder, files={"helper.py": TWO})
    with (in_folder / "weights.bin").open("wb") as file:
        file.truncate(user_code.MAX_BYTES + 1)  # a hole: no disk is used
    with pytest.raises(RequestError) as caught:
        toy.plan()
    check_message(caught.value)


def test_modules_of_the_project_elsewhere_count(in_folder: Path) -> None:
    top = "import sys; sys.path.insert(0, str(Path(__file__).parents[1] / 'lib'))\nfrom far.inner import word"
    toy = make(in_folder, top, files={"lib/far/__init__.py": "", "lib/far/inner.py": TWO})
    (in_folder / "steps").mkdir(exist_ok=True)
    (in_folder / "word.py").rename(in_folder / "steps" / "word.py")
    toy.recipe.write_text(RECIPE.replace("word.py", "steps/word.py"))
    path, loaded = [*sys.path], {*sys.modules}
    assert word(toy) == ("2", ["first"])
    (in_folder / "lib" / "far" / "inner.py").write_text(THREE)
    assert "far.inner" in toy.plan()["first"][1]
    assert word(toy) == ("3", ["first"])
    assert word(toy) == ("3", [])
    assert sys.path == path
    assert not [name for name in sys.modules.keys() - loaded if name.startswith("far")]


def test_a_module_that_the_program_has_imported_counts(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, which uses the API."""
    (in_folder / "app").mkdir()
    (in_folder / "app" / "known_to_app.py").write_text(TWO)
    monkeypatch.syspath_prepend(in_folder / "app")
    importlib.import_module("known_to_app")
    toy = make(in_folder, "from known_to_app import word", files={})
    (in_folder / "steps").mkdir(exist_ok=True)
    (in_folder / "word.py").rename(in_folder / "steps" / "word.py")
    toy.recipe.write_text(RECIPE.replace("word.py", "steps/word.py"))
    assert word(toy) == ("2", ["first"])
    (in_folder / "app" / "known_to_app.py").write_text(TWO + "# changed\n")
    assert "known_to_app" in toy.plan()["first"][1]
    del sys.modules["known_to_app"]


def test_a_linked_module_counts_by_its_contents(in_folder: Path) -> None:
    toy = make(in_folder, "from helper import word", files={"one.py": TWO, "two.py": THREE})
    (in_folder / "helper.py").symlink_to("one.py")
    assert word(toy) == ("2", ["first"])
    (in_folder / "helper.py").unlink()
    (in_folder / "helper.py").symlink_to("two.py")
    assert word(toy) == ("3", ["first"])


def test_a_module_that_comes_before_another_counts(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `helper.py` next to the step shadows the one on Python's path."""
    (in_folder / "lib").mkdir()
    (in_folder / "lib" / "helper.py").write_text(TWO)
    monkeypatch.syspath_prepend(in_folder / "lib")
    toy = make(in_folder, "from helper import word")
    assert word(toy) == ("2", ["first"])
    (in_folder / "lib" / "helper.py").write_text(THREE)
    assert word(toy) == ("3", ["first"])
    (in_folder / "helper.py").write_text(TWO.replace("2", "4"))
    assert word(toy) == ("4", ["first"])


def test_a_file_loaded_by_its_path_counts(in_folder: Path) -> None:
    toy = make(in_folder, "TABLE = Path(__file__).parent / 'table.txt'", "word = TABLE.read_text")
    for text in ("one", "two"):
        (in_folder / "table.txt").write_text(text)
        assert word(toy) == (text, ["first"])
    assert word(toy) == ("two", [])


def test_steps_of_two_folders_have_separate_helpers(in_folder: Path) -> None:
    for name, text in (("a", TWO), ("b", THREE)):
        (in_folder / name).mkdir()
        (in_folder / name / "helper.py").write_text(text)
        (in_folder / name / f"word_{name}.py").write_text(STEP % ("", "from helper import word"))
    toy = make_toy(
        in_folder,
        "model: model.onnx\nsteps_from: [a/word_a.py, b/word_b.py]\n"
        "steps: {one: {step: word_a}, two: {step: word_b, from: source}, three: {step: word_a, from: two}}\n",
    )
    done, _ = toy.run()
    stamps = [onnx.load(Path(done.folder) / name / "model.onnx").doc_string for name in ("one", "two", "three")]
    assert stamps == ["2", "3", "2"]


def test_a_module_that_no_file_imports_any_more_is_not_found(in_folder: Path) -> None:
    toy = make(in_folder, "", "from helper import word", {"helper.py": TWO})
    word(toy)
    (in_folder / "helper.py").unlink()
    with pytest.raises(ModuleNotFoundError):
        toy.run()


def test_a_standard_module_cannot_be_shadowed(in_folder: Path) -> None:
    toy = make(in_folder, "import json", "word = lambda: json.dumps(1)", {"json.py": "raise SystemExit('shadowed')"})
    assert word(toy) == ("1", ["first"])


def test_the_version_of_an_installed_module_counts(in_folder: Path) -> None:
    make(in_folder, "import yaml, packaging.version", "word = lambda: yaml.__version__")
    (step,) = load_recipe(in_folder / "toy.yaml", trust=True).steps
    libraries = describe_key(step, {"from": "ab" * 32}, {}, Store(in_folder / "store")).libraries
    import yaml

    assert libraries["PyYAML"] == yaml.__version__
    assert "packaging" in libraries


@pytest.mark.parametrize("setting", ["metric", "loader", "run_python"])
def test_modules_of_code_in_settings_count(in_folder: Path, setting: str) -> None:
    make_toy(in_folder)
    (in_folder / "helper.py").write_text("FACTOR = 2\n")
    sources = {
        "metric": "import helper\ndef metric(outputs, label): return helper.FACTOR\n",
        "loader": "import numpy as np\ndef samples():\n    from helper import FACTOR\n"
        "    return [{'x': np.full((1, 3, 16, 16), FACTOR, np.float32)}]\n",
        "run_python": "from helper import FACTOR\ndef edit(model): model.doc_string = str(FACTOR)\n",
    }
    steps = {
        "metric": "agree: {step: check_accuracy, candidate: source, metric: code.py, labels: labels.csv, "
        "data: {x: set}}",
        "loader": "agree: {step: check_accuracy, candidate: source, loader: code.py}",
        "run_python": "agree: {step: edit, operations: [{run_python: {file: code.py}}]}",
    }
    (in_folder / "code.py").write_text(sources[setting])
    if setting == "metric":
        import numpy as np

        (in_folder / "set").mkdir()
        np.save(in_folder / "set" / "a.npy", np.zeros((1, 3, 16, 16), np.float32))
        (in_folder / "labels.csv").write_text("file,label\na.npy,1\n")
    toy = Toy(in_folder)
    toy.recipe.write_text(f"name: toy\nmodel: model.onnx\nsteps: {{{steps[setting]}}}\n")
    first, events = toy.run()
    assert started(events) == ["agree"]
    (in_folder / "helper.py").write_text("FACTOR = 3\n")
    second, events = toy.run()
    assert started(events) == ["agree"]
    if setting == "metric":
        run = api.runs(outputs=in_folder / "outputs")
        assert len(run) == 2
    if setting == "run_python":
        stamps = [onnx.load(Path(run.folder) / "agree" / "model.onnx").doc_string for run in (first, second)]
        assert stamps == ["2", "3"]
    assert started(toy.run()[1]) == []


def test_two_files_of_a_step_cannot_mean_different_modules_by_one_name(
    in_folder: Path, check_message: CheckMessage
) -> None:
    toy = make_toy(in_folder)
    for name in ("a", "b"):
        (in_folder / name).mkdir()
        (in_folder / name / "helper.py").write_text("x = 1\n")
        (in_folder / name / f"{name}.py").write_text("import helper\ndef samples(): ...\ndef evaluate(p): return 1\n")
    (in_folder / "labels.csv").write_text("file,label\n")
    settings = "candidate: source, loader: a/a.py, metric: b/b.py, labels: labels.csv"
    toy.recipe.write_text(f"model: model.onnx\nsteps: {{agree: {{step: check_accuracy, {settings}}}}}\n")
    with pytest.raises(RequestError) as caught:
        toy.plan()
    check_message(caught.value)


def test_results_of_code_that_changes_while_it_runs_are_not_stored(
    in_folder: Path, check_message: CheckMessage
) -> None:
    """Also what changed before it read it: the key is of what was planned."""
    toy = make_toy(in_folder)
    (in_folder / "helper.py").write_text("WORD = 'a'\n")
    (in_folder / "edit.py").write_text("from helper import WORD\ndef edit(model): model.doc_string = WORD\n")
    toy.recipe.write_text("model: model.onnx\nsteps: {a: {step: edit, operations: [{run_python: {file: edit.py}}]}}\n")
    (step,) = load_recipe(toy.recipe, trust=True).steps
    store = Store(in_folder / "store")
    source = Onnx(store.root / "model.onnx", "source", "ab" * 32)
    store.root.mkdir()
    shutil.copy("model.onnx", source.path)
    work = Work(step, describe_key(step, {"from": source.digest}, {}, store), {"from": source}, {}, lambda *_: None)
    (in_folder / "helper.py").write_text("WORD = 'b'\n")
    with pytest.raises(RequestError) as caught:
        execute_steps([work], store)
    check_message(caught.value)
    assert not (store.root / "objects").exists()


def test_a_model_that_changes_while_a_step_waits_is_not_mixed_up(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder)
    (step, *_) = load_recipe(toy.recipe, trust=True).steps
    store = Store(in_folder / "store")
    from ndld_flow.recipe.recipe import ModelSource
    from ndld_flow.recipe.sources import find_model

    source = find_model(ModelSource(source="model.onnx"), store, print).artifact
    work = Work(step, describe_key(step, {"from": source.digest}, {}, store), {"from": source}, {}, lambda *_: None)
    model = onnx.load("model.onnx")
    model.producer_name = "another export"
    onnx.save(model, "model.onnx")
    with pytest.raises(RequestError) as caught:
        execute_steps([work], store)
    check_message(caught.value)


@pytest.mark.thorough
def test_workers_use_the_modules_that_were_planned(in_folder: Path) -> None:
    """In separate processes, with a module on PYTHONPATH and one next to the step."""
    make(
        in_folder,
        "from helper import word as inner\nfrom far import more",
        "word = lambda: inner() + more()",
        {"helper.py": TWO},
    )
    (in_folder / "lib").mkdir()
    environment = {**os.environ, "PYTHONPATH": "lib", "NDLD_FLOW_IN_PROCESS": "0"}
    command = [sys.executable, "-P", "-m", "ndld_flow", "run", "toy.yaml", "--trust"]
    for helper, far, expected in ((TWO, 10, "12"), (THREE, 20, "23")):
        (in_folder / "helper.py").write_text(helper)
        (in_folder / "lib" / "far.py").write_text(f"def more(): return {far}\n")
        subprocess.run(command, env=environment, check=True, capture_output=True)
        assert onnx.load("outputs/runs/toy/latest/first/model.onnx").doc_string == expected


def test_a_module_from_elsewhere_that_is_imported_late_is_reported(in_folder: Path) -> None:
    (in_folder / "lib").mkdir()
    (in_folder / "lib" / "hidden_helper.py").write_text(TWO)
    late = "import sys; sys.path.append(str(Path(__file__).parents[1] / 'lib')); from hidden_helper import word"
    toy = make(in_folder, "", late)
    (in_folder / "steps").mkdir(exist_ok=True)
    (in_folder / "word.py").rename(in_folder / "steps" / "word.py")
    toy.recipe.write_text(RECIPE.replace("word.py", "steps/word.py"))
    done, _ = toy.run()
    assert "hidden_helper: " in (Path(done.folder) / "first" / "log.txt").read_text()
    (in_folder / "steps" / "hidden_helper.py").write_text(THREE)
    done, _ = toy.run()
    assert "hidden_helper" not in (Path(done.folder) / "first" / "log.txt").read_text()


def test_a_file_named_like_our_library_does_not_replace_it(in_folder: Path) -> None:
    toy = make(
        in_folder, "import yaml", "word = lambda: yaml.__name__ + str(hasattr(yaml, 'safe_load'))", {"yaml.py": ""}
    )
    assert word(toy) == ("yamlTrue", ["first"])
