"""`doctor` on TensorRT and the GPU, with libraries that crash, hang, are too old, or work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.execution.doctor import examine
from ndld_flow.machine.host import Check
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.runtimes.tensorrt.probe import Probe, _show_gpu, probe_gpu, probe_library
from tests.runtimes.test_tensorrt_library import hide_installed, installed_rtx, make_environment, write
from tests.support.text_facts import numbers_in

OURS = f"3.{sys.version_info.minor}"
SUPPORT = Path(__file__).parents[1] / "support"
COMPILER = shutil.which("cc")
DRIVERLESS = not Path("/proc/driver/nvidia/version").exists()

NVML = """
from types import SimpleNamespace
def nvmlInit(): pass
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUtilizationRates(handle): return SimpleNamespace(gpu=7, memory=3)
"""
OLD_DRIVER = "CUDA initialization failure with error: 35. Please check your CUDA installation"

WORKS = """
import ctypes
from enum import IntEnum

class DataType: float32 = 1
float32 = 1
class ActivationType: RELU = 0
class ILogger:
    class Severity(IntEnum): INTERNAL_ERROR = 0; ERROR = 1; INFO = 3
class Tensor: name = "x"
class Layer:
    def get_output(self, index): return Tensor()
class Network:
    def add_input(self, name, dtype, shape): return Tensor()
    def add_activation(self, tensor, kind): return Layer()
    def mark_output(self, tensor): pass
class Builder:
    def __init__(self, logger): self.logger = logger
    def create_network(self, flags): return Network()
    def create_builder_config(self): return object()
    def build_serialized_network(self, network, config): return b"plan"
class Context:
    def __init__(self): self.at = {}
    def set_tensor_address(self, name, address): self.at[name] = address
    def execute_async_v3(self, stream):
        given = (ctypes.c_float * 4).from_address(self.at["x"])
        (ctypes.c_float * 4).from_address(self.at["y"])[:] = [max(0, value) for value in given]
        return True
class Engine:
    def create_execution_context(self): return Context()
class Runtime:
    def __init__(self, logger): pass
    def deserialize_cuda_engine(self, plan): return Engine()
