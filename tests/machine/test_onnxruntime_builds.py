"""The distributions of ONNX Runtime, and whose files are in use; with made-up ones, written as pip does it."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from ndld_flow.base.extras import EXTRAS
from ndld_flow.execution.doctor import check_onnxruntime_files
from ndld_flow.machine import versions
from ndld_flow.machine.versions import build_in_use, find_cuda_lack, installed_builds
from ndld_flow.runtimes.onnxruntime import settings
from ndld_flow.runtimes.onnxruntime.settings import OnnxruntimeSettings

SHARED = ("__init__.py", "capi/build_and_package_info.py", "capi/state.so")
REPAIR_GPU = "pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1"
REPAIR_CPU = "pip install --force-reinstall --no-deps onnxruntime==1.32.0"


class Site:
    """A folder of packages, into which distributions of ONNX Runtime are installed as pip does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, version: str) -> None:
        """Write the files of a distribution over existing ones."""
        own = ("capi/cuda.so",) if name == "onnxruntime-gpu" else ()
        texts = {f"onnxruntime/{file}": f"{file} of {name} {version}\n" for file in (*SHARED, *own)}
        texts["onnxruntime/capi/build_and_package_info.py"] = f"package_name = '{name}'\n__version__ = '{version}'\n"
        meta = f"{name.replace('-', '_')}-{version}.dist-info"
        records = [f"{meta}/RECORD,,", "onnxruntime/__pycache__/__init__.pyc,,"]
        for path, text in texts.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            records.append(f"{path},sha256={digest},{len(text)}")
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)
        (self.folder / meta).mkdir(exist_ok=True)
        (self.folder / meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (self.folder / meta / "RECORD").write_text("\n".join(records))

    def uninstall(self, name: str, version: str) -> None:
        """Remove the files that a distribution wrote, whoever wrote them since."""
        meta = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        for line in (meta / "RECORD").read_text().splitlines():
            (self.folder / line.partition(",")[0]).unlink(missing_ok=True)
        (meta / "METADATA").unlink()
        meta.rmdir()

    def check(self) -> tuple[str, str, str]:
        """Return state, finding and advice of `doctor`."""
        check = check_onnxruntime_files(installed_builds([str(self.folder)]))
        return check.state, check.found, check.advice


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder that hides the real ONNX Runtime."""
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(settings, "has_nvidia_gpu", lambda: True)
    return Site(tmp_path)


def lacks_of(provider: str) -> tuple[str, ...]:
    return OnnxruntimeSettings(provider=provider).foresee().lacks


def test_the_build_for_the_cpu_alone(site: Site) -> None:
    site.install("onnxruntime", "1.32.0")
    assert str(build_in_use()) == "onnxruntime 1.32.0"
    assert site.check() == ("ok", "onnxruntime 1.32.0, complete", "")
    expected = "provider cuda is set, but onnxruntime 1.32.0 is the build for the CPU"
    assert lacks_of("cuda") == (f"{expected}: {EXTRAS['gpu'].command}",)
    assert "onnxruntime 1.32.0 is the build" in lacks_of("tensorrt")[0]
    assert lacks_of("cpu") == lacks_of("NvTensorRTRTXExecutionProvider") == (), "other builds have others"


def test_the_build_for_gpus_alone(site: Site) -> None:
    site.install("onnxruntime-gpu", "1.31.1")
    assert str(build_in_use()) == "onnxruntime-gpu 1.31.1"
    assert site.check() == ("ok", "onnxruntime-gpu 1.31.1, complete", "")
    assert lacks_of("cuda") == lacks_of("CPUExecutionProvider") == ()


def test_the_build_for_gpus_over_that_for_the_cpu(site: Site) -> None:
    site.install("onnxruntime", "1.32.0")
    site.install("onnxruntime-gpu", "1.31.1")
    assert str(build_in_use()) == "onnxruntime-gpu 1.31.1"
    state, result, advice = site.check()
    assert (state, advice) == ("ok", "")
    assert result.startswith("onnxruntime-gpu 1.31.1, complete; ") and result.endswith("onnxruntime 1.32.0")
    assert lacks_of("cuda") == ()


def test_the_build_for_the_cpu_over_that_for_gpus(site: Site) -> None:
    site.install("onnxruntime-gpu", "1.31.1")
    site.install("onnxruntime", "1.32.0")
    assert str(build_in_use()) == "onnxruntime 1.32.0", "not the one that pip lists first"
    state, result, advice = site.check()
    assert (state, advice) == ("absent", REPAIR_GPU)
    assert result.startswith("onnxruntime 1.32.0, complete; ") and " onnxruntime-gpu 1.31.1" in result
    (lack,) = lacks_of("cuda")
    assert "cuda" in lack and lack.endswith(f"onnxruntime-gpu 1.31.1: {REPAIR_GPU}")


def test_removing_one_of_two_breaks_the_other(site: Site) -> None:
    site.install("onnxruntime", "1.32.0")
    site.install("onnxruntime-gpu", "1.31.1")
    site.uninstall("onnxruntime", "1.32.0")
    expected = "3 files of onnxruntime-gpu 1.31.1 missing or changed, such as onnxruntime/__init__.py"
    assert site.check() == ("broken", expected, REPAIR_GPU)
    site.install("onnxruntime-gpu", "1.31.1")
    assert site.check()[0] == "ok"


def test_a_mixture_of_files(site: Site) -> None:
    site.install("onnxruntime-gpu", "1.31.1")
    site.install("onnxruntime", "1.32.0")
    (site.folder / "onnxruntime/__init__.py").write_text("x" * len("__init__.py of onnxruntime 1.32.0\n"))
    state, result, advice = site.check()
    assert (state, advice) == ("broken", REPAIR_GPU)
    assert " onnxruntime/__init__.py; onnxruntime 1.32.0 " in result


def test_a_changed_file_of_the_only_distribution(site: Site) -> None:
    site.install("onnxruntime", "1.32.0")
    (site.folder / "onnxruntime/capi/state.so").unlink()
    expected = "a file of onnxruntime 1.32.0 missing or changed, such as onnxruntime/capi/state.so"
    assert site.check() == ("broken", expected, REPAIR_CPU)


def test_another_build_names_itself(site: Site) -> None:
    assert build_in_use() is None
    assert find_cuda_lack() is None
    assert site.check()[0] == "broken"
    site.install("onnxruntime-directml", "1.24.4")
    assert str(build_in_use()) == "onnxruntime-directml 1.24.4"
    assert site.check() == ("ok", "onnxruntime-directml 1.24.4, complete", "")
    assert lacks_of("cuda") == (), "whether it has CUDA is found when it is loaded"
    (site.folder / "onnxruntime/capi/build_and_package_info.py").write_text("cuda_version = '12'\n")
    assert build_in_use() is None


def test_large_files_are_compared_by_size(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_LARGEST", 20)
    site.install("onnxruntime", "1.32.0")
    module = site.folder / "onnxruntime/__init__.py"
    module.write_text("x" * module.stat().st_size)
    assert site.check()[0] == "ok"
    module.write_text("x")
    assert site.check()[0] == "broken"
