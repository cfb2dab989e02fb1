"""Questions of other programs at the terminal, such as `ssh`'s: what draws there pauses, and one asks at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class Display(Protocol):
    """Something that draws on the terminal again and again."""

    def pause(self) -> None:
        """Remove the drawing, and stop until `resume`."""

    def resume(self) -> None:
        """Draw again."""


_displays: list[Display] = []
_asking = threading.Lock()


@contextlib.contextmanager
def drawing(display: Display) -> Iterator[None]:
    """Make a display pause in the block while another program may ask."""
    _displays.append(display)
    try:
        yield
    finally:
        _displays.remove(display)


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Leave the terminal to another program in the block, which waits until no other one may ask."""
    with _asking, contextlib.ExitStack() as paused:
        for display in _displays:
            display.pause()
            paused.callback(display.resume)
        yield
