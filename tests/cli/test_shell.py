"""The command line in unusual shells: closed streams, closed pipes, deleted folders, odd names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.load import compose_recipe
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.representatives import thorough_except

RECIPE = "name: r\nmodel: model.onnx\nsteps:\n  lint: {}\n"
ODD_NAMES = [
    *(r"back\slash", "end\\", "q\\'", "n\\\n", "$x", "${x}", "a${oc.env:HOME}", "{x", "a,b", "a=b", "a b", "file:"),
    *("new\nline", "quo'te", 'dou"ble', "[list]", "(p)", "#h", "%41", "~t", "@at", "é", "a?b", "a*b", " lead", "-dash"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_cnn(tmp_path / "model.onnx")
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `tool` is ndld-flow."""
    tool = f"{shlex.quote(sys.executable)} -P -m ndld_flow"
    whole = f'set -o pipefail; tool() {{ {tool} "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", whole], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_closed_pipe_ends_the_program_quietly(folder: Path) -> None:
    # Not 0: a run that stopped early has not passed. The pause lets `true` end first.
    found = shell("(sleep 0.1; tool run r.yaml) | true", folder)
    assert (found.returncode, found.stderr) == (141, "")


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_reader_of_a_table_that_goes_ends_the_program_quietly(folder: Path) -> None:
    found = shell("(sleep 0.1; tool diff model.onnx model.onnx) | true", folder)
    assert (found.returncode, found.stderr) == (141, "")


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="shells of POSIX")
def test_closed_streams_behave_like_dev_null(folder: Path, check_message: CheckMessage) -> None:
    found = shell("tool run r.yaml <&- >&- 2>&-", folder)
    assert found.returncode == 0
    assert (folder / "outputs" / "runs" / "r" / "latest" / "report.html").is_file()
    found = shell("tool run missing.yaml >&-", folder)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    check_message(found.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_output_that_cannot_be_written_is_reported(folder: Path, check_message: CheckMessage) -> None:
    found = shell("tool steps > /dev/full", folder)
    assert found.returncode == 2
    check_message(found.stderr)
    assert found.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="a directory that is in use can be deleted on POSIX alone")
def test_a_deleted_current_directory_is_named(folder: Path, check_message: CheckMessage) -> None:
    line = "mkdir gone; cd gone; rmdir ../gone; tool run " + shlex.quote(str(folder / "r.yaml"))
    found = shell(line, folder)
    assert found.returncode == 2
    check_message(found.stderr)
    assert found.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_whose_name_is_not_utf8_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    odd = folder / os.fsdecode(b"b\xff")
    odd.mkdir()
    (odd / "r.yaml").write_text(RECIPE)
    (odd / "m.onnx").touch()
    with pytest.raises(RequestError) as caught:
        api.run(odd / "r.yaml", outputs=folder / "outputs")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        api.run(folder / "r.yaml", outputs=odd / "outputs")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        api.profile(str(odd / "m.onnx"), outputs=folder / "outputs")
    check_message(caught.value)
    monkeypatch.chdir(odd)
    with pytest.raises(RequestError) as caught:
        api.plan("r.yaml")
    check_message(caught.value)
    assert sorted(odd.iterdir()) == [odd / "m.onnx", odd / "r.yaml"]


@pytest.mark.representatives("${x}", "[list]")
@pytest.mark.parametrize(
    "name", thorough_except(ODD_NAMES, "end\\", "${x}", "a,b", "new\nline", "quo'te", "[list]", "é")
)
def test_recipes_build_on_others_in_folders_with_odd_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    (folder / "configs" / "preset").mkdir(parents=True)
    (folder / "configs" / "preset" / "one.yaml").write_text("# @package _global_\ndescription: of the preset\n")
    (folder / "base.yaml").write_text("steps: {lint: {}}\n")
    (folder / "r.yaml").write_text("defaults: [base, _self_]\nname: r\nmodel: model.onnx\n")
    monkeypatch.chdir(folder)
    for path in (Path("r.yaml"), folder / "r.yaml"):
        values = compose_recipe(path, ["+preset=one"]).values
        assert values["description"] == "of the preset"
        assert list(values["steps"]) == ["lint"]
