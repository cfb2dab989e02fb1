"""`optimize`: what it composes and refuses, and what it delivers from models that would fool it."""

from __future__ import annotations

import json
import wave
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper, numpy_helper

from ndld_flow import api
from ndld_flow.execution.events import Event, Notice, PointFinished, StepStarted, VariantTried
from ndld_flow.measure.trial_pass import InputTrial
from ndld_flow.models.external_files import declared_inputs
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.optimize.compose import Composer, read_model
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.race_search import RaceSearch
from ndld_flow.recipe.sample_files import Samples, find_data, refuse_other_data, split_data
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.optimization import Optimization
from ndld_flow.records.run_folder import read_run
from ndld_flow.samples.likely_inputs import LikelyInput
from tests.support import pages
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

SIDE = 48
CHANNELS = 64


def write_model(path: Path, *, layers: int = 4, last: str = "Relu", channels: int = CHANNELS) -> Path:
    """Write a chain of convolutions, which INT8 makes faster on a CPU with VNNI."""
    rng = np.random.default_rng(0)
    nodes, weights, name, width = [], [], "x", 3
    for layer in range(layers):
        weight = rng.normal(0, (2 / (width * 9)) ** 0.5, (channels, width, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [name, f"w{layer}"], [f"c{layer}"], f"conv{layer}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu" if layer < layers - 1 else last, [f"c{layer}"], [f"r{layer}"]))
        name, width = f"r{layer}", channels
    nodes[-1].output[0] = "y"
    shape = [1, 3, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, channels, SIDE, SIDE])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_data(folder: Path, count: int = 12, *, scale_of_held: float = 1.0) -> Path:
    """Write samples as .npy; every third, which is held out, has another scale."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for index in range(count):
        scale = scale_of_held if index % 3 == 2 else 1.0
        np.save(folder / f"{index:02}.npy", rng.uniform(-scale, scale, (1, 3, SIDE, SIDE)).astype(np.float32))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trial(**shapes: tuple[int, ...]) -> InputTrial:
    specs = (LikelyInput(TensorSpec(name, "float32", shape), shape) for name, shape in shapes.items())
    return InputTrial(tuple(specs))


def split(data: tuple[str, ...], tried: InputTrial) -> Samples:
    return split_data(find_data(data, tried), Path("model.onnx"), tried, Path("samples"))


def read(model: Path, **options: object) -> Composer:
    return read_model(model, OptimizeOptions(**options), Path("samples"))  # type: ignore[arg-type]


def test_an_unknown_metric_is_refused_with_the_nearest_before_the_model_is_read(
    here: Path, check_message: CheckMessage
) -> None:
    Path("broken.onnx").write_bytes(b"\x3a\x01\x0a")  # has a graph, which cannot be read
    with pytest.raises(api.RequestError) as caught:
        api.optimize("broken.onnx", OptimizeOptions(keep=("cosin >= 0.9",)))
    check_message(caught.value)
    with pytest.raises(api.RequestError) as caught:
        api.optimize("broken.onnx", OptimizeOptions(keep=("cosine",)))
    check_message(caught.value)
    with pytest.raises(api.RequestError) as caught:
        api.optimize("broken.onnx", OptimizeOptions(metric=Path("m.py")))
    check_message(caught.value)
    with pytest.raises(api.RequestError, match="--budget"):
        api.optimize("broken.onnx", OptimizeOptions(budget="soon"))
    assert not Path("outputs").exists()


def test_a_third_of_the_data_is_held_out(here: Path) -> None:
    folder = write_data(here / "my photos", 12)
    samples = split((str(folder),), trial(x=(1, 3, SIDE, SIDE)))
    assert samples.counts == (8, 4)
    assert samples.held["x"] == [f"my photos/{index:02}.npy" for index in (2, 5, 8, 11)]
    assert not set(samples.search["x"]) & set(samples.held["x"])
    few = split((str(folder / "00.npy"), str(folder / "01.npy")), trial(x=(1, 3, SIDE, SIDE)))
    assert few.counts == (1, 1)


def test_data_that_cannot_be_split_is_refused(here: Path, check_message: CheckMessage) -> None:
    write_model(here / "model.onnx", layers=1)
    single, two = write_data(here / "one", 1), write_data(here / "two", 4)
    tried = trial(x=(1, 3, SIDE, SIDE), z=(1, 3, SIDE, SIDE))
    three = write_data(here / "three", 3)
    with pytest.raises(api.RequestError) as caught:
        split((f"x={single}",), trial(x=(1, 3, SIDE, SIDE)))
    check_message(caught.value)
    with pytest.raises(api.RequestError) as caught:
        split((str(two),), tried)
    check_message(caught.value)
    with pytest.raises(api.RequestError) as caught:
        split((f"x={three}", f"z={two}"), tried)
    check_message(caught.value)
    with pytest.raises(api.RequestError) as caught:
        refuse_other_data((f"zz={two}",), declared_inputs(here / "model.onnx"))
    check_message(caught.value)


STATE = (4, 1, 8)


@pytest.mark.parametrize("count", [1, 6])
def test_rows_of_an_array_belong_to_the_files_of_another_input(here: Path, count: int) -> None:
    """A file in a folder of its own for each input was the only way; one row is shared by all samples."""
    text = f"g (float[batch, 8] x, float[{', '.join(map(str, STATE))}] h) => (float[batch, 8] y) {{ y = Relu(x) }}"
    onnx.save(helper.make_model(onnx.parser.parse_graph(text)), "model.onnx")
    Path("x").mkdir()
    for index in range(6):
        np.save(Path("x", f"{index}.npy"), np.full((1, 8), index, np.float32))
    rows = np.arange(count, dtype=np.float32)[:, None, None, None] * np.ones(STATE, np.float32)
    np.save("h.npy", rows if count > 1 else rows[0])
    samples = split(("x=x", "h=h.npy"), trial(x=(1, 8), h=STATE))
    assert samples.counts == (4, 2)
    for part in (samples.search, samples.held):
        (pairs,) = {tuple(part)}
        assert set(pairs) == {"x", "h"}
        states = [np.load(file) for file in part["h"]]
        assert {state.shape for state in states} == {STATE}
        if count > 1:
            assert [state.flat[0] for state in states] == [np.load(file).flat[0] for file in part["x"]]
        else:
            assert part["h"] == ["h.npy"]
    composer = read(Path("model.onnx"), data=("x=x",))
    assert any("h by " in sentence for sentence in composer.left_out), "an input without data is named"


def test_warnings_of_the_source_are_named_before_anything_is_tried(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything was judged on recordings of another rate, and only the report had a word on it."""
    text = "g (float[n, 800] x) => (float[n, 800] y) { y = Tanh(x) }"
    onnx.save(helper.make_model(onnx.parser.parse_graph(text)), "model.onnx")
    Path("wav").mkdir()
    for index in range(3):
        with wave.open(f"wav/{index}.wav", "wb") as file:
            file.setparams((1, 2, 22050, 0, "NONE", ""))
            file.writeframes(np.full(800, index, np.int16).tobytes())
    monkeypatch.setattr(RaceSearch, "run", lambda _: _stop())
    heard: list[Event] = []
    with pytest.raises(api.RequestError, match="stopped"):
        api.optimize("model.onnx", OptimizeOptions(data=("wav",)), listener=heard.append)
    assert any(isinstance(event, Notice) and event.warning and "22050" in event.text for event in heard)


