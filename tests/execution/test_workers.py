"""Worker processes: their answers, and that nothing is left of them, however they or their driver end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from ndld_flow.base.errors import BackendError, KilledError, ModelError, RequestError
from ndld_flow.cli.app import write_bug
from ndld_flow.execution import daemon_threads
from ndld_flow.execution.choose_executor import choose_executor
from ndld_flow.execution.events import Event, StepWaits
from ndld_flow.execution.executor import InProcess, StepTimeoutError
from ndld_flow.execution.keys import make_key
from ndld_flow.execution.listener import ignore
from ndld_flow.execution.workers import COMMAND, WorkerBugError, Workers
from ndld_flow.processes.launch import Child
from ndld_flow.processes.worker import IN_PROCESS
from tests.support.message_files import CheckMessage
from tests.support.started_processes import POOLS
from tests.support.worker_toys import Deeds, processes_with, wait_until

on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux lets a process keep its children"
)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A word in the environment of all processes that this test starts."""
    word = f"mark-{uuid4().hex}"
    monkeypatch.setenv("TOY_MARK", word)
    return word


@pytest.fixture
def deeds(in_folder: Path) -> Deeds:
    return Deeds(in_folder)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Two workers for all tests."""
    with closing(Workers(2, trust=True)) as pool:
        POOLS.append(lambda: {worker.pid for worker in pool.workers})
        yield pool
        POOLS.pop()


def building(deeds: Deeds) -> list[Path]:
    folder = deeds.store.root / "building"
    return list(folder.iterdir()) if folder.is_dir() else []


def test_a_worker_returns_the_stored_record(deeds: Deeds, workers: Workers) -> None:
    task = deeds.task('word: "Größe \\u2028 \\u0007"')
    (record,) = workers.submit(task, deeds.store).result()
    assert record == deeds.store.read_record(make_key(task.works[0].parts))
    assert record.summary == "Größe \u2028 \u0007"
    assert record.parents == {"from": "source"}
    assert deeds.told == [("one", 1, 2, "about to do nothing")]


def test_stored_results_are_recomputed_only_when_forced(deeds: Deeds, workers: Workers) -> None:
    task = deeds.task()
    first, second = (workers.submit(task, deeds.store).result() for _ in range(2))
    assert first == second
    assert len(deeds.done) == 1


def test_workers_persist_and_run_in_parallel(deeds: Deeds, workers: Workers) -> None:
    both = [workers.submit(deeds.task("act: pid, seconds: 1.0", name=name), deeds.store) for name in ("one", "two")]
    pids = {future.result()[0].summary for future in both}
    assert len(pids) == 2
    again = workers.submit(deeds.task("act: pid", name="three"), deeds.store).result()[0].summary
    assert again in pids


@pytest.mark.thorough
def test_one_idle_worker_is_enough_for_one_task_after_another(deeds: Deeds) -> None:
    with closing(Workers(2, trust=True)) as workers:
        tasks = [deeds.task("act: pid", name=name) for name in ("one", "two", "three")]
        assert len({workers.submit(task, deeds.store).result()[0].summary for task in tasks}) == 1


def test_output_printed_by_libraries_is_not_an_answer(deeds: Deeds, workers: Workers) -> None:
    (record,) = workers.submit(deeds.task("act: print, word: '{\"said\": 1}'"), deeds.store).result()
    assert record.summary == "''", "a step's standard input is empty, and the orders are not in it"


def test_large_answers_are_received(deeds: Deeds, workers: Workers) -> None:
    (record,) = workers.submit(deeds.task("act: shout, word: ü"), deeds.store).result()
    assert record.summary == record.log.rpartition("  ")[2] == "ü" * 5_000_000


def test_an_error_keeps_its_class_and_message(deeds: Deeds, workers: Workers, check_message: CheckMessage) -> None:
    with pytest.raises(ModelError) as caught:
        workers.submit(deeds.task("act: refuse, word: too heavy"), deeds.store).result()
    check_message(caught.value)
    assert building(deeds) == []


@pytest.mark.parametrize("settings", ["act: bug, word: x", "act: exit, word: x"])
def test_a_bug_is_raised_in_the_driver_with_its_location(
    deeds: Deeds, workers: Workers, settings: str, check_message: CheckMessage
) -> None:
    with pytest.raises(WorkerBugError) as caught:
        workers.submit(deeds.task(settings), deeds.store).result()
    check_message(caught.value)
    assert not isinstance(caught.value, RequestError)
    message = write_bug(caught.value)
    log = Path(message.partition("traceback are in ")[2].partition("; please")[0])
    assert "deed.py" in log.read_text()
    log.unlink()
    assert workers.submit(deeds.task("word: fine"), deeds.store).result()[0].summary == "fine"


@pytest.mark.thorough
def test_a_task_that_kills_two_workers_is_given_up(deeds: Deeds, workers: Workers, check_message: CheckMessage) -> None:
    with pytest.raises(KilledError) as caught:
        workers.submit(deeds.task("act: segfault"), deeds.store).result()
    check_message(caught.value)
    assert len({pid for _, pid in deeds.done}) == 2
    assert building(deeds) == []
    assert workers.submit(deeds.task("word: fine"), deeds.store).result()[0].summary == "fine"


@pytest.mark.thorough
@on_linux
def test_a_task_is_not_retried_with_a_single_worker(
    deeds: Deeds, mark: str, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    with closing(Workers(1, trust=True)) as alone:
        with pytest.raises(KilledError) as caught:
            alone.submit(deeds.task("act: segfault"), deeds.store).result()
        check_message(caught.value)
        assert len(deeds.done) == 1
        pid = int(alone.submit(deeds.task("act: pid"), deeds.store).result()[0].summary)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes_with(mark))
        monkeypatch.setattr(Child, "lives", True)  # as while it dies: that was no try, as it was idle
        assert alone.submit(deeds.task("word: fine"), deeds.store).result()[0].summary == "fine"


@pytest.mark.thorough
def test_a_dead_worker_is_replaced(deeds: Deeds, workers: Workers) -> None:
    assert workers.submit(deeds.task("act: die once, word: fine"), deeds.store).result()[0].summary == "fine"
    assert len({pid for _, pid in deeds.done}) == 2


def test_a_worker_that_died_idle_is_replaced(deeds: Deeds, workers: Workers) -> None:
    pid = int(workers.submit(deeds.task("act: pid"), deeds.store).result()[0].summary)
    os.kill(pid, signal.SIGKILL)
    assert workers.submit(deeds.task("word: fine"), deeds.store).result()[0].summary == "fine"


@on_linux
@pytest.mark.parametrize("whom", ["worker", "keeper"])
def test_a_worker_killed_at_work_is_replaced_and_leaves_no_files(
    deeds: Deeds, mark: str, whom: str, check_message: CheckMessage
) -> None:
    with closing(Workers(2, trust=True)) as workers:
        future = workers.submit(deeds.task("seconds: 600"), deeds.store)
        wait_until(lambda: deeds.done)
        worker = deeds.done[0][1]
        os.kill(worker if whom == "worker" else os.getpgid(worker), signal.SIGKILL)
        wait_until(lambda: len(deeds.done) == 2)
        os.kill(deeds.done[1][1], signal.SIGKILL)
        with pytest.raises(KilledError) as caught:
            future.result()
        check_message(caught.value)
    assert processes_with(mark) == []
    assert building(deeds) == []


@on_linux
def test_a_step_that_takes_too_long_is_stopped_with_its_children(
    deeds: Deeds, workers: Workers, mark: str, check_message: CheckMessage
) -> None:
    with pytest.raises(StepTimeoutError) as caught:
        workers.submit(deeds.task(f"act: spawn, word: {mark}, seconds: 600", timeout_s=1), deeds.store).result()
    check_message(caught.value)
    assert processes_with(mark) == []
    assert building(deeds) == []
    assert workers.submit(deeds.task("word: fine", timeout_s=60), deeds.store).result()[0].summary == "fine"


@pytest.mark.thorough
def test_waiting_for_another_is_reported_and_not_counted(deeds: Deeds) -> None:
    events: list[Event] = []
    with closing(Workers(1, events.append, trust=True)) as workers:
        assert workers.submit(deeds.task(name="zero"), deeds.store).result()  # it has imported what it needs
        task = deeds.task("word: fine", timeout_s=2)
        with deeds.store.locks.hold(make_key(task.works[0].parts)):
            future = workers.submit(task, deeds.store)
            wait_until(lambda: events)
            time.sleep(2.2)
        assert future.result()[0].summary == "fine"
        (event,) = events
        assert isinstance(event, StepWaits) and event.name == "one" and "process" in event.waits_for


@pytest.mark.thorough
def test_a_queued_task_can_be_cancelled(deeds: Deeds) -> None:
    with closing(Workers(1, trust=True)) as workers:
        first = workers.submit(deeds.task("seconds: 0.5"), deeds.store)
        second = workers.submit(deeds.task(name="two"), deeds.store)
        assert second.cancel()
        assert first.result()
        assert workers.submit(deeds.task(name="three"), deeds.store).result()
        assert [name for name, _ in deeds.done] == ["one", "three"]


@pytest.mark.thorough
@on_linux
def test_closing_ends_all_workers_at_once(deeds: Deeds, mark: str) -> None:
    with closing(Workers(2, trust=True)) as workers:
        futures = [
            workers.submit(deeds.task(f"act: spawn, word: {mark}, seconds: 600", name=name), deeds.store)
            for name in ("one", "two", "three")
        ]
        wait_until(lambda: len(deeds.done) == 2)
        workers.close()
    assert processes_with(mark) == []
    assert building(deeds) == []
    for future in futures:
        with pytest.raises((BackendError, KilledError, CancelledError)):
            future.result(timeout=1)


def test_closing_does_not_wait_for_a_lock_that_ctrl_c_left_acquired(
    deeds: Deeds, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_threads, "_END_S", 0.3)
    workers = Workers(1, trust=True)
    future = workers.submit(deeds.task(f"act: spawn, word: {mark}, seconds: 600"), deeds.store)
    wait_until(lambda: len(deeds.done) == 1)
    with future._condition:  # as after an interrupt in `wait`, which acquires it before it enters a block
        workers.close()
        assert processes_with(mark) == []
        assert building(deeds) == []
    assert isinstance(future.exception(timeout=5), BackendError)


def test_a_failing_listener_harms_no_other_task(deeds: Deeds, workers: Workers) -> None:
    task = deeds.task()

    def fail(*_: object) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        workers.submit(
            type(task)((type(task.works[0])(**{**vars(task.works[0]), "progress": fail}),)), deeds.store
        ).result()
    assert workers.submit(deeds.task("word: fine"), deeds.store).result()[0].summary == "fine"


@pytest.mark.thorough
def test_steps_report_one_at_a_time(deeds: Deeds) -> None:
    busy = threading.Lock()

    def progress(*_: object) -> None:
        assert busy.acquire(blocking=False)
        time.sleep(0.05)
        busy.release()

    with closing(Workers(2, trust=True)) as workers:
        tasks = [deeds.task("seconds: 0.2", name=name, hears=progress) for name in ("one", "two", "three", "four")]
        for future in [workers.submit(task, deeds.store) for task in tasks]:
            assert future.result()


@pytest.mark.thorough
def test_a_greeting_before_the_first_answer_is_skipped(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    greeting = "import os, sys; print('Welcome!', flush=True); os.execv(sys.argv[1], sys.argv[1:])"
    monkeypatch.setattr("ndld_flow.execution.workers.COMMAND", (sys.executable, "-c", greeting, *COMMAND))
    with closing(Workers(1, trust=True)) as workers:
        assert workers.submit(deeds.task("word: fine"), deeds.store).result()[0].summary == "fine"


def test_a_worker_that_cannot_be_started_is_reported(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ndld_flow.execution.workers.COMMAND", ("no-such-program",))
    with closing(Workers(1, trust=True)) as workers, pytest.raises(BackendError, match="'no-such-program'"):
        workers.submit(deeds.task(), deeds.store).result()


def test_code_needs_trust(deeds: Deeds, check_message: CheckMessage) -> None:
    with closing(Workers(1)) as workers, pytest.raises(RequestError) as caught:
        workers.submit(deeds.task(), deeds.store).result()
    check_message(caught.value)


def test_the_executor_is_chosen_by_settings(
    deeds: Deeds, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    assert isinstance(choose_executor(None, False, ignore, True), InProcess)  # as the suite is told to
    assert isinstance(choose_executor(1, False, ignore, True), InProcess)
    for jobs, limited, slots in ((3, False, 3), (None, True, 1), (1, True, 1)):
        executor = choose_executor(jobs, limited, ignore, True)
        assert isinstance(executor, Workers)
        assert executor.slots == slots
    with pytest.raises(RequestError) as caught:
        choose_executor(0, False, ignore, True)
    check_message(caught.value)
    for word in ("0", None):
        monkeypatch.setenv(IN_PROCESS, word) if word else monkeypatch.delenv(IN_PROCESS)
        assert isinstance(choose_executor(None, False, ignore, True), Workers)


DRIVER = """
import sys
from pathlib import Path
from ndld_flow.execution.workers import Workers
from tests.support.worker_toys import Deeds

