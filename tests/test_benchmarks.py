"""Every benchmark starts. They run only at releases, while the code they call changes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = sorted(path.stem for path in (ROOT / "tests/benchmarks").glob("*_*.py") if not path.stem.startswith("_"))
SMALLEST: dict[str, tuple[str, ...]] = {
    "bench_activations_page": ("2",),
    "bench_compare": ("1", "5", "5"),
    "bench_history": ("--runs", "3", "6", "--repeat", "1"),
    "bench_large": ("--nodes", "100"),
    "bench_metric_history": ("--points", "1000", "--steps", "2", "--runs", "20"),
    "bench_models": ("--groups", "generated", "--only", "unnamed_nodes"),
    "bench_quantize": ("--pictures", "2", "--rounds", "1", "--passes", "2"),
    "bench_reduce": ("--count", "1", "--no-rival"),
    "bench_report": ("50", "2"),
    "bench_rivals": ("--print",),
    "bench_round_trips": ("--every", "400"),
    "bench_search": ("1", "4"),
    "bench_sweep": ("--passes", "3", "--runs", "3"),
    "bench_sweep_own": ("--points", "3"),
    "bench_sweep_verdicts": ("3",),
    "bench_tool": ("--runs", "1"),
    "bench_weight_only": ("--smoke",),
    "sweep_sanitize": ("--every", "400"),
}
"""Arguments of a short run; most benchmarks are long even so, and are stopped once they work."""
WHOLE = ("bench_tool",)
"""Run to their end: they start others only then."""
_ENOUGH_S, _WHOLE_S = 30, 900


@pytest.mark.thorough
@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_imports_of_a_benchmark_exist(name: str) -> None:
    importlib.import_module(f"tests.benchmarks.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_starts(name: str) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *SMALLEST.get(name, ())]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)
        try:
            code: int | None = process.wait(_WHOLE_S if name in WHOLE else _ENOUGH_S)
        except subprocess.TimeoutExpired:
            code = None if name not in WHOLE else -1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        assert code in (0, None), said.read()[-3000:]
