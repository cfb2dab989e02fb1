"""A measuring step holds its device alone: by the records' intervals, and by real processes that wait and die."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from ndld_flow.artifacts.store import Store
from ndld_flow.runner import device_locks
from ndld_flow.runner.device_locks import Claim, holding, name_locks
from tests.worker_toys import wait_until

HOLD = """
import os, sys, time
from pathlib import Path
from ndld_flow.artifacts.store import Store
from ndld_flow.runner.device_locks import Claim, holding

store, device, cpus, note = sys.argv[1:]
if cpus:
    os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
with holding(device, Store(Path(store)), Claim("step speed of other", lambda text: print(text, flush=True))):
    print("holds", flush=True)
    sys.stdin.read()
"""

MEASURE = """
import os, sys
from contextlib import closing
from pathlib import Path
from ndld_flow.artifacts.store import Store
from ndld_flow.runner.executors.workers import Workers
from tests.worker_toys import Deeds

deeds = Deeds(Path.cwd())
deeds.store = Store(Path(sys.argv[1]))
with closing(Workers(2, trust=True)) as workers:
    tasks = [deeds.task("measures: scales, seconds: 0.05", name=f"{sys.argv[2]}{number}") for number in range(4)]
    for future in [workers.submit(task, deeds.store) for task in tasks]:
        future.result()
