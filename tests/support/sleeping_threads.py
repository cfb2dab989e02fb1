"""Threads of ONNX Runtime that sleep while they have nothing to do.

By default they busy-wait for the next operator. Tests run on all CPUs, so that they would take these from each other: a
third of the CPU time of the tests of accuracy, quantization and `optimize` was spent waiting.
"""

from __future__ import annotations

import functools
from typing import Any

import onnxruntime as ort

_ENTRIES = [f"session.{pool}_op.allow_spinning" for pool in ("intra", "inter")]


def let_threads_sleep() -> None:
    """Let the threads of sessions that this process opens from now on sleep, unless their options say otherwise."""
    create = ort.InferenceSession.__init__

    @functools.wraps(create)
    def create_sleeping(
        self: ort.InferenceSession,
        model: Any,
        sess_options: ort.SessionOptions | None = None,
        *arguments: Any,
        **named: Any,
    ) -> None:
        options = sess_options or ort.SessionOptions()
        for name in _ENTRIES:
            try:
                options.get_session_config_entry(name)
            except RuntimeError:  # ONNX Runtime's way to say that there is none
                options.add_session_config_entry(name, "0")
        create(self, model, options, *arguments, **named)

    ort.InferenceSession.__init__ = create_sleeping
