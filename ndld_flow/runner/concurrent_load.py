"""What else of ndld_flow works on this machine while a step measures."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.text import short_name
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.base import Record
from ndld_flow.store.store import Store

_NOTE = "at-work.json"
_LOOK_EVERY_S = 1.0
_MOST_TOLD = 20


class _AtWork(Record):
    """What a working step says of itself, in the folder where it builds."""

    host: str
    pid: int
    what: str
    """`convert_fp16 half of ppocr`."""
    since_s: float
    """When it began, by the clock that counts from the machine's start: all its processes have it, and none sets it."""


def announce(steps: Sequence[RecipeStep], recipe: str, folder: Path) -> None:
    """Say that steps are at work here, for as long as `folder` of the store is theirs: until they end or are killed."""
    names = " and ".join(f"`{step.name}`" for step in steps)
    what = f"{steps[0].type.name} {names}{f' of {recipe}' if recipe else ''}"
    mine = _AtWork(host=platform.node(), pid=os.getpid(), what=what, since_s=time.monotonic())
    (folder / _NOTE).write_text(mine.to_json(), encoding="utf-8")


@dataclass
class _Seen:
    """Another's work, as far as it was seen."""

    work: _AtWork
    last_s: float


class Lookout:
    """Looks about once a second who else is at work, while something is measured in another process or thread."""

    def __init__(self, store: Store, own: Path) -> None:
        """`own`: the folder of our own announcement."""
        self._store = store
        self._own = own
        self._began_s = time.monotonic()
        self._seen: dict[str, _Seen] = {}
        self._over = threading.Event()
        self._look()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def end(self) -> tuple[str, ...]:
        """What was at work meanwhile, in words: ``convert_fp16 `half` of ppocr (pid 812), for 3 s of 12 s``."""
        self._over.set()
        self._thread.join()
        self._look()
        whole_s = time.monotonic() - self._began_s
        together_s: dict[str, float] = {}
        for seen in self._seen.values():
            who = f"{short_name(seen.work.what)} (pid {seen.work.pid})"
            share_s = seen.last_s - max(seen.work.since_s, self._began_s)
            together_s[who] = together_s.get(who, 0.0) + max(share_s, 0.0)
        told = [f"{who}, for {_say(share_s)} of {_say(whole_s)}" for who, share_s in together_s.items()]
        return (*told[:_MOST_TOLD], *([f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []))

    def _look_on(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        """Note who is at work now. A store that cannot be read for a moment ends no measurement."""
        with contextlib.suppress(OSError):
            folders = self._store.root / "building"
            others = {path.parent.name: path for path in folders.glob(f"*/{_NOTE}") if path.parent != self._own}
            alive = self._store.locks.leased("building") if others else set()  # not those that were killed
            now_s = time.monotonic()
            for name, path in others.items():
                if name in alive and (work := self._read(name, path)):
                    self._seen[name] = _Seen(work, now_s)

    def _read(self, name: str, path: Path) -> _AtWork | None:
        """Another's announcement; None where it works on another machine, or has just ended."""
        if name in self._seen:
            return self._seen[name].work
        try:
            work = _AtWork.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return work if work.host == platform.node() else None


def _say(span_s: float) -> str:
    return f"{span_s:.0f} s" if span_s >= 1 else "less than 1 s"
