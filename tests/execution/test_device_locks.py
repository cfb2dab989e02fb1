"""Exclusive device locks of measuring steps: by recorded intervals, and with real processes that wait and die."""

from __future__ import annotations

import errno
import getpass
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from ndld_flow.execution import devices as device_locks
from ndld_flow.execution.devices import (
    FOLDER_VARIABLE,
    Claim,
    describe_holders,
    find_shared_folder,
    holding,
    name_devices,
    name_machine,
)
from ndld_flow.machine import gpu_state
from ndld_flow.store.store import Store

HOLD = """
import os, platform, sys, tempfile, time
from pathlib import Path
from ndld_flow.store.store import Store
from ndld_flow.execution.devices import Claim, holding

store, device, cpus, host, user, umask = sys.argv[1:]
if user != "0":
    with tempfile.TemporaryDirectory() as folder, holding("balance", Store(Path(folder)), Claim("import all", print)):
        pass  # what is imported later may be closed to others
    os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
os.umask(int(umask))
if host:
    platform.node = lambda: host
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
from ndld_flow.store.files import write_bytes_atomically
from ndld_flow.store.store import Store
from ndld_flow.execution.workers import Workers
from tests.support.worker_toys import Deeds

deeds = Deeds(Path.cwd())
deeds.store = Store(Path(sys.argv[1]))
write_bytes_atomically(deeds.store.root / "model.onnx", (deeds.folder / "model.onnx").read_bytes())
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
    """Use a folder of its own for what all users of a machine share."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "shared"))


class Holder:
    """A process that holds a device until it is let go."""

    def __init__(
        self, store: Path, device: str, cpus: str = "", *, host: str = "", user: int = 0, umask: int = 0o022
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(store), device, cpus, host, str(user), str(umask)],
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


def waits(holder: Holder, device: str = "scales", user: str | None = None) -> str:
    """A pattern of what a process prints that waits for a holder."""
    name = re.escape(user or getpass.getuser())
    holder_text = (
        rf"step speed of other on .+ \(user {name}(?:, host \S+)?, pid {holder.process.pid}\) since [\d:]{{8}}"
    )
    return f"waits for {device}, held by {holder_text}"


def test_a_waiting_step_names_what_it_waits_for_and_who_holds_it(tmp_path: Path) -> None:
    with Holder(tmp_path / "one", "scales") as first, Holder(tmp_path / "two", "scales") as second:
        lines = {holder.says(): holder for holder in (first, second)}
        waiting = next(text for text in lines if text != "holds")
        other = lines["holds"]
        assert re.fullmatch(f"{waits(other)}|.*scales.*another process", waiting)
        other.process.communicate("", timeout=60)
        last = lines[waiting].says()
        assert last == "holds" or re.fullmatch(waits(other), last)


@pytest.mark.thorough
def test_containers_of_one_host_exclude_each_other_through_a_shared_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/sys/kernel/random/boot_id").exists():
        pytest.skip("this system does not identify its host")
    with Holder(tmp_path, "scales") as first:
        assert first.says() == "holds"
        (tmp_path / "other").mkdir()
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "other"))
        with Holder(tmp_path, "scales", host="another") as second:
            assert re.fullmatch(waits(first), second.says())
            first.process.communicate("", timeout=60)
            assert second.says() == "holds"


as_others = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be somebody else")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike those of the tests."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.thorough
@as_others
def test_users_with_separate_stores_exclude_each_other(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = open_folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv(FOLDER_VARIABLE, str(shared))
    for user in (65533, 65534):
        (open_folder / str(user)).mkdir()
        os.chown(open_folder / str(user), user, user)
    name = pwd.getpwuid(65534).pw_name
    with Holder(open_folder / "65534", "scales", user=65534, umask=0o077) as first:
        assert first.says() == "holds"
        with Holder(open_folder / "65533", "scales", user=65533) as second:
            assert re.fullmatch(waits(first, user=name), second.says())
            first.process.send_signal(signal.SIGKILL)
            assert second.says() == "holds"  # the dead one's file stays, as another user may not remove it


def test_a_missing_shared_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)  # without the sticky bit anybody may replace another's lock
    monkeypatch.setattr(device_locks, "_SHARED_FOLDERS", (tmp_path / "open", tmp_path / "none"))
    with holding("scales", Store(tmp_path / "store"), Claim("step a", print)) as hold:
        assert len(hold.faults) == 1
        assert FOLDER_VARIABLE in hold.faults[0]


def test_a_device_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    with Holder(tmp_path, "scales") as first:
        assert first.says() == "holds"
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        reported: list[str] = []
        with holding("scales", Store(tmp_path), Claim("step a", reported.append)) as hold:
            assert (reported, hold.faults) == ([], ())


