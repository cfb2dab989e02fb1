"""Threads for calls that may never return: a process that exits does not wait for them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_END_S = 10.0


class DaemonThreads:
    """Calls functions in up to `most` threads, each started when no other is idle."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        """None ends a thread."""
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call a function as soon as a thread is free; until then the call can be cancelled."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._work, daemon=True))
            self._threads[-1].start()
        return future

    def close(self) -> None:
        """End the threads when they have done all calls."""
        for _ in self._threads:
            self._calls.put(None)

    def join(self) -> None:
        """End the threads, whose work has been ended, and wait for them, at most 10 s: they keep nothing.

        Ctrl-C may have left a lock of a `Future` acquired by the main thread, for which a thread would wait forever:
        Python may raise KeyboardInterrupt when `Condition.__enter__` has acquired the lock and before the `with` block
        begins (https://bugs.python.org/issue29988).
        """
        self.close()
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (waiting := self._calls.get()) is not None:
            future, call = waiting
            if not future.set_running_or_notify_cancel():
                self._idle.release()
                continue
            try:
                result = call()
            except BaseException as error:
                self._idle.release()  # before the caller can submit more
                future.set_exception(error)
            else:
                self._idle.release()
                future.set_result(result)
