"""The progress of a run: a live display, plain lines, or JSON events."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from ndld_flow.base.text import escaped_json
from ndld_flow.runner.events import Event, Listener, RunFinished


@contextlib.contextmanager
def choose_listener(*, as_json: bool) -> Iterator[Listener]:
    """Return the listener for JSON events, or a live display on a terminal, or plain lines elsewhere."""
    if as_json:
        yield lambda event: print(escaped_json(event.model_dump_json()), flush=True)
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from ndld_flow.cli.live import LiveDisplay

        with LiveDisplay() as display:
            yield display
    else:
        from ndld_flow.cli.plain import PlainLines

        yield PlainLines()


def leave_out_end(listener: Listener) -> Listener:
    """Return a listener without the end of the run, for verbs that print their own."""

    def listen(event: Event) -> None:
        if not isinstance(event, RunFinished):
            listener(event)

    return listen
