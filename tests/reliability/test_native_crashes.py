"""Models on which native libraries crash or hang: they cost a process, not the tool."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.reliability.malformed_graphs import LARGE
from tests.support.models import tensor
from tests.support.process_runs import ProcessRun
from tests.support.tally import Tally

_ISOLATED = {"NDLD_FLOW_IN_PROCESS": "0"}
_HANGS_S = 20.0
"""What Ctrl-C has not ended then is stuck; it takes a second."""
_TO_THE_LOOP_S = 3.0
"""From the step's start into native code, mostly. Before that Ctrl-C must end it too."""


def _write(folder: Path, model: Any, steps: Mapping[str, Any]) -> None:
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "recipe.yaml").write_text(json.dumps({"name": "r", "model": "model.onnx", "steps": steps}))


def _dividing() -> Any:
    """The smallest integer by -1: there is no such quotient, and the processor traps."""
    numbers = {"a": -(2**63), "b": -1}
    operands = [numpy_helper.from_array(np.array([number], np.int64), name) for name, number in numbers.items()]
    divide = helper.make_node("Div", ["a", "b"], ["y"], name="divide")
    graph = helper.make_graph([divide], "g", [], [tensor("y", [1], TensorProto.INT64)], operands)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.thorough
def test_a_trap_while_folding_is_the_steps_failure(tmp_path: Path, tally: Callable[[str], Tally]) -> None:
    count = tally("models that crash native code")
    _write(tmp_path, _dividing(), {"clean": {"step": "sanitize"}})
    code, _, result = ProcessRun("run", "recipe.yaml", cwd=tmp_path, env=_ISOLATED).finish(120)
    assert code == 5, result
    assert result.startswith("error: step clean: "), result
    assert "SIGFPE" in result and result.count("\n") == 1
    count.refused += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["check_accuracy", "inspect_activations", "profile", "lint", "find_precision", "quantize"]
)
def test_a_trap_while_running_is_the_steps_failure(tmp_path: Path, tally: Callable[[str], Tally], step: str) -> None:
    count = tally("models that crash native code")
    settings = {"check_accuracy": {"reference": "source", "candidate": "source"}}.get(step, {})
    _write(tmp_path, _dividing(), {"look": {"step": step, **settings}})
    code, _, result = ProcessRun("run", "recipe.yaml", cwd=tmp_path, env=_ISOLATED).finish(120)
    assert code in (0, 1, 2, 5), result
    if code in (2, 5):
        assert result.startswith("error: step look: ") and result.count("\n") == 1, result
    count.refused += code in (2, 5)
    count.survived += code not in (2, 5)


@pytest.mark.slow
def test_ctrl_c_ends_a_model_that_never_ends(tmp_path: Path, tally: Callable[[str], Tally]) -> None:
    """A loop of 2^62 rounds, in native code that hears no signal."""
    if not Path("/proc/self").exists():
        pytest.skip("looks at processes in /proc")
    count = tally("models that crash native code")
    steps = {"agree": {"step": "check_accuracy", "reference": "source", "candidate": "source"}}
    _write(tmp_path, LARGE["Loop for ever"](), steps)
    run = ProcessRun("run", "recipe.yaml", cwd=tmp_path, env=_ISOLATED)
    _wait_until(lambda: "agree: check_accuracy starts" in run.told, 120)  # the step has begun
    time.sleep(_TO_THE_LOOP_S)
    began = time.perf_counter()
    run.send_signal(signal.SIGINT)
    code, _, result = run.finish(_HANGS_S)
    assert code == 130, result
    assert "interrupted" in result
    _wait_until(lambda: not _processes_in(tmp_path), _HANGS_S)
    assert time.perf_counter() - began < _HANGS_S
    count.refused += 1


def _processes_in(folder: Path) -> list[int]:
    """Return the processes whose current directory is a folder."""
    result = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                result.append(int(entry.name))
    return result


def _wait_until(holds: Callable[[], bool], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)