@pytest.mark.thorough
@several_cpus
def test_sets_of_cpus_exclude_each_other_where_they_overlap(tmp_path: Path) -> None:
    cpu, two = sorted(os.sched_getaffinity(0))[:2]
    with Holder(tmp_path, "cpu", str(cpu)) as first:
        assert first.says() == "holds"
        second = Holder(tmp_path, "cpu", str(two))
        assert second.says() == "holds"
        with Holder(tmp_path, "cpu", f"{cpu},{two}") as third:
            assert re.fullmatch(waits(first, f"cpu {cpu}"), third.says())
            first.process.communicate("", timeout=60)
            assert re.fullmatch(waits(second, f"cpu {two}"), third.says())
            second.process.communicate("", timeout=60)
            assert third.says() == "holds"


def test_cpus_are_named_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 3, 4, 100, 255})
    assert name_devices("cpu") == ("cpu-0", "cpu-1", "cpu-3", "cpu-4", "cpu-100", "cpu-255")
    assert device_locks._describe_devices("cpu") == "cpu 0-1,3-4,100,255"


def write_card(folder: Path, address: str, uuid: str) -> None:
    (folder / address).mkdir(parents=True)
    text = f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n"
    (folder / address / "information").write_text(text)


def show_cards(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a folder have the files of the driver, which are read where NVML is missing."""
    monkeypatch.setattr(gpu_state, "_CARDS", folder)
    monkeypatch.setattr(gpu_state, "_LIBRARY", "no NVML")
    gpu_state._all_gpus.cache_clear()


def test_a_gpu_has_one_lock_whatever_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    show_cards(monkeypatch, tmp_path / "none")
    assert name_devices("gpu-1") == ("gpu-1",)
    write_card(tmp_path / "gpus", "0000:01:00.0", "GPU-11111111-aaaa")
    write_card(tmp_path / "gpus", "0000:02:00.0", "GPU-22222222-bbbb")
    write_card(tmp_path / "gpus", "0000:03:00.0", "GPU-????????-????")
    show_cards(monkeypatch, tmp_path / "gpus")
    assert name_devices("gpu-1") == ("GPU-22222222-bbbb",)
    assert name_devices("gpu-2") == ("gpu-2",)
    assert name_devices("gpu-7") == ("gpu-7",)
    for seen in ("1,0", "GPU-2222,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
        assert name_devices("gpu-0") == ("GPU-22222222-bbbb",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1/2")
    assert name_devices("gpu-0") == ("MIG-1/2",)


def test_a_folder_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with holding("scales", Store(tmp_path), Claim("step a", print)) as hold:
        assert len(hold.faults) == 1, "the store uses files that exist while they are held"
        assert "no locks here" in hold.faults[0]


def intervals(stores: Sequence[Path]) -> list[tuple[float, float]]:
    records = [Store(store).read_record(path.stem) for store in stores for path in (store / "records").glob("*/*.json")]
    ends = [(record.started_at.timestamp(), record.ended_at.timestamp()) for record in records if record]
    return sorted(ends)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("store", "store"), marks=pytest.mark.slow),
        pytest.param(("store", "other"), marks=pytest.mark.thorough),
    ],
)
def test_two_sweeps_at_once_never_measure_on_one_device_together(tmp_path: Path, names: Sequence[str]) -> None:
    runs = []
    for number, name in enumerate(names):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        command = [sys.executable, "-c", MEASURE, str(tmp_path / name), f"run{number}_"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
        runs.append(subprocess.Popen(command, cwd=folder, env=environment))
    assert [run.wait(120) for run in runs] == [0, 0]
    found = intervals([tmp_path / name for name in dict.fromkeys(names)])
    assert len(found) == 8
    assert all(before[1] <= after[0] for before, after in pairwise(found))


def lock_path() -> Path:
    folder = find_shared_folder()
    assert folder is not None
    return folder / f"ndld_flow-{name_machine()}-scales.lock"


def test_a_removed_lock_is_recorded(tmp_path: Path) -> None:
    with holding("scales", Store(tmp_path / "store"), Claim("step a", print)) as hold:
        lock_path().unlink()
        assert [fault for fault in hold.faults if "removed while it measured" in fault]


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "folder"])
def test_what_is_no_lock_is_not_written_and_recorded(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "link":
        target.write_text("precious")
    if "link" in kind:
        lock_path().symlink_to(target)
    else:
        os.mkfifo(lock_path()) if kind == "pipe" else lock_path().mkdir()
    with holding("scales", Store(tmp_path / "store"), Claim("step a", print)) as hold:
        assert len(hold.faults) == 1
        assert str(lock_path()) in hold.faults[0]
    assert (target.read_text() == "precious") if kind == "link" else not target.exists()


def test_doctor_shows_who_holds_a_device(tmp_path: Path) -> None:
    assert describe_holders().found == f"nothing measures (locks in {tmp_path / 'shared'})"
    with holding("scales", Store(tmp_path / "store"), Claim("step speed of toy", print)):
        found = describe_holders().found
    assert "toy on scales (user" in found
    assert f"pid {os.getpid()}) since " in found
