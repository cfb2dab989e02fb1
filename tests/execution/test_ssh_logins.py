"""Logins on targets by OpenSSH's own features: jumps, agents, passphrases, questions, shared connections."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.execution.ssh.connection import SSH_VARIABLE, Connection
from ndld_flow.execution.ssh.deploy import start_node
from ndld_flow.recipe.targets import Target
from tests.support.message_files import CheckMessage
from tests.support.ssh_servers import REASON, Network, available, processes_in, serving

pytestmark = pytest.mark.skipif(not available(), reason=REASON)

PASSPHRASE = "correct horse"  # noqa: S105 - of keys that live as long as a test


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Three machines; `gamma` is reached through `beta`. All accept a second key, which has a passphrase."""
    with serving(tmp_path_factory.mktemp("network"), "alpha", "beta", "gamma", behind={"gamma": "beta"}) as network:
        locked = network.config.parent / "locked"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", PASSPHRASE, "-f", str(locked)], check=True)
        for server in network.servers.values():
            with (server.folder / "authorized_keys").open("a") as keys:
                keys.write(locked.with_suffix(".pub").read_text())
        yield network


@pytest.fixture(autouse=True)
def _nobody_answers(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SSH_VARIABLE, network.command)
    for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def configure(network: Network, folder: Path, old: str, new: str, first: str = "") -> str:
    """Return the command of `ssh` with another configuration."""
    config = folder / "ssh_config"
    text = first + network.config.read_text().replace(old, new)
    config.write_text(text)
    return f"ssh -F {config}"


def reach(name: str) -> str:
    """Start the node of a target, and end it; return the path of its store."""
    target = Target(host=f"ssh://{name}", python=sys.executable)
    connection = Connection(target, name)
    try:
        return start_node(connection, target, name, lambda text: None)
    finally:
        connection.release()


def refusal(name: str) -> str:
    with pytest.raises(BackendError) as error:
        reach(name)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@contextmanager
def agent(key: Path, folder: Path) -> Iterator[str]:
    """Start an agent that has a key; yield its socket."""
    socket = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_for(socket)
        asks = {"SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(answering(folder)), "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run(["ssh-add", "-q", str(key)], env=os.environ | asks, check=True, stdin=subprocess.DEVNULL)
        yield str(socket)
    finally:
        process.terminate()
        process.wait()


def answering(folder: Path) -> Path:
    """Return a program that answers the questions of `ssh`."""
    program = folder / "askpass"
    program.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
    program.chmod(0o755)
    return program


def wait_for(path: Path, *, gone: bool = False) -> None:
    deadline = time.monotonic() + 60
    while path.exists() is gone:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_key_with_a_passphrase_is_refused_without_anybody_who_knows_it(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    locked = network.config.parent / "locked"
    monkeypatch.setenv(SSH_VARIABLE, configure(network, tmp_path, str(network.key), str(locked)))
    check_message(refusal("alpha"))
    check_message(refusal("gamma"))


@pytest.mark.thorough
def test_an_agent_or_a_program_knows_the_passphrase(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = network.config.parent / "locked"
    monkeypatch.setenv(SSH_VARIABLE, configure(network, tmp_path, str(network.key), str(locked)))
    with agent(locked, tmp_path) as socket, monkeypatch.context() as known:
        known.setenv("SSH_AUTH_SOCK", socket)
        assert reach("gamma") == str(network.servers["gamma"].home / ".ndld_flow" / "store")
    monkeypatch.setenv("SSH_ASKPASS", str(answering(tmp_path)))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    assert reach("gamma")


def test_the_unknown_host_key_of_a_jump_host_is_its_own(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    known, beta = network.config.parent / "known_hosts", network.servers["beta"].port
    fewer = tmp_path / "known_hosts"
    fewer.write_text("".join(line for line in known.read_text().splitlines(keepends=True) if f":{beta} " not in line))
    monkeypatch.setenv(SSH_VARIABLE, configure(network, tmp_path, str(known), str(fewer)))
    check_message(refusal("gamma"))


ASKED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from ndld_flow.cli.live import LiveDisplay
from tests.execution.test_ssh_logins import reach
with LiveDisplay(), ThreadPoolExecutor() as pool:
    print(sorted(pool.map(reach, ["alpha", "gamma"])))
print("the end")
"""


@pytest.mark.thorough
def test_questions_stay_on_the_terminal_until_they_are_answered(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three: of two connections at once, one of which jumps. The live display draws ten times a second."""
    locked = network.config.parent / "locked"
    monkeypatch.setenv(SSH_VARIABLE, configure(network, tmp_path, str(network.key), str(locked)))
    pid, terminal = pty.fork()
    if not pid:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", ASKED])  # noqa: S606
    printed, asked = b"", 0
    try:
        while (data := read(terminal, 60)) is not None:
            printed += data
            if printed.count(b"nter passphrase for key") > asked:
                asked += 1
                while rest := read(terminal, 0.4):
                    printed += rest
                assert printed.rstrip().endswith(b"locked':"), printed[-300:]
                os.write(terminal, PASSPHRASE.encode() + b"\n")
    finally:
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (asked, code) == (3, 0)
    assert printed.rstrip().endswith(b"the end")


def read(terminal: int, within_s: float) -> bytes | None:
    """Return what was printed; nothing after some seconds, None at the end."""
    if not select.select([terminal], [], [], within_s)[0]:
        return b""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return None


@pytest.mark.thorough
def test_a_shared_connection_is_used_and_none_is_left(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    shared = f"ControlMaster auto\nControlPersist 60\nControlPath {tmp_path}/master-%n\n"
    command = configure(network, tmp_path, "", "", first=shared)
    monkeypatch.setenv(SSH_VARIABLE, command)
    alpha = network.servers["alpha"]
    assert reach("alpha")
    assert not list(tmp_path.glob("master-*")), "our connection is no master"
    subprocess.run([*command.split(), "-fN", "alpha"], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keys = alpha.folder / "authorized_keys"
    try:
        wait_for(tmp_path / "master-alpha")
        keys.rename(keys.with_name("aside"))  # nobody else gets in
        assert reach("alpha")
        gone_by = time.monotonic() + 60
        while processes_in(alpha.home) and time.monotonic() < gone_by:
            time.sleep(0.05)
        assert processes_in(alpha.home) == [], "the node ends with its channel, though the connection stays"
        subprocess.run([*command.split(), "-O", "check", "alpha"], check=True, capture_output=True)
        subprocess.run([*command.split(), "-O", "exit", "alpha"], check=True, capture_output=True)
        wait_for(tmp_path / "master-alpha", gone=True)
        check_message(refusal("alpha"))
    finally:
        subprocess.run([*command.split(), "-O", "exit", "alpha"], check=False, capture_output=True)
        keys.with_name("aside").rename(keys)
