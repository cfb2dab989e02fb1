"""Disks that are full or read-only, mounted so that only the attacked processes see them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ndld_flow.runs.outputs import Outputs
from tests.reliability.attacked import Attacked, FaultServer
from tests.reliability.fault_plan import FaultPlan
from tests.reliability.outputs_state import find_halves, find_unfinished
from tests.support.tally import Tally
from tests.support.toys import make_toy

Counting = Callable[[str], Tally]

SWEEP = """
name: toy
model: model.onnx
steps_from: [steps/stamp.py]
steps:
  first: {step: stamp, word: a}
sweep: {over: {first.word: [a, bb, ccc]}, minimize: first.length}
"""


class Disk:
    """A folder whose `outputs` are a disk of their own."""

    def __init__(self, folder: Path, server: FaultServer) -> None:
        self.folder, self._server = folder, server
        self.mounted = folder / "outputs"
        self.mounted.mkdir()

    @property
    def outputs(self) -> Outputs:
        return Outputs(self._server.view(self.mounted))

    def mount(self, *options: str) -> None:
        assert self._server.call("mount", *options, str(self.mounted))

    def run(self, *arguments: str, temporary: Path | None = None, is_powerless: bool = False) -> Attacked:
        environment = {} if temporary is None else {"TMPDIR": str(temporary)}
        return self._server.run(
            *arguments,
            folder=self.folder,
            plan=FaultPlan(self.folder),
            environment=environment,
            is_powerless=is_powerless,
        )

    def check(self, ended: Attacked, count: Tally, *words: str) -> None:
        """Refused with these words, or done; nothing half-written either way."""
        assert ended.code == 0 or ended.is_refusal, (ended.code, ended.err)
        assert ended.code == 0 or all(word in ended.err for word in words), ended.err
        assert not [*find_halves(self.outputs)]
        count.survived += ended.code == 0
        count.refused += ended.code != 0
        count.lost -= 1


@pytest.fixture
def disk(tmp_path: Path, server: FaultServer) -> Disk:
    if not server.has_own_mounts:
        pytest.skip("mounting disks needs root")
    make_toy(tmp_path)
    return Disk(tmp_path, server)


def fill(disk: Disk, sizes_kib: range, count: Tally) -> None:
    """Give a run ever more room, until it is enough; then all the room it needs."""
    disk.mount("-t", "tmpfs", "-o", f"size={sizes_kib[0]}k", "none")
    for size_kib in sizes_kib:
        disk.mount("-o", f"remount,size={size_kib}k")
        count.lost += 1
        disk.check(disk.run("run", "toy.yaml", "--trust"), count, "full", "outputs", "gc")
    disk.mount("-o", "remount,size=64m")
    done = disk.run("run", "toy.yaml", "--trust")
    assert done.code == 0, done.err
    assert not [*find_halves(disk.outputs), *find_unfinished(disk.outputs)]


def test_a_full_disk_is_reported(disk: Disk, tally: Counting) -> None:
    fill(disk, range(60, 400, 170), tally("really full disk"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["", SWEEP], ids=["run", "sweep"])
def test_a_disk_that_fills_at_any_moment_is_reported(recipe: str, disk: Disk, tally: Counting) -> None:
    if recipe:
        (disk.folder / "toy.yaml").write_text(recipe)
    fill(disk, range(20, 1800 if recipe else 900, 60 if recipe else 24), tally("really full disk"))


def test_a_read_only_disk_is_reported(disk: Disk, tally: Counting) -> None:
    count = tally("really read-only disk")
    assert disk.run("run", "toy.yaml", "--trust").code == 0
    disk.mount("--bind", str(disk.mounted))
    disk.mount("-o", "remount,bind,ro")
    for arguments in (("run", "toy.yaml", "--trust"), ("report", "toy"), ("tag", "toy", "v1"), ("gc",), ("runs",)):
        count.lost += 1
        disk.check(disk.run(*arguments), count, "outputs", "Read-only file system")
    disk.mount("-o", "remount,bind,rw")
    assert disk.run("run", "toy.yaml", "--trust").code == 0


@pytest.mark.thorough
def test_a_folder_of_another_user_is_reported(disk: Disk, tally: Counting) -> None:
    count = tally("really no permission")
    assert disk.run("run", "toy.yaml", "--trust").code == 0
    folders = [disk.mounted, *(path for path in disk.mounted.rglob("*") if path.is_dir() and not path.is_symlink())]
    for folder in folders:
        folder.chmod(0o555)
    for arguments in (("run", "toy.yaml", "--trust"), ("report", "toy"), ("tag", "toy", "v1"), ("runs",)):
        count.lost += 1
        disk.check(disk.run(*arguments, is_powerless=True), count, "outputs", "Permission denied")
    for folder in folders:
        folder.chmod(0o755)
    assert disk.run("run", "toy.yaml", "--trust", is_powerless=True).code == 0


@pytest.mark.slow
def test_a_full_temporary_folder_is_reported(disk: Disk, server: FaultServer, tally: Counting) -> None:
    count = tally("really full disk")
    temporary = disk.folder / "temporary"
    temporary.mkdir()
    assert server.call("mount", "-t", "tmpfs", "-o", "size=4k", "none", str(temporary))
    for inodes in (2, 3, 4, 5, 6):
        assert server.call("mount", "-o", f"remount,nr_inodes={inodes}", str(temporary))
        count.lost += 1
        disk.check(
            disk.run("run", "toy.yaml", "--trust", f"steps.first.word=w{inodes}", temporary=temporary), count, "full"
        )
