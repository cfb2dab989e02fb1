"""A process that has imported what a run needs, with `faults.c` loaded: forked for each attack.

Each line of its standard input is an order, each line of its output tells how that ended. It has mounts of its own:
what is mounted for an attack is seen by nobody else, and goes when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any, NoReturn

import tests.support.warm_process  # noqa: F401

_CLONE_NEWNS = 0x20000
_CAPSET, _CAPABILITIES_VERSION = 126, 0x20080522
"""Of x86-64; elsewhere the call is another one and fails."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is attacked has no say here
    is_apart = ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0 and _call(["mount", "--make-rprivate", "/"]) == 0
    print(int(is_apart), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(_call(order["call"]) if "call" in order else _run(order), file=answers, flush=True)


def _call(command: list[str]) -> int:
    try:
        plain = os.environ | {"LD_PRELOAD": ""}
        return subprocess.run(command, check=False, env=plain, stderr=subprocess.DEVNULL).returncode
    except OSError:
        return 127


def _run(order: dict[str, Any]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _begin(order)
    return _wait(child, order["limit_s"])


def _wait(child: int, limit_s: float) -> int:
    """The exit code, negative for a signal."""
    late = threading.Timer(limit_s, os.kill, (child, signal.SIGABRT))
    late.start()
    _, status = os.waitpid(child, 0)
    late.cancel()
    return os.waitstatus_to_exitcode(status)


def _begin(order: dict[str, Any]) -> NoReturn:
    code = 70
    try:
        for number, name in ((1, order["out"]), (2, order["err"])):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(order["folder"])
        os.environ.update(order["environment"])
        tempfile.tempdir = None
        sys.argv = ["ndld-flow", *order["arguments"]]
        if order["is_powerless"]:
            _drop_capabilities()
        ctypes.CDLL(None).fault_arm()
        from ndld_flow.cli import main as ndld_flow

        ndld_flow()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _drop_capabilities() -> None:
    """From here on permissions bite, root's too."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).syscall(_CAPSET, header, none):
        raise OSError("capabilities cannot be dropped")


if __name__ == "__main__":
    main()
