"""A target with another architecture: a Python for aarch64, run by qemu, on which an environment is created.

It needs `qemu-aarch64-static` and, in `AARCH64_ROOT`, a folder with Python 3.11 or later for aarch64. On Debian::

    dpkg --add-architecture arm64 && apt-get update && apt-get install qemu-user-static
    apt-get download {python3.11,python3.11-minimal,python3.11-venv}:arm64 {libpython3.11-minimal,libpython3.11-stdlib}:arm64 \
        {libc6,libgcc-s1,libstdc++6,zlib1g,libexpat1,libssl3,libffi8,libbz2-1.0,liblzma5,libsqlite3-0,libuuid1}:arm64 \
        {libncursesw6,libtinfo6,libreadline8,libcrypt1}:arm64 python3-pip-whl python3-setuptools-whl
    for package in *.deb; do dpkg -x "$package" root; done
"""  # noqa: E501

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from ndld_flow.execution.ssh.connection import SSH_VARIABLE
from ndld_flow.execution.ssh.deploy import Installation
from tests.support.models import make_cnn
from tests.support.ssh_servers import Network, available, serving
from tests.support.typed_api import plan_once

ROOT = os.environ.get("AARCH64_ROOT", "")
QEMU = shutil.which("qemu-aarch64-static")

pytestmark = pytest.mark.skipif(not available(), reason="needs OpenSSH's client and server")


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """A machine whose Python is one for aarch64, and which reaches no index of packages."""
    with serving(tmp_path / "network", "arm", environment={"PIP_NO_INDEX": "1"}) as network:
        python = network.servers["arm"].folder / "bin" / "python3"
        python.unlink()
        python.write_text(f'#!/bin/sh\nexec {QEMU} -L {ROOT} -0 "$0" {ROOT}/usr/bin/python3.11 "$@"\n')
        python.chmod(0o755)
        monkeypatch.setenv(SSH_VARIABLE, network.command)
        yield network


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (QEMU and ROOT), reason="needs qemu-aarch64-static, and Python for aarch64 in AARCH64_ROOT")
def test_the_node_of_another_architecture_answers(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment has that architecture's wheels. QEMU 7.2 crashes in ONNX Runtime, so that no step runs there."""
    monkeypatch.chdir(tmp_path)
    make_cnn(tmp_path / "model.onnx")
    (tmp_path / "far.yaml").write_text(
        "model: model.onnx\ntargets: {arm: ssh://arm}\nsteps:\n  speed: {step: profile, on: arm}\n"
    )
    (decision,) = plan_once("far.yaml", trust=True)
    assert decision.site is not None
    assert " aarch64, " in decision.site.machine
    assert decision.site.libraries["onnxruntime"].endswith(version("onnxruntime"))
    (environment,) = (network.servers["arm"].home / ".ndld_flow" / "environments").glob("*-cp311-aarch64")
    wheels = {path.read_text() for path in environment.glob("lib/python*/site-packages/*.dist-info/WHEEL")}
    assert any("aarch64" in wheel for wheel in wheels)
    assert not any("x86_64" in wheel for wheel in wheels)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheels_are_those_of_the_architecture_of_the_target() -> None:
    files = [file.name for file in Installation(()).download([3, 11], "aarch64")]
    native = [name for name in files if not name.endswith("-any.whl")]
    assert any(name.startswith("onnxruntime-") for name in native)
    assert all("aarch64" in name for name in native)
