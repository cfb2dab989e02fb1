"""The variants that `optimize` tries: what the graph and the time of the operators say about where they can pay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from ndld_flow.optimize import compose
from ndld_flow.optimize.compose import Composer, read_model
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.variant import Subject, Variant
from ndld_flow.optimize.variants import propose_variants
from ndld_flow.steps.quantize import Quantize

NET = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x, float[4,4,3,3] c, float[8,400] m,
int64[8] pads) => (float[1,4,6,400] y) {h = Conv(x, c) r = Relu(h) p = Pad(r, pads) y = MatMul(p, m)}"""


def subject_of(shares: Mapping[str, float], groups: int = 1, **options: object) -> Composer:
    """Return a model with a Conv and a MatMul, whose weights are mostly those of the MatMul."""
    inner = 4 // groups
    text = NET.replace("4,4,3,3", f"4,{inner},3,3").replace("Conv(", f"Conv<group = {groups}>(")
    model = onnx.parser.parse_model(text)
    arrays = {"c": np.ones((4, inner, 3, 3), np.float32), "m": np.ones((8, 400), np.float32)}
    pads = np.array([0, 0, 0, 0, 0, 0, 0, 2])
    for name, values in {**arrays, "pads": pads}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    del model.graph.input[1:]
    onnx.save(model, "model.onnx")
    np.save("x.npy", np.zeros((9, 4, 8, 8), np.float32))
    given = OptimizeOptions(**{"target": "onnxruntime", "data": ("x.npy",), **options})  # type: ignore[arg-type]
    composer = read_model(Path("model.onnx"), given, Path("samples"))
    return replace(composer, shares=shares)


def proposed(subject: Subject) -> tuple[dict[str, Variant], list[str]]:
    """Return the variants in the order of the search, and the sentences on what is not tried."""
    found = sorted(propose_variants(subject), key=lambda pair: pair[0])
    variants = {item.name: item for _, item in found if isinstance(item, Variant)}
    return variants, [item for _, item in found if isinstance(item, str)]


