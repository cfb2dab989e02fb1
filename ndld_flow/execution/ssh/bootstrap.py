"""The first program on a target: it needs nothing but Python 3.11, and is sent as text.

It answers in lines of JSON, creates the environment if it is missing, and becomes the node. It reads standard input
without a buffer, since the node continues to read it.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MARK = ".ndld_flow_target"
"""File in a folder that belongs to a target."""
COMPLETE = "complete"
"""File in an environment that was created to its end."""
LAST_LINES = 12
CHUNK_BYTES = 2**20


def send(kind: str, **values: object) -> None:
    os.write(1, (json.dumps({"kind": kind, **values}) + "\n").encode())


def refuse(text: str) -> NoReturn:
    send("refused", error="BackendError", text=text)
    sys.exit(0)


def read(size: int) -> bytes:
    """Return some bytes of standard input; exit at its end."""
    data = os.read(0, min(size, CHUNK_BYTES))
    return data or sys.exit(3)


def read_request() -> Mapping[str, Any]:
    line = bytearray()
    while not line.endswith(b"\n"):
        line += read(1)
    request: Mapping[str, Any] = json.loads(line)
    return request


def end_with_sender() -> threading.Event:
    """End this process and all that it starts when the sender is gone, until the event is set."""

    def watch() -> None:
        poll = select.poll()
        poll.register(0, select.POLLRDHUP)
        while not finished.is_set():
            if poll.poll(500):
                os.killpg(0, 9)

    finished = threading.Event()
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    threading.Thread(target=watch, daemon=True).start()
    return finished


def mark_folder(folder: Path) -> None:
    mark = folder / MARK
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()) and not mark.exists():
            refuse(f"{folder} has other files: choose a folder of its own for the target")
        mark.touch(0o600)
    except OSError as error:
        refuse(f"{folder} cannot be used: {error.strerror}")


def describe(folder: Path) -> dict[str, object]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": sys.version_info[:2],
        "libc": platform.libc_ver(),
        "free_bytes": shutil.disk_usage(folder).free,
        "folder": str(folder),
    }


def run(arguments: Sequence[str]) -> str:
    """Run a program; return its last lines if it fails."""
    done = subprocess.run(
        list(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )  # fmt: skip
    lines = done.stdout.decode(errors="replace").strip().split("\n")
    return "\n".join(lines[-LAST_LINES:]) if done.returncode else ""


def receive_files(request: Mapping[str, Any], folder: Path) -> None:
    """Write the files that follow a request."""
    try:
        folder.mkdir(parents=True)
        for file in request["files"]:
            with (folder / Path(file["name"]).name).open("wb") as target:
                left = file["size_bytes"]
                while left:
                    chunk = read(left)
                    target.write(chunk)
                    left -= len(chunk)
    except OSError as error:
        refuse(f"{folder} cannot be written: {error.strerror}")


def install(request: Mapping[str, Any], environment: Path) -> str:
    """Create the environment with the files that follow the request; return why that failed."""
    files, commands = environment / "files", request["install"]
    shutil.rmtree(environment, ignore_errors=True)
    receive_files(request, files)
    finished = end_with_sender()
    send("progress", text="creating an environment")
    trouble = run([sys.executable, "-m", "venv", str(environment)])
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    sources = ["--find-links", str(files), "-c", str(files / "constraints.txt")]
    sources += [] if request["index"] else ["--no-index"]
    for index, wanted in enumerate(commands, 1):
        send("progress", text=f"installing {request['label']} ({index} of {len(commands)})")
        trouble = trouble or run([*pip, *sources, *(word.replace("FILES", str(files)) for word in wanted)])
    finished.set()
    if not trouble:
        shutil.rmtree(files)
        (environment / COMPLETE).write_text(request["label"] + "\n")
    return trouble


def prepare(folder: Path, environment: Path) -> None:
    """Create an environment unless it is complete; others may want the same one at the same time."""
    complete = environment / COMPLETE
    environment.parent.mkdir(exist_ok=True)
    with environment.with_name(f"{environment.name}.lock").open("w") as lock:
        while not complete.exists():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                send("progress", text="waiting for another process that creates the environment")
                time.sleep(2)
                continue
            if complete.exists():
                break
            send("new", **describe(folder))
            trouble = install(read_request(), environment)
            if trouble:
                send("failed", text=trouble)


def main() -> NoReturn:
    request = read_request()
    folder = Path(request["folder"]).expanduser().absolute()
    mark_folder(folder)
    python = request["python"]
    if not python:
        tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"
        environment = folder / "environments" / f"{request['environment']}-{tag}"
        prepare(folder, environment)
        python = str(environment / "bin" / "python")
    python = str(Path(python).expanduser())
    try:
        os.execvp(python, [python, "-P", "-m", "ndld_flow.execution.ssh.node", str(folder)])  # noqa: S606
    except OSError as error:
        refuse(f"{python} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
