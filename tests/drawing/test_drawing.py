"""Images of graphs: the contents of SVG and PNG files, with hostile names too."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ndld_flow.base.errors import RequestError
from ndld_flow.drawing.draw import compose, picture_bytes
from ndld_flow.drawing.graph import FAMILIES, TITLES, DrawnEdge, DrawnGraph, DrawnNode, Look, family_of
from ndld_flow.drawing.picture import PALETTES, Rectangle, Text, colours_for, mix, parts, pieces_of, shown, text_width
from tests.support.message_files import CheckMessage
from tests.support.run_fixtures import HOSTILE_NAMES

SVG = "{http://www.w3.org/2000/svg}"

SMALL = DrawnGraph(
    nodes=(
        DrawnNode("x", "x", kind="input"),
        DrawnNode("conv1 (Conv)", "Conv", "convolution", details=("3\N{MULTIPLICATION SIGN}3",)),
        DrawnNode("again (If)", "If", "control", "composite"),
        DrawnNode("w", "16", kind="constant"),
        DrawnNode("y", "y", kind="output"),
    ),
    edges=(
        DrawnEdge(0, 1, "1x3x8x8", "x"),
        DrawnEdge(1, 2, "1x16x8x8", "h"),
        DrawnEdge(3, 2, "", "w"),
        DrawnEdge(2, 4, "1x16", "y"),
    ),
    title="small.onnx",
    subtitle="3 nodes",
)

GOLDEN = """\
<svg xmlns="http://www.w3.org/2000/svg" width="134" height="223" viewBox="0 0 134 223" \
font-family="system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif">
<rect width="134" height="223" fill="#ffffff"/>
<g fill="none" stroke="#8b929a" stroke-width="1.3">
<path d="M57,70L57,99"/>
<path d="M57,139L57,168"/>
<path d="M57,70C57,84.5 106,84.5 106,99L106,139C106,153.5 75.5,153.5 75.5,168"/>
</g>
<path fill="#8b929a" d="M57,99L54,93L60,93ZM57,168L54,162L60,162ZM75.5,168L72.5,162L78.5,162Z"/>
<rect x="35" y="28" width="44" height="27" rx="13.5" fill="#ffffff" stroke="#1a1c1f"><title>x</title></rect>
<text x="57" y="46" font-size="13" fill="#1a1c1f" text-anchor="middle">x</text>
<text x="57" y="66.5" font-size="10" fill="#5c636b" text-anchor="middle">1x3x8x8</text>
<rect x="28" y="99" width="58" height="40" rx="6" fill="#77aadd" stroke="#000000" \
stroke-opacity="0.35"><title>c (Conv)</title></rect>
<text x="57" y="117" font-size="13" fill="#1a1c1f" text-anchor="middle" font-weight="600">Conv</text>
<text x="57" y="130.5" font-size="10.5" fill="#1a1c1f" text-anchor="middle">3x3</text>
<rect x="29.5" y="168" width="55" height="27" rx="6" fill="#bbcc33" stroke="#000000" \
stroke-opacity="0.35"><title>a&lt;b (Relu)</title></rect>
<text x="57" y="186" font-size="13" fill="#1a1c1f" text-anchor="middle" font-weight="600">Relu</text>
</svg>
"""


def svg_of(graph: DrawnGraph, look: Look | None = None) -> ElementTree.Element:
    return ElementTree.fromstring(picture_bytes(graph, ".svg", look or Look()))  # noqa: S314 - we wrote it


def texts_of(svg: ElementTree.Element) -> list[str]:
    return [item.text or "" for item in svg.iter(f"{SVG}text")]


def image_of(graph: DrawnGraph, suffix: str, look: Look) -> Image.Image:
    return Image.open(io.BytesIO(picture_bytes(graph, suffix, look)))


def test_a_small_graph_as_svg() -> None:
    svg = svg_of(SMALL)
    assert texts_of(svg)[:2] == ["small.onnx", "3 nodes"]
    assert {"x", "Conv", "3\N{MULTIPLICATION SIGN}3", "If", "16", "y", "1x3x8x8", "1x16x8x8", "1x16"} < set(
        texts_of(svg)
    )
    boxes = {
        item.findtext(f"{SVG}title"): item for item in svg.iter(f"{SVG}rect") if item.find(f"{SVG}title") is not None
    }
    assert set(boxes) == {"x", "conv1 (Conv)", "again (If)", "w", "y"}
    convolution, control = (PALETTES["tol"][FAMILIES.index(family)] for family in ("convolution", "control"))
    assert boxes["conv1 (Conv)"].get("fill") == convolution
    # A second sheet lies behind what has a body.
    assert [item.get("fill") for item in svg.iter(f"{SVG}rect")].count(control) == 3  # with the legend's
    assert boxes["w"].get("stroke-dasharray")
    assert float(boxes["x"].get("rx", 0)) == float(boxes["x"].get("height", 0)) / 2
    assert len(list(svg.iter(f"{SVG}path"))) == len(SMALL.edges) + 1  # and all arrowheads in one


def test_the_svg_matches_exactly() -> None:
    nodes = (
        DrawnNode("x", "x", kind="input"),
        DrawnNode("c (Conv)", "Conv", "convolution", details=("3x3",)),
        DrawnNode("a<b (Relu)", "Relu", "activation"),
    )
    edges = (
        DrawnEdge(0, 1, "1x3x8x8", "x"),
        DrawnEdge(1, 2, "", "h"),
        DrawnEdge(0, 2, "", "x"),
    )
    assert picture_bytes(DrawnGraph(nodes, edges), ".svg", Look(legend=False)).decode() == GOLDEN


def test_equal_graphs_give_equal_bytes() -> None:
    for suffix in (".svg", ".png", ".jpg"):
        assert picture_bytes(SMALL, suffix, Look()) == picture_bytes(SMALL, suffix, Look())


def test_the_legend_counts_nodes_by_family() -> None:
    texts = texts_of(svg_of(SMALL))
    assert f"{TITLES['convolution']} 1" in texts
    assert not any(text.startswith(TITLES["matmul"]) for text in texts)
    bare = texts_of(svg_of(SMALL, Look(legend=False)))
    assert "small.onnx" not in bare and "Conv" in bare


def test_text_stays_inside_its_node() -> None:
    names = ["Conv", "W" * 40, "LayerNormalization", "漢字" * 9, "i" * 30]
    graph = DrawnGraph(tuple(DrawnNode(name, name, details=(name,)) for name in names), ())
    picture = compose(graph, Look(legend=False), colours_for("white", "tol"))
    boxes = [shape for shape in picture.shapes if isinstance(shape, Rectangle)]
    for text in (shape for shape in picture.shapes if isinstance(shape, Text)):
        half = text_width(text.text, text.size) / 2
        assert any(box.x <= text.x - half and text.x + half <= box.x + box.width for box in boxes)


def test_the_direction_decides_between_wide_and_high() -> None:
    chain = DrawnGraph(
        tuple(DrawnNode(str(index), "Relu") for index in range(9)),
        tuple(DrawnEdge(index, index + 1) for index in range(8)),
    )
    sizes = {
        direction: image_of(chain, ".png", Look(direction=direction, legend=False)).size
        for direction in ("down", "right")
    }
    assert sizes["down"][1] > 3 * sizes["down"][0]
    assert sizes["right"][0] > 3 * sizes["right"][1]


@pytest.mark.parametrize(
    ("background", "expected"),
    [
        ("white", (255, 255, 255)),
        ("dark", (0x15, 0x17, 0x1A)),
        ("#336699", (0x33, 0x66, 0x99)),
        ("#369", (0x33, 0x66, 0x99)),
    ],
)
def test_an_image_has_the_requested_background(background: str, expected: tuple[int, int, int]) -> None:
    png = image_of(SMALL, ".png", Look(background=background))
    assert png.format == "PNG"
    assert png.convert("RGB").getpixel((1, 1)) == expected
    jpeg = image_of(SMALL, ".jpeg", Look(background=background))
    assert jpeg.format == "JPEG"
    red, green, blue = jpeg.getpixel((1, 1))  # type: ignore[misc]
    assert max(abs(red - expected[0]), abs(green - expected[1]), abs(blue - expected[2])) < 8


def test_a_transparent_image_is_transparent_between_nodes() -> None:
    png = image_of(SMALL, ".png", Look(background="transparent"))
    assert png.mode == "RGBA"
    assert png.getpixel((1, 1))[3] == 0  # type: ignore[index]
    assert png.getchannel("A").getextrema() == (0, 255)
    assert svg_of(SMALL, Look(background="transparent")).find(f"{SVG}rect").get("x")  # type: ignore[union-attr]


def test_scale_multiplies_pixels() -> None:
    small, large = (image_of(SMALL, ".png", Look(scale=scale)) for scale in (1, 2.5))
    assert large.size == pytest.approx((2.5 * small.width, 2.5 * small.height), abs=2)
    assert large.info["dpi"][0] == pytest.approx(240, abs=1)


def test_a_png_shows_the_same_as_the_svg() -> None:
    """The middle of each node has its family's colour, or a letter's."""
    look = Look(legend=False)
    png = image_of(SMALL, ".png", look).convert("RGB")
    for box in svg_of(SMALL, look).iter(f"{SVG}rect"):
        if box.find(f"{SVG}title") is None:
            continue
        x, y = float(box.get("x", 0)), float(box.get("y", 0)) + float(box.get("height", 0)) / 2
        assert png.getpixel((round(x) + 4, round(y))) == parts(box.get("fill", "#000000"))[:3]


def test_the_grid_is_drawn_on_request() -> None:
    plain, lined = (len(list(svg_of(SMALL, Look(grid=grid)).iter(f"{SVG}path"))) for grid in (False, True))
    assert lined > plain + 10
    assert image_of(SMALL, ".png", Look(grid=True)).convert("RGB").getpixel((1, 24)) != (255, 255, 255)


def test_hostile_names_are_only_text() -> None:
    names = [*HOSTILE_NAMES, "]]>", "&amp;", "<!--", "\x00\x1b[31m", "a\u202egnp.exe", "\ud800", "n" * 10_000, ""]
    nodes = tuple(DrawnNode(name, name, details=(name, name)) for name in names)
    edges = tuple(DrawnEdge(index, index + 1, name, name) for index, name in enumerate(names[1:]))
    graph = DrawnGraph(nodes, edges, "".join(names), "".join(names))
    svg = svg_of(graph)
    assert {item.tag.removeprefix(SVG) for item in svg.iter()} == {"svg", "rect", "text", "title", "g", "path"}
    assert all(len(text) < 400 and text.isprintable() for text in texts_of(svg))
    assert image_of(graph, ".png", Look()).size[0] < 20_000


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=60), st.integers(4, 40))
def test_shown_text_is_short_and_printable(text: str, limit: int) -> None:
    visible = shown(text, limit)
    assert len(visible) <= limit and visible.isprintable()
    svg_of(DrawnGraph((DrawnNode(text, text),), (), text))
    if len(text) <= limit and text.isprintable():
        assert visible == text


@pytest.mark.parametrize(
    ("suffix", "look"),
    [
        (".gif", Look()),
        ("", Look()),
        (".jpg", Look(background="transparent")),
        (".svg", Look(background="mauve")),
        (".svg", Look(background="#12345")),
        (".svg", Look(palette="toll")),
        (".png", Look(scale=0)),
        (".png", Look(scale=float("nan"))),
    ],
)
def test_graphs_that_cannot_be_drawn_are_reported(suffix: str, look: Look, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        picture_bytes(SMALL, suffix, look)
    check_message(caught.value)


@pytest.mark.thorough
def test_too_many_pixels_are_refused_with_advice(check_message: CheckMessage) -> None:
    graph = DrawnGraph(tuple(DrawnNode(str(index), "Relu") for index in range(20_000)), ())
    with pytest.raises(RequestError) as refused:
        picture_bytes(graph, ".png", Look(scale=4))
    check_message(refused.value)
    factor = re.search(r"below (\S+) times", str(refused.value))
    assert factor is not None
    assert picture_bytes(replace(graph, nodes=graph.nodes[:50]), ".png", Look(scale=4))


def test_operators_have_families() -> None:
    assert [family_of(name) for name in ("Conv", "com.microsoft::FusedConv", "CaskConvolution", "QLinearConv")] == [
        "convolution"
    ] * 4
    assert family_of("Reformat") == family_of("Reshape") == family_of("Memcpy") == "shape"
    assert family_of("PointWiseV2") == family_of("Add") == "elementwise"
    assert family_of("Pow") == "elementwise"  # and not a pooling
    assert family_of("AveragePool") == "reduce"
    assert family_of("nobody knows") == family_of("") == "other"
    assert set(TITLES) == set(FAMILIES)


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("background", ["white", "dark"])
def test_text_is_readable_on_the_colour_of_every_family(palette: str, background: str) -> None:
    """WCAG AA for large and bold text is 3; we hold 4.5."""
    colours = colours_for(background, palette)
    for family in FAMILIES:
        assert contrast(colours.family(family), colours.on_family) >= 4.5, family
    assert contrast(colours.background or "", colours.ink) >= 7
    assert contrast(colours.background or "", colours.quiet) >= 4.5


def contrast(text: str, other: str) -> float:
    def luminance(colour: str) -> float:
        linear = [
            v / 12.92 if (v := value / 255) <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for value in parts(colour)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(text), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_mixed_and_split() -> None:
    assert mix("#000000", "#ffffff", 0.5) == "#808080"
    assert parts("#11223344") == (0x11, 0x22, 0x33, 0x44)


def test_right_angles_are_rounded_and_curves_begin_vertically() -> None:
    corner = pieces_of(((0, 0), (0, 40), (40, 40)), upright=True)
    assert [len(piece) for piece in corner] == [1, 3, 1]
    assert corner[0] == ((0, 33),) and corner[1][-1] == (7, 40)
    (curve,) = pieces_of(((0, 0), (30, 40)), upright=True)
    assert curve == ((0, 20), (30, 20), (30, 40))
    (turned,) = pieces_of(((0, 0), (30, 40)), upright=False)
    assert turned == ((15, 0), (15, 40), (30, 40))
