"""The budget of `optimize`: a promise that the command ends in time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import seconds

_GRACE_S, _GRACE_SHARE = 3.0, 0.05
"""Seconds after the budget, or the share of it if that is more, in which a proof that runs may still end."""
_SOURCE_S = 60.0
"""Seconds that the run of the source may take in any case: without it, nothing can be delivered."""
_SIGNAL = getattr(signal, "SIGUSR1", None)


class BudgetEndedError(KeyboardInterrupt):
    """The budget is used up: what runs ends as it does by Ctrl-C. Its text is the reason."""


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

    def end(self, *_: object) -> None:
        """Raise BudgetEndedError."""
        raise BudgetEndedError(f"the budget of {seconds(self.seconds or 0.0)} is used up")

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

        end_s = self.left_s() + max(_GRACE_S, _GRACE_SHARE * self.seconds)
        timer = threading.Timer(max(end_s, 0.0), lambda: signal.pthread_kill(main.ident or 0, _SIGNAL))
        before = signal.signal(_SIGNAL, self.end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # a signal that was sent is handled before the handler is restored
            signal.signal(_SIGNAL, before)

    @contextmanager
    def enforced_on_source(self) -> Iterator[None]:
        """Raise RequestError if the run of the source, in the block, uses up the time: there is no result then."""
        own = self if self.seconds is None else replace(self, seconds=max(self.seconds, _SOURCE_S))
        try:
            with own.enforced():
                yield
        except BudgetEndedError as ended:
            raise RequestError(
                f"{ended} before the source was measured: this machine is too busy, or another run holds its CPUs. "
                "Nothing was tried; give a longer --budget, or wait."
            ) from None
