"""Outputs that several users share, with real users where the tests can switch to them."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import ndld_flow
from ndld_flow import api
from ndld_flow.base.errors import RecipeError, RequestError
from ndld_flow.execution.devices import FOLDER_VARIABLE
from ndld_flow.runs.cache_settings import PROJECT_FILE, user_settings_file
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.files import make_folder, write_text_atomically
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.representatives import thorough_except
from tests.support.sweep_toys import make_sweep_toy
from tests.support.toys import make_toy

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
GROUP, ALICE, BOB, STRANGER = 65001, 65002, 65003, 65004
as_others = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be somebody else")

WORK = """
import difflib, json, os, sys, tempfile, traceback
from pathlib import Path
from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError

def work(outputs, word):
    done = api.run("toy.yaml", [f"steps.second.word={word}"], outputs=outputs, trust=True)
    api.tag(done.run, "mine", outputs=outputs)
    verified = api.verify(outputs=outputs)
    freed = api.gc(outputs=outputs, keep=1)
    return {"passed": done.passed, "well": verified.all_well, "freed": len(freed.runs)}

def sweep(outputs, cache):
    warnings = []
    note = lambda event: warnings.append(event.text) if getattr(event, "warning", False) else None
    done = api.run("swept.yaml", outputs=outputs, trust=True, cache=cache, push=bool(cache), listener=note)
    computed = json.loads(Path(done.folder, "sweep.json").read_text())["steps_done"] > 0 and not done.nothing_to_do
    damage = [run.damage for run in api.runs(outputs=outputs)]
    return {"points": done.outcomes, "computed": computed, "damage": damage, "warnings": warnings}

def work_as(user, groups, umask, outputs, word):
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
    os.umask(umask)
    try:
        verb, _, cache = word.partition(" ")
        return sweep(Path(outputs), cache) if verb == "sweep" else work(Path(outputs), word)
    except NdldFlowError as error:
        return {"exit_code": error.exit_code, "error": str(error)}
    except BaseException:  # without an answer, the test would wait forever
        return {"error": traceback.format_exc()}

with tempfile.TemporaryDirectory() as folder:  # what is imported later may be closed to others
    work(Path(folder), "x")
    work(Path(folder), "y")
    sweep(Path(folder, "swept"), str(Path(folder, "cache")))