def _stop() -> NoReturn:
    raise api.RequestError("stopped")


def test_text_is_of_the_input_that_is_no_part_of_another(here: Path) -> None:
    """The mask is made of the same lines."""
    Path("lines.txt").write_text("one\ntwo\n")
    tried = trial(input_ids=(1, 8), attention_mask=(1, 8), token_type_ids=(1, 8))
    assert find_data(("lines.txt",), tried).files == {"input_ids": ["lines.txt"]}
    with pytest.raises(api.RequestError):
        find_data(("lines.txt",), trial(first=(1, 8), second=(1, 8)))


def test_an_archive_feeds_each_input_that_it_has_an_array_of(here: Path) -> None:
    """All samples of a voice detector went into its first cache, which looks like an image, and speech was random."""
    tried = trial(speech=(1, 10, 4), cache=(1, 3, 8, 8), other=(1, 3, 8, 8))
    Path("data").mkdir()
    for number in range(6):
        np.savez(f"data/{number}.npz", cache=np.zeros((1, 3, 8, 8)), speech=np.zeros((1, 10, 4)))
    found = find_data(("data",), tried).files
    assert {name: len(files) for name, files in found.items()} == {"speech": 6, "cache": 6}
    assert split(("data",), tried).counts == (4, 2)
    np.save("data.npy", np.zeros((6, 3, 8, 8)))
    with pytest.raises(api.RequestError):  # it fits both caches
        find_data(("data.npy",), tried)


