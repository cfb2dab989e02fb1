"""The views of a profile beyond its layers: convolutions, histograms, treemap, devices, profiles side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.quantities import TIMES
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, Roofs, RuntimeTraits, TensorInfo
from ndld_flow.report.collect_layers import collect_layers, collect_reformats
from ndld_flow.report.comparison.page import draw_comparison
from ndld_flow.report.measured import StacksView, batch_of, collect_stacks
from ndld_flow.report.panel import find_panels, panels_of
from ndld_flow.report.panels import convolutions, device, distribution, pointwise, treemap
from ndld_flow.report.report_data import Ceilings, Tensors, timed_layers
from ndld_flow.report.run_page import draw_profile
from ndld_flow.report.tables import Table
from tests.support.a100_exports import a100_exports
from tests.support.compare_samples import profile_of
from tests.support.comparison_fixtures import three


def a100(name: str) -> Profile:
    return read_profile(a100_exports() / name)


def column(table: Table, title: str) -> list[Any]:
    index = [column.title for column in table.columns].index(title)
    return [row[index] for row in table.rows]


def layer(index: int, kind: str, ms: float = 1.0, **fields: Any) -> Layer:
    return Layer(index=index, name=f"{kind}_{index}", type=kind, samples_ms=(ms,), **fields)


def test_convolutions_have_the_window_activation_and_shares() -> None:
    (view,) = convolutions.collect({"fp16": a100("fp16")})
    table = view.layers
    assert (view.count, view.unknown, view.exceeded) == (21, 0, 0)
    assert "NVIDIA A100 80GB PCIe" in view.peaks
    assert (column(table, "Kernel")[0], column(table, "Stride")[0], column(table, "Activation")[0]) == (
        f"7{TIMES}7",
        f"2{TIMES}2",
        "relu",
    )
    assert column(table, "Groups")[0] == 1
    assert column(table, "MMACs")[0] == pytest.approx(3776, abs=1)
    assert column(table, "As GEMM (M, N, K)")[0] == TIMES.join(("401408", "64", "147"))
    assert column(table, "Of peak arithmetic")[0] == pytest.approx(0.217, abs=0.001)
    assert column(table, "Of peak bandwidth")[0] == pytest.approx(0.283, abs=0.001)
    assert "Dilation" not in [column.title for column in table.columns], "all are 1"
    assert view.windows.rows[0][:2] == (f"3{TIMES}3, stride 1{TIMES}1", 13)


def test_an_unknown_device_has_no_shares() -> None:
    profile = a100("fp16")
    other = profile.model_copy(update={"machine": profile.machine.model_copy(update={"gpus": ("NVIDIA Future 1",)})})
    (view,) = convolutions.collect({"a": other})
    assert view.peaks == ""
    assert not {"Of peak arithmetic", "Of peak bandwidth"} & {column.title for column in view.layers.columns}
    assert column(view.layers, "FLOP/byte")[0] > 0, "the work is known nevertheless"
    assert device.collect({"a": other})[0].peaks == ()


def test_unknown_shapes_leave_the_work_unknown() -> None:
    bare = layer(0, "Conv", provider="CPU")
    (view,) = convolutions.collect({"a": profile_of([[1.0]], [bare])})
    assert view.unknown == 1
    assert {column.title for column in view.layers.columns} == {"#", "Name", "Time", "%"}
    assert view.windows.rows[0][0] == "not recorded"


def test_poolings_are_no_convolutions() -> None:
    pooling = layer(0, "CaskPooling", attributes=(("kernel_shape", (3, 3)),))
    assert convolutions.collect({"a": profile_of([[1.0]], [pooling])}) == ()


def test_histograms_count_every_layer_once() -> None:
    profile = a100("fp32")
    (view,) = distribution.collect({"a": profile})
    assert [histogram.title for histogram in view.histograms] == ["Latency", "Weights", "Activations"]
    for histogram in view.histograms:
        counted = sum(item.count for item in histogram.bins) + histogram.zeros + histogram.unknown
        assert counted == len(profile.layers)
        assert sum(item.share for item in histogram.bins) == pytest.approx(1)
        assert max(item.relative for item in histogram.bins) == 1
    assert re.fullmatch(r"\d+ \S+ to \d+ \S+", view.histograms[0].bins[0].range)


def test_a_value_on_an_edge_is_in_the_upper_range() -> None:
    layers = [layer(index, "Conv", ms) for index, ms in enumerate((1.0, 1.0, 1.999, 2.0, 0.0))]
    (view,) = distribution.collect({"a": profile_of([[1.0]], layers)})
    latency = view.histograms[0]
    assert [(item.range, item.count) for item in latency.bins] == [("1 ms to 2 ms", 3), ("2 ms to 5 ms", 1)]
    assert latency.zeros == 1


@pytest.mark.parametrize("values", [[5.0], [6, 6, 4, 3, 2, 2, 1], [1.0] * 40, [1e9, 1, 1e-9], [3, 0.0]])
def test_areas_of_a_treemap_are_in_proportion(values: list[float]) -> None:
    boxes = treemap.squarify(values, 2.2)
    assert len(boxes) == len(values)
    for value, box in zip(values, boxes, strict=True):
        assert box.width * box.height / 1e4 == pytest.approx(value / sum(values), abs=1e-9)
        assert -1e-6 <= box.left <= box.left + box.width <= 100 + 1e-6
        assert -1e-6 <= box.top <= box.top + box.height <= 100 + 1e-6


def test_tiles_of_a_treemap_name_the_layers() -> None:
    (view,) = treemap.collect({"a": a100("qat")})
    assert [item.name for item in view.types] == ["CaskConvolution", "Reformat", "TiledPooling"]
    assert sum(item.share for item in view.types) == pytest.approx(1)
    assert all(tile.layer is not None for item in view.types for tile in item.tiles)


def test_pointwise_layers_are_grouped_by_their_operations() -> None:
    layers = [
        layer(0, "PointWise", 4.0, onnx_nodes=("a", "b", "c")),
        layer(1, "PointWise", 1.0, onnx_nodes=("d",)),
        layer(2, "Mul", 2.0),
        layer(3, "Conv", 8.0),
    ]
    (view,) = pointwise.collect({"a": profile_of([[1.0]], layers)})
    assert (view.count, view.operations) == (3, 4)
    assert view.share == pytest.approx(7 / 15)
    assert [row[0] for row in view.by_operations.rows] == ["not recorded", "1", "3"]
    assert column(view.by_operations, "Time per operation")[2] == pytest.approx(4 / 3)
    assert column(view.fused, "ONNX nodes") == ["a, b, c"]


def test_a_device_has_its_recorded_properties() -> None:
    (view,) = device.collect({"a": a100("fp32"), "b": a100("fp16")})
    facts = {fact.name: fact.value for fact in view.properties}
    assert facts["multiprocessors"] == "108"
    assert facts["bandwidth by clock and bus"] == "1,935 GB/s", "as it is published"
    assert ("tensor core FP16", "312 TFLOP/s") in {(fact.name, fact.value) for fact in view.peaks}
    assert len(view.labels) == 2


def test_reformats_name_the_neighbours_that_cause_them() -> None:
    profile = a100("fp16")
    view = collect_reformats(profile.layers, profile.inputs, profile.outputs)
    assert view is not None
    causes = {row.name: row.cause for row in view.rows}
    cause = causes["Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1"]
    assert re.search(r"input\.1\b.*float32 linear, Conv_0 \+ Relu_1\b.*float16 hwc4", cause)
    assert view.count == 2, "10 NoOps move nothing"
    between = collect_reformats(a100("fp32").layers, (), ())
    assert between is not None
    (row,) = between.rows
    assert re.fullmatch(r"MaxPool_2\b.*float32 linear, Conv_3 \+ Relu_4 and 1 more\b.*float32 hwc", row.cause)
    lonely = layer(0, "Reformat", role="reformat", inputs=(TensorInfo(name="a", dtype="float32", shape=(1,)),))
    bare = collect_reformats([lonely], (), ())
    assert bare is not None
    assert bare.rows[0].cause == "", "nothing is known of its neighbours"


def sized(*shapes: tuple[int, ...], gpu: str = "", **fields: Any) -> Profile:
    machine = Machine(
        system="", architecture="", cpu="A CPU", cpu_count=2, memory_bytes=None, gpus=(gpu,) if gpu else ()
    )
    inputs = tuple(TensorInfo(name=f"x{index}", dtype="float32", shape=shape) for index, shape in enumerate(shapes))
    runtime = RuntimeTraits(on_gpu=bool(gpu))
    return profile_of([[4.0]], [layer(0, "Conv", 4.0)], inputs=inputs, machine=machine, runtime=runtime, **fields)


def stacked(*profiles: Profile) -> StacksView:
    view = collect_stacks([(str(index), profile) for index, profile in enumerate(profiles)])
    assert view is not None
    return view


def test_profiles_side_by_side_are_normalized_by_batch() -> None:
    view = stacked(sized((4, 3)), sized((1, 3)))
    assert view.basis == "of one item"
    assert [row.total for row in view.rows] == ["1.00 ms", "4.00 ms"]
    assert [row.measured.items_per_s for row in view.rows] == ["1,000", "250"]
    assert view.notes == ()
    assert [row.by_type[0].width for row in view.rows] == pytest.approx([25, 100])


@pytest.mark.parametrize("shapes", [((-1, 3),), ((4, 3), (2, 1)), ((),), ()])
def test_an_unknown_batch_is_not_normalized(shapes: tuple[tuple[int, ...], ...]) -> None:
    """A dynamic dimension, two inputs that disagree, a scalar, no input at all."""
    view = stacked(sized((4, 3)), sized(*shapes))
    assert batch_of(sized(*shapes)) is None
    assert view.basis == "of one pass"
    assert [row.total for row in view.rows] == ["4.00 ms", "4.00 ms"]
    assert (view.rows[1].measured.batch, view.rows[1].measured.items_per_s) == ("unknown", "")
    assert any("some profiles is unknown" in note for note in view.notes)


def test_different_devices_are_not_shown_as_comparable_in_silence() -> None:
    view = stacked(sized((1, 3), gpu="NVIDIA L4"), sized((1, 3), gpu="Tesla T4"))
    assert any("different devices (NVIDIA L4; Tesla T4)" in note for note in view.notes)
    unknown = sized((1, 3)).model_copy(update={"runtime": RuntimeTraits(on_gpu=True)})
    assert any("not recorded" in note for note in stacked(sized((1, 3), gpu="NVIDIA L4"), unknown).notes)


def test_one_profile_has_nothing_beside_it() -> None:
    assert collect_stacks([("a", sized((1, 3)))]) is None


def test_the_views_of_layers_are_its_tabs(tmp_path: Path) -> None:
    text = draw_profile(a100("fp16"), "fp16", tmp_path / "page.html").read_text("utf-8")
    layers = text.split('<section id="layers"')[1].split("</section>")[0]
    assert re.findall(r'data-view="(.+?)"', layers) == ["Layers", "Convolutions", "Distribution", "Treemap"]
    untimed = panels_of({"engines": (1,), "treemap": (1,)})
    assert [(panel.name, [tab.name for tab in panel.tabs]) for panel in untimed] == [("engines", ["treemap"])]


def test_a_finding_among_the_layers_of_another_names_it() -> None:
    (view,) = collect_layers({"fp32": a100("fp32")})
    whole, part = (
        next(insight for insight in view.insights if word in insight.title) for word in ("TF32", "CUDA cores")
    )
    assert (part.within, whole.within) == (whole.title, "")
    assert set(part.layers) < set(whole.layers)


def test_sections_are_in_the_order_of_the_page() -> None:
    leading = [panel.leads for panel in panels_of(dict.fromkeys(find_panels(), True))]
    assert leading == sorted(leading, reverse=True)


def test_a_comparison_has_its_subjects_side_by_side(tmp_path: Path) -> None:
    compared = three()
    text = draw_comparison(compared.comparison, compared.profiles, tmp_path / "page.html").read_text("utf-8")
    assert text.count('<section id="stacks"') == 1


@pytest.mark.parametrize(("gmacs", "drawn"), [(1000.0, True), (1.0, False)])
def test_roofs_below_a_layer_are_not_drawn(gmacs: float, drawn: bool) -> None:
    busy = layer(0, "Conv", precision="float32", macs=10**7, read_bytes=10**6)
    roofs = Roofs(macs_per_s=gmacs * 1e9, bytes_per_s=1e12, how="measured", dtype="float32")
    measured = profile_of([[1.0]], [busy], roofs=roofs)
    (view,) = collect_layers({"speed": measured})
    found = timed_layers(view, measured, Tensors()).roofs
    assert found == (Ceilings(1e12, {"float32": 1e12}) if drawn else None)
    assert ("no roof" in view.roofs) is not drawn


def test_a_quantized_convolution_is_listed_by_its_convolution(tmp_path: Path) -> None:
    """TensorRT's name begins with the weight and its quantizer."""
    page = draw_profile(a100("qat"), "qat", tmp_path / "page.html").read_text("utf-8")
    slowest = page.partition('class="bars slowest"')[2].partition("</table>")[0]
    assert re.findall(r"<bdi>([^<]*)</bdi></button>", slowest)[:3] == ["Conv_9", "MaxPool_12", "QuantizeLinear_2"]
    assert 'title="conv1.weight + QuantizeLinear_7 + Conv_9"' in slowest
