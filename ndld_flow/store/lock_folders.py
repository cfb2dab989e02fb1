"""Locks for file systems without locks: a folder with one file that names the holder.

A process builds the folder under a temporary name and renames it to the lock's name, which fails while another holds
the lock. It releases the lock by removing the holder's file. The name of that file is used only once, so no process can
remove another's by mistake, however late: two processes that both find a holder dead do not affect a third one that has
taken the lock meanwhile.

The lock of a dead process is free at once for processes that can see its pid. Others watch its heartbeat, which a
holder writes every 10 s, by their own clock: after 5 minutes without one they take the lock. Clocks are never compared.
"""

# filelock's `SoftFileLease` (4.2) does not replace this. It measures the silence of a holder on another machine in
# memory, so `gc` and `is_held`, which look once, would never find such a lock free; notes keep that time here. It takes
# a killed process for alive until its parent has waited for it, which would block a run on the lock of its own worker.
# Where a file system cannot exchange two files in one step, as those without locks cannot, it breaks a lock in several.

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from blake3 import blake3

from ndld_flow.store.files import make_folder, share

BEAT_EVERY_S = 10.0
SILENT_AFTER_S = 300.0
"""Longer than network file systems take to show a file's new time (60 s), and than a busy machine may stall."""
_LOOK_EVERY_S = 0.05
_TRIES = 200
_FIRST_BEAT_S = 10**9
"""Heartbeats are times that count up from here: any file system can store them, whatever its clock."""


class FolderLock:
    """One lock. Other processes notice when its holder dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = f"{name_process()}-{uuid4().hex[:12]}"

    def acquire(self, timeout: float) -> None:
        """Take the lock; wait `timeout` seconds, forever if that is negative. Raises TimeoutError."""
        aside = self._path.with_name(f".{self._owner}")
        make_folder(aside)
        (aside / self._owner).touch()
        _HEARTBEAT.keep(aside / self._owner)
        try:
            self._wait(aside, time.monotonic() + timeout if timeout >= 0 else None)
            _HEARTBEAT.keep(self._path / self._owner)
        finally:
            _HEARTBEAT.drop(aside / self._owner)
            _empty(aside)

    def release(self) -> None:
        _HEARTBEAT.drop(self._path / self._owner)
        (self._path / self._owner).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another process already has it
            self._path.rmdir()

    def _wait(self, aside: Path, deadline: float | None) -> None:
        failed = 0
        while True:
            try:
                aside.rename(self._path)
            except OSError:
                if (self._path / self._owner).exists():
                    return  # the rename succeeded, and only the reply was lost
                failed += 1
                if failed > _TRIES:
                    raise
            else:
                return
            if not free_if_dead(self._path):
                failed = 0
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"{self._path} is held")
                time.sleep(_LOOK_EVERY_S)


def free_if_dead(folder: Path) -> bool:
    """Remove a lock whose holder is dead, or that has no holder; False if its holder is alive."""
    try:
        owners = list(folder.iterdir())
    except NotADirectoryError:
        folder.unlink(missing_ok=True)  # from a time when the store was on a file system with locks
        return True
    except FileNotFoundError:
        return True
    if any(_is_alive(owner) for owner in owners):
        return False
    for owner in owners:
        owner.unlink(missing_ok=True)
        _watch_note(owner).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of killed processes that waited for a lock in this folder."""
    for aside in folder.glob(".*-*-*-*"):
        if aside.is_dir():
            free_if_dead(aside)
        elif time.monotonic() - _seen_since(aside) >= SILENT_AFTER_S:
            aside.unlink(missing_ok=True)


def _empty(aside: Path) -> None:
    """Remove a temporary folder that was not renamed."""
    with contextlib.suppress(OSError):
        for file in aside.iterdir():
            file.unlink()
        aside.rmdir()


# --- holders ---------------------------------------------------------------------------------------------------------


@lru_cache
def _pid_namespace() -> str:
    """Return a name of the pid namespace: this machine, since its boot, in this container."""
    facts = [platform.node()]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return blake3(json.dumps(facts).encode()).hexdigest()[:16]


def _started(pid: int) -> str:
    """Return the start of a process, in ticks since boot; `0` if it is unknown, empty for a dead process.

    A killed process stays in /proc until its parent has waited for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "0"
    state, *fields = stat[stat.rfind(b")") + 1 :].split()
    return "" if state in (b"Z", b"X") else fields[18].decode()


def is_alive(pid: int) -> bool:
    """Return whether this machine has a process with this pid, of any user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def name_process() -> str:
    """Return a unique name of this process: its pid namespace, pid, and start time."""
    return f"{_pid_namespace()}-{os.getpid()}-{_started(os.getpid())}"


def is_running(name: str) -> bool:
    """Return whether the process of a name is running; True for one in another container, which cannot be seen."""
    try:
        where, pid, started = name.split("-")
        return where != _pid_namespace() or (is_alive(int(pid)) and _started(int(pid)) in (started, "0"))
    except ValueError:
        return False


def _is_alive(owner: Path) -> bool:
    """Return whether the holder that a file names is alive, as far as that is known."""
    try:
        process, _, _ = owner.name.rpartition("-")
        where, _, _ = process.split("-")
        return is_running(process) if where == _pid_namespace() else not _is_silent(owner)
    except FileNotFoundError:
        return False  # just released
    except ValueError:
        return True  # not our file: unknown


def _is_silent(owner: Path) -> bool:
    """Return whether a holder on another machine has had no heartbeat for so long that it must be dead.

    A note keeps the time of the last heartbeat, as observers may not run that long.
    """
    beat, now = owner.stat().st_mtime_ns, time.monotonic()
    note = _watch_note(owner)
    try:
        seen, since = json.loads(note.read_bytes())
    except (OSError, ValueError):
        seen, since = None, now
    if seen != beat or since > now:
        with contextlib.suppress(OSError):
            note.write_text(json.dumps([beat, now]), encoding="ascii")
            share(note)
        return False
    return bool(now - since >= SILENT_AFTER_S)


def _watch_note(owner: Path) -> Path:
    """Return the path of this machine's note about a holder: each machine uses its own clock."""
    return owner.parent.with_name(f".{owner.name}-{_pid_namespace()}.seen")


def _seen_since(note: Path) -> float:
    """Return the time of a holder's last heartbeat, by this machine's clock; now, for another machine's note."""
    try:
        return float(json.loads(note.read_bytes())[1]) if note.stem.endswith(_pid_namespace()) else time.monotonic()
    except (OSError, ValueError, TypeError, LookupError):
        return time.monotonic()


class _Heartbeat:
    """Writes the heartbeats of all locks that this process holds."""

    def __init__(self) -> None:
        self._owners: set[Path] = set()
        self._guard = threading.Lock()
        self._process = 0

    def keep(self, owner: Path) -> None:
        with self._guard:
            self._owners.add(owner)
            if self._process != os.getpid():  # a fork does not copy threads
                self._process = os.getpid()
                threading.Thread(target=self._beat, daemon=True).start()

    def drop(self, owner: Path) -> None:
        with self._guard:
            self._owners.discard(owner)

    def _beat(self) -> None:
        at_s = _FIRST_BEAT_S
        while True:
            time.sleep(BEAT_EVERY_S)
            at_s += int(BEAT_EVERY_S)
            with self._guard:
                owners = list(self._owners)
            for owner in owners:
                with contextlib.suppress(OSError):
                    os.utime(owner, (at_s, at_s))


_HEARTBEAT = _Heartbeat()
