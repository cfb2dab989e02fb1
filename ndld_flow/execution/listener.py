"""Listeners: functions that receive the events of a run.

A plan passes its listener on and seldom calls it, so the classes of events are imported where one is created.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ndld_flow.execution.events import Event

Listener = Callable[["Event"], None]


def synchronized(listener: Listener) -> Listener:
    """Return a listener that several threads may call."""
    lock = threading.Lock()

    def pass_on(event: Event) -> None:
        with lock:
            listener(event)

    return pass_on


def ignore(_: Event) -> None:
    """Ignore an event: a listener for programs that only need the result."""
