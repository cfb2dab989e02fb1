"""The graph of a profile's layers: its edges and the data on the page."""

from __future__ import annotations

from collections import Counter

from ndld_flow.drawing.engine_graph import engine_graph
from ndld_flow.drawing.graph import FAMILIES
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.profile import Profile
from ndld_flow.report.report_data import GraphShape, collect_graphs
from tests.support.a100_exports import a100_exports
from tests.support.graph_page import collect_graph, layer, profile_of, residual_profile


def graph_of(profile: Profile) -> GraphShape:
    graph = collect_graph(profile)
    assert graph is not None
    return graph


def joins(graph: GraphShape) -> list[tuple[int, int]]:
    return list(zip(graph.source, graph.target, strict=True))


def test_layers_are_joined_by_tensors() -> None:
    layers = [
        layer(0, ["x", "weight"], ["a"], "Conv"),
        layer(1, ["a"], ["b"]),
        layer(2, ["a", "b", "b"], ["c"], "Mystery"),
    ]
    graph = graph_of(profile_of(layers, outputs=["c"]))
    assert joins(graph) == [(3, 0), (0, 1), (0, 2), (1, 2), (2, 4)]
    assert (graph.inputs, graph.outputs) == (["x"], ["c"])
    assert [FAMILIES[index] for index in graph.family] == ["convolution", "elementwise", "other"]
    assert not graph.by_order
    assert len(graph.x) == len(graph.y) == 5 and len(graph.corners) == 5


def test_the_last_writer_of_a_name_is_its_producer() -> None:
    """The body of a loop writes the same names in each turn."""
    layers = [layer(0, ["x"], ["t"]), layer(1, ["t"], ["t"]), layer(2, ["t"], ["t"])]
    assert joins(graph_of(profile_of(layers))) == [(3, 0), (0, 1), (1, 2)]


def test_without_names_layers_are_joined_in_execution_order() -> None:
    graph = graph_of(profile_of([layer(index, [], []) for index in range(4)]))
    assert joins(graph) == [(0, 1), (1, 2), (2, 3)]
    assert graph.by_order


def test_a_layer_that_reads_nothing_has_no_edge() -> None:
    layers = [layer(0, ["x"], ["a"]), layer(1, [], ["random"]), layer(2, ["a", "random"], ["b"])]
    assert joins(graph_of(profile_of(layers))) == [(3, 0), (0, 2), (1, 2)]


def test_without_layers_there_is_no_graph() -> None:
    assert collect_graph(profile_of([])) is None


def test_equal_topologies_are_laid_out_once() -> None:
    result, same, other = residual_profile(30), residual_profile(30), residual_profile(31)
    graphs, of_profile = collect_graphs([result, profile_of([]), other, same])
    assert of_profile == [0, None, 1, 0]
    assert len(graphs) == 2


def test_the_number_of_layers_drawn_on_a_page_is_limited() -> None:
    profiles = [residual_profile(30), residual_profile(31), residual_profile(9), residual_profile(30)]
    _, of_profile = collect_graphs(profiles, most_layers=40)
    assert of_profile == [0, None, 1, 0]  # the second is too many, the third still fits


def test_the_shape_holds_all_positions() -> None:
    shape = graph_of(residual_profile(60))
    folded = shape.blocks
    assert folded is not None
    assert len(folded.of) == 60 and max(folded.of) + 1 == len(folded.titles)
    assert len(folded.graph.x) == len(folded.titles) + 2
    assert (
        len(set(zip(shape.x, shape.y, strict=True))) == len(shape.x) == 62
        and shape.inputs == ["x"]
        and shape.outputs == ["t59"]
    )
    assert min(shape.corners) >= 2 and sum(shape.corners) == len(shape.corner_x) == len(shape.corner_y)
    assert max(shape.corner_x) <= shape.width and max(shape.corner_y) <= shape.height
    assert len(shape.corners) == len(shape.source) == len(shape.target)
    assert shape.back == shape.far == []


def test_cycles_are_reported() -> None:
    layers = [layer(0, ["x"], ["a"]), layer(1, ["a"], ["b"])]
    # A record can say anything: a layer that reads itself.
    loop = profile_of([*layers, layer(2, ["b", "c"], ["c"]), layer(3, ["c"], ["c"])])
    assert graph_of(loop).back == []
    assert joins(graph_of(loop))[-1] == (2, 3)


def test_layers_are_labelled_by_type_or_name_or_in_general() -> None:
    typed, named, unknown = (layer(index, ["x"], [f"t{index}"], type_) for index, type_ in enumerate(("Conv", "", "")))
    drawn = engine_graph(profile_of([typed, named, unknown.model_copy(update={"name": ""})]), "", shapes=False)
    assert [node.label for node in drawn.nodes[:3]] == ["Conv", "layer_1", "layer"]


def test_the_boxes_of_an_engine_are_those_that_its_title_counts() -> None:
    """TensorRT runs quantizing layers as reformats, and lists reformats that it removed as NoOps."""
    graph = engine_graph(read_profile(a100_exports() / "qat"), "qat", False)
    labels = Counter(node.label for node in graph.nodes)
    assert (labels["Reformat"], labels["Quantize"], labels["NoOp"]) == (2, 10, 2)
    assert "2 reformat" in graph.subtitle
    assert "10 quantize" in graph.subtitle


def test_a_quantized_convolution_is_labelled_by_its_convolution() -> None:
    graph = engine_graph(read_profile(a100_exports() / "qat"), "qat", shapes=False)
    shown = {(node.label, node.details[0].split("_")[0]) for node in graph.nodes if node.details}
    assert {word for label, word in shown if label == "CaskConvolution"} == {"Conv", "Gemm"}
    assert ("Quantize", "QuantizeLinear") in shown
