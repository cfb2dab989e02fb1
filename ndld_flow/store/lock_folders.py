"""Locks where the file system has none: a folder whose one file names the holder.

A folder is made aside, whole, and renamed to the lock's name, which fails where another's lies there. It is given back
by removing the holder's file. That file's name is never used twice, so nobody can remove another's by mistake, however
late: what two do who both find a holder dead harms no third one who has taken the lock meanwhile.

A dead holder's lock is free at once for those who can see its processes. Others watch the sign of life that a holder
gives every 10 s, by their own clock: after 5 minutes without one they take the lock. Clocks are never compared.
"""

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

from ndld_flow.store.sharing import make_folder, share

BEAT_EVERY_S = 10.0
SILENT_AFTER_S = 300.0
"""Longer than network file systems take to show a file's new time (60 s), and than a busy machine holds its breath."""
_LOOK_EVERY_S = 0.05
_TRIES = 200
_FIRST_BEAT_S = 10**9
"""Signs of life are times that count up from here: any file system can keep them, whatever its clock says."""


class FolderLock:
    """One lock. Whoever dies with it is found dead by the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = _name_owner()

    def acquire(self, timeout: float) -> None:
        """Take the lock; wait as many seconds as `timeout`, for ever where that is negative. Raises TimeoutError."""
        aside = self._path.with_name(f".{self._owner}")
        make_folder(aside)
        (aside / self._owner).touch()
        _HEART.keep(aside / self._owner)
        try:
            self._wait(aside, time.monotonic() + timeout if timeout >= 0 else None)
            _HEART.keep(self._path / self._owner)
        finally:
            _HEART.drop(aside / self._owner)
            _empty(aside)

    def release(self) -> None:
        _HEART.drop(self._path / self._owner)
        (self._path / self._owner).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another has it already
            self._path.rmdir()

    def _wait(self, aside: Path, deadline: float | None) -> None:
        failed = 0
        while True:
            try:
                aside.rename(self._path)
            except OSError:
                if (self._path / self._owner).exists():
                    return  # it was done, and only the answer was lost
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
    """Remove a lock whose holder is dead, or that is nobody's; False where its holder lives."""
    try:
        owners = list(folder.iterdir())
    except NotADirectoryError:
        folder.unlink(missing_ok=True)  # of a time when the store lay where there are locks
        return True
    except FileNotFoundError:
        return True
    if any(_lives(owner) for owner in owners):
        return False
    for owner in owners:
        owner.unlink(missing_ok=True)
        _watch_note(owner).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left behind that waited for a lock in this folder."""
    for aside in folder.glob(".*-*-*-*"):
        if aside.is_dir():
            free_if_dead(aside)
        elif time.monotonic() - _seen_since(aside) >= SILENT_AFTER_S:
            aside.unlink(missing_ok=True)


def _empty(aside: Path) -> None:
    """Remove what is left of a folder that was not renamed."""
    with contextlib.suppress(OSError):
        for file in aside.iterdir():
            file.unlink()
        aside.rmdir()


# --- holders ---------------------------------------------------------------------------------------------------------


@lru_cache
def _here() -> str:
    """Where processes see each other by their numbers: this machine, since it was started, in this container."""
    told = [platform.node()]
    with contextlib.suppress(OSError):
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        told.append(str(Path("/proc/self/ns/pid").readlink()))
    return blake3(json.dumps(told).encode()).hexdigest()[:16]


def _name_owner() -> str:
    """`<where>-<process>-<when it started>-<no other>`."""
    return f"{name_process()}-{uuid4().hex[:12]}"


def _started(pid: int) -> str:
    """When a process was started, in ticks since the machine was; `0` where that is not told, empty of a dead one.

    A killed process stays in the list until its parent has heard of it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "0"
    state, *fields = stat[stat.rfind(b")") + 1 :].split()
    return "" if state in (b"Z", b"X") else fields[18].decode()


def is_alive(pid: int) -> bool:
    """Whether this machine has a process with this number, of any user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def name_process() -> str:
    """Return a name of this process that no other has: where it runs, its number, and when it was started."""
    return f"{_here()}-{os.getpid()}-{_started(os.getpid())}"


def is_running(name: str) -> bool:
    """Return whether the process of that name lives; of one in another container, which cannot be seen, True."""
    try:
        where, pid, started = name.split("-")
        return where != _here() or (is_alive(int(pid)) and _started(int(pid)) in (started, "0"))
    except ValueError:
        return False


def _lives(owner: Path) -> bool:
    """Whether the holder that a file names lives, as far as can be known."""
    try:
        process, _, _ = owner.name.rpartition("-")
        where, _, _ = process.split("-")
        return is_running(process) if where == _here() else not _is_silent(owner)
    except FileNotFoundError:
        return False  # given back in this moment
    except ValueError:
        return True  # not ours: nobody knows whose


def _is_silent(owner: Path) -> bool:
    """Whether a holder of another machine gave no sign of life for so long that it must be dead.

    Since when is noted beside it, as those who look may not last so long.
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
    """What this machine has seen of a holder: its clock is its own."""
    return owner.parent.with_name(f".{owner.name}-{_here()}.seen")


def _seen_since(note: Path) -> float:
    """When a holder gave its last sign of life, by this machine's clock; now, where that is another's note."""
    try:
        return float(json.loads(note.read_bytes())[1]) if note.stem.endswith(_here()) else time.monotonic()
    except (OSError, ValueError, TypeError, LookupError):
        return time.monotonic()


class _Heart:
    """Gives signs of life of all locks that this process holds."""

    def __init__(self) -> None:
        self._owners: set[Path] = set()
        self._guard = threading.Lock()
        self._process = 0

    def keep(self, owner: Path) -> None:
        with self._guard:
            self._owners.add(owner)
            if self._process != os.getpid():  # a fork takes no threads along
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


_HEART = _Heart()
