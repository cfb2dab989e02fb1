"""The package in `docs/examples/my_steps`, and the module that plugins import."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import onnx
import pytest

from ndld_flow import api, plugin
from ndld_flow.base.errors import RequestError
from ndld_flow.base.lazy_names import names_for_checkers
from ndld_flow.base.user_code import UserCode, user_imports
from ndld_flow.graph.edit import catalogue
from ndld_flow.machine.plugins import code_of_plugin
from ndld_flow.records.document import read_document
from ndld_flow.records.inspection import Findings
from ndld_flow.records.profile import Profile
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

NAME = "my_steps"
EXAMPLE = Path(__file__).parents[2] / "docs/examples" / NAME


@pytest.fixture
def package(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in the current directory, importable as if it were installed."""
    folder = copy(in_folder)
    install(folder, monkeypatch)
    yield folder
    forget()
    for module in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[module]


def copy(to: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, to / NAME, ignore=shutil.ignore_patterns("__pycache__")))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the metadata that pip writes for an editable install."""
    info = folder / f"{NAME}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0.1.0\n")
    text = (folder / "pyproject.toml").read_text()
    points = [line.replace('"', "") for line in text.splitlines() if line.startswith((f"{NAME}_", "[project.entry"))]
    lines = [f"[{line.split('.', 2)[2].rstrip(']')}]" if line.startswith("[project") else line for line in points]
    (info / "entry_points.txt").write_text(
        "".join(f"{line.replace('[project.entry-points.', '[')}\n" for line in lines)
    )
    monkeypatch.syspath_prepend(str(folder))
    forget()


def forget() -> None:
    for function in (catalogue.operation_names, catalogue.find_operation, catalogue.entry_type):
        function.cache_clear()


def test_its_step_and_operation_are_found_and_run(package: Path) -> None:
    assert {step.name: step.origin for step in api.steps()}[f"{NAME}_stamp"] == f"{NAME} 0.1.0"
    assert f"{NAME}_clear_doc_strings" in ndld_flow("steps", "edit", cwd=Path()).stdout
    model = onnx.load(make_cnn(Path("model.onnx")))
    model.graph.node[0].doc_string = "a note"
    onnx.save(model, "model.onnx")
    done = ndld_flow("run", str(package / "recipe.yaml"), "--json", cwd=Path())
    assert done.returncode == 0, done.stdout + done.stderr
    finished = api.run(package / "recipe.yaml")
    assert finished.nothing_to_do
    written = onnx.load(finished.artifacts["clean"])
    assert (written.doc_string, written.graph.node[0].doc_string) == ("hello", "")


@pytest.mark.parametrize("changed", ["stamp.py", "clear_doc_strings.py"])
def test_changed_code_runs_again(package: Path, changed: str) -> None:
    make_cnn(Path("model.onnx"))
    api.run(package / "recipe.yaml")
    path = package / NAME / changed
    path.write_text(path.read_text() + "\n# changed\n")
    reasons = {item.step.name: item.reason.text for item in api.plan(package / "recipe.yaml")}  # type: ignore[union-attr]
    assert reasons["stamped" if changed == "stamp.py" else "clean"] != "reused"


def test_it_is_found_again_when_it_was_first_imported_for_a_users_file(package: Path) -> None:
    """The modules of users' files leave `sys.modules`; the operation is remembered."""
    with user_imports(UserCode(Path("own.py"), None)):
        operation = catalogue.find_operation(f"{NAME}_clear_doc_strings")
    assert operation.__module__ not in sys.modules
    code = code_of_plugin(operation.__module__)
    assert code is not None
    assert code.path == package / NAME / "__init__.py"


def test_its_code_imports_one_module_of_this_package(package: Path) -> None:
    for path in sorted((package / NAME).rglob("*.py")):
        modules = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ndld_flow")
        }
        assert modules <= {"ndld_flow.plugin"}, path