def test_a_search_is_written_and_can_be_read(here: Path, check_message: CheckMessage) -> None:
    model = write_model(here / "my model.onnx", layers=1)
    data = write_data(here / "my data", 6)
    options = OptimizeOptions(data=(str(data),), keep=("cosine >= 0.99",), threads=(1, 2), budget="10 min")
    heard: list[Event] = []
    assert api.optimize(model, options, write="my search.yaml", listener=heard.append) is None
    assert any(isinstance(event, Notice) and "Only 6 samples of data" in event.text for event in heard)
    assert isinstance(api.plan("my search.yaml"), api.SweepPlan)
    text = Path("my search.yaml").read_text()
    assert "agree.cosine >= 0.99" in text
    assert '"clean on 2 threads": {runtime: {backend: onnxruntime, threads: 2}' in text
    assert "time: 300000 ms" in text, "the rest of the budget is for the proofs"
    assert "slices: off, cosine: 0.99" in text, "the search for exceptions has the same bound"
    with pytest.raises(api.RequestError) as caught:
        api.optimize(model, options, write="my search.yaml")
    check_message(caught.value)


def test_without_data_int8_is_not_tried_and_the_reason_is_given(here: Path) -> None:
    composer = read(write_model(here / "model.onnx", layers=1), target="any")
    assert not any("INT8" in variant.name for variant in composer.variants)
    assert any("INT8 is not tried" in sentence for sentence in composer.left_out)
    assert any("only as good" in sentence for sentence in composer.left_out)
    proof = composer.compose_proof(composer.variants[1], Path("p.yaml"), Path("o.onnx"))
    assert "seed: 1000" in proof, "held-out inputs are others"


