"""The progress of a run: a live display, plain lines, or JSON events."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

from ndld_flow.base.text import escaped_json
from ndld_flow.cli.options import Loudness
from ndld_flow.cli.terminal import is_terminal
from ndld_flow.execution.events import Event, RunFinished, StepLogged
from ndld_flow.execution.listener import Listener


@contextlib.contextmanager
def choose_listener(*, as_json: bool = False, loudness: Loudness | None = None) -> Iterator[Listener]:
    """Return the listener for JSON events, or a live display on a terminal, or plain lines elsewhere."""
    if as_json:
        yield _print_json if loudness == "verbose" else _leave_out(StepLogged, _print_json)
    elif is_terminal(sys.stdout) and loudness != "quiet":
        from ndld_flow.cli.live import LiveDisplay

        with LiveDisplay(verbose=loudness == "verbose") as display:
            yield display
    else:
        from ndld_flow.cli.plain import PlainLines

        yield PlainLines(loudness or "normal")


def choose_listener_beside_result(as_json: bool, loudness: Loudness | None = None) -> AbstractContextManager[Listener]:
    """Return the listener of a verb whose JSON is only its result: then problems are printed on standard error."""
    if not as_json:
        return choose_listener(loudness=loudness)
    from ndld_flow.cli.plain import PlainLines

    return contextlib.nullcontext(PlainLines("quiet", sys.stderr))


def _print_json(event: Event) -> None:
    print(escaped_json(event.model_dump_json()), flush=True)


def leave_out_end(listener: Listener) -> Listener:
    """Return a listener without the end of the run, for verbs that print their own."""
    return _leave_out(RunFinished, listener)


def _leave_out(kind: type[Event], listener: Listener) -> Listener:
    return lambda event: None if isinstance(event, kind) else listener(event)