os.environ["TMPDIR"] = tempfile.tempdir = str(Path("tmp").absolute())
for line in sys.stdin:
    if not (child := os.fork()):
        print(json.dumps(work_as(*json.loads(line))), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@dataclass(frozen=True)
class Users:
    """A process that becomes other users, and the folder that all of them may read."""

    folder: Path
    process: subprocess.Popen[str]

    def work(self, user: int, umask: int, word: str, *groups: int, outputs: Path) -> dict[str, Any]:
        """Let a user run, tag, verify and collect."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([user, groups, umask, str(outputs), word]), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    for package in (ndld_flow, yaml):
        closed = [parent for parent in Path(package.__file__ or "").parents if not parent.stat().st_mode & stat.S_IXOTH]
        if closed:
            pytest.skip(f"other users cannot import from here: {closed[0]} is closed to them")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # those of the tests are closed to others
    folder.chmod(0o755)
    make_sweep_toy(folder).recipe.rename(folder / "swept.yaml")
    make_toy(folder)
    for name in ("tmp", "locks"):
        (folder / name).mkdir()
        (folder / name).chmod(0o1777)
    with subprocess.Popen(
        [sys.executable, "-c", WORK], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {FOLDER_VARIABLE: str(folder / "locks")},
    ) as process:  # fmt: skip
        yield Users(folder, process)
    shutil.rmtree(folder)


@pytest.fixture
def outputs(users: Users, request: pytest.FixtureRequest) -> Path:
    """A folder that a group shares."""
    folder = users.folder / str(request.node.name)
    folder.mkdir()
    os.chown(folder, -1, GROUP)
    folder.chmod(0o2775)
    return folder


@pytest.mark.thorough
@as_others
def test_one_users_umask_does_not_close_shared_outputs_to_others(users: Users, outputs: Path) -> None:
    for user, umask, word in ((ALICE, 0o077, "x"), (BOB, 0o022, "x"), (ALICE, 0o077, "y"), (BOB, 0o077, "z")):
        found = users.work(user, umask, word, GROUP, outputs=outputs)
        assert found == {"passed": True, "well": True, "freed": 1 if word == "z" else 0}
    for path in outputs.rglob("*"):
        mode = path.lstat()
        assert mode.st_gid == GROUP, path
        assert stat.S_ISLNK(mode.st_mode) or mode.st_mode & 0o040, path
    assert Store(outputs / "store")._salt()
    assert stat.S_IMODE((outputs / "store" / "salt").stat().st_mode) == 0o660, "who may not write may not read it"


@pytest.mark.thorough
@as_others
def test_a_user_without_permission_is_shown_the_owner_and_the_remedy(users: Users, outputs: Path) -> None:
    found = users.work(ALICE, 0o022, "x", GROUP, outputs=outputs)
    assert found.get("passed"), found
    objects = outputs / "store" / "objects"
    for path in (objects, *objects.glob("*")):
        path.chmod(0o700)
    found = users.work(BOB, 0o022, "x", GROUP, outputs=outputs)
    assert found["exit_code"] == 2
    assert f"{objects} belongs to {ALICE} (group {GROUP})" in found["error"]
    assert f"chmod -R g+rwX {outputs}" in found["error"]
    found = users.work(STRANGER, 0o022, "x", outputs=outputs)
    assert f"{outputs} belongs to root (group {GROUP})" in found["error"].replace(" it ", f" {outputs} ")


@as_others
@pytest.mark.parametrize("through_cache", thorough_except([False, True], False))
def test_two_users_share_the_results_of_a_sweep(users: Users, outputs: Path, through_cache: bool) -> None:
    """In one outputs folder, or each in their own with a cache in the shared folder."""
    cache = str(outputs / "cache") if through_cache else ""

    def own(user: int) -> Path:
        if not through_cache:
            return outputs
        folder = users.folder / f"of-{user}"
        folder.mkdir(exist_ok=True)
        os.chown(folder, user, user)
        return folder

    for user, computed in ((ALICE, True), (BOB, False)):
        found = users.work(user, 0o077, f"sweep {cache}", GROUP, outputs=own(user))
        assert found == {"points": {"passed": 6}, "computed": computed, "damage": [""], "warnings": []}


def test_new_outputs_are_for_the_group_if_the_user_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    before = os.umask(0o077)
    try:
        Outputs(Path("private")).prepare()
        settings = user_settings_file()
        settings.parent.mkdir(parents=True)
        settings.write_text("shared: group\n")
        Outputs(Path("private")).prepare()
        Outputs(Path("ours")).prepare()
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(Path(path).stat().st_mode) for path in ("private", "private/runs", "ours", "ours/runs")}
    assert modes == {"private": 0o700, "private/runs": 0o700, "ours": 0o2775, "ours/runs": 0o2775}
    assert stat.S_IMODE(Path("ours/.gitignore").stat().st_mode) & 0o060 == 0o060
    settings.write_text("shared: everybody\n")
    with pytest.raises(RecipeError, match="shared"):
        api.run(make_toy(tmp_path).recipe, outputs="others", trust=True)
    assert not stat.S_IMODE(Path("others").stat().st_mode) & 0o020


def test_a_project_cannot_open_folders_to_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(PROJECT_FILE).write_text("shared: group\n")
    with pytest.raises(RequestError) as caught:
        Outputs(Path("outputs")).prepare()
    check_message(caught.value)
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("mode", "file", "folder"), [(0o755, 0o600, 0o700), (0o1777, 0o600, 0o700), (0o775, 0o664, 0o775)]
)
def test_only_shared_folders_share_files_created_in_them(tmp_path: Path, mode: int, file: int, folder: int) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs").chmod(mode)
    before = os.umask(0o077)
    try:
        write_text_atomically(tmp_path / "outputs" / "note", "x")
        make_folder(tmp_path / "outputs" / "one" / "two")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "outputs" / "note").stat().st_mode) == file
    for name in ("one", "one/two"):
        assert stat.S_IMODE((tmp_path / "outputs" / name).stat().st_mode) == folder
