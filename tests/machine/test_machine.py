"""The machine's description and its conditions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ndld_flow.machine import hardware, host
from ndld_flow.machine.host import describe_machine, read_conditions

SMI = """#!/bin/sh
[ "$1" = --query-gpu=name,driver_version ] || exit 9
echo "NVIDIA H200, 570.86.15"
echo "NVIDIA RTX A2000, 12GB, 570.86.15"
"""


def _forget() -> None:
    describe_machine.cache_clear()
    hardware.read_hardware.cache_clear()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear caches and hide the files of a real driver."""
    _forget()
    monkeypatch.setattr(hardware, "_NVIDIA", Path("/nowhere"))


def test_this_machine_has_a_name_and_keeps_it() -> None:
    first = describe_machine()
    _forget()
    assert first == describe_machine()
    assert first.cpu
    assert (first.cpu_count or 0) >= 1
    assert (first.memory_bytes or 1) % 2**30 == 0
    assert first.system.split()[0] in ("Linux", "Darwin", "Windows")


def test_gpus_and_driver_come_from_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(_forget)
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    machine = describe_machine()
    assert machine.gpus == ("NVIDIA H200", "NVIDIA RTX A2000, 12GB")
    assert machine.driver == "570.86.15"


def test_gpus_and_driver_are_read_from_the_files_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, bus in enumerate(("0000:17:00.0", "0000:65:00.0")):
        card = tmp_path / "gpus" / bus
        card.mkdir(parents=True)
        (card / "information").write_text(f"Model: \t\t NVIDIA H200 {number}\nIRQ:   \t\t 42\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.2\n"
    )
    monkeypatch.setattr(hardware, "_NVIDIA", tmp_path)
    assert hardware._nvidia() == (("NVIDIA H200 0", "NVIDIA H200 1"), "570.86.15")


def test_a_broken_nvidia_smi_counts_as_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(_forget)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed, sorry'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_machine().gpus == ()


def test_what_the_system_does_not_report_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpus = tmp_path / "cpu"
    for number, governor in enumerate(("powersave", "performance", "powersave")):
        folder = cpus / "cpufreq" / f"policy{number}"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    (cpus / "intel_pstate").mkdir()
    (cpus / "intel_pstate" / "no_turbo").write_text("1\n")
    monkeypatch.setattr(host, "_SYSTEM", tmp_path)
    json_values = read_conditions()
    assert json_values["governors"] == ["performance", "powersave"]
    assert json_values["turbo"] is False
    monkeypatch.setattr(host, "_SYSTEM", tmp_path / "none")
    assert not {"governors", "turbo"} & set(read_conditions())


def test_nothing_heavy_is_imported() -> None:
    heavy = "[m for m in ('numpy', 'onnx', 'onnxruntime') if m in sys.modules]"
    code = f"import sys, ndld_flow.machine.host; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
