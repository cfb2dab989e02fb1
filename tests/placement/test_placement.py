"""`optimize: latency` of the step `quantize`: layers are quantized where it pays and costs nothing that matters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.measure.pair_rounds import RoundLimits
from ndld_flow.optimize.compose import read_model
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.placement.regions import LatencyMeter, connected
from ndld_flow.quantize.prepared_model import QuantizableNode
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.recipe import Recipe
from ndld_flow.records.document import read_document
from ndld_flow.records.placement import Placement
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.openvino.settings import OpenvinoSettings
from ndld_flow.steps.quantize import Quantize
from ndld_flow.store.digest import digest_file
from tests.quantize.test_quantize import make_convs
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, rename_output, save, tensor
from tests.support.models_run import Ran, run_step
from tests.support.simulated_latency import Cost, quantized_layers, simulate_latency
from tests.support.simulated_rounds import SCENARIOS

INPUT = {"x": {"shape": [1, 8, 12, 12], "range": [-1.0, 1.0]}}
FLOAT_MS = 1.0
"""Cost of a float layer."""


def make_layers(path: Path, layers: int = 4, loud: int | None = None, between: str = "LeakyRelu") -> Path:
    """Write convolutions with an operator between them; with a LeakyRelu, which floats compute, each is a group."""
    return make_convs(path, layers, loud, between=between)


def convolutions(path: Path) -> list[str]:
    """Return the names of the convolutions, as preparation gives them to nodes without."""
    return [node.name for node in onnx.load(path).graph.node if node.op_type == "Conv"]


def cost_of(quantized_ms: Callable[[str, int], float]) -> Cost:
    """Return a cost: that of each quantized layer by its name and the number of convolutions, 1 for each float one."""

    def cost(model: onnx.ModelProto) -> float:
        quantized = quantized_layers(model)
        names = [node.name for node in model.graph.node if node.op_type == "Conv"]
        return sum(quantized_ms(name, len(names)) if name in quantized else FLOAT_MS for name in names)

    return cost


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Ran, Placement]]:
    def run(model: Path, cost: Cost, folder: str = "q", seed: int = 0, **settings: Any) -> tuple[Ran, Placement]:
        simulate_latency(monkeypatch, cost, seed)
        ran = run_step(Quantize, model, tmp_path / folder, {"samples": 4, "optimize": "latency", **settings}, INPUT)
        return ran, read_document(Placement, ran.out / Placement.file_name)

    return run


Place = Callable[..., tuple[Ran, Placement]]


def test_layers_that_pay_are_quantized_and_equal_ones_measured_once(tmp_path: Path, place: Place) -> None:
    source = make_layers(tmp_path / "m.onnx")
    ran, placement = place(source, cost_of(lambda name, convs: 0.6))
    assert [region.decision for region in placement.regions] == ["quantized"] * 4
    assert {region.kind for region in placement.regions} == {0}
    assert placement.delivered is not None
    assert placement.delivered.low < 0.6 < placement.delivered.high
    assert placement.digest == digest_file(ran.out / "model.onnx")
    assert ran.result.metrics["ratio"] == placement.delivered.ratio
    assert placement.power is not None and placement.power.faults
    assert placement.power.remarks[0] in ran.result.summary
    assert len(placement.samples) == placement.sample_count == 4
    assert "accurate on the 4 samples" in ran.result.summary
    assert len(quantized_layers(onnx.load(ran.out / "model.onnx"))) == 4


def test_a_model_with_weights_in_a_data_file_is_the_one_that_was_measured(tmp_path: Path, place: Place) -> None:
    """The name of the data file is in the model, so that a set under another name had another digest."""
    source = make_layers(tmp_path / "m.onnx")
    onnx.save(onnx.load(source), source, save_as_external_data=True, location="m.data", size_threshold=0)
    ran, placement = place(source, cost_of(lambda name, convs: 0.6))
    assert placement.delivered is not None
    assert placement.digest == digest_file(ran.out / "model.onnx")


def test_nothing_pays_where_int8_is_slower_and_the_source_is_returned(tmp_path: Path, place: Place) -> None:
    source = make_layers(tmp_path / "m.onnx")
    ran, placement = place(source, cost_of(lambda name, convs: 1.1))
    assert (ran.out / "model.onnx").read_bytes() == source.read_bytes()
    assert placement.delivered is None and placement.power is None and not placement.ended_early
    assert {region.decision for region in placement.regions} == {"not faster"}
    assert ran.result.passed
    assert "does not pay" in ran.result.summary
    assert ran.result.metrics["layers"] == 0
    assert "ratio" not in ran.result.metrics


def test_a_layer_that_ruins_an_output_stays_in_floats(tmp_path: Path, place: Place) -> None:
    source = make_layers(tmp_path / "m.onnx", loud=2)
    ran, placement = place(source, cost_of(lambda name, convs: 0.6))
    assert [region.decision for region in placement.regions] == ["quantized", "quantized", "inaccurate", "quantized"]
    ruined = placement.regions[2]
    assert "slice_" in ruined.why
    assert "channel" in ruined.why
    assert ruined.error is not None
    assert ruined.error == max(region.error or 0 for region in placement.regions)
    assert convolutions(source)[2] not in quantized_layers(onnx.load(ran.out / "model.onnx"))


def test_a_layer_that_pays_alone_but_not_in_the_model_is_dropped(tmp_path: Path, place: Place) -> None:
    """In a model of its own, the third layer takes 0.6; among others, it costs more than it did in floats."""
    source = make_layers(tmp_path / "m.onnx")
    third = convolutions(source)[2]
    ran, placement = place(source, cost_of(lambda name, convs: 1.5 if name == third and convs > 1 else 0.6))
    assert [region.decision for region in placement.regions] == ["quantized", "quantized", "not faster", "quantized"]
    assert "faster without it" in placement.regions[2].why
    assert third not in quantized_layers(onnx.load(ran.out / "model.onnx"))


def test_layers_that_pay_only_together_are_found(tmp_path: Path, place: Place) -> None:
    """Alone, conversions at both edges cost more than a layer saves; a chain has them once."""
    source = make_layers(tmp_path / "m.onnx", between="Relu")
    _, placement = place(source, cost_of(lambda name, convs: 1.2 if convs == 1 else 0.7))
    assert [region.decision for region in placement.regions] == ["quantized"] * 4
    assert "whole set is faster" in placement.regions[0].why
    assert [region.followers for region in placement.regions] == [("Relu",)] * 3 + [()]


@pytest.mark.parametrize(
    "scenario",
    [
        "processes differ by 2 %",
        pytest.param("busy", marks=pytest.mark.thorough),
        pytest.param("processes of two layouts, 1.5 %", marks=pytest.mark.thorough),
    ],
)
def test_equal_models_are_never_called_faster(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of five sets that are truly equal to the source, measured anew, gains by chance at most once in 20."""
    model = make_layers(tmp_path / "m.onnx", layers=1)
    simulate_latency(monkeypatch, lambda _: 1.0, 5, SCENARIOS[scenario])
    meter = LatencyMeter(OnnxruntimeRequest(), tmp_path, 0.01, lambda *_: None)

    def claims() -> bool:
        sets = [meter.measure(model, model, {}, RoundLimits(8, 1e9), "set") for _ in range(5)]
        if min(item.high for item in sets) >= 1 / 1.01:
            return False
        return meter.measure(model, model, {}, RoundLimits(12, 1e9), "anew").high < 1 / 1.01

    assert sum(claims() for _ in range(20)) <= 1