def test_a_source_that_does_not_run_is_refused(here: Path, check_message: CheckMessage) -> None:
    model = onnx.load(write_model(here / "model.onnx", layers=1))
    model.graph.node.append(helper.make_node("Reshape", ["y", "shape"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([7, 7], np.int64), "shape"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    onnx.save(model, here / "broken.onnx")
    with pytest.raises(api.ModelError) as caught:
        api.optimize("broken.onnx")
    check_message(caught.value)


def test_a_file_that_no_export_wrote_is_not_replaced(here: Path, check_message: CheckMessage) -> None:
    model = write_model(here / "model.onnx", layers=1)
    before = model.read_bytes()
    with pytest.raises(api.RequestError) as caught:
        api.optimize(model, output=model)
    check_message(caught.value)
    with pytest.raises(api.RequestError) as caught:
        api.optimize(model, output="fast.engine")
    check_message(caught.value)
    (here / "fast.onnx.data").write_bytes(b"mine")
    with pytest.raises(api.RequestError) as caught:
        api.optimize(model, output="fast.onnx")
    check_message(caught.value)
    assert not (here / "outputs").exists(), "nothing was searched"
    assert model.read_bytes() == before


def optimize(model: Path, data: Path | None, **options: object) -> Optimization:
    given: Mapping[str, object] = {"data": (str(data),) if data else (), **options}
    found = api.optimize(model, OptimizeOptions(**given), output="fast.onnx")  # type: ignore[arg-type]
    assert found is not None
    return found


def outcomes(found: Optimization) -> dict[str, str]:
    return {variant.name: variant.outcome for variant in found.variants}


def exported_digests() -> dict[str, str]:
    digests: dict[str, str] = json.loads(Path("fast.onnx.json").read_text())["sha256"]
    return digests


@pytest.mark.slow
def test_the_fastest_right_model_is_delivered_and_its_recipe_reproduces_it(here: Path) -> None:
    model, data = write_model(here / "my model.onnx"), write_data(here / "my data")
    found = optimize(model, data, keep=("cosine >= 0.99",))
    assert found.faster and found.speed is not None and found.speed.high < 0.99
    assert outcomes(found)[found.delivered] == "delivered"
    assert found.metrics["cosine"].value >= 0.99
    assert len(found.conclude()) == 5
    compared = api.compare_models([model, "fast.onnx"], rules=api.Rules(metric="latency.median", threshold=10.0))
    accuracy = read_run(Path(compared.finished.folder)).of(Accuracy)["agree"]
    assert compared.finished.passed and len(accuracy.samples) == found.held_samples
    digest = exported_digests()["fast.onnx"]
    again = api.run(found.recipe, output="fast.onnx")
    assert isinstance(again, api.RunFinished) and again.passed
    assert exported_digests()["fast.onnx"] == digest, "the file is the measured one"
    page = Path(found.report).read_text(encoding="utf-8")
    assert 'id="optimization"' in page and "search has not seen" in page


@pytest.mark.slow
def test_a_candidate_that_fails_on_held_out_data_is_not_delivered(here: Path) -> None:
    model = write_model(here / "model.onnx")
    found = optimize(model, write_data(here / "data", scale_of_held=30.0), keep=("cosine >= 0.99",))
    assert "not right on held-out data" in outcomes(found).values()
    assert not found.delivered.startswith("INT8")
    assert "not right on held-out" in found.conclude()[3]


@pytest.mark.slow
def test_a_bound_that_int8_violates_leaves_the_float_model(here: Path) -> None:
    model = write_model(here / "model.onnx")
    found = optimize(model, write_data(here / "data"), keep=("cosine >= 0.9999999",))
    assert {outcomes(found)[name] for name in outcomes(found) if name.startswith(("INT8 of all", "INT8 with one"))} == {
        "not right"
    }
    refused = next(variant for variant in found.variants if variant.name == "INT8 of all layers")
    assert refused.latency is None, "a wrong model is not measured"
    if not found.faster:
        assert exported_digests()["fast.onnx"] and Path("fast.onnx").read_bytes() == model.read_bytes()
        assert "Nothing pays" in found.conclude()[1]


@pytest.mark.slow
def test_int8_that_is_not_faster_is_not_delivered(here: Path) -> None:
    """Of a model of microseconds, conversions cost more than INT8 saves."""
    model = make_cnn(here / "small net.onnx")
    found = optimize(model, pages.ROOT / "pipelines/images/pages", keep=("cosine >= 0.9",))
    if found.faster:  # by 1 % at least, at 95 % confidence
        assert found.speed is not None and found.speed.high <= 0.99
    else:
        assert outcomes(found)["source"] == "delivered"
        assert Path("fast.onnx").read_bytes() == model.read_bytes()
        assert "Nothing pays" in found.conclude()[1]


@pytest.mark.thorough
def test_a_condition_on_the_cosine_of_single_values_is_refused(here: Path) -> None:
    """The cosine of two positive values is 1 whatever they are."""
    text = "g (float[1,8] x) => (float[1,1] y) { s = Sigmoid(x) y = ReduceMean<axes = [1]>(s) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> {text}'), "one.onnx")
    np.save("x.npy", np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32))
    heard: list[Event] = []
    options = OptimizeOptions(data=("x.npy",), keep=("cosine >= 0.999",), budget="20 s")
    with pytest.raises(api.RequestError, match="max_abs"):
        api.optimize("one.onnx", options, listener=heard.append)
    assert not any(isinstance(event, VariantTried) for event in heard)


@pytest.mark.thorough
def test_a_metric_of_your_own_judges_more_samples_than_the_first_run_has(here: Path) -> None:
    """The run of the source took three samples, and asked for the labels of all."""
    model, data = write_model(here / "model.onnx", layers=1), write_data(here / "data", 15)
    (here / "metric.py").write_text("def metric(outputs, label):\n    return {'accuracy': float(label == 1)}\n")
    (here / "labels.csv").write_text("file,label\n" + "".join(f"{index:02}.npy,1\n" for index in range(15)))
    options = OptimizeOptions(
        data=(str(data),), keep=("accuracy >= 0.9",), metric=Path("metric.py"), labels=Path("labels.csv"), budget="5 s"
    )
    found = api.optimize(model, options, trust=True)
    assert found is not None
    assert found.search_samples == 10


@pytest.mark.thorough
def test_a_condition_on_a_metric_that_your_own_file_lacks_fails_before_the_search(
    here: Path, check_message: CheckMessage
) -> None:
    model, data = write_model(here / "model.onnx", layers=1), write_data(here / "data", 4)
    (here / "metric.py").write_text("def metric(outputs, label):\n    return {'accuracy': float(label == 1)}\n")
    (here / "labels.csv").write_text("file,label\n" + "".join(f"{index:02}.npy,1\n" for index in range(4)))
    heard: list[Event] = []
    options = OptimizeOptions(
        data=(str(data),), keep=("acuracy >= 0.9",), metric=Path("metric.py"), labels=Path("labels.csv")
    )
    with pytest.raises(api.RequestError) as caught:
        api.optimize(model, options, trust=True, listener=heard.append)
    check_message(caught.value)
    assert not any(isinstance(event, PointFinished) for event in heard)
    with pytest.raises(api.RecipeError, match="trust"):
        api.optimize(model, replace(options, keep=("accuracy >= 0.9",)))


@pytest.mark.thorough
def test_a_model_with_operators_that_the_target_lacks_is_refused_by_their_names(
    here: Path, check_message: CheckMessage
) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y) {y = HardSwish(x)}'
    onnx.save(onnx.parser.parse_model(text), here / "swish.onnx")
    with pytest.raises(api.ModelError) as caught:
        api.optimize("swish.onnx", OptimizeOptions(target="browser_webgpu"), output="web.onnx")
    check_message(caught.value)
    assert not Path("web.onnx").exists()


@pytest.mark.slow
def test_several_objectives_prove_a_front_and_deliver_the_best_in_the_first(here: Path) -> None:
    model, data = write_model(here / "model.onnx"), write_data(here / "data")
    found = optimize(model, data, keep=("cosine >= 0.99",), minimize=("size", "latency"))
    assert found.faster and found.objectives == ("size", "latency")
    size = found.gains[0]
    assert size.objective == "size" and size.evidence == "exact" and size.low == size.high
    assert size.ratio == pytest.approx(found.size_bytes / found.source_bytes)
    assert Path("fast.onnx").stat().st_size == found.size_bytes
    delivered = [point for point in found.front if point.delivered]
    assert [point.name for point in delivered] == [found.delivered]
    assert all(any(gain.proved for gain in point.gains) for point in found.front)
    assert min(point.gains[0].ratio for point in found.front) == size.ratio
    assert len(found.describe_front()) == len(found.front)


@pytest.mark.slow
def test_a_smaller_model_that_is_slower_needs_leave(here: Path) -> None:
    """Of a model of microseconds, weights in 8 bits are smaller, and conversions make it slower."""
    path = here / "net.onnx"
    weight = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 256])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 256])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.save("rows.npy", np.random.default_rng(1).normal(size=(24, 256)).astype(np.float32))
    keep = ("cosine >= 0.99", "latency <= 100x")
    found = optimize(path, here / "rows.npy", minimize=("size",), keep=keep)
    assert found.faster and found.size_bytes < found.source_bytes / 2
    strict = optimize(path, here / "rows.npy", minimize=("size",), keep=keep[:1])
    if strict.faster:
        assert strict.speed is not None and strict.speed.high <= 1.03
    else:
        assert Path("fast.onnx").read_bytes() == path.read_bytes()


