"""The search of `reduce`, its evidence for the cause of a failure, and the server of its trials."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.precision_search.minimal_set import BudgetSpentError, Kept
from ndld_flow.processes.fork_server import ForkServer
from ndld_flow.records.accuracy import Accuracy, OutputAgreement
from ndld_flow.records.run_record import GateResult
from ndld_flow.reduce.failure import (
    Failure,
    failed_gates,
    failure_of_end,
    failure_of_error,
    read_accuracy_evidence,
)
from ndld_flow.reduce.part import NodeFacts
from ndld_flow.reduce.search import NodeSearch, _needs_power, measure_as, measure_quickly
from tests.support.worker_toys import wait_until


def line_of(count: int) -> list[NodeFacts]:
    """Return nodes of which each reads the one before."""
    return [
        NodeFacts(index=index, op_type="Relu", name=f"n{index}", inputs=(f"t{index}",), outputs=(f"t{index + 1}",))
        for index in range(count)
    ]


def search(
    count: int, needed: set[int], severity: dict[int, float] | None = None, limit: int = 10**6
) -> tuple[NodeSearch, int]:
    tried: list[Kept] = []

    def fails(kept: Kept) -> bool:
        if len(tried) >= limit:
            raise BudgetSpentError
        tried.append(kept)
        return needed <= kept

    found = NodeSearch(line_of(count), severity or {}, fails)
    found.locate()
    found.run()
    return found, len(tried)


@pytest.mark.parametrize("needed", [{0}, {999}, {500, 501}, {3, 4, 5}, {10, 990}])
def test_the_needed_nodes_are_found_in_few_trials(needed: set[int]) -> None:
    found, trials = search(1000, needed)
    assert found.smallest == needed
    assert found.minimal
    near = max(needed) - min(needed) < 10
    assert trials <= (10 + 5 * len(needed) if near else 40)


def test_strong_evidence_needs_a_single_trial() -> None:
    found, trials = search(1000, {700}, {700: 1.0, 3: 0.2})
    assert found.smallest == {700}
    assert (found.minimal, trials) == (True, 1)


def test_wrong_evidence_costs_trials_and_not_the_result() -> None:
    found, _ = search(200, {50, 51}, dict.fromkeys(range(100, 110), 1.0))
    assert found.smallest == {50, 51}


def test_evidence_for_one_of_two_nodes_finds_the_other_next_to_it() -> None:
    found, trials = search(1000, {699, 700}, {700: 1.0})
    assert found.smallest == {699, 700}
    assert (found.minimal, trials) == (True, 3)


def test_examples_of_each_kind_find_a_pair_of_operators_in_a_large_model() -> None:
    """The pair is needed at one of many places, of which any will do."""
    nodes = [node.model_copy(update={"op_type": f"Op{node.index % 8}"}) for node in line_of(4096)]
    tried: list[Kept] = []

    def fails(kept: Kept) -> bool:
        tried.append(kept)
        return any(index % 8 == 5 and index - 1 in kept for index in kept)

    found = NodeSearch(nodes, {}, fails)
    found.run()
    assert (len(found.smallest), found.minimal) == (2, True)
    assert len(tried) <= 7


def test_many_needed_nodes_are_found_by_leaving_out_single_ones() -> None:
    found, trials = search(36, {*range(10, 22)})
    assert found.smallest == {*range(10, 22)}
    assert trials <= 50


@pytest.mark.parametrize(
    ("gate", "quick"),
    [("speed.latency.min <= 8 ms", True), ("speed.layers.sum <= 8 ms", False), ("speed.latency.spread <= 1", False)],
)
def test_only_latencies_are_measured_quickly(gate: str, quick: bool) -> None:
    """Other metrics of a profile need its settings."""
    full = {"steps": {"speed": {"step": "profile", "passes": 2, "runs": 7}}, "gates": [gate]}
    measured = measure_quickly(full)
    assert (measured["steps"]["speed"]["runs"] == 1) is quick
    assert measured["steps"]["speed"]["passes"] == 2
    assert measure_as(full, measured) == full


def test_the_smallest_set_that_failed_is_returned_when_the_trials_are_spent() -> None:
    found, trials = search(1000, {400, 401}, limit=4)
    assert trials == 4
    assert not found.minimal
    assert {400, 401} <= found.smallest < frozenset(range(1000))


def accuracy(failed: tuple[str, ...], output: str = "y") -> Failure:
    """Return the failure of a check with these sentences."""
    agreement = OutputAgreement(
        output=output,
        dtype="float32",
        shape=(1,),
        judged_as="numbers",
        metrics={"max_abs": 1, "cosine": 0},
        failed=failed,
    )
    document = Accuracy(
        reference="a",
        candidate="b",
        provider_reference="cpu",
        provider_candidate="cpu",
        sample_count=1,
        inputs={},
        tolerance={},
        outputs=(agreement,),
    )
    return Failure(kind="check", where="agree").model_copy(update=read_accuracy_evidence(document))


NAN = "3 elements are NaN or infinite where the reference is not"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ((NAN,), ("7 elements are NaN or infinite where the reference is not",), True),
        ((NAN,), ("max_abs 0.02 is more than 0.01",), False),  # only inexact, not an overflow
        ((NAN,), ("3 elements differ from the NaN or infinity in the reference",), False),  # the other direction
        (("max_abs 5 is more than 0.01",), ("max_abs 0.02 is more than 0.01",), True),
        (("max_abs 5 is more than 0.01",), ("cosine 0.5 is less than 0.9",), False),
        (("max_abs 5 is more than 0.01",), (NAN, "max_abs 5 is more than 0.01"), False),
    ],
)
def test_a_check_fails_in_the_same_way_only_by_the_same_criterion(
    first: tuple[str, ...], second: tuple[str, ...], same: bool
) -> None:
    assert accuracy(first).same_as(accuracy(second)) is same


def test_strict_compares_outputs_and_distances() -> None:
    here, there = accuracy((NAN,)), accuracy((NAN,), "z")
    assert here.same_as(there)
    assert not here.same_as(there, strict=True)
    [far], [near] = (failed_gates([GateResult(gate="a.b <= 1", passed=False, left=x, right=1)]) for x in (9, 1.1))
    assert far.same_as(near)
    assert not far.same_as(near, strict=True)
    assert near.same_as(far, strict=True)


def test_a_gate_fails_in_the_same_way_only_on_the_same_side() -> None:
    values = {"more": 3.0, "still more": 5.0, "unknown": float("nan"), "less": 0.5}
    found = {
        name: failed_gates([GateResult(gate="a.b == 1", passed=False, left=value, right=1)])[0]
        for name, value in values.items()
    }
    assert found["more"].same_as(found["still more"])
    assert not found["more"].same_as(found["less"])
    assert not found["more"].same_as(found["unknown"])


def test_errors_are_compared_by_classes_causes_and_words() -> None:
    def failure(error: Exception, cause: Exception | None = None, names: tuple[str, ...] = ()) -> Failure:
        error.__cause__ = cause
        return failure_of_error("error", "step", error, names)

    text = "node is wrong"
    assert failure(RequestError(text)).same_as(failure(RequestError(text)))
    assert not failure(RequestError(text)).same_as(failure(BackendError(text)))
    assert not failure(RequestError(text), ValueError()).same_as(failure(RequestError(text), KeyError()))
    first, second = "cannot fuse conv with relu.", "cannot fuse add with gelu."
    assert not failure(RequestError(first)).same_as(failure(RequestError(second)))
    assert failure(RequestError(first), names=("conv", "relu")).same_as(
        failure(RequestError(second), names=("add", "gelu"))
    )


def test_crashes_are_compared_by_signal_function_and_outcry() -> None:
    crash = failure_of_end("step", "SIGSEGV", "a.py in run", "")
    assert crash.same_as(failure_of_end("step", "SIGSEGV", "a.py in run", "unrelated output"))
    assert not crash.same_as(failure_of_end("step", "SIGKILL", "a.py in run", ""))
    assert not crash.same_as(failure_of_end("step", "SIGSEGV", "a.py in load", ""))
    assert not crash.same_as(failure_of_end("step", "SIGSEGV", "a.py in run", "Assertion failed: size"))


def call_well(folder: Path) -> None:
    (folder / "answer").write_text(f"{os.getpid()} {random.random()}")


def call_crash(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def call_hang(folder: Path) -> None:
    time.sleep(600)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")
def test_each_call_is_a_process_whose_end_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "server").mkdir()
    ends, answers = {}, []
    with ForkServer(tmp_path / "server") as server:
        for number, name in enumerate(("well", "crash", "hang", "well")):
            folder = tmp_path / str(number)
            folder.mkdir()
            ends[name] = server.call(f"{__name__}:call_{name}", folder, 1.0 if name == "hang" else 60.0)
            answers += [(folder / "answer").read_text().split()] if name == "well" else []
    assert (ends["well"].code, ends["crash"].signal_name, ends["hang"].timed_out) == (0, "SIGSEGV", True)
    assert ends["crash"].frame == "test_reduce_search.py in call_crash"
    assert len({text for answer in answers for text in answer}) == 4  # other processes, and other random numbers


def call_wait(folder: Path) -> None:
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / "pid")
    time.sleep(600)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")
def test_a_call_ends_with_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at Ctrl-C: a call is in a process group of its own, which the end of the server's group does not reach."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with ForkServer(tmp_path) as server:
        call = threading.Thread(target=_call_to_the_end, args=(server, tmp_path), daemon=True)
        call.start()
        wait_until((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
    call.join()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _call_to_the_end(server: ForkServer, folder: Path) -> None:
    with contextlib.suppress(RuntimeError):  # the server has ended
        server.call(f"{__name__}:call_wait", folder, 600.0)


@pytest.mark.parametrize(
    ("kind", "where", "needs"),
    [
        ("check", "agree", False),
        ("gate", "agree.cosine >= 0.9", False),
        ("gate", "agree.unseen <= 10 %", True),
        ("killed", "agree", True),
    ],
)
def test_only_a_failure_of_power_needs_planted_faults(kind: str, where: str, needs: bool) -> None:
    assert _needs_power(Failure(kind=kind, where=where)) == needs
