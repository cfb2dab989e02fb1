"""The start of a node on a target, with its environment if that is missing, and the removal of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.base.quantities import size
from ndld_flow.base.text import short_name
from ndld_flow.recipe.targets import Target
from ndld_flow.runner.executors.ssh.connection import Connection, ConnectionLostError
from ndld_flow.runner.executors.ssh.messages import (
    CHUNK_BYTES,
    FirstReply,
    New,
    NotInstalled,
    Ready,
    Removed,
    Unusable,
    Working,
)
from ndld_flow.runner.executors.ssh.package import File, Installation, summarize_pip

_ENVIRONMENT_BYTES = 1_500_000_000
"""Space that an environment needs while it is created."""
_EXTRA_BYTES = 6_000_000_000
_MAX_REQUESTS = 2
"""Number of times that the files of an environment are sent: without the libraries, and with them."""
_ARCHITECTURES = ("x86_64", "aarch64")
_GLIBC = (2, 28)
"""The oldest for which ONNX Runtime's wheels are built."""


def start_node(connection: Connection, target: Target, label: str, report: Callable[[str], None]) -> str:
    """Return the path of the node's store when the first program has become the node; send what it lacks for that.

    Raises BackendError for a machine that cannot be a target, and ConnectionLostError.
    """
    installation = Installation(tuple(target.extras))
    python = target.python
    environment = "" if python else installation.digest
    connection.request({"folder": target.folder, "environment": environment, "python": python})
    failure, requests = "", 0
    while True:
        message = connection.receive()
        if isinstance(message, Ready):
            return message.store
        if isinstance(message, Working):
            report(f"{label}: {short_name(message.text)}")
        elif isinstance(message, New) and requests < _MAX_REQUESTS:
            requests += 1
            refuse_unfit(message, label, len(target.extras))
            connection.request(*_write_request(installation, message, offline=bool(failure)))
        elif isinstance(message, NotInstalled):
            before, failure = failure, summarize_pip(message.text)
            if before or "ensurepip" in message.text:
                raise BackendError(f"{label}: its environment cannot be created: {failure}")
            report(f"{label}: pip cannot install there ({failure}); downloading the libraries here")
        else:
            raise _refuse(connection, message, label)


def _refuse(connection: Connection, message: FirstReply, label: str) -> BackendError:
    """Return the error for a message after which the first program does not go on."""
    if isinstance(message, Unusable):
        return BackendError(f"{label}: {short_name(message.text, 500)}.")
    return connection.refuse("its first program does not answer what it is asked")


def refuse_unfit(facts: New, label: str, extra_count: int) -> None:
    """Raise BackendError for a machine on which an environment cannot work."""
    libc, version = facts.libc[0], short_name(facts.libc[1], 40)
    needed = _ENVIRONMENT_BYTES + _EXTRA_BYTES * extra_count
    if facts.system != "Linux" or facts.architecture not in _ARCHITECTURES:
        raise BackendError(
            f"{label} is {short_name(facts.system, 40)} on {short_name(facts.architecture, 40)}: targets run Linux on "
            f"{' or '.join(_ARCHITECTURES)}."
        )
    number = tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit())
    if libc != "glibc" or number < _GLIBC:
        wanted = ".".join(map(str, _GLIBC))
        there = f"glibc {version}" if libc == "glibc" else "another C library than glibc"
        raise BackendError(
            f"{label} has {there}; ONNX Runtime's packages need glibc {wanted} or later (Ubuntu 20.04, "
            "JetPack 5). Build an environment for it by other means, and name its Python with `python:`."
        )
    if facts.free_bytes < needed:
        raise BackendError(
            f"{label}: {short_name(facts.folder)} has {size(facts.free_bytes)} of free disk "
            f"space, and the environment needs {size(needed)} while it is created. Free some, or set another "
            "`folder:` of the target."
        )


def _write_request(
    installation: Installation, facts: New, *, offline: bool
) -> tuple[Mapping[str, Any], Iterator[bytes]]:
    """Return the request to create the environment, and the files; with `offline`, all libraries are among them."""
    files = [installation.wheel, installation.constraints]
    if offline:
        files += installation.download(facts.python, facts.architecture)
    request = {
        "files": [{"name": file.name, "size_bytes": len(file.data)} for file in files],
        "install": installation.install,
        "label": installation.label,
        "index": not offline,
    }
    return request, _pieces(files)


def remove(target: Target, label: str) -> tuple[str, int]:
    """Remove a target's folder; return its path there, and its size in bytes. Raises BackendError."""
    connection = Connection(target, label)
    try:
        connection.request({"folder": target.folder, "remove": True})
        message = connection.receive()
        if isinstance(message, Removed):
            return short_name(message.folder), message.bytes
        raise _refuse(connection, message, label)
    except ConnectionLostError as lost:
        raise BackendError(f"{label}: it cannot be reached: {lost}.") from None
    finally:
        connection.release()


def _pieces(files: Sequence[File]) -> Iterator[bytes]:
    for file in files:
        for start in range(0, len(file.data), CHUNK_BYTES):
            yield file.data[start : start + CHUNK_BYTES]