def test_the_source_with_other_threads_is_no_base(here: Path) -> None:
    composer = read(write_model(here / "model.onnx", layers=1), threads=(1, 2))
    alone = next(each for each in composer.variants if each.name == "source on 1 thread")
    steps = yaml.safe_load(composer.compose_proof(alone, Path("p.yaml"), Path("o.onnx")))
    assert steps["runtime"] == {"backend": "onnxruntime", "threads": 1}
    assert steps["steps"]["base"]["backend"] == "onnxruntime", "not the runtime of the recipe"
    assert "threads" not in steps["steps"]["base"]


@pytest.mark.thorough
def test_a_source_that_returns_only_nan_is_not_delivered(here: Path, check_message: CheckMessage) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y) {e = Exp(x) n = Neg(e) y = Sqrt(n)}'
    )
    onnx.save(onnx.parser.parse_model(text), here / "nan.onnx")
    with pytest.raises(api.ModelError) as caught:
        api.optimize("nan.onnx", output="fast.onnx")
    check_message(caught.value)
    assert not Path("fast.onnx").exists()


@pytest.mark.slow
def test_an_interrupted_sweep_concludes_with_what_it_has_tried(here: Path) -> None:
    """Two objectives are searched by a sweep."""
    model, heard = write_model(here / "model.onnx", layers=1), list[Event]()
    options = OptimizeOptions("onnxruntime", minimize=("latency", "size"))

    def listen(event: Event) -> None:
        heard.append(event)
        if sum(isinstance(item, PointFinished) for item in heard) == 2 and isinstance(event, PointFinished):
            raise KeyboardInterrupt

    found = api.optimize(model, options, output="fast.onnx", listener=listen)
    assert found is not None and found.stopped_because == "interrupted" and not found.sweep
    assert Path("fast.onnx").read_bytes() == model.read_bytes()
    first = [event for event in heard if isinstance(event, PointFinished)]
    untried = [variant.name for variant in found.variants if variant.outcome == "not tried"]
    assert len(found.variants) == len(untried) + 2
    heard.clear()
    resumed = api.optimize(model, options, output="fast.onnx", listener=heard.append)
    assert resumed is not None and resumed.sweep
    assert {variant.name for variant in resumed.variants} == {variant.name for variant in found.variants}
    texts = [event.text if isinstance(event, Notice) else "" for event in heard]
    searching = heard[: next(index for index, text in enumerate(texts) if text.startswith("measuring the best again"))]
    measured = {event.name for event in searching if isinstance(event, StepStarted) and event.name.startswith("speed#")}
    assert not measured & {f"speed#{event.number}" for event in first}, "what was measured is not measured again"
