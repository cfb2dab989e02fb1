"""A Ray of several nodes on this machine, which are killed as if their plugs were pulled."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.started_processes import SERVERS
from tests.support.worker_toys import wait_until


class Cluster:
    """A Ray of several nodes on this machine, which soon notices that one is gone."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        impatient = {"period_ms": 500, "timeout_ms": 10_000, "failure_threshold": 5, "initial_delay_ms": 0}
        config = {f"health_check_{name}": value for name, value in impatient.items()}
        self._cluster = RayCluster()
        self._cluster.add_node(
            num_cpus=2, resources={"orin": 1}, include_dashboard=False, include_log_monitor=False, _system_config=config
        )
        self.address = str(self._cluster.address)
        self._nodes: list[Node] = []

    def add(self, *, hidden: Path, **resources: float) -> Node:
        """A node that does not see a folder, where a process may be given such a view."""
        before = self._living()
        node = Node(self.address, resources, hidden)
        self._nodes.append(node)
        wait_until(lambda: self._living() - before)
        return node

    def _living(self) -> set[str]:
        return {node["NodeID"] for node in self._cluster.global_state.node_table() if node["Alive"]}

    def close(self) -> None:
        for node in self._nodes:
            node.kill()
        self._cluster.shutdown()


def may_hide_folders() -> bool:
    """Return whether this user may give processes their own view of the file system."""
    return (
        shutil.which("unshare") is not None and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


class Node:
    """A node in addition to the head."""

    def __init__(self, address: str, resources: Mapping[str, float], hidden: Path) -> None:
        start = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            f"--address={address}",
            "--num-cpus=2",
            "--block",
        ]
        start += [f"--resources={json.dumps(resources)}"]
        hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)]
        command = hide + start if may_hide_folders() else start
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
        SERVERS.add(self._process.pid)  # one that a test adds replaces another for the tests after it

    def has(self, pid: int) -> bool:
        """Return whether a process, which may just have ended, runs on this node."""
        return self._process.pid in ancestors(pid)

    def kill(self) -> None:
        """Kill the node as if its power failed."""
        for pid in [pid for pid in _pids() if self.has(pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        SERVERS.discard(self._process.pid)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on; none where it has ended."""
    result = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while pid > 1:
            result.append(pid)
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return result


def ray_worker(pid: int) -> int:
    """The Ray worker whose process does a step."""
    return next(ancestor for ancestor in ancestors(pid) if b"ray::" in Path(f"/proc/{ancestor}/cmdline").read_bytes())