"""

several_cpus = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to choose from"
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all measurements of a user share lies elsewhere while this is tested."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)


class Holder:
    """A process that holds a device until it is let go."""

    def __init__(self, store: Path, device: str, cpus: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(store), device, cpus, ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate("", timeout=60)


def test_who_waits_is_told_for_whom(tmp_path: Path) -> None:
    with Holder(tmp_path / "one", "scales") as first, Holder(tmp_path / "two", "scales") as second:
        speakers = {speaker.says(): speaker for speaker in (first, second)}
        waiting = next(text for text in speakers if text != "holds")
        other = speakers["holds"]
        expected = f"waits: step speed of other (pid {other.process.pid}) holds scales"
        assert waiting in (expected, "waits: another measurement holds the scales")
        other.process.communicate("", timeout=60)
        assert speakers[waiting].says() in (expected, "holds")


def test_users_who_share_a_store_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Holder(tmp_path, "scales") as first:
        assert first.says() == "holds"
        monkeypatch.setenv("USER", "somebody-else")
        with Holder(tmp_path, "scales") as second:
            assert second.says() == f"waits: step speed of other (pid {first.process.pid}) holds scales"
            first.process.communicate("", timeout=60)
            assert second.says() == "holds"


def test_a_killed_holders_device_is_free_at_once_and_its_note_is_not_believed(tmp_path: Path) -> None:
    with Holder(tmp_path, "scales") as first:
        assert first.says() == "holds"
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert list((tmp_path / "locks").glob("*.holder"))
        said: list[str] = []
        with holding("scales", Store(tmp_path), Claim("step a", said.append)) as faults:
            assert (said, faults) == ([], [])
        assert not list((tmp_path / "locks").glob("*.holder"))


@several_cpus
def test_sets_of_cpus_exclude_each_other_where_they_overlap(tmp_path: Path) -> None:
    one, two = sorted(os.sched_getaffinity(0))[:2]
    with Holder(tmp_path, "cpu", str(one)) as first, Holder(tmp_path, "cpu", str(two)) as second:
        assert (first.says(), second.says()) == ("holds", "holds")
        with Holder(tmp_path, "cpu", f"{one},{two}") as third:
            assert third.says() == f"waits: step speed of other (pid {first.process.pid}) holds cpu {one}"
            first.process.communicate("", timeout=60)
            assert third.says() == f"waits: step speed of other (pid {second.process.pid}) holds cpu {two}"
            second.process.communicate("", timeout=60)
            assert third.says() == "holds"


def test_large_machines_share_locks_among_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 256)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 3, 4, 100, 255})
    assert name_locks("cpu") == ("cpu-0", "cpu-1", "cpu-25", "cpu-63")
    assert device_locks._say_device("cpu") == "cpu 0-1,3-4,100,255"


def write_card(folder: Path, address: str, uuid: str) -> None:
    (folder / address).mkdir(parents=True)
    text = f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n"
    (folder / address / "information").write_text(text)


def test_a_gpu_is_one_lock_however_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device_locks, "_NVIDIA_GPUS", tmp_path / "none")
    assert name_locks("gpu-1") == ("gpu-1",)
    write_card(tmp_path / "gpus", "0000:01:00.0", "GPU-11111111-aaaa")
    write_card(tmp_path / "gpus", "0000:02:00.0", "GPU-22222222-bbbb")
    write_card(tmp_path / "gpus", "0000:03:00.0", "GPU-????????-????")
    monkeypatch.setattr(device_locks, "_NVIDIA_GPUS", tmp_path / "gpus")
    assert name_locks("gpu-1") == ("GPU-22222222-bbbb",)
    assert name_locks("gpu-2") == ("gpu-2",)
    assert name_locks("gpu-7") == ("gpu-7",)
    for seen in ("1,0", "GPU-2222,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        assert name_locks("gpu-0") == ("GPU-22222222-bbbb",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1/2")
    assert name_locks("gpu-0") == ("MIG-1-2",)


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777])
def test_who_may_write_into_the_store_may_lock_there(tmp_path: Path, mode: int) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks").chmod(mode)
    before = os.umask(0o077)
    try:
        with holding("scales", Store(tmp_path), Claim("step a", print)):
            files = list((tmp_path / "locks").iterdir())
            assert len(files) == 2
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {mode & 0o666}
    finally:
        os.umask(before)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be somebody else")
def test_another_user_of_the_store_may_lock_too(tmp_path: Path) -> None:
    import shutil

    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # the tests' own folder is closed to others
    try:
        for name in ("locks", "tmp"):
            (folder / name).mkdir()
            (folder / name).chmod(0o1777)
        folder.chmod(0o755)
        with holding("scales", Store(folder), Claim("step a", print)):
            pass
        code = (
            "import sys; from pathlib import Path; from ndld_flow.artifacts.store import Store\n"
            "from ndld_flow.runner.device_locks import Claim, holding\n"
            "import os; store = Store(Path(sys.argv[1])); claim = Claim('step b', print)\n"
            "with holding('gpu-1', store, claim): pass\n"  # what is imported later may be closed to others
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "with holding('scales', store, claim) as faults: print(faults)"
        )
        environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "USER": "nobody"}
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("[]\n", "")
    finally:
        shutil.rmtree(folder)


def test_a_folder_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import filelock

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("no locks here")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with holding("scales", Store(tmp_path), Claim("step a", print)) as faults:
        assert len(faults) == 2
        assert "others may measure on the scales at the same time: no locks here" in faults[0]


def intervals(stores: Sequence[Path]) -> list[tuple[float, float]]:
    records = [Store(store).read_record(path.stem) for store in stores for path in (store / "records").glob("*/*.json")]
    ends = [(one.started_at.timestamp(), one.ended_at.timestamp()) for one in records if one and one.ended_at]
    return sorted(ends)


@pytest.mark.parametrize("names", [pytest.param(("store", "store"), marks=pytest.mark.slow), ("store", "other")])
def test_two_sweeps_at_once_never_measure_on_one_device_together(tmp_path: Path, names: Sequence[str]) -> None:
    runs = []
    for number, name in enumerate(names):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        command = [sys.executable, "-c", MEASURE, str(tmp_path / name), f"run{number}_"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        runs.append(subprocess.Popen(command, cwd=folder, env=environment))
    assert [run.wait(120) for run in runs] == [0, 0]
    found = intervals([tmp_path / name for name in dict.fromkeys(names)])
    assert len(found) == 8
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    wait_until(lambda: not list((tmp_path / "tmp").glob("*.holder")))