__version__ = "10.8.0.43"
"""
"""TensorRT as far as the trial goes, on host memory."""


def try_fake(folder: Path, code: str, limit_s: float = 30) -> list[Probe]:
    environment = make_environment(folder / "venv")
    write(environment / f"lib/python{OURS}/site-packages/tensorrt/__init__.py", code)
    return probe_library(find_library("tensorrt", environment), limit_s)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of CUDA's driver and runtime, compiled once."""
    if COMPILER is None or sys.platform != "linux" or not DRIVERLESS:
        pytest.skip("a stand-in for CUDA needs Linux, a C compiler, and no real driver beside it")
    folder = tmp_path_factory.mktemp("cuda")
    for source, library in (("cuda_driver.c", "libcuda.so.1"), ("cudart.c", "libcudart.so.13")):
        command = [COMPILER, "-shared", "-fPIC", "-o", str(folder / library), str(SUPPORT / "cuda_standin" / source)]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def driver(tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of CUDA's driver and runtime for child processes."""
    for library in compiled.iterdir():
        shutil.copy(library, tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return tmp_path


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.thorough
def test_the_real_tensorrt_rtx_builds_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    library, loaded = installed_rtx(), "tensorrt_rtx" in sys.modules
    checks = by_name(examine(tmp_path))
    assert checks["tensorrt-rtx"].state == "ok"
    assert checks["tensorrt-rtx"].found == f"{library.version}, installed; a known release"
    ahead = checks["tensorrt-rtx ahead of time"]
    assert ahead.state == "ok"
    assert "compute capability 7.5, 8.0, 8.6, 8.9, 12.0, 12.1 (" in ahead.found
    assert ("tensorrt_rtx" in sys.modules) == loaded, "its crash would be ours"


@pytest.mark.skipif(not DRIVERLESS, reason="there is an NVIDIA driver here")
def test_a_missing_driver_is_reported(tmp_path: Path) -> None:
    installed_rtx()
    checks = by_name(examine(tmp_path))
    for name in ("gpu", "tensorrt-rtx on this GPU"):
        assert checks[name].state == "absent"
        assert "no NVIDIA driver" in checks[name].found
        assert "--gpus all" in checks[name].advice
    assert "gpu clocks" not in checks, "without a GPU nothing else is asked"


@pytest.mark.thorough
def test_a_driver_too_old_for_the_real_library_is_reported(
    tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_rtx()
    monkeypatch.setenv("CUDA_STANDIN_VERSION", "11040")
    checks = by_name(examine(tmp_path))
    assert checks["gpu"].state == "ok"
    assert checks["gpu"].found.startswith("NVIDIA Stand-in (") and numbers_in(checks["gpu"].found) == [8.6, 11.4]
    engines = checks["tensorrt-rtx on this GPU"]
    assert "CUDA up to 11.4" in engines.found and "TensorRT-RTX" in engines.found
    assert engines.advice == "update the NVIDIA driver"
    assert checks["tensorrt-rtx ahead of time"].state == "ok"


def test_a_driver_without_a_gpu_is_reported(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_STANDIN_INIT", "100")
    (only,) = probe_gpu()
    assert not only.works
    assert "error 100" in only.found


def test_a_working_library_builds_opens_and_runs_an_engine(tmp_path: Path, driver: Path) -> None:
    loads, runs = try_fake(tmp_path, WORKS)
    assert (loads.works, loads.found) == (True, "10.8.0.43")
    assert (runs.name, runs.works) == ("on this GPU", True), runs
    assert runs.found.endswith("opens and runs engines")


def test_a_working_gpu_reports_its_capabilities(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "packages"
    write(packages / "pynvml.py", NVML)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    result = {trial.name: trial for trial in probe_gpu()}
    assert list(result) == ["", "cuda runtime", "gpu sampling", "gpu clocks"]
    assert result[""].works
    assert result["cuda runtime"].works
    assert "(the GPU is 7 % busy)" in result["gpu sampling"].found
    assert result["gpu clocks"].works == (os.geteuid() == 0)


def test_a_gpu_without_nvml_reports_how_to_get_it(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "packages/pynvml.py", "raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    sampling = next(trial for trial in probe_gpu() if trial.name == "gpu sampling")
    assert (sampling.works, sampling.advice) == (False, "pip install nvidia-ml-py")


@pytest.mark.representatives("exception", "build")
@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (("max(0, value)", "value"), r"relu\(-1, 2, -3, 4\).*\[-1\.0, 2\.0, -3\.0, 4\.0\]"),
        (("return Engine()", "return None"), r"\bopen\b.*no reason"),
        (("return True", "return False"), r"\brun\b.*no reason"),
        (
            ('return b"plan"', 'self.logger.log(ILogger.Severity.ERROR, "no kernel\\n for it"); return None'),
            r"\bbuild\b.*: no kernel for it$",
        ),
        (
            ("self.logger = logger", f"logger.log(ILogger.Severity.ERROR, {OLD_DRIVER!r}); raise TypeError('nullptr')"),
            r"CUDA up to 13\.0\b",
        ),
        (("return Network()", "raise RuntimeError('odd')"), "^RuntimeError: odd$"),
    ],
    ids=["values", "open", "run", "build", "driver", "exception"],
)
def test_each_kind_of_gpu_failure_is_reported(
    tmp_path: Path, driver: Path, break_it: tuple[str, str], found: str
) -> None:
    assert break_it[0] in WORKS
    loads, runs = try_fake(tmp_path, WORKS.replace(*break_it))
    assert loads.works
    assert not runs.works
    assert re.search(found, runs.found)


def test_a_crash_names_what_was_tried(tmp_path: Path) -> None:
    (crashed,) = try_fake(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert not crashed.works
    assert crashed.found.endswith(" SIGSEGV")
    shutil.rmtree(tmp_path / "venv")
    later = "class ComputeCapability:\n    @property\n    def __members__(self): import os; os.abort()\n"
    code = f"{WORKS}{later}ComputeCapability = ComputeCapability()\n"
    loads, crashed = try_fake(tmp_path, code)
    assert loads.works
    assert crashed.name == "ahead of time" and crashed.found.endswith(" SIGABRT")


def test_a_hang_ends_at_the_limit(tmp_path: Path) -> None:
    begun = time.monotonic()
    (hung,) = try_fake(tmp_path, "import time; time.sleep(60)", limit_s=1)
    assert hung.found.endswith(" within 1 s")
    assert time.monotonic() - begun < 30


def test_a_library_that_does_not_load_is_explained_and_not_used_further(tmp_path: Path) -> None:
    (only,) = try_fake(tmp_path, "raise ImportError('libnvinfer.so.10: cannot open shared object file')")
    assert not only.works
    assert "libnvinfer.so.10: cannot open" in only.found
    assert "pip install" in only.found


@pytest.mark.thorough
def test_a_given_tensorrt_is_examined_and_a_folder_without_one_refused(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv", version="10.8.9")
    write(environment / f"lib/python{OURS}/site-packages/tensorrt/__init__.py", WORKS)
    checks = by_name(api.doctor(outputs=tmp_path, library=environment))
    assert checks["tensorrt"].state == "ok"
    assert f"10.8.0.43, environment {environment}; its settings" in checks["tensorrt"].found
    assert "tensorrt-rtx" in checks
    with pytest.raises(BackendError, match="nowhere"):
        api.doctor(outputs=tmp_path, library=tmp_path / "nowhere")


def test_missing_packages_are_listed_with_the_command_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_installed(monkeypatch, tmp_path)
    checks = by_name(examine(tmp_path))
    assert (checks["tensorrt"].state, checks["tensorrt"].found) == ("absent", "TensorRT is not installed")
    assert checks["tensorrt"].advice.startswith(EXTRAS["tensorrt"].command)
    assert checks["tensorrt-rtx"].advice.startswith(EXTRAS["rtx"].command)


@pytest.mark.thorough
def test_the_verb_prints_all_results_and_accepts_a_library(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    write(environment / f"lib/python{OURS}/site-packages/tensorrt/__init__.py", WORKS)
    command = [sys.executable, "-m", "ndld_flow", "doctor", "--json", "--library", str(environment)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert {tuple(row) for row in rows} == {("name", "state", "found", "advice")}
    assert f"environment {environment}" in next(row["found"] for row in rows if row["name"] == "tensorrt")


@pytest.mark.parametrize(("driver", "shown"), [("550.54", "1 GPU, driver 550.54"), ("", "1 GPU")])
def test_a_working_gpu_shows_its_driver_if_known(driver: str, shown: str) -> None:
    assert _show_gpu(Probe("", True, "1 GPU"), driver) == Check(name="gpu", state="ok", found=shown)
