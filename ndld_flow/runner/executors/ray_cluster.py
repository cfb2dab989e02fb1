"""A Ray cluster as a sweep sees it: nodes to look at, and conversations with whoever does a task."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import shortened, visible_name
from ndld_flow.processes.parent import end_group
from ndld_flow.records.base import Record

CONNECT_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 8.0
KNOCK_S = 10.0

_QUIET = {
    "PYTHONWARNINGS": "ignore",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
}


class Said(Record):
    """What the bridge says."""

    id: int
    kind: Literal["said", "ended", "refused", "lost"]
    text: str = ""


@dataclass(frozen=True)
class Talk:
    """A conversation with whoever does a task."""

    lines: queue.SimpleQueue[Said]

    def hear(self, timeout_s: float) -> Said | None:
        """What is said next; None when nothing is for so long."""
        try:
            return self.lines.get(timeout=timeout_s)
        except queue.Empty:
            return None


class RayCluster:
    """Connects to a cluster through a process of its own (`ray_bridge`)."""

    def __init__(self, address: str) -> None:
        """Connect. Raises BackendError where Ray is missing or nothing answers at the address."""
        if find_spec("ray") is None:
            raise BackendError("sweeps on several machines need Ray: pip install 'ndld-flow[ray]'")
        _check_address(address)
        self.address = address
        self._numbers = itertools.count(1)
        self._talks: dict[int, Talk] = {0: Talk(queue.SimpleQueue())}
        self._lock = threading.Lock()
        self.gone = False
        """Whether the connection has ended: Ray's head, or its node here, is gone."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ndld_flow.runner.executors.ray_bridge", address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what Ray says of its trouble is in its own logs
            start_new_session=True,
            env={**_own_token(address), **os.environ, **_QUIET},
        )
        threading.Thread(target=self._read, daemon=True).start()
        self._await_connection()

    def _await_connection(self) -> None:
        try:
            answer = self._talks[0].hear(CONNECT_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        if answer is None or answer.kind != "ended":
            said = answer.text if answer is not None else f"no answer within {CONNECT_TIMEOUT_S:g} s"
            self.close()
            raise _not_reached(self.address, said)

    @contextlib.contextmanager
    def talk(self, ask: str, text: str, options: Mapping[str, JsonValue] | None = None) -> Iterator[Talk]:
        """Ask for a task (`compute`) or for the nodes (`look`); what is not done when it is left is cancelled."""
        number = next(self._numbers)
        talk = Talk(queue.SimpleQueue())
        with self._lock:
            self._talks[number] = talk
            if self.gone:
                talk.lines.put(_end_of(number))
        self._write({"id": number, "ask": ask, "text": text, "options": dict(options or {})})
        try:
            yield talk
        finally:
            with self._lock:
                going_on = self._talks.pop(number, None) is not None
            if going_on:
                self._write({"id": number, "ask": "cancel"})

    def close(self) -> None:
        """Cancel what is going on, and disconnect."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_TIMEOUT_S)
        end_group(self._process)

    def _write(self, asked: Mapping[str, JsonValue]) -> None:
        assert self._process.stdin is not None
        # a bridge that is gone has told all talks so
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        """Give each talk what is said to it; when the bridge is gone, tell all."""
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed
            for text in self._process.stdout:
                line = Said.model_validate_json(text)
                with self._lock:
                    talk = self._talks.get(line.id) if line.kind == "said" else self._talks.pop(line.id, None)
                if talk is not None:
                    talk.lines.put(line)
        with self._lock:
            self.gone, talks, self._talks = True, self._talks, {}
        for number, talk in talks.items():
            talk.lines.put(_end_of(number))


def _end_of(number: int) -> Said:
    return Said(id=number, kind="lost", text="the connection to Ray ended")


def _not_reached(address: str, said: str) -> BackendError:
    return BackendError(
        f"Ray at {visible_name(address)}: {shortened(visible_name(said), 300).rstrip('.')}. This machine must be a "
        "node of the cluster (`ray start --address=HOST:PORT`); where that wants a token, have it in ~/.ray/auth_token "
        "and set RAY_AUTH_MODE=token. `local` starts a Ray of its own."
    )


def _own_token(address: str) -> dict[str, str]:
    """Makes a Ray of our own close to others. Ray would leave a token in ~/.ray, and by it change what the user's own
    clusters ask for.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if address == "local" else {}


def _check_address(address: str) -> None:
    """Ray itself takes a minute to say that nothing is there."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise BackendError(f"Ray's address {address!r}: give `auto`, `local` or `HOST:PORT`.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise _not_reached(address, f"nothing answers: {error}") from None
