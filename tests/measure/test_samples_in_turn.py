"""Passes run samples of several sizes in turn, as a runtime may adapt to each size anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.measure.pair_rounds import PairMeasurement
from ndld_flow.measure.samples_in_turn import SamplesInTurn, bind_samples
from ndld_flow.optimize.rounds import Racer, Rounds
from ndld_flow.records.document import read_document
from ndld_flow.records.noise import PairedRounds
from ndld_flow.records.profile import Profile
from ndld_flow.runtimes.protocol import Session

RECIPE = """
name: sizes
model: model.onnx
inputs: {x: {data: data}}
steps:
  base: {step: profile, samples: 3, runs: 1, passes: 4, warmup: 0, duration: 0, layer_passes: 4, stable: 0}
  speed: {step: profile, samples: 3, runs: 1, passes: 4, warmup: 0, duration: 0, layer_passes: 4, stable: 0}
"""


class _Bound:
    def __init__(self, name: str, ran: list[str]) -> None:
        self.name, self.ran = name, ran

    def run(self) -> None:
        self.ran.append(self.name)


@pytest.fixture
def sizes(in_folder: Path) -> Path:
    """Write a model that accepts any number of rows, and three samples with 2, 5 and 3 of them."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "sizes", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "model.onnx")
    Path("data").mkdir()
    for number, rows in enumerate((2, 5, 3)):
        np.save(f"data/{number}.npy", np.ones((rows, 8), np.float32))
    Path("sizes.yaml").write_text(RECIPE)
    return in_folder


def in_turn(ran: list[str]) -> SamplesInTurn:
    return SamplesInTurn(cast("Any", [_Bound(name, ran) for name in "abc"]), [1, 2])


def test_each_pass_runs_the_next_sample() -> None:
    ran: list[str] = []
    bound = in_turn(ran)
    for _ in range(4):
        bound.run()
    bound.restart()
    bound.run()
    assert "".join(ran) == "abcaa"


def test_one_sample_is_bound_alone() -> None:
    class Opened:
        def bind(self, feeds: object, on_device: bool = False) -> object:
            return feeds, on_device

    bound: object = bind_samples(cast("Session", Opened()), [{}])
    assert bound == ({}, True)


def test_the_first_pass_at_each_new_size_is_timed() -> None:
    class Opened:
        def bind(self, feeds: object, on_device: bool = False) -> _Bound:
            return _Bound("", [])

    shapes = ((2, 8), (5, 8), (2, 8), (3, 8))
    bound = bind_samples(cast("Session", Opened()), [{"x": np.ones(shape, np.float32)} for shape in shapes])
    assert isinstance(bound, SamplesInTurn)
    for passes in (1, 1, 1, 6):
        for _ in range(passes):
            bound.run()
    first = [*bound.new_size_ms]
    assert len(first) == 2, "the first sample is not one of a further size, and the third has the first one's"
    for _ in range(4):
        bound.run()
    assert bound.new_size_ms == first


def test_racers_run_the_same_sample_in_a_round_after_one_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of passes in a turn differs: a model ten times as fast runs eight in the time of one."""
    ran: dict[str, list[str]] = {"quick": [], "slow": []}
    racers = []
    for name, passes in ran.items():
        bound = in_turn(passes)
        racers.append(Racer(name, bound.run, parallel=False, restart=bound.restart))
    rounds = Rounds()
    monkeypatch.setattr("ndld_flow.optimize.rounds._WARM_MS", 0.0)  # the passes before them are not measured
    for expected in ("ca", "ab", "bc", "ca"):
        for each in ran.values():
            each.clear()
        racers[0].ms, racers[1].ms = 0.5, 50.0
        rounds.run(racers, 1)
        assert {"".join(each)[:2] for each in ran.values()} == {expected}, "those measured follow another size"
        assert set("".join(ran["quick"]).split(expected)) == {""}
        assert len(ran["slow"]) < len(ran["quick"])


def test_profiles_and_rounds_run_all_samples(sizes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[int] = []
    measure = PairMeasurement.measure_round

    def spy(measurement: PairMeasurement) -> Any:
        jobs.extend(len(model.job.parts) for model in measurement._models)
        return measure(measurement)

    monkeypatch.setattr(PairMeasurement, "measure_round", spy)
    decided = RECIPE + "  decide: {step: compare_profiles, base: base, rounds: 4, threshold: 900 %}\n"
    Path("sizes.yaml").write_text(decided)
    finished = api.run("sizes.yaml")
    assert set(jobs) == {3}
    profile = read_document(Profile, Path(finished.folder) / "speed" / Profile.file_name)
    assert [run.latency_ms for run in profile.runs if len(run.latency_ms) % 3] == [], "whole turns of three samples"
    assert profile.sequence_steps == 0
    assert [len(run.new_size_ms) for run in profile.runs] == [2] * len(profile.runs)
    assert finished.metrics["speed.new_size_ms"].unit == "ms"
    assert profile.layers
    comparison = json.loads((Path(finished.folder) / "decide" / "comparison.json").read_text())
    assert PairedRounds.model_validate(comparison["profiles"][0]["rounds"]).rounds


def test_the_key_has_the_samples_that_are_read(sizes: Path) -> None:
    Path("sizes.yaml").write_text(RECIPE.replace("samples: 3", "samples: 2"))
    api.run("sizes.yaml")
    np.save("data/2.npy", np.zeros((4, 8), np.float32))
    assert api.run("sizes.yaml").nothing_to_do
    np.save("data/1.npy", np.zeros((4, 8), np.float32))
    assert not api.run("sizes.yaml").nothing_to_do


def test_more_samples_than_there_are_is_an_error(sizes: Path) -> None:
    Path("sizes.yaml").write_text(RECIPE.replace("samples: 3", "samples: 4"))
    with pytest.raises(RequestError, match="4 are requested"):
        api.run("sizes.yaml")
