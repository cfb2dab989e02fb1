"""Engine descriptions without times, in every format: report, draw, compare and profile."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.cli.triage_table import print_triage
from ndld_flow.drawing.engine_graph import engine_graph
from ndld_flow.drawing.graph import Reading, family_of_layer, layer_word
from ndld_flow.profiles.diagnose.diagnose import triage
from ndld_flow.profiles.read.engine_layers import format_of_tensorrt
from ndld_flow.profiles.read.read_profile import read_build, read_profile, recognize
from tests.support.engine_samples import build, detector, write_engine_run
from tests.support.message_files import CheckMessage
from tests.support.run_fixtures import HOSTILE_NAMES
from tests.support.trtexec_exports import layer_info, layer_info_11, layer_times, small_engine

RTX: dict[str, Any] = {
    "Layers": [
        {
            "Name": "__myl_Move_myl0_0",
            "LayerType": "kgen",
            "Inputs": [
                {"Name": "x", "Dimensions": [-1, 3, -1, -1], "Datatype": "Float", "Format": "(Linear) Row major linear"}
            ],
            "Constants": [],
            "Outputs": [
                {"Name": "a", "Dimensions": [-1, 3, -1, -1], "Datatype": "Float", "Format": "(NHWC) Channel major"}
            ],
            "TacticName": "__myl_Move_0x66",
            "StreamId": 0,
            "Metadata": "",
        },
        {
            "Name": "entry^bb^wait^2_myl0_1",
            "LayerType": "wait",
            "Inputs": [],
            "Constants": [],
            "Outputs": [],
            "TacticName": "",
            "StreamId": 1,
            "Metadata": "",
        },
        {
            "Name": "__myl_CorrMulAdd_myl0_2",
            "LayerType": "runtime_fusion",
            "Inputs": [
                {"Name": "a", "Dimensions": [-1, 3, -1, -1], "Datatype": "Float", "Format": "(NHWC) Channel major"}
            ],
            "Constants": [{"Name": "w", "Dimensions": [16, 3, 3, 3], "Datatype": "Half", "Format": "(NHWC) x"}],
            "Outputs": [
                {"Name": "y", "Dimensions": [-1, 16, -1, -1], "Datatype": "Half", "Format": "(NHWC) Channel major"}
            ],
            "TacticName": "",
            "StreamId": 0,
            "Metadata": "[ONNX Layer: conv.0][ONNX Layer: bn.0]",
        },
    ],
    "I/O Tensors": [
        {"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [-1, 3, -1, -1]},
        {"Name": "y", "IOMode": "Output", "DataType": "Half", "Dimensions": [-1, 16, -1, -1]},
    ],
}
"""As `build_engine` writes the log of TensorRT-RTX."""

SHAPES = {
    "10": layer_info(small_engine()),
    "names only": layer_info(small_engine(), detailed=False),
    "11": layer_info_11(small_engine(split=True)),
    "rtx": json.dumps(RTX),
}


def write(folder: Path, text: str, name: str = "model.trt.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def words_of(page: Path) -> str:
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


# --- a page of its own ---


@pytest.mark.parametrize(("shape", "expected"), [
    ("10", ("4 layers", "3 float16", "1 float32", "float32 linear → float16 hwc8", "CaskConvolution", "sm80_xmma")),
    ("11", ("4 layers", "3 float16", "1 float32", "CaskConvolution", "1 at inputs and outputs")),
    ("rtx", ("3 layers", "float32 linear → float32 hwc", "864 B in all layers", "runtime_fusion", "2 ONNX nodes")),
    ("names only", ("4 layers", "The compiled layers are not known", "Reformatting CopyNode")),
])  # fmt: skip
def test_every_format_opens_as_a_report(tmp_path: Path, shape: str, expected: tuple[str, ...]) -> None:
    page = api.report(str(write(tmp_path, SHAPES[shape])), to=tmp_path / "out.html")
    words = words_of(page)
    for item in expected:
        assert item in words, item
    text = page.read_text("utf-8")
    assert "engine that was not" in words and '<a href="#engines">Engine</a>' in text
    assert 'id="latency"' not in text and 'id="layers"' not in text and "0.00 ms" not in words


def test_times_next_to_an_engine_make_it_a_profile(tmp_path: Path) -> None:
    write(tmp_path, layer_times(small_engine()), "times.json")
    text = api.report(str(write(tmp_path, SHAPES["10"])), to=tmp_path / "out.html").read_text("utf-8")
    assert 'id="layers"' in text and 'id="engines"' not in text


def test_a_build_opens_with_all_its_facts(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    write(folder, build().to_json(), "build.json")
    write(folder, SHAPES["10"])
    assert recognize(folder) == recognize(folder / "build.json") == "build"
    assert read_build(folder) == build()
    for place in (folder, folder / "build.json"):
        page = api.report(str(place), to=tmp_path / "out.html")
        words = words_of(page)
        assert "TensorRT 10.16.1.11" in words and "layer was fused away" in words
        assert "<title>engine</title>" in page.read_text("utf-8")
    assert "TensorRT 10.16.1.11" not in words_of(api.report(str(folder / "model.trt.json"), to=tmp_path / "o.html"))


def test_a_damaged_build_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    path = write(tmp_path, build().to_json().replace('"parse_s": 0.31', '"parse_s": "long"'), "build.json")
    with pytest.raises(RequestError) as caught:
        api.report(str(path), to=tmp_path / "out.html")
    check_message(caught.value)
    path.write_text(build().to_json().replace(f'"format_version": {build().format_version}', '"format_version": 99'))
    with pytest.raises(RequestError) as caught:
        api.report(str(path), to=tmp_path / "out.html")
    check_message(caught.value)


# --- layers ---


def test_layers_of_tensorrt_rtx(tmp_path: Path) -> None:
    move, wait, fused = read_profile(write(tmp_path, SHAPES["rtx"])).layers
    assert (move.role, move.onnx_nodes, move.outputs[0].format) == ("reformat", (), "hwc")
    assert (wait.role, wait.onnx_nodes) == ("sync", ())
    assert (fused.role, fused.precision, fused.onnx_nodes) == ("compute", "", ("conv.0", "bn.0"))
    assert (fused.input_precision, fused.weights_dtype, fused.output_precision) == ("float32", "float16", "float16")
    assert fused.weight_bytes == 16 * 3 * 3 * 3 * 2


def test_a_kernel_that_changes_more_than_the_layout_is_no_reformat(tmp_path: Path) -> None:
    def layer(**more: Any) -> dict[str, Any]:
        return {**RTX["Layers"][0], **more}

    moved = RTX["Layers"][0]["Outputs"][0]
    layers = [
        layer(Metadata="[ONNX Layer: transpose]"),
        layer(Outputs=[{**moved, "Dimensions": [-1, -1, -1, 3]}]),
        layer(Outputs=[{**moved, "Format": "(Linear) Row major linear"}]),
        layer(Outputs=[moved, moved]),
    ]
    profile = read_profile(write(tmp_path, json.dumps({**RTX, "Layers": layers})))
    assert [layer.role for layer in profile.layers] == ["compute"] * 4


@pytest.mark.parametrize(("text", "name"), [
    ("Row major linear FP32", "linear"),
    ("Row major linear FP16 format", "linear"),
    ("Row major linear", "linear"),
    ("Channel major FP16 format where channel % 8 == 0", "hwc8"),
    ("Channel major FP16 format where channel % 4 == 0", "hwc4"),
    ("Channel major INT8 format where channel == 4 and column stride % 32 == 0", "hwc"),
    ("Thirty-two wide channel vectorized row major Int8 format", "chw32"),
    ("Thirty-two wide channel vectorized row major Int8 format with 3 spatial dimensions", "cdhw32"),
    ("Two wide channel vectorized row major FP16 format", "chw2"),
    ("Channel major FP16 format where channel % 8 == 0 with 3 spatial dimensions", "dhwc8"),
    ("(NHWC) Channel major format", "hwc"),
    ("(Linear) Row major linear format", "linear"),
    ("(Transposed) something", "transposed"),
    ("Half", ""),
    ("", ""),
    ("A new FP8 format", "a new"),
])  # fmt: skip
def test_tensor_formats_are_read_by_their_tensorrt_names(text: str, name: str) -> None:
    assert format_of_tensorrt(text) == name


@given(st.text(max_size=300))
def test_any_text_for_a_format_is_read(text: str) -> None:
    assert len(format_of_tensorrt(text)) <= 40


# --- draw ---


def test_an_engines_graph_is_drawn(tmp_path: Path) -> None:
    picture = api.draw(write(tmp_path, SHAPES["rtx"]), tmp_path / "out.svg").read_text("utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert {"CorrMulAdd", "conv.0 +1", "writes float16 hwc", "Move", "x", "y"} <= set(texts)
    assert "precision · 1 float32 · 1 reformat" in " ".join(texts)


def test_layers_are_joined_by_tensors_and_coloured_by_operator() -> None:
    graph = engine_graph(build().as_profile(), "t", shapes=True)
    count = len(detector())
    assert len(graph.nodes) == count + 2
    assert [node.kind for node in graph.nodes[count:]] == ["input", "output"]
    assert {(edge.source, edge.target) for edge in graph.edges} >= {(count, 0), (0, 1), (1, 2), (count - 1, count + 1)}
    assert [graph.nodes[value].family for value in (0, 1, 4)] == ["shape", "convolution", "elementwise"]
    assert graph.edges[0].label.startswith("float32 ")
    assert not any(edge.label for edge in engine_graph(build().as_profile(), "t", shapes=False).edges)


@pytest.mark.parametrize(("kind", "name", "word", "family"), [
    ("runtime_fusion", "__myl_CorrMulAddRelu_myl0_7", "CorrMulAddRelu", "convolution"),
    ("kgen", "__myl_FcMulAdd_myl0_7", "FcMulAdd", "matmul"),
    ("kgen", "__myl_Mean_myl0_7", "Mean", "reduce"),
    ("kgen", "__myl_Tran_myl12_7", "Tran", "shape"),
    ("correlation", "p2o.Conv.20_myl0_7", "correlation", "convolution"),
    ("CaskConvolution", "conv", "CaskConvolution", "convolution"),
    ("kgen", "what", "kgen", "other"),
    ("unknown", "/conv/Conv", "/conv/Conv", "other"),
])  # fmt: skip
def test_fused_kernels_are_named_after_their_parts(kind: str, name: str, word: str, family: str) -> None:
    assert (layer_word(kind, name), family_of_layer(kind, name)) == (word, family)


@pytest.mark.parametrize("reading", [Reading(depth=1), Reading(subgraph="If"), Reading(constants=True)])
def test_bodies_and_constants_of_engines_cannot_be_drawn(
    tmp_path: Path, reading: Reading, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        api.draw(write(tmp_path, SHAPES["10"]), tmp_path / "out.svg", reading=reading)
    check_message(caught.value)


# --- what needs times says so ---


@pytest.mark.parametrize("other", ["model.trt.json", "build.json"])
def test_engines_without_times_have_nothing_to_compare(tmp_path: Path, other: str, check_message: CheckMessage) -> None:
    first = write(tmp_path, SHAPES["10"])
    second = tmp_path / "b"
    second.mkdir()
    write(second, build().to_json() if other == "build.json" else SHAPES["11"], other)
    with pytest.raises(RequestError) as caught:
        api.compare([str(first), str(second / other)], outputs=tmp_path / "outputs")
    check_message(caught.value)
    assert not (tmp_path / "outputs").exists()


def test_engines_of_a_run_are_tables_of_layers_and_nothing_to_compare(
    in_folder: Path, check_message: CheckMessage
) -> None:
    folder = write_engine_run(
        in_folder / "outputs/runs/engines", {"engine": build(), "other": build(layers=detector()[:5])}
    )
    table = api.layers(f"{folder}:other")
    assert list(table["name"]) == [layer.name for layer in detector()[:5]]
    assert not {"median_ms", "share"} & {*table.columns}, "nobody ran it"
    with pytest.raises(RequestError) as caught:
        api.layers(str(folder))
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        api.layers(f"{folder}:engin")
    check_message(caught.value)
    with pytest.raises(RequestError) as caught:
        api.compare([f"{folder}:other", str(folder)])
    check_message(caught.value)


def test_notes_name_the_sources_of_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = read_profile(write(tmp_path, SHAPES["10"]))
    print_triage("model", profile, triage(profile))
    out = capsys.readouterr().out
    assert "3 float16, 1 float32" in out and "nothing was timed" in out
    assert "0.00 ms" not in out and "slowest layers" not in out
    assert "engine's inputs and outputs" in out


# --- strangers' files ---


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    layers = [
        {
            "Name": name,
            "LayerType": name,
            "Inputs": [{"Name": name, "Dimensions": [1], "Format/Datatype": name}],
            "Outputs": [{"Name": name, "Dimensions": [1], "Format/Datatype": name}],
            "TacticName": name,
            "Metadata": f"[ONNX Layer: {name}]\x1e[ONNX Layer: {name}]",
        }
        for name in HOSTILE_NAMES
    ]
    path = write(tmp_path, json.dumps({"Layers": layers, "Bindings": list(HOSTILE_NAMES)}))
    page = api.report(str(path), to=tmp_path / "out.html").read_text("utf-8")
    assert page.count("<script") == 3 and "<img src=x" not in page
    assert "<script" not in api.draw(path, tmp_path / "out.svg").read_text("utf-8")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_LAYERS = st.lists(
    st.dictionaries(
        st.sampled_from(["Name", "LayerType", "Inputs", "Outputs", "Constants", "Metadata", "TacticName", "StreamId"]),
        _VALUES
        | st.lists(st.fixed_dictionaries({"Name": st.text(max_size=4), "Dimensions": _VALUES, "Format": _VALUES})),
        max_size=8,
    )
    | st.text(max_size=9),
    max_size=5,
)


@pytest.mark.parametrize("name", ["latencyMs", "timeMs"])
def test_an_engine_may_have_a_layer_of_any_name(tmp_path: Path, name: str) -> None:
    layers = [{"Name": name, "LayerType": "Conv"}, {"Name": "kept", "LayerType": "Conv"}]
    path = write(tmp_path, json.dumps({"Layers": layers, "Bindings": ["x"]}))
    assert "kept" in words_of(api.report(str(path), to=tmp_path / "out.html"))


@given(layers=_LAYERS)
@settings(max_examples=20, deadline=None)
def test_any_values_give_a_page_or_an_error_message(
    tmp_path_factory: pytest.TempPathFactory, layers: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    kept = {"Name": "kept", "LayerType": "Conv"}
    path = write(folder, json.dumps({"Layers": [*layers, kept], "Bindings": ["x"]}))
    assert "kept" in words_of(api.report(str(path), to=folder / "out.html"))
    assert api.draw(path, folder / "out.svg").stat().st_size > 0
