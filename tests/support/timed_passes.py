"""A binding whose passes, copies and times by the device's clock are functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ndld_flow.runtimes.protocol import DeviceTimes, HostBinding


class Passes(HostBinding):
    """A binding that calls functions."""

    def __init__(
        self,
        run: Callable[[], None],
        device_times: Callable[[], DeviceTimes] = DeviceTimes,
        copies: tuple[Callable[[], None], Callable[[], None]] | None = None,
    ) -> None:
        self.run = run
        self.device_times: Any = device_times
        if copies:
            self.can_copy = True
            self.copy_in, self.copy_out = copies  # type: ignore[method-assign]
