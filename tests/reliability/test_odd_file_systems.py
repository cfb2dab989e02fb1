"""File systems without locks, links or permissions, and outputs across several: slower, but never wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ndld_flow.store.locks import NO_LOCKS, Locks
from ndld_flow.store.store import Store
from tests.reliability.attacked_process import AttackedProcess, Ending
from tests.reliability.shim import compile_shim
from tests.support.tally import Tally
from tests.support.toys import make_toy

Counting = Callable[[str], Tally]

COUNT_UP = """
import os, signal, sys
from pathlib import Path
from ndld_flow.store.locks import Locks

folder, rounds, dies_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for done in range(rounds):
    with Locks(folder / "locks").hold("counter"):
        count = int((folder / "count").read_text())
        if done == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "count").write_text(str(count + 1))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("odd_surroundings.c")
    return compile_shim(source, tmp_path_factory.mktemp("shim"))


@pytest.fixture
def make_odd(library: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """`make_odd(folder, "locks,links")`: for processes that are started from now on, a folder's file system is odd."""

    def make(root: Path, lacks: str) -> None:
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("ODD_ROOT", str(root))
        monkeypatch.setenv("ODD_LACKS", lacks)

    return make


@pytest.fixture
def toy(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (in_folder / ".log").mkdir()  # a hidden folder is in no key
    monkeypatch.setenv("TOY_LOG", str(in_folder / ".log" / "log.txt"))
    make_toy(in_folder)
    return in_folder


@pytest.fixture
def process() -> Iterator[AttackedProcess]:
    process = AttackedProcess(memory_bytes=2**36)
    yield process
    process.close()


def command(process: AttackedProcess, folder: Path, *arguments: str) -> Ending:
    ending = process.do(arguments, folder)
    assert ending.code == 0, (arguments, ending)
    return ending


def worked(folder: Path) -> Counter[str]:
    """Return the number of computations of each step."""
    return Counter(line.split()[0] for line in (folder / ".log" / "log.txt").read_text().splitlines())


def use_all(process: AttackedProcess, folder: Path) -> None:
    """Use outputs as a user does: run, run again, change, tag, list, verify, collect garbage."""
    for arguments in (
        ("run", "toy.yaml", "--trust"),
        ("tag", "toy", "first"),
        ("run", "toy.yaml", "--trust", "steps.second.word=d"),
        ("report", "first"),
        ("verify",),
        ("gc", "--keep", "1"),
        ("run", "toy.yaml", "--trust", "steps.second.word=d"),
    ):
        command(process, folder, *arguments)
    assert worked(folder) == {"first": 1, "second": 2, "aside": 1}
    assert_whole(folder / "outputs")


def assert_whole(outputs: Path) -> None:
    """Check that all recorded artifacts and copies are intact and that no leftovers exist."""
    store = Store(outputs / "store")
    records = [store.read_record(path.stem) for path in (store.root / "records").glob("*/*.json")]
    assert records
    assert all(record is not None and store.is_intact(record.artifact) for record in records)
    for run in (outputs / "runs").glob("*/*Z-*"):
        assert (run / "report.html").is_file()
        assert (run / "second" / "model.onnx").stat().st_size > 0
    assert not list((store.root / "damaged").glob("*"))
    assert not list((store.root / "building").glob("*"))
    assert [path.name for path in (outputs / "runs").glob("*/.*")] == []


NONE = "no locks on the file system", "no links on the file system"


@pytest.mark.parametrize(
    ("lacks", "attacks"),
    [
        pytest.param("locks,links,modes,reflinks", NONE, marks=pytest.mark.thorough),
        pytest.param("locks", NONE[:1], marks=pytest.mark.slow),
        pytest.param("links,modes,reflinks", NONE[1:], marks=pytest.mark.slow),
    ],
)
def test_outputs_on_limited_file_systems_work(
    toy: Path,
    process: AttackedProcess,
    make_odd: Callable[[Path, str], None],
    tally: Counting,
    lacks: str,
    attacks: Sequence[str],
) -> None:
    make_odd(toy / "outputs", lacks)
    use_all(process, toy)
    assert (toy / "outputs/store/locks" / NO_LOCKS).exists() == ("locks" in lacks)
    for attack in attacks:
        tally(attack).survived += 1


@pytest.mark.parametrize(
    "apart", [pytest.param("store", marks=pytest.mark.thorough), pytest.param("runs", marks=pytest.mark.slow)]
)
def test_store_and_runs_may_be_on_two_disks(
    toy: Path, process: AttackedProcess, make_odd: Callable[[Path, str], None], tally: Counting, apart: str
) -> None:
    """Behind a link to another disk nothing can be renamed to the other, and relative links must still lead there."""
    elsewhere = toy / "elsewhere" / "deep" / apart
    elsewhere.mkdir(parents=True)
    (toy / "outputs").mkdir()
    (toy / "outputs" / apart).symlink_to(elsewhere)
    make_odd(toy / "outputs" / apart, "moves")
    use_all(process, toy)
    tally("store on another file system").survived += 1


@pytest.mark.slow
def test_a_store_may_be_on_its_own_mount(toy: Path, tally: Counting) -> None:
    """A small disk in memory is really mounted there, visible only to these processes."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this user may not mount anything")
    run = f"{sys.executable} -m ndld_flow run toy.yaml --trust"
    script = (
        "set -e; mkdir -p outputs/store; mount -t tmpfs -o size=64m none outputs/store; "
        f"{run}; {run} steps.second.word=d; {sys.executable} -m ndld_flow verify; {run} steps.second.word=d"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert worked(toy) == {"first": 1, "second": 2, "aside": 1}
    assert len(list((toy / "outputs/runs/toy").glob("*/report.html"))) == 3  # with that of `latest`
    tally("store on another file system").survived += 1


# --- locks where the system has none ---------------------------------------------------------------------------------


def count_up(folder: Path, rounds: int, dies_at: int = -1) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", COUNT_UP, str(folder), str(rounds), str(dies_at)]
    return subprocess.Popen(arguments, cwd=Path(__file__).parents[2])


def test_locks_are_exclusive_and_a_killed_holder_blocks_no_process(
    tmp_path: Path, make_odd: Callable[[Path, str], None], tally: Counting
) -> None:
    (tmp_path / "count").write_text("0")
    make_odd(tmp_path, "locks")
    counting = [count_up(tmp_path, 20, dies_at) for dies_at in (-1, -1, 5, 11)]
    codes = dict[int, int]()
    until = time.monotonic() + 60
    while len(codes) < len(counting) and time.monotonic() < until:
        # In any order: a killed process that nobody has waited for still counts as alive, and blocks the others.
        codes |= {process.pid: code for process in counting if (code := process.poll()) is not None}
        time.sleep(0.01)
    assert [codes.get(process.pid) for process in counting] == [0, 0, -signal.SIGKILL, -signal.SIGKILL]
    assert int((tmp_path / "count").read_text()) == 20 + 20 + 5 + 11
    assert not Locks(tmp_path / "locks").is_held("counter")  # though a dead one may have been the last who had it
    tally("holder of a lock killed").survived += 2


def test_a_lock_that_is_a_file_is_held_until_it_is_released(tmp_path: Path) -> None:
    (tmp_path / NO_LOCKS).touch()
    locks = Locks(tmp_path)
    with locks.hold("one"):
        assert locks.is_held("one")
        locks.remove_unheld()
        assert locks.is_held("one")
    assert not locks.is_held("one")
    assert {path.name for path in tmp_path.iterdir()} == {NO_LOCKS}


def test_missing_locks_are_reported_once(tmp_path: Path) -> None:
    (tmp_path / NO_LOCKS).touch()
    heard: list[str] = []
    for _ in range(2):
        Locks(tmp_path).warn_once(heard.append)
    assert [text.count("does not support locks") for text in heard] == [1]


def test_lock_files_without_a_holder_are_removed(tmp_path: Path) -> None:
    locks = Store(tmp_path).locks
    with locks.hold("key"):
        pass
    with locks.lease("run", "one"), locks.hold("other"):
        locks.remove_unheld()
        assert {path.name for path in locks.folder.glob("*.lock")} == {"run-one.lock", "other.lock"}
