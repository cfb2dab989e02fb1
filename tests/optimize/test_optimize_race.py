"""The race of `optimize`: budgets, crashes, interruptions, and what it delivers, on real models in real processes."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self, cast
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper, numpy_helper

from ndld_flow import api
from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.execution.events import (
    Event,
    Notice,
    RunFailed,
    RunStarted,
    StepFinished,
    StepStarted,
    VariantProgressed,
    VariantTried,
)
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.request import Request
from ndld_flow.optimize import proof, race, race_process, race_search
from ndld_flow.optimize.budget import Budget, BudgetEndedError
from ndld_flow.optimize.compose import read_model
from ndld_flow.optimize.found import TOO_NOISY, TOO_SHORT, prove_source
from ndld_flow.optimize.goals import Conditions
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.proof import Proof, Prover
from ndld_flow.optimize.race_process import RaceJob, RaceResult, run_race
from ndld_flow.optimize.race_search import RaceSearch
from ndld_flow.optimize.rounds import Racer, Ratio, Rounds, compare, estimate
from ndld_flow.optimize.variant import Variant
from ndld_flow.processes.launch import ProcessEnd
from ndld_flow.processes.lines import Line
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.measurement import Metric
from ndld_flow.records.optimization import Optimization, Speed, TriedVariant, VariantOutcome
from ndld_flow.runtimes.openvino.request import OpenvinoRequest
from ndld_flow.runtimes.protocol import Session
from ndld_flow.sweep.run_request import run_request

CHANNELS = 32
SIDE = 24
RANKED = {"best": -0.5, "second": -0.4, "third": -0.3, "source": 0.0, "fifth": 0.1}
"""Variant -> the logarithm of its time."""


def make_net(path: Path) -> Path:
    """Write a small convolutional net whose INT8 is right."""
    rng = np.random.default_rng(3)
    nodes, weights, last = [], [], "x"
    for number in range(4):
        channels = CHANNELS if number else 3
        kernel = rng.normal(0, 1 / np.sqrt(9 * channels), (CHANNELS, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{number}"))
        nodes += [
            helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], f"conv{number}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"),
        ]
        last = f"r{number}"
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, [1, CHANNELS, SIDE, SIDE])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def make_project(folder: Path) -> Path:
    """Write a model, and 12 samples in `data`."""
    (folder / "data").mkdir()
    rng = np.random.default_rng(4)
    for number in range(12):
        np.save(folder / "data" / f"{number:02}.npy", rng.normal(0, 1, (1, 3, SIDE, SIDE)).astype(np.float32))
    return make_net(folder / "net.onnx")


@pytest.fixture
def net(in_folder: Path) -> Path:
    return make_project(in_folder)


def options(**more: object) -> OptimizeOptions:
    given = {"target": "onnxruntime", "data": ("data",), "keep": ("cosine >= 0.98",), "threads": (1,), **more}
    return OptimizeOptions(**given)  # type: ignore[arg-type]


def run(model: Path, **more: object) -> tuple[Optimization, list[Event]]:
    events: list[Event] = []
    found = api.optimize(model, options(**more), output=Path("fast.onnx"), listener=events.append)
    assert found is not None
    return found, events


@dataclass(frozen=True)
class Ran:
    """A race from its beginning to its end, and its folder."""

    folder: Path
    found: Optimization
    tried: list[TriedVariant]
    stages: list[VariantProgressed]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A race of a model that lists its weights as inputs."""
    folder = tmp_path_factory.mktemp("race")
    net = make_project(folder)
    model = onnx.load(net)
    for weight in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    onnx.save(model, net)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found, events = run(net, budget="3 min")
    tried = [event.variant for event in events if isinstance(event, VariantTried)]
    return Ran(folder, found, tried, [event for event in events if isinstance(event, VariantProgressed)])


@pytest.mark.thorough
def test_each_stage_of_the_race_is_an_event_with_the_rest_of_the_budget(ran: Ran) -> None:
    stages = [(stage.variant, stage.doing) for stage in ran.stages]
    assert stages[:2] == [("source", "building"), ("source", "judging")]
    assert {name for name, doing in stages if doing == "judging"} == {"source", *(
        each.name for each in ran.tried if each.metrics and each.name != "source"
    )}  # fmt: skip
    assert stages[-1] == ("", "ended") and ("", "measuring") in stages
    left = [stage.left_s for stage in ran.stages]
    assert left[0] < 180 and left == sorted(left, reverse=True)


@pytest.mark.thorough
def test_a_delivered_model_was_proved_or_is_the_source(ran: Ran) -> None:
    """Which one wins depends on the CPU: the record, the file and the page agree in any case."""
    found, fast = ran.found, ran.folder / "fast.onnx"
    assert fast.is_file()
    (delivered,) = [variant for variant in found.variants if variant.outcome == "delivered"]
    assert delivered.name == found.delivered
    assert found.faster == (found.speed is not None and found.speed.proved and found.speed.high <= 0.99)
    measured = {each.outcome: each.speed.proved for each in found.variants if each.speed is not None}
    assert not measured.get("not the best") and not measured.get("not right")
    if found.faster:
        assert found.metrics["cosine"].value >= 0.98
        judged = json.loads((ran.folder / found.report).parent.joinpath("held", "accuracy.json").read_text())
        assert found.held_samples == len(judged["samples"]), "samples that the check made were not seen either"
    else:
        assert fast.read_bytes() == (ran.folder / "net.onnx").read_bytes()
    report = ran.folder / found.report
    assert json.loads((report.parent / "optimization.json").read_text())["delivered"] == found.delivered
    assert found.conclude()[0] in report.read_text().replace("&#39;", "'")


@pytest.mark.thorough
def test_weights_that_are_listed_as_inputs_become_constants(ran: Ran) -> None:
    assert any("weights as inputs" in sentence for sentence in ran.found.not_tried)
    assert [item.why for item in ran.tried if item.outcome == "failed"] == []
    assert [item.name for item in ran.tried if item.name.startswith("INT8") and item.metrics], "INT8 was judged"


