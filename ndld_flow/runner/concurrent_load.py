"""The concurrent load of other steps during a measurement: steps announce themselves, and monitors observe them."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.text import short_name
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.document import Record
from ndld_flow.store.store import Store

_NOTE = "at-work.json"
_OBSERVE_EVERY_S = 1.0
_MOST_LISTED = 20


class _Activity(Record):
    """The announcement of a running step, in its build folder."""

    host: str
    pid: int
    what: str
    """`convert_fp16 half of ppocr`."""
    since_s: float
    """Its start, by the monotonic clock: all processes of a machine share it, and none can set it."""


def announce(steps: Sequence[RecipeStep], recipe: str, folder: Path) -> None:
    """Announce running steps while they hold `folder` of the store: until they end or are killed."""
    names = " and ".join(f"`{step.name}`" for step in steps)
    what = f"{steps[0].type.name} {names}{f' of {recipe}' if recipe else ''}"
    mine = _Activity(host=platform.node(), pid=os.getpid(), what=what, since_s=time.monotonic())
    (folder / _NOTE).write_text(mine.to_json(), encoding="utf-8")


@dataclass
class _Observed:
    """A step of another process, as far as it was observed."""

    work: _Activity
    last_s: float


class LoadMonitor:
    """Observes other running steps about once a second during a measurement in another process or thread."""

    def __init__(self, store: Store, own: Path, also: Callable[[], None] = lambda: None) -> None:
        """Start observing. `own`: the folder of our own announcement; `also` is called each time."""
        self._store = store
        self._own = own
        self._also = also
        self._began_s = time.monotonic()
        self._observed: dict[str, _Observed] = {}
        self._over = threading.Event()
        self._observe()
        self._thread = threading.Thread(target=self._observe_until_end, daemon=True)
        self._thread.start()

    def end(self) -> tuple[str, ...]:
        """Return descriptions of the concurrent steps: ``convert_fp16 `half` of ppocr (pid 812), for 3 s of 12 s``."""
        self._over.set()
        self._thread.join()
        self._observe()
        whole_s = time.monotonic() - self._began_s
        together_s: dict[str, float] = {}
        for observed in self._observed.values():
            who = f"{short_name(observed.work.what)} (pid {observed.work.pid})"
            share_s = observed.last_s - max(observed.work.since_s, self._began_s)
            together_s[who] = together_s.get(who, 0.0) + max(share_s, 0.0)
        listed = [
            f"{who}, for {_format_span(share_s)} of {_format_span(whole_s)}" for who, share_s in together_s.items()
        ]
        return (
            *listed[:_MOST_LISTED],
            *([f"and {len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []),
        )

    def _observe_until_end(self) -> None:
        while not self._over.wait(_OBSERVE_EVERY_S):
            self._observe()

    def _observe(self) -> None:
        """Observe running steps once. A store that temporarily cannot be read does not end a measurement."""
        self._also()
        with contextlib.suppress(OSError):
            folders = self._store.root / "building"
            others = {path.parent.name: path for path in folders.glob(f"*/{_NOTE}") if path.parent != self._own}
            alive = self._store.locks.leased("building") if others else set()  # excludes killed processes
            now_s = time.monotonic()
            for name, path in others.items():
                if name in alive and (work := self._read(name, path)):
                    self._observed[name] = _Observed(work, now_s)

    def _read(self, name: str, path: Path) -> _Activity | None:
        """Return another step's announcement; None if it runs on another machine, or has just ended."""
        if name in self._observed:
            return self._observed[name].work
        try:
            work = _Activity.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None
        return work if work.host == platform.node() else None


def _format_span(span_s: float) -> str:
    return f"{span_s:.0f} s" if span_s >= 1 else "less than 1 s"
