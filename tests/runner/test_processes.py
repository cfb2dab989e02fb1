"""Real processes: killed, interrupted, many at once, on a full disk."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ndld_flow.records.document import read_document
from ndld_flow.records.outcomes import is_complete
from ndld_flow.records.run_folder import RUN_RECORD as RECORD
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner.verify import verify_outputs
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.store import Store
from tests.support.process_runs import ProcessRun
from tests.support.toys import RECIPE, Toy, make_toy

SLOW = RECIPE.replace("word: a", "word: a, seconds: 0.2").replace("word: b", "word: b, seconds: 0.2")
LIMIT_S = 120


def start(toy: Toy, *arguments: str) -> ProcessRun:
    """Start a run of the toy, which logs each step it computes."""
    (toy.folder / ".log").mkdir(exist_ok=True)  # hidden folders are in no key
    env = {"TOY_LOG": str(toy.folder / ".log" / "steps.log")}
    return ProcessRun("run", str(toy.recipe), "--trust", *arguments, cwd=toy.folder, env=env)


def finish(process: ProcessRun) -> tuple[int, str, str]:
    return process.finish(LIMIT_S)


def computed(toy: Toy) -> list[str]:
    """Names of the steps that were computed, one for each time."""
    log = toy.folder / ".log" / "steps.log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("count", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_identical_runs_at_once_compute_each_step_once(in_folder: Path, count: int) -> None:
    toy = make_toy(in_folder, SLOW)
    processes = [start(toy) for _ in range(count)]
    results = [finish(process) for process in processes]
    assert [(code, err) for code, _, err in results] == [(0, "")] * count
    assert sorted(computed(toy)) == ["aside", "first", "second"]
    assert (in_folder / "outputs/runs/toy/latest/report.html").is_file()


@pytest.mark.thorough
def test_killed_at_any_moment_the_next_run_finishes_and_repeats_no_finished_work(in_folder: Path) -> None:
    toy = make_toy(in_folder, SLOW)
    store = Store(in_folder / "outputs/store")
    moments = random.Random(7)
    for _ in range(6):
        process = start(toy)
        time.sleep(moments.uniform(0.1, 1.1))
        process.send_signal(signal.SIGKILL)
        finish(process)
        before = {path.stem for path in (store.root / "records").glob("*/*.json")}
        assert all(store.read_record(key) is not None for key in before), "a record is whole or not there"
        assert verify_outputs(Outputs(in_folder / "outputs")).all_well
        for folder in (in_folder / "outputs/runs").glob("toy/2*"):
            if is_complete(read_document(RunRecord, folder / RECORD).outcome):
                assert (folder / "report.html").is_file(), "a record that reports an end stands in a whole folder"
    finished = len(list((store.root / "records").glob("*/*.json")))
    earlier = len(computed(toy))
    code, _, err = finish(start(toy))
    assert (code, err) == (0, "")
    assert len(computed(toy)) == earlier + 3 - finished
    assert list((store.root / "building").iterdir()) == []


@pytest.mark.parametrize("word", ["SIGINT", "SIGTERM"])
def test_ctrl_c_ends_quickly_and_keeps_finished_results(in_folder: Path, word: str) -> None:
    toy = make_toy(in_folder, RECIPE.replace("word: b", "word: b, seconds: 30"))
    process = start(toy)
    while "second" not in computed(toy):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.Signals[word])
    code, _, err = finish(process)
    assert code == 130
    assert "run again to continue" in err
    assert "Traceback" not in err
    store = Store(in_folder / "outputs/store")
    assert list((store.root / "building").iterdir()) == []
    [folder] = (in_folder / "outputs/runs").glob("toy/2*")
    assert read_document(RunRecord, folder / RECORD).outcome == "interrupted"
    assert (folder / "report.html").is_file()
    code, out, _ = finish(start(toy, "steps.second.seconds=0"))
    assert code == 0
    assert "first: reused" in out


@pytest.fixture
def small_disk(in_folder: Path) -> Iterator[Path]:
    """A disk of 3 MiB; skips where it cannot be mounted (not root, no Linux)."""
    folder = in_folder / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here (needs root on Linux)")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def test_a_full_disk_is_one_paragraph_and_loses_nothing(in_folder: Path, small_disk: Path) -> None:
    toy = make_toy(in_folder)
    (small_disk / "filler").write_bytes(bytes(2 * 2**20))
    step = (toy.folder / "steps" / "stamp.py").read_text()
    (toy.folder / "steps" / "stamp.py").write_text(
        step.replace("context.log.info", '(out / "big.bin").write_bytes(bytes(2 * 2**20))\n        context.log.info')
    )
    code, out, err = finish(start(toy, "--outputs", str(small_disk / "outputs")))
    assert code == 2, out + err
    assert "is full" in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert not list((small_disk / "outputs/store/objects").glob("*/*"))


@pytest.mark.parametrize(
    "free_kib", [20, pytest.param(60, marks=pytest.mark.thorough), 200, pytest.param(700, marks=pytest.mark.thorough)]
)
def test_a_disk_that_fills_at_any_write_is_one_paragraph(in_folder: Path, small_disk: Path, free_kib: int) -> None:
    toy = make_toy(in_folder)
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - free_kib * 1024))
    code, out, err = finish(start(toy, "--outputs", str(small_disk / "outputs")))
    assert code in (0, 2), out + err
    assert "Traceback" not in err
    assert code == 0 or len(err.strip().splitlines()) == 1, err
    for folder in (small_disk / "outputs").glob("runs/toy/2*"):
        whole = (folder / "report.html").is_file()
        assert whole or not is_complete(read_document(RunRecord, folder / RECORD).outcome)
    (small_disk / "filler").unlink()
    code, _, err = finish(start(toy, "--outputs", str(small_disk / "outputs")))
    assert (code, err) == (0, "")


def test_a_missing_outputs_permission_is_one_paragraph(in_folder: Path) -> None:
    toy = make_toy(in_folder)
    (in_folder / "file").write_text("")
    code, _, err = finish(start(toy, "--outputs", str(in_folder / "file" / "outputs")))
    assert code == 2
    assert err.startswith("error: outputs folder")
    assert len(err.strip().splitlines()) == 1