@pytest.mark.thorough
def test_a_budget_that_is_too_short_delivers_the_source_and_says_what_is_open(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ndld_flow.optimize.budget._SOURCE_S", 1e6)
    found, events = run(net, budget="1 ms")
    assert not any(isinstance(event, Notice) and event.text.startswith("racing") for event in events)
    assert (found.ending, found.delivered) == ("not decided", "source")
    assert {variant.outcome for variant in found.variants} == {"delivered", "not tried"}
    assert "budget" in found.stopped_because
    assert Path("fast.onnx").read_bytes() == net.read_bytes()


@pytest.mark.thorough
def test_the_default_budget_is_printed_before_anything_runs(net: Path) -> None:
    events: list[Event] = []
    with pytest.raises(KeyboardInterrupt):  # its first line is enough
        api.optimize(net, options(), listener=lambda event: _interrupt_after_notice(event, events))
    assert isinstance(events[-1], Notice)
    assert "--budget" in events[-1].text


@pytest.mark.parametrize(("used_s", "wanted_s"), [(1.0, 55.0), (10.0, 300.0), (1e6, 570.0)])
def test_the_default_budget_is_set_once_from_the_latency_and_the_time_of_reading(
    net: Path, monkeypatch: pytest.MonkeyPatch, used_s: float, wanted_s: float
) -> None:
    """It grew from 55 s to 25 minutes when the source had waited for the CPUs that another run held."""
    monkeypatch.setattr(Budget, "used_s", property(lambda _: used_s))
    budgets: list[float | None] = []

    def end(own: Budget) -> AbstractContextManager[None]:
        budgets.append(own.seconds)
        raise BudgetEndedError

    monkeypatch.setattr(Budget, "enforced", end)
    with pytest.raises(RequestError):
        api.optimize(net, options())
    assert budgets == [max(wanted_s, 60.0)]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_the_budget_ends_the_run_of_the_source_too(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for its CPUs for as long as another run holds them."""
    monkeypatch.setattr("ndld_flow.optimize.budget._SOURCE_S", 0.0)
    monkeypatch.setattr("ndld_flow.optimize.budget._GRACE_S", 0.0)
    monkeypatch.setattr("ndld_flow.optimize.optimize.prove_source", lambda _: time.sleep(600))
    with pytest.raises(RequestError) as raised:
        api.optimize(net, options(budget="1 ms"), output="fast.onnx")
    assert raised.value.exit_code == 2
    assert not Path("fast.onnx").exists()


def _interrupt_after_notice(event: Event, events: list[Event]) -> None:
    events.append(event)
    if isinstance(event, Notice):
        raise KeyboardInterrupt


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_delivers_what_was_proved_until_then(net: Path) -> None:
    command = [sys.executable, "-m", "ndld_flow", "optimize", "net.onnx", "--data", "data", "--for", "onnxruntime"]
    with subprocess.Popen(
        [*command, "--threads", "1", "-o", "fast.onnx"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("racing"):
                time.sleep(0.5)
                process.send_signal(signal.SIGINT)
    text = "".join(lines)
    assert process.returncode == 0, text
    assert "Not decided (interrupted)" in text
    assert Path("fast.onnx").read_bytes() == net.read_bytes()
    assert not list(Path("outputs/optimizations").glob("*/race-*")), "nothing is left"


@pytest.mark.thorough
def test_data_of_the_wrong_kind_is_one_error_before_any_variant(net: Path) -> None:
    for path in Path("data").iterdir():
        np.save(path, np.zeros((1, 5, 7), np.float32))
    events: list[Event] = []
    with pytest.raises(RequestError):
        api.optimize(net, options(), listener=events.append)
    assert not any(isinstance(event, VariantTried) for event in events)


@pytest.mark.thorough
@pytest.mark.usefixtures("executed_workers")
def test_a_crash_loses_neither_other_variants_nor_what_was_found(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process kills itself, as a crashing library would: while it tries a variant, and in the last rounds."""
    Path("crashing").mkdir()
    Path("crashing/sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'ndld_flow.optimize.race_worker' in sys.orig_argv:\n"
        "    from ndld_flow.optimize import race\n"
        "    race.Race._finish = lambda _: os.kill(os.getpid(), 11)\n"
        "    enter, qualify = race.Race._enter, race.Race._qualify\n"
        "    def crash(self, name, recipe):\n"
        "        if name == 'INT8 by integer operators':\n"
        "            os.kill(os.getpid(), 11)\n"
        "        return enter(self, name, recipe)\n"
        "    def refuse(self, entrant):\n"
        "        if entrant.name == 'INT8 of dense layers':\n"
        "            raise race.LostError('not right', 'as this test says')\n"
        "        qualify(self, entrant)\n"
        "    race.Race._enter, race.Race._qualify = crash, refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path("crashing").absolute()))
    composer, result = read_model(net, options(), Path("samples")), RaceResult()
    Path("search.yaml").write_text(composer.compose_sweep(Path("search.yaml")))
    later = (
        "INT8 of dense layers",
        "INT8 of all layers",
        "INT8 by integer operators",
        "INT8 without first and last layer",
    )
    job = RaceJob(
        recipe="search.yaml",
        outputs="outputs",
        trust=False,
        variants=("source", *later),
        extends={
            variant.name: variant.extends
            for variant in composer.variants
            if variant.extends and "integer" not in variant.name
        },
        accuracy=composer.conditions.accuracy,
        seconds=120,
    )
    run_race(job, Path(), lambda _: None, result)
    outcomes = {name: tried.outcome for name, tried in result.tried.items()}
    assert (outcomes["INT8 of dense layers"], outcomes["INT8 of all layers"]) == ("not right", "cannot win")
    assert outcomes["INT8 by integer operators"] == "failed"
    assert "SIGSEGV" in result.tried["INT8 by integer operators"].why
    assert outcomes["INT8 without first and last layer"] not in ("cannot win", "not tried"), "it leaves layers out"
    assert not result.finished


@pytest.mark.parametrize(("ratio", "proved", "ends"), [(0.96, "", True), (0.98, "", False), (0.96, "clean", False)])
def test_what_is_prepared_ends_for_the_proof_of_a_faster_variant(
    net: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, proved: str, ends: bool
) -> None:
    """`clean` at 1.04x was never proved: a placement took all of the time that was left for its proof."""
    job = race_of(net)._job.model_copy(
        update={"seconds": 1e6, "proof_s": 1e6, "proved": proved, "variants": ("source",)}
    )
    ended, result = threading.Event(), RaceResult()
    result.add(raced("clean", ratio), leads=True)

    class Stuck:
        """A worker that prepares a variant for as long as it may."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            ended.set()

        def receive(self, _: str) -> ProcessEnd:
            ended.wait(0.5)
            Path("stderr.txt").touch()
            return ProcessEnd(code=-9, doing="", folder=Path())

    monkeypatch.setattr(race_process, "_END_S", 0.0)
    monkeypatch.setattr(race_process, "CommandWorker", lambda *_: Stuck())
    assert (race_process._run_process(job, Path(), lambda _: None, result) is None) == ends
    assert ended.is_set()


def raced(name: str, ratio: float, half: float = 0.005) -> TriedVariant:
    speed = Speed(ratio=ratio, low=ratio - half, high=ratio + half, clock="cpu")
    return TriedVariant(name=name, runtime="onnxruntime", outcome="not proved", speed=speed)


def search_after(net: Path, proved: str, *tried: TriedVariant) -> RaceSearch:
    """Return a search in which a variant was proved, or none."""
    composer = read_model(net, options(target="any"), Path("samples"))
    source = Proof(composer.variants[0], Path("s.yaml"), "delivered", "")
    search = RaceSearch(Prover(composer, Path(), Request(Path("r.yaml")), lambda _: None), source, Budget(None))
    search._result.tried.update({item.name: item for item in tried})
    if proved:
        variant = next(variant for variant in composer.variants if variant.name == proved)
        search._best = Proof(variant, Path("p.yaml"), "delivered", "")
    return search


def test_a_gain_of_two_percent_is_proved_and_not_called_slower(net: Path) -> None:
    search = search_after(net, "", raced("clean", 0.98), raced("clean in OpenVINO", 0.995))
    outcomes = {variant.name: variant.outcome for variant in search._found().variants}
    assert search._may_be_better(search._result.tried["clean"])
    assert (outcomes["clean"], outcomes["clean in OpenVINO"]) == ("not proved", "not faster")


@pytest.mark.parametrize(("ratio", "half", "first"), [(0.9, 0.02, True), (0.9, 0.09, False), (0.98, 0.005, False)])
def test_a_small_or_uncertain_gain_is_proved_after_the_searches_for_larger_ones(
    net: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, half: float, first: bool
) -> None:
    search, proved = search_after(net, "", raced("clean", ratio, half)), list[str]()

    rounds: list[int] = []

    def prove(_: Prover, variant: Variant, *arguments: Any) -> Proof:
        proved.append(variant.name)
        rounds.append(arguments[-1])
        return Proof(variant, Path("p.yaml"), "not proved", "")

    monkeypatch.setattr(Prover, "prove", prove)
    search._result.ranking = ("clean",)
    search._prove_best(certain=True)
    assert proved == ["clean"] * first
    search._prove_best()
    assert proved == ["clean"]
    assert (rounds[0] <= 12) is first, "nothing else waits for the time of the last proof"


@pytest.mark.parametrize(("half", "count"), [(0.005, 2), (0.2, 1)])
def test_noise_that_hides_a_gain_leaves_the_proof_to_a_sure_one(
    net: Path, monkeypatch: pytest.MonkeyPatch, half: float, count: int
) -> None:
    """A recognizer's noisy 1.70x was not proved, and 1.44x (1.37x to 1.52x) was not tried: the model itself shipped."""
    faster, slower = raced("clean", 0.8), raced("clean in OpenVINO", 0.85, half)
    search, proved = search_after(net, "", faster, slower), list[str]()

    def prove(_: Prover, variant: Variant, *__: object) -> Proof:
        proved.append(variant.name)
        return Proof(variant, Path("p.yaml"), "not proved", "")

    monkeypatch.setattr(Prover, "prove", prove)
    search._result.ranking = (faster.name, slower.name)
    search._prove_best(certain=True)
    search._prove_best()
    assert proved == [faster.name, slower.name][:count]


def test_time_for_another_proof_is_left_as_the_last_took(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is left of the budget seems too short for the searches that may win; a failed check shows nothing."""
    search, started = search_after(net, "", raced("clean", 0.8), raced("clean in OpenVINO", 0.7)), time.monotonic()
    search._source = replace(search._source, took_s=10.0)
    search._budget = Budget(100.0, started)
    speeds = iter([None, raced("clean", 0.8).speed])

    def prove(_: Prover, variant: Variant, *__: object) -> Proof:
        search._budget = Budget(100.0, started - 10 * len(search._proofs) - 10)
        return Proof(variant, Path("p"), "not right on held-out data", "", speed=next(speeds))

    monkeypatch.setattr(Prover, "prove", prove)
    monkeypatch.setattr(search, "_describe", search._result.tried.__getitem__)
    before_s, search._result.ranking = search._proof_s(0.0), ("clean in OpenVINO",)
    search._prove_best()
    assert search._proof_s(0.0) == before_s == pytest.approx(70.0, abs=1)
    search._result.ranking = ("clean in OpenVINO", "clean")
    search._prove_best()
    assert search._proof_s(0.0) == pytest.approx(11.0, rel=0.1)


def test_the_rounds_of_a_slow_model_have_their_time_in_a_proof(net: Path) -> None:
    """A gain of 6x was cut off in its fewest rounds, which took four times as long as was left for them."""
    search = search_after(net, "")
    search._budget = Budget(570.0)
    quick_s = search._proof_s(0.0)
    slow = replace(search._composer.trial, pass_ms=555.0)
    search._composer = replace(search._composer, trial=slow)
    assert search._proof_s(0.0) > quick_s + 30


@pytest.mark.representatives("outcomes0-False-all variants tried")
@pytest.mark.parametrize(
    ("outcomes", "short", "stopped_because"),
    [
        (("not proved", "delivered"), False, "all variants tried"),
        (("not proved", "not proved"), False, TOO_NOISY),
        (("not proved",), True, f"{TOO_SHORT} and {TOO_NOISY}"),
        (("delivered",), True, TOO_SHORT),
    ],
)
def test_noise_is_named_if_no_later_race_proves_a_variant(
    net: Path, monkeypatch: pytest.MonkeyPatch, outcomes: tuple[VariantOutcome, ...], short: bool, stopped_because: str
) -> None:
    search, proofs = search_after(net, ""), iter(outcomes)

    def race_all(names: Sequence[str], _: float) -> None:
        found = [name for name in names if name != "source" and name not in search._result.tried]
        speed = 0.5 ** len(search._result.ranking)
        search._result.tried.update({name: raced(name, 0.8 * speed) for name in found})
        search._result.ranking, search._result.finished = (found[0], *search._result.ranking), True

    monkeypatch.setattr(search, "_race", race_all)
    monkeypatch.setattr(search, "_proof_s", lambda _: math.inf if short else 0.0)
    monkeypatch.setattr(Prover, "prove", lambda _, variant, *__: Proof(variant, Path("p"), next(proofs), ""))
    assert search.run().stopped_because == stopped_because


@pytest.mark.thorough
def test_a_search_that_continues_leaves_as_much_time_for_proofs(net: Path) -> None:
    """The source's run is reused then, and takes no time."""
    prover = search_after(net, "")._prover
    prover.folder.mkdir(exist_ok=True)
    prove_source(prover)
    again = prove_source(prover)
    assert again.record is not None
    computed_s = [step.record.wall_s for step in again.record.steps if step.record is not None]
    assert again.took_s >= sum(computed_s) > 0


def test_the_source_in_another_runtime_is_not_replaced_by_what_is_slower(net: Path) -> None:
    """It is the model itself, and still the best that is proved."""
    search = search_after(net, "source in OpenVINO", raced("source in OpenVINO", 0.6), raced("clean", 0.8))
    assert not search._may_be_better(search._result.tried["clean"])
    assert {variant.name: variant.outcome for variant in search._found().variants}["clean"] == "not the best"


def test_a_variant_that_was_proved_has_the_speed_of_its_proof(net: Path) -> None:
    """A race is short: a later one may call the proved variant slower than the source."""
    search = search_after(net, "clean", raced("clean", 1.03))
    search._best = search._proofs["clean"] = replace(
        search._best, speed=Speed(ratio=0.8, low=0.7, high=0.9, clock="cpu")
    )
    delivered = search._found().variants[0]
    assert (delivered.name, delivered.outcome, delivered.speed and delivered.speed.ratio) == ("clean", "delivered", 0.8)
    assert "0.97x in the race" in delivered.why, "the other rows of the table have the speeds of the race"


@pytest.mark.thorough
def test_a_proof_reuses_the_profiles_that_were_measured_before_it(net: Path) -> None:
    search, events = search_after(net, ""), list[Event]()
    prover = replace(search._prover, listener=events.append, request=Request(Path("r.yaml")))
    variant = next(variant for variant in search._composer.variants if variant.name == "clean")
    proof = prover.prove(variant)
    assert proof.speed is not None
    ended = [(event.name, event.outcome) for event in events if isinstance(event, StepFinished)]
    assert ended.count(("base", "done")) == ended.count(("base", "reused")) == 1
    started: set[str] = set()
    for event in events:
        started |= set(event.steps) if isinstance(event, RunStarted) else set()
        assert not isinstance(event, StepStarted) or event.name in started, "a terminal counts the steps of a run"
    assert len(list(Path("outputs/runs").glob("*-proof/2*"))) == 2, "the check, and the comparison"


@pytest.mark.thorough
def test_a_proof_reuses_what_the_process_of_the_race_has_placed(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placement depends on the machine, which is the same for a process that we start."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    composer, events = read_model(net, options(budget="50 s"), Path("samples")), list[Event]()
    Path("search.yaml").write_text(composer.compose_sweep(Path("search.yaml")))
    name = "INT8 where it pays"
    job = RaceJob(
        recipe="search.yaml", outputs="outputs", trust=False, variants=("source", name), extends={}, needs={},
        accuracy=composer.conditions.accuracy, seconds=60, folder=".",
    )  # fmt: skip
    run_race(job, Path(), lambda _: None, RaceResult())
    variant = next(variant for variant in composer.variants if variant.name == name)
    text = composer.compose_proof(variant, Path("p.yaml"), Path("o.onnx"), part="check")
    Prover(composer, Path(), Request(Path("r.yaml")), events.append).run(variant, text)
    assert [event.outcome for event in events if isinstance(event, StepFinished) and event.name == "made"] == ["reused"]


@pytest.mark.thorough
def test_a_proof_says_which_figures_no_condition_judges(net: Path) -> None:
    composer = read_model(net, options(), Path("samples"))
    variant = next(variant for variant in composer.variants if variant.name == "clean")
    text = composer.compose_proof(variant, Path("p.yaml"), Path("o.onnx"), part="check")
    proof = Prover(composer, Path(), Request(Path("r.yaml")), lambda _: None).run(variant, text)
    gated, _, rest = proof.accuracy.partition("; ")
    assert gated.startswith("cosine "), "--keep judges it"
    assert "max abs" in rest.partition(": without a bound")[0] and "without a bound" in rest


@pytest.mark.parametrize("decided", [True, False])
def test_a_budget_that_ends_a_report_does_not_lose_the_proof(
    net: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """Every result is stored when the last step has finished."""
    composer = read_model(net, options(), Path("samples"))
    variant = next(variant for variant in composer.variants if variant.name == "clean")
    text = composer.compose_proof(variant, Path("p.yaml"), Path("o.onnx"), part="check")
    finished = StepFinished(
        name="versus" if decided else "speed", step="compare_profiles", outcome="done", reason="new", detail="",
        summary="", wall_s=1.0, metrics={},
    )  # fmt: skip

    failed = RunFailed(
        outcome="interrupted", steps=("speed",), message="", exit_code=130, run="r", folder="r", report="r.html"
    )

    def end(_: Request, listener: Listener) -> NoReturn:
        monkeypatch.setattr(proof, "run_request", run_request)
        listener(finished)
        listener(failed)
        raise BudgetEndedError

    monkeypatch.setattr(proof, "run_request", end)
    events: list[Event] = []
    prover = Prover(composer, Path(), Request(Path("r.yaml")), events.append)
    if decided:
        assert prover.run(variant, text).passed
    else:
        with pytest.raises(BudgetEndedError):
            prover.run(variant, text)
    assert failed not in events, "the search goes on to its own end"
    assert any(isinstance(event, Notice) for event in events) is not decided


def racer(name: str, logs: dict[int, float]) -> Racer:
    return Racer(name, lambda: None, False, 1.0, logs)


@pytest.mark.parametrize(
    ("first", "later", "is_lost"), [([15.0, 18.0, 16.0], 16.0, True), ([30.0, 12.0, 30.0], 8.0, False)]
)
def test_a_slow_first_pass_does_not_end_a_variant(
    monkeypatch: pytest.MonkeyPatch, first: list[float], later: float, is_lost: bool
) -> None:
    """The leader had many passes and one of them was quick; those of both are measured in the same rounds."""
    nothing: Any = None
    leader, late = (
        race.Entrant(name, "", nothing, nothing, Racer(name, lambda: None, False, ms), lambda: None)
        for name, ms in (("leader", 5.0), ("late", 15.0))
    )
    passes = {"leader": itertools.repeat(8.0), "late": itertools.chain(first, itertools.repeat(later))}
    monkeypatch.setattr(Racer, "measure", lambda self, *_, **__: next(passes[self.name]))
    monkeypatch.setattr(race.Race, "_measuring", lambda *_: nullcontext())
    monkeypatch.setattr(race.Race, "_judge", lambda *_: None)
    running = race.Race.__new__(race.Race)
    running._rounds, running._source, running._leader, running._alive = Rounds(), leader, leader, [leader]
    if is_lost:
        with pytest.raises(race.LostError):
            running._qualify(late)
    else:
        running._qualify(late)


def test_the_best_three_are_kept_for_proofs_and_others_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:

    def entrant(name: str, log: float) -> race.Entrant:
        nothing, model = cast("Any", None), cast("Any", SimpleNamespace(digest=name))
        return race.Entrant(name, "", nothing, model, racer(name, dict.fromkeys(range(4), log)), lambda: None)

    messages = list[Line]()
    entrants = [entrant(name, log) for name, log in RANKED.items()]
    running = race.Race.__new__(race.Race)
    running._alive, running._source, running._wrong, running._emit = [*entrants], entrants[3], set(), messages.append
    monkeypatch.setattr(race.Race, "_run_rounds", lambda _: entrants[0])
    assert [item.name for item in running._order()] == ["best", "second", "third"]
    [message] = messages
    assert isinstance(message, race_process.Tried)
    assert (message.variant.name, message.variant.outcome) == ("fifth", "not the best")


def test_violated_bounds_are_named_with_their_outputs(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.7 % of the letters of a recognizer differed, which hid that a slice of its confidence was off by 79 %."""
    ids = SimpleNamespace(output="ids", failed=("mismatched 0.7 % is more than 0 %",), undecided="")
    conf = SimpleNamespace(output="conf", failed=("slice_rms 79 % is more than 5 %", "third"), undecided="")
    violations = Accuracy.violations.fget(SimpleNamespace(outputs=(ids, conf), labelled=()))  # type: ignore[attr-defined]
    found = SimpleNamespace(failed=True, violations=violations, passed=False)
    monkeypatch.setattr(race, "metrics_of", lambda _: {})
    monkeypatch.setattr(race.Race, "_agreement", lambda *_: found)
    running, nothing = race_of(net), cast("Any", None)
    with pytest.raises(race.LostError) as lost:
        running._judge(race.Entrant("INT8", "", running._sweep.base, nothing, racer("INT8", {}), lambda: None))
    assert lost.value.why == "ids: mismatched 0.7 % is more than 0 %, conf: slice_rms 79 % is more than 5 % and 1 more"


def test_a_variant_whose_samples_decide_nothing_is_not_judged_and_one_that_fails_does_not_stay(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = ("slice_rms 9 % is more than 5 %",)
    outputs = {
        "not judged": SimpleNamespace(failed=(), undecided="its values hardly vary"),
        "not right": SimpleNamespace(failed=failed, undecided=""),
    }

    def agreement(_: race.Race, entrant: race.Entrant, *__: object) -> SimpleNamespace:
        output = outputs[entrant.name]
        return SimpleNamespace(
            failed=bool(output.failed),
            outputs=(output,),
            violations=output.failed,
            passed=False,
            tells_by_cosine=True,
        )

    monkeypatch.setattr(race, "metrics_of", lambda _: {"cosine": Metric(value=0.99, unit="")})
    monkeypatch.setattr(race.Race, "_agreement", agreement)
    monkeypatch.setattr(Rounds, "tell_apart", lambda *_: Ratio(-0.001, 0.5, 3))  # perhaps faster
    running = race_of(net, keep=())
    nothing: Any = None
    running._leader = race.Entrant("source", "", nothing, nothing, racer("source", {}), lambda: None)
    running._source = running._leader
    for name in outputs:
        entrant = race.Entrant(name, "", running._sweep.base, nothing, racer(name, {}), lambda: None)
        with pytest.raises(race.LostError) as lost:
            running._qualify(entrant)
        assert lost.value.outcome == name


@pytest.mark.parametrize("kind", ["condition", "default bound"])
def test_a_variant_near_a_bound_of_either_kind_does_not_stay(
    net: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    found = SimpleNamespace(failed=False, outputs=(), passed=True, samples=(), violations=())
    monkeypatch.setattr(race, "metrics_of", lambda _: {})
    monkeypatch.setattr(race.Race, "_agreement", lambda *_: found)
    monkeypatch.setattr(Conditions, "near_bound", lambda *_: kind if kind == "condition" else "")
    monkeypatch.setattr(race, "near_default_bound", lambda _: kind if kind != "condition" else "")
    running, model = race_of(net), cast("Any", SimpleNamespace(path=net))
    entrant = race.Entrant("INT8", "", running._sweep.base, model, racer("INT8", {}), lambda: None)
    with pytest.raises(race.LostError) as lost:
        running._judge(entrant)
    assert (lost.value.outcome, lost.value.why) == ("near the bound", kind)


@pytest.mark.parametrize(
    ("log", "proved", "reserved"), [(-0.5, "", True), (-0.5, "late", False), (-0.02, "", False), (0.5, "", False)]
)
def test_time_for_a_proof_is_left_once_a_variant_seems_to_be_faster_than_the_source(
    net: Path, log: float, proved: str, reserved: bool
) -> None:
    running, nothing = race_of(net), cast("Any", None)
    running._job = running._job.model_copy(update={"seconds": 1000.0, "proof_s": 600.0, "proved": proved})
    running._source, running._leader = (
        race.Entrant(name, "", nothing, nothing, racer(name, dict.fromkeys(range(6), value)), lambda: None)
        for name, value in (("source", 0.0), ("late", log))
    )
    assert (running._left() < 500) == reserved


@pytest.mark.parametrize(("waited_s", "count"), [(0.0, 3), (25.0, 4)])
def test_no_variant_starts_in_less_time_than_the_slowest_took(
    waited_s: float, count: int, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second search of 85 s used the time of the proof of what the first had found. A wait for the device says
    nothing about the time of the others."""
    running, nothing, tried = race_of(net), cast("Any", None), list[str]()
    running._job = running._job.model_copy(update={"seconds": 100.0, "variants": ("source", *"abcd")})

    def take_30_s(name: str) -> None:
        tried.append(name)
        running._waited_s += waited_s

    source = race.Entrant("source", "", nothing, nothing, racer("source", {}), lambda: None)
    source.racer.ms = 1.0
    monkeypatch.setattr(race, "time", Mock(monotonic=lambda: 30.0 * len(tried)))
    monkeypatch.setattr(running, "_start", 0.0)
    monkeypatch.setattr(running, "_enter", lambda *_: source)
    monkeypatch.setattr(running, "_try", take_30_s)
    for unused in ("_agreement", "_finish"):
        monkeypatch.setattr(running, unused, Mock())
    running.run()
    assert tried == list("abcd"[:count])


@pytest.mark.parametrize(
    ("int8_ms", "one_thread_ms", "first"),
    [(0.80, 1.0, "clean"), (0.78, 1.0, "INT8"), (0.83, 1.0, "clean"), (0.83, 0.83, "1 thread"), (0.83, 0.85, "clean")],
)
def test_of_those_that_are_about_as_fast_the_one_that_changes_least_is_the_best(
    net: Path, monkeypatch: pytest.MonkeyPatch, int8_ms: float, one_thread_ms: float, first: str
) -> None:
    """INT8 with an error of 3.4 % was delivered where the source on one thread was as fast; and a file with other
    nodes, which gained nothing over the source on one thread.
    """
    running, nothing = race_of(net), cast("Any", None)
    entrants = (("source", 1.0, 0.0), ("INT8", int8_ms, 0.034), ("clean", 0.82, 1e-6), ("1 thread", one_thread_ms, 0.0))
    for name, ms, error in entrants:
        model: Any = SimpleNamespace(digest="source" if name == "1 thread" else name)
        times = racer(name, dict.fromkeys(range(6), math.log(ms)))
        metrics = {"slice_rms": Metric(value=error, unit="ratio")}
        running._alive.append(race.Entrant(name, "", nothing, model, times, lambda: None, metrics=metrics))
    running._source, *_ = running._alive
    monkeypatch.setattr(running, "_run_rounds", lambda: min(running._alive, key=lambda each: each.racer.logs[0]))
    assert running._order()[0].name == first


def race_of(net: Path, **more: object) -> race.Race:
    """Return a race of no variant yet."""
    composer = read_model(net, options(**more), Path("samples"))
    Path("search.yaml").write_text(composer.compose_sweep(Path("search.yaml")))
    job = RaceJob(recipe="search.yaml", outputs="outputs", trust=False, variants=(), extends={}, accuracy=(), seconds=1)
    return race.Race(job, lambda _: None)


@pytest.mark.parametrize(
    ("threads", "cpus", "parallel"), [((), 2, True), ((1,), 2, False), ((2,), 2, True), ((), 1, False)]
)
def test_passes_on_several_threads_are_timed_by_the_clock(
    net: Path, monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...], cpus: int, parallel: bool
) -> None:
    """`threads: 0` leaves the number to the runtime: it was taken for none, and CPU time counts busy-waiting twice."""
    monkeypatch.setattr(race, "usable_cpus", lambda: [*range(cpus)])
    running = race_of(net, threads=threads)
    running._scratch = Path()
    entrant = running._enter("source", running._sweep.point({"variant": "source"}))
    assert entrant.racer.parallel is parallel
    entrant.close()


def raced_in_folder(
    model: Path, *names: str, known: Mapping[str, VariantOutcome] | None = None, **more: object
) -> list[TriedVariant]:
    """Race variants of a model in this process; return what was found out about each, in order."""
    composer = read_model(model, options(target="any", **more), Path("samples"))
    Path("search.yaml").write_text(composer.compose_sweep(Path("search.yaml")))
    needs = {variant.name: variant.needs for variant in composer.variants if variant.needs}
    extends = {variant.name: variant.extends for variant in composer.variants if variant.extends}
    messages = list[Line]()
    job = RaceJob(
        recipe="search.yaml", outputs="outputs", trust=False, variants=("source", *names), extends=extends, needs=needs,
        accuracy=composer.conditions.accuracy, seconds=60, folder=".", known=known or {},
        may_fix_sizes=composer.may_fix_sizes,
    )  # fmt: skip
    race.Race(job, messages.append).run()
    return [message.variant for message in messages if isinstance(message, race_process.Tried)]


@pytest.mark.parametrize("name", ["INT8 except what it breaks", "INT8 where it pays"])
def test_what_a_search_found_when_its_time_was_used_up_leaves_open_what_others_are(net: Path, name: str) -> None:
    """The model of a placement without a measured layer is the source, which was taken for a decision."""
    tried = {each.name: each for each in raced_in_folder(net, name, budget="1 ms", keep=("cosine >= 0.9999999",))}
    assert (tried[name].outcome, tried[name].is_open) == ("not found", True)


def test_a_later_race_knows_what_was_wrong_in_an_earlier_one(net: Path) -> None:
    plain, coarser = "INT8 of dense layers", "INT8 with one scale per weight"
    tried = raced_in_folder(net, coarser, known={plain: "not right"})
    assert {item.name: item.outcome for item in tried}[coarser] == "cannot win"


def test_int8_of_a_model_without_suitable_layers_is_the_same_and_has_not_failed(in_folder: Path) -> None:
    text = "g (float[1,4,8,8] x, float[4,1,3,3] c) => (float[1,4,6,6] y) {h = Conv<group = 4>(x, c) y = Relu(h)}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 11]> {text}')
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 1, 3, 3), np.float32), "c"))
    del model.graph.input[1:]
    onnx.save(model, "depthwise.onnx")
    np.save("x.npy", np.random.default_rng(0).normal(0, 1, (9, 4, 8, 8)).astype(np.float32))
    names = ("INT8 of dense layers", "INT8 where it pays")
    tried = raced_in_folder(Path("depthwise.onnx"), *names, data=("x.npy",))
    # The latter was delivered as the name of a model without INT8, beside which a placement was.
    assert {item.name: item.outcome for item in tried} == {**dict.fromkeys(names, "the same"), "source": "not proved"}


def test_a_model_without_anything_to_simplify_is_the_same(in_folder: Path) -> None:
    """Only its node gets a name: minutes of noise seemed to be able to decide which of two equal models is faster."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y) { y = Erf(x) }'
    onnx.save(onnx.parser.parse_model(text), "single.onnx")
    tried = {item.name: item.outcome for item in raced_in_folder(Path("single.onnx"), "clean", data=())}
    assert tried["clean"] == "the same"


def test_the_drift_of_the_machine_cancels_out_and_a_disturbed_round_is_left_out() -> None:
    drift = np.linspace(0, 2, 12)
    base = racer("a", dict(enumerate(drift)))
    faster = racer("b", {number: value - 0.1 + (5 if number == 3 else 0) for number, value in enumerate(drift)})
    found = compare(faster, base)
    assert found.rounds == 12
    assert found.log == pytest.approx(-0.1, abs=1e-6)
    assert found.high < 0


def test_an_interval_covers_the_truth_in_98_percent_of_cases() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        noise = rng.normal(0.02, 0.05, 9)
        found = estimate(dict(enumerate(noise)), dict.fromkeys(range(9), 0.0))
        inside += found.low <= 0.02 <= found.high
    assert 0.965 < inside / 2000 < 0.995


def test_too_few_rounds_show_nothing() -> None:
    assert estimate({0: 0.5}, {0: 0.0}).half > 5
    assert estimate({}, {0: 0.0}).rounds == 0


draws = random.Random(0)


class Simulated(Racer):
    """A racer whose times are drawn: one pass in ten is disturbed."""

    def measure(self, stretches: int, passes: int = 1, *, parallel: bool, sample: int = 0) -> float:
        del stretches, passes, parallel, sample
        return math.exp(draws.gauss(0, 0.1 if draws.random() < 0.1 else 0.02))


def test_looking_after_every_round_does_not_tell_equal_models_apart() -> None:
    apart = 0
    for _ in range(400):
        first, second = (Simulated(name, lambda: None, parallel=False, ms=1.0) for name in "ab")
        ratio = Rounds().tell_apart(first, second)
        apart += ratio.low > 0 or ratio.high < 0
    assert apart / 400 < 0.09  # intervals of 95 % confidence told 13 % apart


def test_a_quick_model_has_no_more_lucky_passes_than_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickest of eight passes, against the only one of a model eight times as slow, made it ten times as fast."""
    now_ns, noise = 0, random.Random(0)

    def run(ms: float) -> None:
        nonlocal now_ns
        now_ns += int(1e6 * ms * (1 + noise.expovariate(4)))

    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    quick, slow = (Racer(str(ms), partial(run, ms), parallel=True, ms=ms) for ms in (1.0, 8.0))
    Rounds().run([quick, slow], 60)
    assert math.exp(compare(slow, quick).log) == pytest.approx(8, rel=0.04)


def test_each_racer_has_a_turn_in_each_round() -> None:
    racers = [Racer(str(number), lambda: sum(range(2000)), parallel=False) for number in range(3)]
    for item in racers:
        item.measure(1, parallel=False)
    rounds = Rounds()
    rounds.run(racers, 4)
    rounds.run(racers[:2], 1)
    assert [sorted(racer.logs) for racer in racers] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3]]


