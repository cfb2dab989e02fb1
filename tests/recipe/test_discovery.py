"""Discovery of steps in the package, in other packages and in files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.recipe.step_types import StepTypes
from tests.support.message_files import CheckMessage
from tests.support.toys import STAMP


def test_a_package_offers_its_steps_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_steps.py").write_text(STAMP)
    info = tmp_path / "toy_steps-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-steps\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[ndld_flow.steps]\nrubber_stamp = toy_steps:Stamp\n")
    monkeypatch.syspath_prepend(tmp_path)
    types = StepTypes()
    assert "rubber_stamp" in types.names()
    result = types.find("rubber_stamp")
    assert result is not None
    assert result.origin == "toy-steps 1.5"
    assert result.version == "1+toy-steps 1.5"
    assert result.code is not None and result.code.path == tmp_path / "toy_steps.py", "no distribution installed it"
    assert result.summary in STAMP


@pytest.mark.parametrize("target", ["Path", "stamp", "WORD"])
def test_an_entry_point_that_is_no_step_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, check_message: CheckMessage
) -> None:
    (tmp_path / "odd_steps.py").write_text("from pathlib import Path\nWORD = 'x'\ndef stamp(): ...\n")
    info = tmp_path / "odd_steps-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-steps\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[ndld_flow.steps]\nodd = odd_steps:{target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError) as caught:
        StepTypes().find("odd")
    check_message(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        STAMP + "\n\nclass Other(Stamp):\n    pass\n",
        STAMP.replace("Step[Onnx, Onnx]", "Step"),
        "def broken(:\n",
        "import no_such_module_at_all",
    ],
)
def test_a_file_without_a_step_is_explained(tmp_path: Path, source: str, check_message: CheckMessage) -> None:
    path = tmp_path / "word.py"
    path.write_text(source)
    with pytest.raises(RequestError) as caught:
        StepTypes((path,)).find("word")
    check_message(caught.value)


def test_a_file_that_is_not_python_is_explained(tmp_path: Path, check_message: CheckMessage) -> None:
    (tmp_path / "word.txt").write_text(STAMP)
    with pytest.raises(RequestError) as caught:
        StepTypes((tmp_path / "word.txt",)).find("word")
    check_message(caught.value)


def test_a_users_step_replaces_a_built_in_step_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "lint.py"
    path.write_text(STAMP)
    result = StepTypes((path,)).find("lint")
    assert result is not None
    assert result.origin == str(path)


def test_a_file_changed_within_a_second_runs_its_new_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "stamp.py"
    for word in ("x", "y"):  # of one size and one time: Python's own cache cannot tell them apart
        path.write_text(STAMP.replace('word: str = "x"', f'word: str = "{word}"'))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        result = StepTypes((path,)).find("stamp")
        assert result is not None
        assert result.cls.model_fields["word"].default == word