def test_noise_delivers_the_source(tmp_path: Path, place: Place) -> None:
    source = make_layers(tmp_path / "m.onnx", layers=2)
    for seed in range(2):
        ran, placement = place(source, lambda _: 1.0, f"q{seed}", seed)
        assert placement.delivered is None
        assert (ran.out / "model.onnx").read_bytes() == source.read_bytes()


def test_a_model_without_layers_is_returned(tmp_path: Path, place: Place) -> None:
    b = GraphBuilder(0)
    rename_output(b, b.op("Relu", "x"), "y")
    source = save(b.model([tensor("x", [1, 8, 12, 12])], [tensor("y", [1, 8, 12, 12])]), tmp_path / "m.onnx")
    ran, placement = place(source, lambda _: 1.0)
    assert placement.regions == ()
    assert (ran.out / "model.onnx").read_bytes() == source.read_bytes()
    assert "no layer" in ran.result.summary


def test_a_tolerance_that_nothing_meets_delivers_the_source(tmp_path: Path, place: Place) -> None:
    source = make_layers(tmp_path / "m.onnx")
    ran, placement = place(source, cost_of(lambda name, convs: 0.6), tolerance={"max_abs": 1e-9})
    assert placement.delivered is None
    assert {region.decision for region in placement.regions} == {"inaccurate"}
    assert all("max_abs" in region.why for region in placement.regions)
    assert [trial.regions for trial in placement.trials] == [0], "all rules propose the same set"
    assert (ran.out / "model.onnx").read_bytes() == source.read_bytes()


def test_layers_that_were_not_tried_with_the_rest_are_reported_so(tmp_path: Path, place: Place) -> None:
    """One trial shows that all layers together miss the tolerance; each alone is neither wrong nor slow."""
    source = make_layers(tmp_path / "m.onnx", loud=2)
    _, placement = place(source, cost_of(lambda name, convs: 0.6), optimize={"trials": 1})
    assert {region.decision for region in placement.regions} == {"not tried"}
    assert placement.delivered is None and placement.ended_early


