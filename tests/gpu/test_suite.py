"""The suite of the GPU itself: what it writes, and when it stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.test_recipes import QUICK, Bench, compare_work, measured_in_turn, profile_near
from tests.support.cuda_standin import compile_cudart
from tests.support.gpu_machine import mig_instances
from tests.support.models import make_tiny

ROOT = Path(__file__).parents[2]
HAS_GPU = Path("/dev/nvidiactl").exists()
CASES = """
import pytest
pytestmark = pytest.mark.gpu
def test_good(record_property): record_property("GB/s", 3.5)
def test_bad(): assert 1 == 2
def test_lacking(): pytest.skip("no | GPU")
def test_after(): import tests.gpu.test_suite
"""


def run_suite(folder: Path, *arguments: str, before: str = "") -> tuple[int, dict[str, dict[str, object]], str]:
    program = f"import sys; from pathlib import Path; from tests.gpu import __main__ as suite; {before or 'pass'}"
    program += "; sys.exit(suite.main(*map(Path, sys.argv[1:2]), *sys.argv[2:]))"
    command = [sys.executable, "-c", program, str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (folder / "gpu.json").is_file(), done.stdout + done.stderr
    tests = {test["name"]: test for test in json.loads((folder / "gpu.json").read_text())["tests"]}
    return done.returncode, tests, (folder / "gpu.md").read_text()


def test_it_skips_with_the_reason_without_a_gpu(tmp_path: Path) -> None:
    if HAS_GPU:
        pytest.skip("needs a machine without a GPU")
    code, tests, page = run_suite(tmp_path)
    assert code == 0
    assert len(tests) > 30
    assert {test["outcome"] for test in tests.values()} == {"skipped"}
    assert all("no GPU" in str(test["reason"]) for test in tests.values())
    assert "GPU: none were read" in page
    assert page.startswith("Nothing ran ")


def test_it_keeps_figures_failures_and_reasons(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    options = (str(tmp_path / "test_cases.py"), f"--rootdir={tmp_path}", f"--config-file={ROOT / 'pyproject.toml'}")
    code, tests, page = run_suite(tmp_path / "out", *options)
    assert code == 1
    assert [test["outcome"] for test in tests.values()] == ["passed", "failed", "skipped", "passed"]
    assert tests["test_good"]["figures"] == {"GB/s": 3.5}
    assert "1 == 2" in str(tests["test_bad"]["reason"])
    assert "no \\| GPU" in page
    code, tests, _ = run_suite(tmp_path / "late", *options, before="suite.LIMIT_S = 0")
    assert {str(test["reason"]) for test in tests.values()} == {"the time was over"}


def test_the_tests_of_the_runtime_library_pass_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stand-in, which has host memory; in a graph it records the number of calls only."""
    library = compile_cudart(tmp_path)
    before = "from tests.support import gpu_machine; gpu_machine._gpu_trials = lambda: WORKING"
    working = "{name: type('Probe', (), {'works': True})() for name in ('', 'cuda runtime')}"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library), prepend=os.pathsep)
    names = "copies_return or refusals"
    code, tests, _ = run_suite(
        tmp_path / "out", str(ROOT / "tests/gpu/test_cuda.py"), "-k", names, before=before.replace("WORKING", working)
    )
    assert {test["outcome"] for test in tests.values()} == {"passed"}, tests
    assert (code, len(tests)) == (0, 3)


@pytest.mark.usefixtures("fewest_rounds")
def test_what_measures_on_a_gpu_runs_on_the_cpu(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdicts of so few passes are chance; `test_rounds` is about them."""
    make_tiny(in_folder / "model.onnx")
    profile = profile_near(Bench(in_folder), monkeypatch, {"threads": 1})
    assert profile.latency.median_ms > 0
    assert measured_in_turn(Bench(in_folder), {"threads": 1}) == 3
    *_, ratio = compare_work(Bench(in_folder), 64, (1, 32), {"threads": 1, **QUICK})
    assert ratio > 0


def test_instances_of_partitioned_gpus_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0)"""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mig_instances() == []
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nwhile read line; do echo \"$line\"; done <<'E'\n{listed}\nE\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert mig_instances() == [
        "MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0"
    ]  # fmt: skip
