"""Written files have the permissions of the umask, are not executable, and follow no foreign links."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.tally import Tally

Attack = Callable[[str], Tally]


@pytest.fixture(params=[0o077, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> int:
    """The user's; put back afterwards."""
    before = os.umask(request.param)
    request.addfinalizer(lambda: os.umask(before))
    return int(request.param)


def test_files_have_the_modes_of_the_umask(tmp_path: Path, umask: int, tally: Attack) -> None:
    count = tally("file modes")
    make_cnn(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").chmod(0o7777 & ~umask)  # of a stranger's archive: set-user-id, executable
    (tmp_path / "recipe.yaml").write_text("model: model.onnx\nsteps: {sanitize: {}}\n")
    assert ndld_flow("run", "recipe.yaml", cwd=tmp_path).returncode == 0
    wrong = []
    for path in (tmp_path / "outputs").rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            wrong += [path] if not path.resolve().is_relative_to(tmp_path / "outputs") else []
        elif path.is_dir():
            wrong += [path] if mode & (umask | 0o7000) else []
        else:
            stored = "objects" in path.parts
            wrong += [path] if mode & (umask | 0o7111) or (stored and mode & 0o222) or path.stat().st_nlink > 1 else []
            count.survived += path not in wrong
    assert wrong == []
