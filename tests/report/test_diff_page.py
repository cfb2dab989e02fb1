"""The page of two models' differences: the region that changed, constants that became initializers, the totals."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ndld_flow import api
from ndld_flow.graph.diff.diff_models import changed_region, diff_sides, match_sides
from ndld_flow.report.diff_rows import collect_diff

BEFORE = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 3] x) => (float[2, 3] y) {
    [k1] c1 = Constant <value = float[3] {1, 2, 3}> ()
    [k2] c2 = Constant <value = float[3] {4, 5, 6}> ()
    [k3] c3 = Constant <value = float[3] {7, 8, 9}> ()
    [one] a = Add(x, c1)
    [two] b = Mul(a, c2)
    [three] d = Relu(b)
    [four] e = Sub(d, c3)
    [five] f = Exp(e)
    [six] h = Sqrt(f)
    [seven] y = Softmax <axis = 1> (h)
}
"""
AFTER = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 3] x) => (float[2, 3] y)
<float[3] c1 = {1, 2, 3}, float[3] c2 = {4, 5, 6}> {
    [one] a = Add(x, c1)
    [new] n = Abs(a)
    [two] b = Mul(n, c2)
    [three] e = Relu(b)
    [five] f = Exp(e)
    [six] h = Sqrt(f)
    [seven] y = Softmax <axis = 0> (h)
}
"""


def model_of(text: str) -> ir.Model:
    return ir.serde.deserialize_model(onnx.parser.parse_model(text))


def region_words(before: str, after: str) -> tuple[list[str], set[tuple[str, str]], str]:
    """Return the labels, the edges between them, and the subtitle of the region."""
    sides = match_sides(model_of(before), model_of(after))
    region = changed_region(sides, diff_sides(sides))
    assert region is not None
    labels = [node.label for node in region.nodes]
    return labels, {(labels[edge.source], labels[edge.target]) for edge in region.edges}, region.subtitle


def test_the_region_has_the_changed_nodes_and_their_neighbours() -> None:
    labels, edges, subtitle = region_words(BEFORE, AFTER)
    assert labels == ["Add", "+ Abs", "Mul"]
    assert edges == {("Add", "+ Abs"), ("+ Abs", "Mul")}, "the edge from Add to Mul is gone"
    assert subtitle == "1 of 3 changed nodes"


def test_a_removed_node_is_drawn_between_its_neighbours() -> None:
    after = BEFORE.replace("[four] e = Sub(d, c3)\n", "").replace("Exp(e)", "Exp(d)")
    labels, edges, subtitle = region_words(BEFORE, after)
    assert (sorted(labels), subtitle) == (["Exp", "Relu", "\N{MINUS SIGN} Sub"], "")
    assert edges == {("Relu", "\N{MINUS SIGN} Sub"), ("\N{MINUS SIGN} Sub", "Exp"), ("Relu", "Exp")}


def test_equal_models_and_renames_have_no_region() -> None:
    for after in (BEFORE, BEFORE.replace("[five]", "[other]")):
        sides = match_sides(model_of(BEFORE), model_of(after))
        assert changed_region(sides, diff_sides(sides)) is None


@pytest.mark.parametrize(("storage", "stored"), [("initializer", 2), ("constant", 0)])
def test_constants_that_become_initializers_are_one_row(storage: str, stored: int) -> None:
    after = AFTER if storage == "initializer" else BEFORE.replace("{1, 2, 3}", "{1, 2, 4}")
    sides = match_sides(model_of(BEFORE), model_of(after))
    view = collect_diff(diff_sides(sides))
    rows = [row for row in view.rows if row.lines and row.lines[0].after == "initializer"]
    assert [row.kind for row in rows] == [f"{stored} constants"] * bool(stored)
    assert view.left_out == 0
    if stored:
        assert {row.name for row in view.rows if row.part == "nodes" and row.sign == "-"} == {"k3", "four"}
        assert not any(row.part == "weights" and row.sign == "+" for row in view.rows)


def test_the_page_counts_the_model(tmp_path: Path) -> None:
    for name, text in (("a", BEFORE), ("b", AFTER)):
        ir.save(model_of(text), tmp_path / f"{name}.onnx")
    api.diff(tmp_path / "a.onnx", tmp_path / "b.onnx", outputs=tmp_path, page=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert '<dd class="figure">10 → 7</dd>' in page
    assert page.count("<svg") == 1
    assert "<h1><bdi>a.onnx → b.onnx</bdi></h1>" in page and f"{tmp_path}/a.onnx → " in page