def test_what_is_surely_close_to_the_source_is_not_worth_a_proof(net: Path) -> None:
    close, wide = raced("clean", 0.985, 0.012), raced("clean in OpenVINO", 0.985, 0.1)
    search = search_after(net, "", close, wide)
    assert not search._may_be_better(close)
    assert search._may_be_better(wide)


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
def test_a_runtime_that_refuses_the_source_gets_no_other_variant(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("OpenVINO does not load it")

    monkeypatch.setattr(OpenvinoRequest, "open", refuse)
    others = ("clean in OpenVINO", "INT8 by minmax in OpenVINO", "INT8 except what it breaks in OpenVINO")
    tried = {item.name: item.outcome for item in raced_in_folder(net, "source in OpenVINO", "clean", *others)}
    assert tried["source in OpenVINO"] == "failed"
    assert [tried[name] for name in others] == ["cannot win"] * 3
    assert tried["clean"] != "cannot win"


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
@pytest.mark.parametrize(("free", "accepts"), [(True, True), (True, False), (False, True)])
def test_what_a_runtime_accepts_only_with_fixed_sizes_is_named_with_the_option(
    net: Path, free: bool, accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO computes three exports by madmom 1.6x to 4.9x as fast, and rejects the rank of their free Squeeze."""
    model = onnx.load(net)
    for value in (*model.graph.input, *model.graph.output) if free else ():
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, net)
    open_any = OpenvinoRequest.open

    def open_fixed(request: OpenvinoRequest, path: Path) -> Session:
        if path.name != "fixed.onnx" or not accepts:
            raise ModelError("the rank of a Squeeze is dynamic")
        return open_any(request, path)

    monkeypatch.setattr(OpenvinoRequest, "open", open_fixed)
    tried = {item.name: item for item in raced_in_folder(net, "source in OpenVINO")}["source in OpenVINO"]
    assert tried.outcome == "failed" and "the rank of a Squeeze is dynamic" in tried.why
    assert ("--fix-shapes" in tried.hint) == (free and accepts)


@pytest.mark.parametrize(("largest", "judged"), [(1.0, False), (30.0, True)])
def test_samples_that_show_nothing_judge_no_int8(in_folder: Path, largest: float, judged: bool) -> None:
    text = "g (float[1,3,8,8] x, float[4,3,3,3] c, float[4] b) => (float[1,4,6,6] y) {h = Conv(x, c, b) y = Sigmoid(h)}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    values = (np.full((4, 3, 3, 3), 1 / 27), np.full(4, -20.0))
    for name, value in zip(("c", "b"), values, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    del model.graph.input[1:]
    onnx.save(model, "detector.onnx")
    shades = np.linspace(0.1, largest, 9, dtype=np.float32).reshape(9, 1, 1, 1)
    np.save("x.npy", np.broadcast_to(shades, (9, 3, 8, 8)))
    lossy = ("INT8 of dense layers", "clean in OpenVINO") if find_spec("openvino") else ("INT8 of dense layers",)
    tried = raced_in_folder(Path("detector.onnx"), *lossy, "clean", data=("x.npy",), keep=())
    outcomes = {item.name: item.outcome for item in tried}
    assert [outcomes[name] != "not judged" for name in lossy] == [judged] * len(lossy)
    assert outcomes["clean"] != "not judged", "it keeps all values"


@pytest.mark.parametrize(
    ("checks", "outcome"),
    [(("blind",), "not judged"), (("blind", "seeing"), None), (("blind by rounding",), None), ((), None)],
)
def test_a_proof_on_samples_that_show_nothing_judges_nothing(
    net: Path, checks: tuple[str, ...], outcome: VariantOutcome | None
) -> None:
    known = [Mock(samples=(), blind="blind" in name, by_rounding="rounding" in name) for name in checks]
    doubt = search_after(net, "")._prover._doubt(known)
    assert (doubt and doubt[0]) == outcome


def test_what_is_wrong_on_held_out_samples_is_not_measured(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def run(_: Prover, variant: Variant, text: str, *__: object, measured: bool) -> Proof:
        texts.append(text)
        return Proof(variant, Path("p.yaml"), "not right on held-out data", "")

    search = search_after(net, "")
    monkeypatch.setattr(Prover, "run", run)
    clean = next(variant for variant in search._composer.variants if variant.name == "clean")
    assert search._prover.prove(clean).outcome == "not right on held-out data"
    assert "held:" in texts[0] and not any("versus:" in text for text in texts)


def test_rounds_get_a_share_of_what_check_and_profiles_have_left(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine these take long, and with a share of the whole the budget ended rounds that decided nothing."""
    texts: list[str] = []

    def run(_: Prover, variant: Variant, text: str, *__: object, measured: bool) -> Proof:
        texts.append(text)
        return Proof(variant, Path("p.yaml"), "delivered", "")

    search, left_s = search_after(net, ""), iter((60.0, 20.0))
    monkeypatch.setattr(Prover, "run", run)
    monkeypatch.setattr(Prover, "_profile", lambda _, __, text: texts.append(text))
    clean = next(variant for variant in search._composer.variants if variant.name == "clean")
    search._prover.prove(clean, lambda: next(left_s))
    checked, profiled, compared = (yaml.safe_load(text)["steps"] for text in texts)
    assert [*profiled] == [*checked, "base", "speed"] and [*compared] == [*profiled, "versus"]
    assert compared["versus"]["budget"] == "15 s"


def test_what_is_quick_to_prepare_is_raced_even_if_a_proof_may_not_fit(
    net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the source takes long, and so, it seems, would a proof."""
    search, raced_names = search_after(net, ""), list[str]()
    search._source = replace(search._source, took_s=10.0)
    search._budget = Budget(100.0, time.monotonic() - 60)
    monkeypatch.setattr(search, "_race", lambda names, _: raced_names.extend(names))
    costly = [variant.name for variant in search._composer.variants if variant.costly]
    search._race_others(costly)
    assert costly and not raced_names
    search._race_others(["clean"], race_search._LEAST_SHARE)
    assert raced_names == ["source", "clean"]


@pytest.mark.parametrize(
    ("outcome", "ratio", "found"), [("not right", 0.8, True), ("not right", 0.9, False), ("not the best", 0.8, False)]
)
def test_what_may_become_right_and_far_faster_is_searched_before_a_small_gain_is_proved(
    net: Path, monkeypatch: pytest.MonkeyPatch, outcome: VariantOutcome, ratio: float, found: bool
) -> None:
    """A proof of 3 % left no time for a search that finds 15 % on a detector."""
    form = raced("INT8 of dense layers", ratio).model_copy(update={"outcome": outcome})
    search, raced_names = search_after(net, "", raced("clean", 0.97), form), list[str]()
    search._budget, search._result.ranking = Budget(100.0), ("clean",)
    monkeypatch.setattr(search, "_race", lambda names, _: raced_names.extend(names))
    search._race_costly(search._promising(), certain=True)
    assert raced_names == (["source", "clean", "INT8 except what it breaks"] if found else [])


def test_a_gain_that_waits_for_the_searches_is_in_their_race(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranking of a race replaces that of the race before it, and only those of the ranking are proved."""
    search, raced_names = search_after(net, "", raced("clean", 0.98)), list[str]()
    search._result.ranking, search._result.finished = ("clean", "source"), True
    monkeypatch.setattr(search, "_race", lambda names, _: raced_names.extend(names))
    search._race_others(["INT8 where it pays"])
    search._proofs["clean"] = Proof(search._best.variant, Path("p.yaml"), "not right on held-out data", "")
    search._race_others(["INT8 where it pays"])
    assert raced_names == ["source", "clean", "INT8 where it pays", "source", "INT8 where it pays"]


def test_what_was_not_tried_comes_before_what_was_not_ranked(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were tried are built again, which took the whole of a short second race."""
    search, raced_names = search_after(net, "", raced("clean", 0.9)), list[str]()
    search._budget = Budget(100.0)
    monkeypatch.setattr(search, "_race", lambda names, _: raced_names.extend(names))
    search._race_others(["clean", "INT8 of all layers"])
    assert raced_names == ["source", "INT8 of all layers", "clean"]


def test_a_second_race_without_time_for_a_variant_keeps_the_result_of_the_first() -> None:
    result, events = RaceResult(), list[Event]()
    for outcome in ("not proved", "not tried"):
        tried = raced("clean", 0.9).model_copy(update={"outcome": outcome})
        race_process._take(race_process.Tried(variant=tried, leads=False), events.append, result)
    assert result.tried["clean"].outcome == "not proved" and len(events) == 1


@pytest.mark.parametrize("finished", [False, True])
def test_a_race_that_was_ended_is_run_again_with_what_may_be_the_best(
    net: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """It may have waited for the device until its time was over; then only leaders are ranked."""
    search, raced_names = search_after(net, "", raced("clean", 0.7)), list[str]()
    search._budget, search._result.finished = Budget(100.0), finished
    monkeypatch.setattr(search, "_race", lambda names, _: raced_names.extend(names))
    search._race_others(["clean"])
    assert raced_names == ([] if finished else ["source", "clean"])


REFUTED: VariantOutcome = "not right on held-out data"


def test_what_lost_to_a_refuted_variant_is_raced_again(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that were four times as fast failed on held-out samples; one that was twice as fast had left the race."""
    search, races = search_after(net, ""), list[list[str]]()
    slower = raced("clean in OpenVINO", 0.5).model_copy(update={"outcome": "not the best"})
    no_gain = raced("source in OpenVINO", 1.0).model_copy(update={"outcome": "not the best"})

    def race_all(names: Sequence[str], _: float) -> None:
        races.append([*names])
        tried = search._result.tried
        if len(races) == 1:
            tried |= {name: raced(name, 1.2).model_copy(update={"outcome": "failed"}) for name in names}
            tried |= {slower.name: slower, no_gain.name: no_gain, "clean": raced("clean", 0.25)}
            search._result.ranking = ("clean", "source")
        elif slower.name in names:
            tried[slower.name] = raced(slower.name, 0.5)
            search._result.ranking = (slower.name, "source")
        search._result.finished = True

    def prove(_: Prover, variant: Variant, *__: object) -> Proof:
        outcome = REFUTED if variant.name == "clean" else "delivered"
        return Proof(variant, Path("p"), outcome, "")

    monkeypatch.setattr(search, "_race", race_all)
    monkeypatch.setattr(Prover, "prove", prove)
    found = search.run()
    assert found.delivered.variant.name == slower.name
    assert [names for names in races if no_gain.name in names] == races[:1], "it is no faster than the source"


def test_what_lost_to_a_refuted_variant_is_open_without_time_to_race_it_again(net: Path) -> None:
    slower = raced("clean in OpenVINO", 0.5).model_copy(update={"outcome": "not the best"})
    search = search_after(net, "", slower, raced("clean", 0.25))
    clean = next(variant for variant in search._composer.variants if variant.name == "clean")
    search._proofs["clean"] = Proof(clean, Path("p"), REFUTED, "")
    outcomes = {variant.name: variant.outcome for variant in search._found().variants}
    assert (outcomes["clean"], outcomes[slower.name]) == (REFUTED, "not proved")


def test_a_refuted_variant_makes_no_other_hopeless(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the race it was right without exceptions, so that none were searched."""
    whole = next(variant.unless[0] for variant in search_after(net, "")._composer.variants if variant.unless)
    cosine = {"cosine": Metric(value=1.0, unit="")}
    search = search_after(net, "", raced(whole, 0.25).model_copy(update={"metrics": cosine}))
    monkeypatch.setattr(Prover, "prove", lambda _, variant, *__: Proof(variant, Path("p"), REFUTED, ""))
    monkeypatch.setattr(search, "_race_others", lambda *_, **__: None)
    search._race_costly([])
    assert any(whole in reason for reason in search._hopeless.values())
    search._result.ranking = (whole,)
    search._prove_best()
    search._race_costly([])
    assert not any(whole in reason for reason in search._hopeless.values())