@pytest.mark.thorough
def test_it_passes_its_own_test_after_an_installation(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    with ZipFile(next((tmp_path / "wheels").glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    environment.pop("NDLD_FLOW_IN_PROCESS", None)  # a step of a package must be found in workers too
    python = [sys.executable, "-P", "-m"]
    for command in (
        [*python, "pytest", "-q", "-p", "no:cacheprovider"],
        [*python, "ndld_flow", "steps", f"{NAME}_stamp"],
    ):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_the_public_names_are_those_that_checkers_of_types_see(check_message: CheckMessage) -> None:
    homes = names_for_checkers(plugin.__name__)
    assert {*homes} <= {*dir(plugin)}
    assert all(getattr(plugin, name) is getattr(sys.modules[home], name) for name, home in homes.items())
    with pytest.raises(AttributeError) as caught:
        getattr(plugin, "no_such_name")  # noqa: B009 - a checker of types would refuse the attribute
    check_message(caught.value)


def test_a_step_imports_no_library_that_reads_models() -> None:
    code = (
        "import sys; from ndld_flow.plugin import Context, Onnx, Operation, Result, Step\n"
        "print({'numpy', 'onnx', 'onnx_ir', 'onnxruntime'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def other_kinds(in_folder: Path) -> Path:
    """A folder with the check and the runtime of CONTRIBUTING.md, as a package that imports `ndld_flow.plugin`."""
    folder = in_folder / "site"
    info = folder / "kinds-1.0.dist-info"
    info.mkdir(parents=True)
    page = (Path(plugin.__file__).parents[1] / "CONTRIBUTING.md").read_text()
    for name, place in {"long_name": "graph/lint/checks", "onnx_reference": "runtimes"}.items():
        source = page.partition(f"# ndld_flow/{place}/{name}.py\n")[2].partition("\n```\n")[0]
        tree = ast.parse(source)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ndld_flow"):
                node.module = "ndld_flow.plugin"
        (folder / f"kinds_{name}.py").write_text(ast.unparse(tree))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kinds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ndld_flow.checks]\nmy_long_name = kinds_long_name:LongName\n"
        "[ndld_flow.runtimes]\nonnx_reference = kinds_onnx_reference:RUNTIME\n"
    )
    return folder


@pytest.mark.thorough
def test_a_package_offers_checks_and_runtimes(other_kinds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(other_kinds))
    model = onnx.load(make_cnn(Path("model.onnx")))
    model.graph.node[0].name = "n" * 300
    onnx.save(model, "model.onnx")
    quick = "runs: 2, passes: 4, duration: 0, stable: 0, warmup: 0, layer_passes: 4"
    Path("r.yaml").write_text(
        "{name: r, model: model.onnx, steps: {lint: {checks: [my_long_name]}, "
        "other: {step: lint, skip: [my_long_name], fail_on: never}, "
        f"speed: {{step: profile, from: source, backend: onnx_reference, {quick}}}}}}}"
    )

    def say(*arguments: str) -> str:
        command = [sys.executable, "-m", "ndld_flow", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def reasons() -> dict[str, str]:
        return {item["name"]: item["reason"] for item in json.loads(say("plan", "r.yaml", "--json"))}

    say("run", "r.yaml")
    findings = read_document(Findings, Path("outputs/runs/r/latest/lint/findings.json"))
    assert [(finding.check, finding.severity) for finding in findings.findings] == [("my_long_name", "info")]
    profile = read_document(Profile, Path("outputs/runs/r/latest/speed/profile.json"))
    assert (profile.backend, profile.providers) == ("onnx_reference", ("Reference",))
    assert reasons() == {"lint": "reused", "other": "reused", "speed": "reused"}
    for name in ("long_name", "onnx_reference"):  # each may read the other's file, which is next to it
        path = other_kinds / f"kinds_{name}.py"
        path.write_text(path.read_text() + "\nCHANGED = True\n")
        assert {step for step, reason in reasons().items() if reason != "reused"} == {"lint", "speed"}
        path.write_text(path.read_text().replace("\nCHANGED = True\n", ""))


@pytest.mark.parametrize("group", ["steps", "operations"])
@pytest.mark.parametrize("value", ["no_such_module:Stamp", "json:dumps", "json:nothing"])
def test_a_broken_package_is_named(
    group: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ndld_flow.{group}]\nwreck = {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    try:
        with pytest.raises(RequestError) as caught:
            _ = list(api.steps()) if group == "steps" else catalogue.find_operation("wreck")
        check_message(caught.value)
    finally:
        forget()
