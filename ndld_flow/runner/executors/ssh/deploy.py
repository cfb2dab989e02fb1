"""The start of a node on a target, with its environment if that is missing, and the removal of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.base.quantities import size
from ndld_flow.base.text import visible_name
from ndld_flow.recipe.targets import Target
from ndld_flow.runner.executors.ssh.connection import Connection, ConnectionLostError
from ndld_flow.runner.executors.ssh.incoming import CHUNK_BYTES
from ndld_flow.runner.executors.ssh.package import File, Installation, summarize_pip

_ENVIRONMENT_BYTES = 1_500_000_000
"""Space that an environment needs while it is created."""
_EXTRA_BYTES = 6_000_000_000
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
    failure = ""
    while True:
        message = connection.receive()
        kind, text = message["kind"], str(message.get("text", ""))
        if kind == "ready":
            return str(message["store"])
        if kind == "refused":
            raise BackendError(f"{label}: {visible_name(text)}.")
        if kind == "progress":
            report(f"{label}: {visible_name(text)}")
        elif kind == "new":
            refuse_unfit(message, label, len(target.extras))
            connection.request(*_write_request(installation, message, offline=bool(failure)))
        elif kind == "failed":
            before, failure = failure, summarize_pip(text)
            if before or "ensurepip" in text:
                raise BackendError(f"{label}: its environment cannot be created: {failure}")
            report(f"{label}: pip cannot install there ({failure}); downloading the libraries here")


def refuse_unfit(facts: Mapping[str, Any], label: str, extra_count: int) -> None:
    """Raise BackendError for a machine on which an environment cannot work."""
    system, architecture = facts.get("system"), facts.get("architecture")
    libc, version = facts.get("libc") or ("", "")
    free = int(facts.get("free_bytes", 0))
    needed = _ENVIRONMENT_BYTES + _EXTRA_BYTES * extra_count
    if system != "Linux" or architecture not in _ARCHITECTURES:
        raise BackendError(
            f"{label} is {system} on {architecture}: targets run Linux on {' or '.join(_ARCHITECTURES)}."
        )
    number = tuple(int(part) for part in str(version).split(".")[:2] if part.isdigit())
    if libc != "glibc" or number < _GLIBC:
        wanted = ".".join(map(str, _GLIBC))
        there = f"glibc {version}" if libc == "glibc" else "another C library than glibc"
        raise BackendError(
            f"{label} has {there}; ONNX Runtime's packages need glibc {wanted} or later (Ubuntu 20.04, "
            "JetPack 5). Build an environment for it by other means, and name its Python with `python:`."
        )
    if free < needed:
        raise BackendError(
            f"{label}: {visible_name(str(facts.get('folder', '')))} has {size(free)} of free disk "
            f"space, and the environment needs {size(needed)} while it is created. Free some, or set another "
            "`folder:` of the target."
        )


def _write_request(
    installation: Installation, facts: Mapping[str, Any], *, offline: bool
) -> tuple[Mapping[str, Any], Iterator[bytes]]:
    """Return the request to create the environment, and the files; with `offline`, all libraries are among them."""
    files = [installation.wheel, installation.constraints]
    if offline:
        files += installation.download([int(part) for part in facts["python"]], str(facts["architecture"]))
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
        while True:
            message = connection.receive()
            if message["kind"] == "removed":
                return visible_name(str(message["folder"])), int(message["bytes"])
            if message["kind"] == "refused":
                raise BackendError(f"{label}: {visible_name(str(message.get('text', '')))}.")
    except ConnectionLostError as lost:
        raise BackendError(f"{label}: it cannot be reached: {lost}.") from None
    finally:
        connection.release()


def _pieces(files: Sequence[File]) -> Iterator[bytes]:
    for file in files:
        for start in range(0, len(file.data), CHUNK_BYTES):
            yield file.data[start : start + CHUNK_BYTES]