def test_regions_that_are_not_reached_in_time_are_reported(tmp_path: Path, place: Place) -> None:
    source = make_layers(tmp_path / "m.onnx")
    ran, placement = place(source, cost_of(lambda name, convs: 0.6), optimize={"time": 0.001})
    assert {region.decision for region in placement.regions} == {"not measured"}
    assert all(region.alone is None for region in placement.regions)
    assert placement.delivered is None and placement.ended_early
    assert "does not pay" not in ran.result.summary


def test_groups_share_integers() -> None:
    def node(name: str, reads: str, follows: bool = False) -> QuantizableNode:
        return QuantizableNode(f"{name}_out", name, "Conv", (reads,), (f"{name}_out",), (), follows)

    nodes = [node("a", "x"), node("r", "a_out", True), node("b", "r_out"), node("c", "s_out"), node("d", "x")]
    assert connected(nodes) == [frozenset({"a_out", "b_out", "d_out"}), frozenset({"c_out"})]
    assert connected([node("a", "x"), node("b", "y"), node("j", "a_out", True)])[1] == frozenset({"b_out"})


@pytest.mark.parametrize(
    "settings",
    [
        {"tolerance": {"cosine": 0.9}},
        {"optimize": "latency", "mode": "dynamic"},
        {"optimize": "size"},
        {"optimize": {"objective": "latency", "tine": 1}},
        {"optimize": {"threads": 1}, "runtime": "openvino"},
        {"optimize": "latency", "runtime": {"backend": "tensorrt"}},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        Quantize.model_validate(settings)
    check_message(caught.value)


def test_only_a_measured_placement_depends_on_this_host() -> None:
    plain, placed = Quantize(), Quantize(optimize="latency")
    assert (plain.device, placed.device) == ("", "cpu")
    assert plain.reused_where() is not placed.reused_where()
    assert (plain.least_intensity, placed.least_intensity) == (64.0, 0.0)
    assert Quantize(optimize="latency", min_intensity=16.0).least_intensity == 16.0


def test_optimize_tries_it_in_each_runtime_with_its_threads(tmp_path: Path) -> None:
    model = make_layers(tmp_path / "m.onnx", layers=1)
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros((1, 8, 12, 12), np.float32))
    options = OptimizeOptions("any", (str(tmp_path / "*.npy"),), threads=(1,), shapes={"x": (1, 8, 12, 12)})
    composer, recipe, placed = read_model(model, options, tmp_path / "samples"), tmp_path / "p.yaml", []
    for variant in (each for each in composer.variants if "pays" in each.name):
        recipe.write_text(composer.compose_proof(variant, recipe, tmp_path / "o.onnx"))
        loaded = load_sweep(recipe)
        assert isinstance(loaded, Recipe)
        placed += [step.step for step in loaded.steps if isinstance(step.step, Quantize)]
    on_onnxruntime, in_openvino = placed
    assert on_onnxruntime.placement.time == in_openvino.placement.time == 11000
    assert (on_onnxruntime.runtime, on_onnxruntime.placement.threads) == (None, 1)
    assert isinstance(in_openvino.runtime, OpenvinoSettings)
    assert (in_openvino.runtime.threads, in_openvino.placement.threads) == (1, 0)


@pytest.mark.thorough
def test_real_layers_are_measured_where_they_run(tmp_path: Path) -> None:
    """A large matrix product is faster in INT8 on every CPU; the record has its interval, and the file is that one."""
    b = GraphBuilder(1)
    h = "x"
    for _ in range(2):
        h = b.op("Relu", b.op("MatMul", h, b.weight(512, 512, scale=0.05)))
    rename_output(b, h, "y")
    source = save(b.model([tensor("x", [64, 512])], [tensor("y", [64, 512])]), tmp_path / "m.onnx")
    settings = {"samples": 2, "optimize": {"threads": 1, "time": 60000}, "reduce_range": False}
    ran = run_step(Quantize, source, tmp_path / "q", settings, {"x": {"range": [-1.0, 1.0]}})
    placement = read_document(Placement, ran.out / Placement.file_name)
    assert len({region.kind for region in placement.regions}) == 1
    alone = placement.regions[0].alone
    assert alone is not None
    assert 0 < alone.low <= alone.ratio <= alone.high
    assert (placement.digest == digest_file(ran.out / "model.onnx")) == (placement.delivered is not None)


def test_a_model_that_fails_on_the_target_is_not_delivered(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: onnx.ModelProto) -> float:
        if quantized_layers(model):
            raise NdldFlowError("no kernel")
        return 1.0

    _, placement = place(make_layers(tmp_path / "m.onnx"), fail)
    assert placement.delivered is None
    assert all("no kernel" in region.why for region in placement.regions)
