"""Locks of files: in places that a stranger has prepared, and with notes that a stranger has written."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ndld_flow.store.locks import UNKNOWN_HOLDER, FileLock, LockNote, describe_holder, read_note, take

FOR_ALL = 0o666
HOLD = """
import sys
from pathlib import Path
from ndld_flow.store.locks import FileLock, LockNote

lock = FileLock(Path(sys.argv[1]))
lock.acquire(0)
lock.write_note(LockNote.of_this_process("step speed"))
print("holds", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")


def _note(**values: object) -> bytes:
    note = {"what": "x", "run_pid": 1, "pid": 1, "user": "u", "host": "h", "since": "2026-01-01T00:00:00Z"}
    return json.dumps({**note, **values}).encode()


def is_free(path: Path, mode: int = 0) -> bool:
    lock = FileLock(path, mode)
    taken = take(lock)
    if taken:
        lock.release()
    return taken


def test_one_lock_of_a_file_excludes_another_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    lock = FileLock(path)
    lock.acquire(0)
    with pytest.raises(TimeoutError):
        FileLock(path).acquire(0.1)
    lock.release()
    assert is_free(path)


def test_the_lock_of_a_killed_process_is_free_and_its_note_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        assert not is_free(path)
        assert f"pid {process.pid})" in describe_holder(path)
        process.kill()
        process.wait()
    assert is_free(path)
    note = read_note(path)
    assert note is not None and note.pid == process.pid
    assert describe_holder(path) == UNKNOWN_HOLDER


def test_a_removed_lock_is_not_taken_for_the_one_of_its_path(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    lock = FileLock(path)
    lock.acquire(0)
    path.unlink()
    assert not lock.is_at_its_path()
    other = FileLock(path)
    other.acquire(0)
    assert other.is_at_its_path()
    other.release()
    lock.release()


def test_a_note_is_shown_while_the_lock_is_held(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    lock = FileLock(path)
    lock.acquire(0)
    assert describe_holder(path) == UNKNOWN_HOLDER
    first = LockNote.of_this_process("step first")
    lock.write_note(first)
    assert read_note(path) == first
    assert describe_holder(path).startswith("step first (user ")
    lock.release()
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1" * 1_000_000,
        b"\xff\xfe",
        b'{"pid": 1}\n',
        _note(pid=2**64),
        _note(pid=0),
        _note(pid=-1),
        _note(since="2026-01-01T00:00:00"),
    ],
)
def test_an_unreadable_note_names_nobody(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "one.lock"
    path.write_bytes(text)
    assert describe_holder(path) == UNKNOWN_HOLDER


@pytest.mark.parametrize("year", [1, 9999])
def test_a_hostile_note_is_shown_short_and_escaped(tmp_path: Path, year: int) -> None:
    path = tmp_path / "one.lock"
    text = "\x1b[2J\n\u202e" + "x" * 300
    since = datetime(year, 1, 1 if year == 1 else 31, tzinfo=UTC).replace(month=1 if year == 1 else 12)
    note = LockNote(what=text, run_pid=1, pid=os.getpid(), user=text, host=text, since=since)
    path.write_text(note.model_dump_json() + "\n")
    shown = describe_holder(path)
    assert shown != UNKNOWN_HOLDER
    assert len(shown) < 1000
    assert shown.isprintable()


def test_a_note_of_this_host_needs_a_living_process(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    note = LockNote.of_this_process("step first").model_copy(update={"pid": 2**31 - 1})
    path.write_text(note.model_dump_json() + "\n")
    assert describe_holder(path) == UNKNOWN_HOLDER
    elsewhere = note.model_copy(update={"host": f"not-{platform.node()}"})
    path.write_text(elsewhere.model_dump_json() + "\n")
    assert f"host not-{platform.node()}, pid {2**31 - 1}" in describe_holder(path)


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "folder", "protected", "hard link"])
def test_what_a_stranger_has_put_in_place_is_not_opened(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "shared.lock", tmp_path / "precious"
    if kind in ("link", "hard link", "protected"):
        precious.write_text("precious")
        precious.chmod(0o644)
    if kind in ("link", "broken link"):
        path.symlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(path, 0o666)
        path.chmod(0o666)
    elif kind == "folder":
        path.mkdir()
    else:
        precious.rename(path) if kind == "protected" else path.hardlink_to(precious)
    lock = FileLock(path, FOR_ALL)
    with pytest.raises(OSError, match=str(path)):
        lock.acquire(0)
    assert describe_holder(path) == UNKNOWN_HOLDER
    if kind != "broken link":
        assert kind in ("pipe", "folder") or path.read_text() == "precious"
    else:
        assert not precious.exists()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_every_user_may_open_a_shared_lock_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert is_free(tmp_path / "shared.lock", FOR_ALL)
        assert is_free(tmp_path / "own.lock")
    finally:
        os.umask(before)
    assert (tmp_path / "shared.lock").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "own.lock").stat().st_mode & 0o777 == 0o666 & ~umask
    assert {path.name for path in tmp_path.iterdir()} == {"shared.lock", "own.lock"}
