"""Real OpenSSH servers on loopback, each a machine of its own: a port, host keys, a home and a Python."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
REASON = "needs OpenSSH's client and server"


def available() -> bool:
    return Path(SSHD).exists() and all(shutil.which(name) for name in ("ssh", "ssh-keygen"))


@dataclass
class Server:
    """An `sshd` that runs as this user, with a home of its own."""

    name: str
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def start(self) -> None:
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stdin=subprocess.DEVNULL, stderr=log
            )
        _wait_for_port(self.port)

    def stop(self) -> None:
        """Stop the server and every connection of it."""
        process, self.process = self.process, None
        if process is None:
            return
        sessions = sessions_of(process.pid)
        process.kill()
        process.wait()
        for pid in sessions:
            _kill(pid)

    def drop_connections(self) -> int:
        """End all connections as a failing network does; return their number."""
        assert self.process is not None
        sessions = sessions_of(self.process.pid)
        for pid in sessions:
            _kill(pid)
        return len(sessions)


def sessions_of(pid: int) -> list[int]:
    """Return the descendants of a server that belong to `sshd` itself."""
    found, waiting = [], [pid]
    while waiting:
        children = Path(f"/proc/{waiting.pop()}/task").glob("*/children")
        inner = [int(word) for path in children for word in _read(path).split()]
        waiting += inner
        found += [item for item in inner if "sshd" in _read(Path(f"/proc/{item}/comm"))]
    return found


def processes_in(home: Path) -> list[str]:
    """Return the command lines of all processes whose HOME is that of a server, but for `sshd`'s own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        if f"HOME={home}\0" in f"{_read(path / 'environ')}\0" and "sshd" not in _read(path / "comm"):
            command = _read(path / "cmdline").replace("\0", " ").strip()
            found += [f"{path.name} {command}"] if command else []
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"sshd does not listen on port {port}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Network:
    """Servers, and the client's configuration that reaches them by name."""

    servers: Mapping[str, Server]
    config: Path
    key: Path

    @property
    def command(self) -> str:
        """The value of NDLD_FLOW_SSH that uses this configuration."""
        return f"ssh -F {self.config}"


@contextmanager
def serving(
    folder: Path, *names: str, behind: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Network]:
    """Start servers; `behind`: name of a server -> the one through which it is reached (ProxyJump)."""
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "id_ed25519"
    _make_key(key)
    servers = {name: _prepare(folder / name, name, key, environment or {}) for name in names}
    config = folder / "ssh_config"
    config.write_text(
        "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder / 'known_hosts'}\n  StrictHostKeyChecking yes\n"
            + (f"  ProxyJump {(behind or {})[name]}\n" if name in (behind or {}) else "")
            for name, server in servers.items()
        )
    )
    known = folder / "known_hosts"
    known.write_text(
        "".join(f"[127.0.0.1]:{s.port} {(s.folder / 'host_key.pub').read_text()}" for s in servers.values())
    )
    try:
        for server in servers.values():
            server.start()
        yield Network(servers, config, key)
    finally:
        for server in servers.values():
            server.stop()


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _prepare(folder: Path, name: str, key: Path, environment: Mapping[str, str]) -> Server:
    """Write a server's host key, home and configuration. Its `python3` is that of the tests without their packages."""
    home = folder / "home"
    home.mkdir(parents=True)
    _make_key(folder / "host_key")
    (folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    (folder / "authorized_keys").chmod(0o600)
    port = _free_port()
    variables = {"HOME": str(home), "PATH": f"{folder / 'bin'}:/usr/bin:/bin", **environment}
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder / 'host_key'}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'authorized_keys'}\nPasswordAuthentication no\n"
        f"KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nMaxSessions 100\n"
        f"SetEnv {' '.join(f'{name}={value}' for name, value in variables.items())}\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    return Server(name, folder, port)