def test_variants_are_chosen_once_the_times_are_known(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_by = []
    choose = compose.choose_variants

    def record(subject: Subject) -> tuple[Sequence[Variant], Sequence[str]]:
        chosen_by.append(subject.shares)
        return choose(subject)

    monkeypatch.setattr(compose, "choose_variants", record)
    shares = {"Conv": 0.9, "MatMul": 0.1}
    composer = subject_of(shares)
    composer.compose_probe()
    assert composer.variants and composer.left_out
    assert chosen_by == [shares]


def test_what_is_tried_follows_from_the_time_that_operators_take(in_folder: Path) -> None:
    mostly_conv, _ = proposed(subject_of({"Conv": 0.9, "MatMul": 0.06, "Relu": 0.04}))
    assert "INT8 of convolutions" in mostly_conv and "source at the level extended" in mostly_conv
    assert not any("dynamic" in name or "smoothed" in name for name in mostly_conv), "MatMul takes 6 %"
    mostly_products, _ = proposed(subject_of({"Conv": 0.1, "MatMul": 0.9}))
    assert "INT8 of convolutions" not in mostly_products
    assert {"INT8 with dynamic ranges", "INT8 with dynamic ranges by channels"} < mostly_products.keys()
    assert not any("LSTM" in name for name in mostly_products)
    neither, sentences = proposed(subject_of({"Conv": 0.03, "MatMul": 0.01, "Loop": 0.96}))
    assert not any("INT8" in name for name in neither)
    assert any(
        "INT8 is not tried" in sentence and "MatMul" in sentence and " 4 %" in sentence for sentence in sentences
    )
    assert any("dynamic ranges is not" in sentence and "1 %" in sentence for sentence in sentences)
    recurrent, _ = proposed(subject_of({"LSTM": 0.7, "Conv": 0.1, "MatMul": 0.2}))
    assert "INT8 with dynamic ranges of LSTM too" in recurrent


def test_without_times_the_weights_decide(in_folder: Path) -> None:
    subject = subject_of({})
    assert subject.time_in("Conv") is None
    variants, _ = proposed(subject)
    assert {"INT8 of all layers", "INT8 with dynamic ranges", "INT8 of smoothed activations"} < variants.keys()
    assert subject_of({"Conv": 0.5}).time_in("Conv", "MatMul") == 0.5
    small, _ = proposed(subject_of({"Loop": 1.0}, minimize=("size",)))
    assert "INT8 of all layers" in small, "what takes no time may still be large"


def test_a_model_in_int8_needs_no_samples_for_int8(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of its layers are others, so that Conv and MatMul take no time."""
    monkeypatch.setattr("ndld_flow.models.node_weights.quantized_share", lambda _: 0.97)
    _, sentences = proposed(subject_of({"QLinearConv": 0.5, "MatMulInteger": 0.5}, data=()))
    assert any("INT8 is not" in sentence and " 97 %" in sentence for sentence in sentences)
    assert not any("real samples" in sentence or "dynamic ranges" in sentence for sentence in sentences)


@pytest.mark.parametrize("fix_shapes", [False, True])
def test_a_source_of_free_sizes_that_a_runtime_refuses_ends_nothing_of_fixed_sizes(
    in_folder: Path, fix_shapes: bool
) -> None:
    subject = subject_of({"Conv": 1.0}, target="any")
    subject = replace(subject, options=replace(subject.options, fix_shapes=fix_shapes))
    needs = {each.name: each.needs for each in compose.choose_variants(subject)[0]}
    assert needs["clean in OpenVINO"] == ("" if fix_shapes else "source in OpenVINO")
    assert needs["INT8 by minmax in OpenVINO"] == ("clean in OpenVINO" if fix_shapes else "source in OpenVINO")


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_default_precision_of_openvino_is_tried_where_it_differs(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.setattr("ndld_flow.runtimes.openvino.openvino_session.default_precision", lambda: precision)
    variants, sentences = proposed(replace(subject_of({"Conv": 1.0}, target="openvino"), runtime="openvino"))
    assert ("clean with bfloat16" in variants) == (precision == "bfloat16")
    assert any("default precision is not" in sentence for sentence in sentences) == (precision == "float32")


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "rtx40"])
def test_a_variant_refers_to_others_of_its_target(in_folder: Path, target: str) -> None:
    """A misspelled reference would never prune anything."""
    variants, _ = proposed(subject_of({"Conv": 0.5, "MatMul": 0.5}, target=target))
    for variant in variants.values():
        others = {variant.extends, variant.needs, variant.whole, *variant.unless} - {""}
        assert others <= variants.keys(), variant.name


OWN_SETTINGS = ("{backend: onnxruntime, optimization: extended}", "{backend: onnxruntime, threads: 1}")


@pytest.mark.parametrize(("pass_ms", "threads", "tried"), [(0.2, (), True), (5.0, (), False), (0.2, (2,), False)])
def test_a_quick_model_is_tried_on_one_thread(
    in_folder: Path, pass_ms: float, threads: tuple[int, ...], tried: bool
) -> None:
    """A voice detector of 0.19 ms on two threads takes 0.16 ms on one, and only its level was found to pay: 1.04x."""
    subject = subject_of({"Conv": 1.0})
    options = replace(subject.options, threads=threads)
    variants, _ = proposed(replace(subject, options=options, trial=replace(subject.trial, pass_ms=pass_ms)))
    assert (variants.keys() >= {"source on 1 thread", "clean on 1 thread"}) is tried


def test_costly_variants_follow_and_likely_ones_lead(in_folder: Path) -> None:
    variants, _ = proposed(subject_of({"Conv": 0.5, "MatMul": 0.5}))
    costly = [variant.costly for variant in variants.values()]
    assert costly == sorted(costly) and sum(costly) == 3
    names = list(variants)
    assert names.index("INT8 with dynamic ranges") < names.index("clean") < names.index("INT8 of all operators"), (
        "it needs no calibration, and is the best of most transformers: a large one leaves time for few variants"
    )
    assert variants["INT8 of all layers"].extends == "INT8 of dense layers"
    assert variants["source at the level extended"].result == "source"
    every = variants["INT8 of all operators"].steps["made"]
    assert "[Conv, MatMul, Pad, Relu]" in every, "those that the model has"
    for variant in variants.values():
        assert variant.runtime in ("onnxruntime", *OWN_SETTINGS)
        assert all(name not in "".join(variant.steps.values()) for name in ("entropy", "int4"))


def test_the_settings_of_all_variants_are_valid(in_folder: Path) -> None:
    shares = {"Conv": 0.4, "MatMul": 0.4, "LSTM": 0.2}
    for options in ({}, {"minimize": ("size",)}, {"target": "openvino"}, {"target": "rtx40"}):
        variants, _ = proposed(subject_of(shares, **options))
        for variant in variants.values():
            for text in variant.steps.values():
                step = yaml.safe_load(text)
                if step["step"] == "quantize":
                    own = {key: value for key, value in step.items() if key not in ("step", "from")}
                    Quantize.model_validate_json(json.dumps(own))
    dense_or_not = [
        [
            made
            for item in proposed(subject_of(shares, groups))[0].values()
            if "step: quantize, from: clean" in (made := item.steps.get("made", "")) and "mode: dynamic" not in made
        ]
        for groups in (1, 2)
    ]
    assert [sum("min_intensity: 0" in text for text in texts) for texts in dense_or_not] == [6, 2]
    quantized = dense_or_not[0]
    assert sum("qoperator" in text for text in quantized) == 1
    assert sum("exclude: {first: 1, last: 1}" in text for text in quantized) == 1


def test_engines_get_int8_for_them(in_folder: Path) -> None:
    variants, _ = proposed(subject_of({}, target="rtx40"))
    int8 = {name: variant for name, variant in variants.items() if name.startswith("INT8 by")}
    assert int8.keys() == {"INT8 by minmax", "INT8 by percentile"}
    assert all("target: tensorrt" in item.steps["made"] for item in int8.values())
    assert not any("extended" in name or "dynamic" in name or "weights" in name for name in variants)


def test_a_target_without_integers_gets_no_int8(in_folder: Path) -> None:
    variants, sentences = proposed(subject_of({}, target="browser_webgpu"))
    assert not any("INT8" in name for name in variants)
    assert any("QuantizeLinear" in sentence for sentence in sentences)


def test_embedding_tables_are_quantized_for_the_size_only(in_folder: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (int64[N,4] ids) => (float[N,4,16] y)
    <float[1000,16] table, float[16,16] w> {h = Gather(table, ids) y = MatMul(h, w)}"""
    model = onnx.parser.parse_model(text)
    for name, shape in (("table", (1000, 16)), ("w", (16, 16))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    del model.graph.value_info[:]
    onnx.save(model, "model.onnx")
    np.save("ids.npy", np.zeros((9, 4), np.int64))
    names = []
    for minimize in ("latency", "size"):
        options = OptimizeOptions(target="onnxruntime", data=("ids.npy",), minimize=(minimize,))
        names.append({variant.name for variant in read_model(Path("model.onnx"), options, Path("samples")).variants})
    assert "INT8 with dynamic ranges" in names[0]
    assert "INT8 with dynamic ranges of embedding tables too" in names[1] - names[0]


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs the extra [openvino]")
def test_another_runtime_is_tried_after_dynamic_int8(in_folder: Path) -> None:
    names = [variant.name for variant in subject_of({"MatMul": 1.0}, target="any").variants]
    order = ["source", "INT8 with dynamic ranges", "source in OpenVINO", "clean in OpenVINO"]
    assert [name for name in names if name in order] == order