deeds = Deeds(Path.cwd())
workers = Workers(2, trust=True)
try:
    word = sys.argv[1]
    tasks = [deeds.task(f"act: spawn, word: {word}, seconds: {sys.argv[2]}", name=name) for name in ("one", "two")]
    for future in [workers.submit(task, deeds.store) for task in tasks]:
        future.result()
finally:
    workers.close()
"""


def start_driver(folder: Path, mark: str, seconds: float) -> subprocess.Popen[bytes]:
    here = Path(__file__).parent.parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, mark, str(seconds)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(here)},
        stderr=subprocess.PIPE,
    )


@on_linux
@pytest.mark.thorough
@pytest.mark.parametrize("word", ["SIGKILL", "SIGINT"])
def test_whatever_ends_the_driver_no_process_remains_and_a_rerun_finishes(deeds: Deeds, mark: str, word: str) -> None:
    driver = start_driver(deeds.folder, mark, 600)
    wait_until(lambda: len(deeds.done) == 2)
    keys = [
        make_key(deeds.task(f"act: spawn, word: {mark}, seconds: 600", name=name).works[0].parts)
        for name in ("one", "two")
    ]
    assert all(deeds.store.locks.is_held(key) for key in keys)
    driver.send_signal(signal.Signals[word])
    _, said = driver.communicate(timeout=60)
    assert (b"KeyboardInterrupt" in said) == (word == "SIGINT")
    wait_until(lambda: not processes_with(mark), 10)
    assert not any(deeds.store.locks.is_held(key) for key in keys)
    deeds.store.sweep_building()
    assert building(deeds) == []
    again = start_driver(deeds.folder, mark, 0)
    assert (again.communicate(timeout=60)[1], again.returncode) == (b"", 0)
    assert processes_with(mark) == []
