"""`ndld-flow` as processes whose writes fail as planned."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.fault_plan import FaultPlan, read_calls, read_struck
from tests.reliability.shim import compile_shim

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Attacked:
    """The end of a process whose writes were attacked, or only counted."""

    code: int
    """The exit code, negative for a signal."""
    out: str
    err: str
    struck: int
    """Calls that went wrong."""
    calls: tuple[tuple[int, str], ...]
    """Kind and path of each call that was counted."""

    @property
    def is_refusal(self) -> bool:
        """Return whether it ended with exit code 2 and one paragraph with the reason."""
        result = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return (
            self.code == 2 and len(result) == 1 and self.err.strip().endswith(result[0]) and "Traceback" not in self.err
        )


class FaultServer:
    """Starts `ndld-flow` with planned faults: a fork of a process that has imported all, some 0.2 s for a run."""

    def __init__(self, library: Path, aside: Path) -> None:
        self._aside = aside
        environment = os.environ | {"LD_PRELOAD": str(library), "NDLD_FLOW_IN_PROCESS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.fault_server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT, env=environment, text=True,
        )  # fmt: skip
        self.has_own_mounts = bool(self._hear())

    def run(
        self, *arguments: str, folder: Path, plan: FaultPlan, environment: Mapping[str, str] | None = None,
        is_powerless: bool = False,
    ) -> Attacked:  # fmt: skip
        """Run `ndld-flow` in a folder and wait for it; one that is powerless has none of root's rights."""
        out, err = self._aside / "out", self._aside / "err"
        order = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": {**plan.write(self._aside), **(environment or {})},
            "is_powerless": is_powerless,
            "out": str(out),
            "err": str(err),
            "limit_s": 120,
        }
        code = self._ask(order)
        result = out.read_text(errors="replace"), err.read_text(errors="replace")
        return Attacked(code, *result, read_struck(self._aside), tuple(read_calls(self._aside)))

    def call(self, *command: str) -> bool:
        """Return whether a command, such as `mount`, succeeds where attacks run."""
        return self._ask({"call": command}) == 0

    def view(self, path: Path) -> Path:
        """A path as attacked processes see it, with what is mounted there."""
        return Path(f"/proc/{self._process.pid}/root{path}")

    def end(self) -> None:
        """It ends with its orders."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(60)

    def _ask(self, order: Mapping[str, object]) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextlib.contextmanager
def serving_faults() -> Iterator[FaultServer]:
    """A server of planned faults; skips where they cannot be made."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-faults-") as aside:
        library = compile_shim(Path(__file__).with_name("faults.c"), Path(aside))
        server = FaultServer(library, Path(aside))
        try:
            yield server
        finally:
            server.end()
