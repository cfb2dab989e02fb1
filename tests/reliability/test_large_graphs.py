"""Work per node is independent of their number: counted, not timed."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from ndld_flow.graph.sanitize.pipeline import sanitize_file
from ndld_flow.graph.sanitize.settings import SanitizeSettings
from ndld_flow.models.nodes import free_name
from tests.support.models import GraphBuilder, rename_output, save, tensor


class _Asked(set[str]):
    """A set that counts how often it is asked."""

    count = 0

    def __contains__(self, name: object) -> bool:
        self.count += 1
        return super().__contains__(name)


def test_thousands_of_nodes_with_one_name_get_unique_names() -> None:
    taken = _Asked()
    names = [free_name("node", taken) for _ in range(2000)]
    assert names == ["node", *(f"node_{number}" for number in range(2, 2001))]
    assert taken.count < 30 * len(names)


def test_folding_visits_each_node_a_bounded_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (_hashes_per_node(tmp_path / f"{count}.onnx", count, monkeypatch) for count in (50, 400))
    assert many < 1.5 * few


def _hashes_per_node(path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Count set operations on nodes in a model whose weights are computed from constants."""
    b = GraphBuilder()
    h = "x"
    for _ in range(count):
        h = b.op("Add", h, b.op("Mul", b.weight(4), b.weight(4)))
    rename_output(b, h, "y")
    save(b.model([tensor("x", ["n", 4])], [tensor("y", ["n", 4])]), path)
    hashed = 0

    def count_hash(node: ir.Node) -> int:
        nonlocal hashed
        hashed += 1
        return object.__hash__(node)

    with monkeypatch.context() as patched:
        patched.setattr(ir.Node, "__hash__", count_hash)
        change = sanitize_file(path, path.with_suffix(".made.onnx"), SanitizeSettings())
    assert change.after.node_count == count
    return hashed / count
