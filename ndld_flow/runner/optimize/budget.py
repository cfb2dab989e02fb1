"""The budget of `optimize`: a promise that the command ends within it and 10 s, whatever runs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ndld_flow.base.quantities import seconds

_GRACE_S = 3.0
"""Seconds after the budget in which a proof that runs may still end."""
_SIGNAL = getattr(signal, "SIGUSR1", None)


class BudgetEndedError(KeyboardInterrupt):
    """The budget is used up: what runs ends as it does by Ctrl-C."""


@dataclass(frozen=True)
class Budget:
    """The time for everything, which starts with the object."""

    seconds: float | None
    """None for no limit."""
    start: float = field(default_factory=time.monotonic)

    @property
    def used_s(self) -> float:
        return time.monotonic() - self.start

    def left_s(self, share: float = 1.0) -> float:
        """Return the rest of a share of the time; infinity without a limit."""
        return float("inf") if self.seconds is None else self.seconds * share - self.used_s

    @property
    def described(self) -> str:
        return f"the budget of {seconds(self.seconds or 0.0)} is used up"

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise BudgetEndedError in the block when the time is used up.

        Only a signal ends what the main thread waits for: other threads, and systems without signals of users, end
        with the step that runs.
        """
        main = threading.main_thread()
        if self.seconds is None or _SIGNAL is None or threading.current_thread() is not main:
            yield
            return

        def end(*_: object) -> None:
            raise BudgetEndedError

        timer = threading.Timer(
            max(self.left_s() + _GRACE_S, 0.0), lambda: signal.pthread_kill(main.ident or 0, _SIGNAL)
        )
        before = signal.signal(_SIGNAL, end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # a signal that was sent is handled before the handler is restored
            signal.signal(_SIGNAL, before)
