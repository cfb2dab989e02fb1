"""The table of extras: in the metadata, `doctor`, the documentation, and the messages where one is missing."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.execution.doctor import examine
from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

ROOT = Path(__file__).parents[2]
FOR_DEVELOPERS = {"all", "docs", "dev", "test"}


def optional_dependencies() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the modules of extras that are only imported where they are used."""
    for name in ("matplotlib", "pandas", "av", "onnxscript", "optuna", "ray"):
        monkeypatch.setitem(sys.modules, name, None)


def test_the_table_is_that_of_the_metadata() -> None:
    declared = optional_dependencies()
    assert set(EXTRAS) == set(declared) - FOR_DEVELOPERS
    for name, extra in EXTRAS.items():
        required = sorted(re.split(r"[\[<>=;]", item)[0] for item in declared[name])
        assert required == sorted(extra.distributions), name
    (everything,) = declared["all"]
    assert set(everything.removeprefix("ndld-flow[").rstrip("]").split(",")) == set(EXTRAS)


def test_the_page_on_installing_has_the_table() -> None:
    page = (ROOT / "docs/how-to/install.md").read_text()
    rows = dict(re.findall(r"^\| `\[(\w+)\]` \| (.*) \|$", page, re.MULTILINE))
    for name, extra in EXTRAS.items():
        assert rows[name] == f"{extra.title} | {extra.tasks} | {extra.size}"
    assert set(rows) == set(EXTRAS) | FOR_DEVELOPERS


def test_doctor_explains_each_extra(tmp_path: Path, hide: None) -> None:
    checks = {check.name: check for check in examine(tmp_path)}
    for name, extra in EXTRAS.items():
        assert extra.tasks in checks[f"extra [{name}]"].found
    plots = checks["extra [plots]"]
    assert (plots.state, plots.advice) == ("absent", EXTRAS["plots"].command)
    assert plots.found.startswith("Matplotlib (76 MB): ")


def test_a_data_frame_needs_pandas(hide: None, check_message: CheckMessage) -> None:
    with pytest.raises(BackendError) as caught:
        api.layers("quickstart:speed")
    check_message(caught.value)


def test_a_video_is_refused_before_anything_runs(in_folder: Path, hide: None) -> None:
    make_cnn(in_folder / "m.onnx")
    (in_folder / "clip.MP4").touch()
    Path("r.yaml").write_text(
        "name: r\nmodel: m.onnx\ninputs: {image: {shape: [1, 3, 16, 16], data: clip.MP4}}\n"
        "steps:\n  clean: {step: sanitize}\n  agree: {step: check_accuracy, reference: source, candidate: clean}\n"
    )
    message = re.escape(f'step agree: input "image": clip.MP4 needs PyAV: {EXTRAS["video"].command}')
    with pytest.raises(BackendError, match=message):
        api.run("r.yaml")
    assert not list(in_folder.glob("outputs/store/records/*/*")), "a step ran"


def test_an_operation_is_refused_before_anything_runs(in_folder: Path, hide: None) -> None:
    make_cnn(in_folder / "m.onnx")
    Path("r.yaml").write_text(
        "name: r\nmodel: m.onnx\nsteps:\n  clean: {step: sanitize}\n"
        '  edit: {operations: [apply_rules: {rules: ["*"], allow_empty: true}]}\n'
    )
    message = re.escape(f"step edit: the operation `apply_rules` needs onnxscript: {EXTRAS['rules'].command}")
    with pytest.raises(BackendError, match=message):
        api.run("r.yaml")
    assert load_recipe(Path("r.yaml")).steps[1].step.foresee().lacks
    assert not list(in_folder.glob("outputs/store/records/*/*")), "a step ran"


def test_each_operation_names_an_existing_extra() -> None:
    operations = [found for word in operation_names() if (found := find_operation(word))]
    assert {operation.extra for operation in operations} == {"", "rules"}


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        ({"url": "file://{here}", "dir_info": {"editable": True}}, "pip install -e '{here}[tpe]'"),
        ({"url": "file://{here}", "dir_info": {}}, "pip install '{here}[tpe]'"),
        ({"url": "file://{here}/a.whl", "archive_info": {}}, "pip install 'ndld-flow[tpe] @ file://{here}/a.whl'"),
        ({"url": "https://a.org/a.whl", "archive_info": {}}, "pip install 'ndld-flow[tpe] @ https://a.org/a.whl'"),
        (
            {"url": "https://a.org/a", "vcs_info": {"vcs": "git", "commit_id": "f00"}},
            "pip install 'ndld-flow[tpe] @ git+https://a.org/a@f00'",
        ),
        ({"url": "file://{here}/gone", "dir_info": {"editable": True}}, "pip install optuna"),
        ({"url": "file://{here}/gone.whl", "archive_info": {}}, "pip install optuna"),
        ({}, "pip install optuna"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(
    recorded: dict[str, Any], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.whl").touch()
    if "url" in recorded:
        recorded = {**recorded, "url": recorded["url"].format(here=tmp_path)}
    monkeypatch.setattr("ndld_flow.base.extras.read_origin", lambda: recorded)
    assert EXTRAS["tpe"].command == command.format(here=tmp_path)
