"""The tree of bodies that `inspect` prints: each graph below its nearest parent, cut at a depth that keeps it short."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from rich.console import Console

from ndld_flow.cli.inspection_tables import bodies_table


def lines(addresses: Sequence[str], nodes: Mapping[str, int] | None = None) -> list[str]:
    """Return the printed rows without the heading, with single spaces after the indentation."""
    console = Console(file=io.StringIO(), width=120)
    console.print(bodies_table(addresses, nodes or dict.fromkeys(addresses, 1)))
    assert isinstance(console.file, io.StringIO)
    rows = console.file.getvalue().splitlines()[1:]
    return [row[: len(row) - len(row.lstrip())] + " ".join(row.split()) for row in rows]


def test_a_graph_is_below_its_nearest_parent() -> None:
    nested = ["a", "a/b", "a/b/c", "a/b/c/d"]
    assert lines(nested) == ["a 1", "  b 1", "    c 1", "      d 1"]


def test_names_of_nodes_may_contain_slashes() -> None:
    nested = ["block/If_0/then", "block/If_0/then/Loop/1/body", "block/If_0/then/Loop/1/body/x", "blocks/If_0"]
    assert lines(nested) == ["block/If_0/then 1", "  Loop/1/body 1", "    x 1", "blocks/If_0 1"]


def test_a_parent_of_one_word_is_found_over_several_words() -> None:
    assert lines(["If", "If/deep/er/body"]) == ["If 1", "  deep/er/body 1"]
    assert lines(["x/If", "If/body"]) == ["x/If 1", "If/body 1"]


def test_graphs_that_are_too_deep_are_counted_in_the_row_of_their_parent() -> None:
    outer = [f"L{number}" for number in range(4)]
    inner = [f"{name}/i{number}" for name in outer for number in range(3)]  # 16 rows with the outer ones
    deep = [f"{inner[0]}/d0", f"{inner[0]}/d0/e"]  # the parent of the last one is not shown either
    shown = lines([*outer, *inner, *deep], dict.fromkeys((*outer, *inner, *deep), 10))
    assert len(shown) == 16
    assert "  i0 30 with 2 inside" in shown
    assert shown.count("  i0 10") == 3


def test_a_model_without_nodes_has_no_rows() -> None:
    assert lines(["If", "Loop"], {"Loop": 1200}) == ["If 0", "Loop 1,200"]


def test_the_sixteenth_row_fits_and_more_are_counted() -> None:
    assert len(lines([f"g{number}" for number in range(16)])) == 16
    last = lines([f"g{number}" for number in range(18)])[-1]
    assert last.startswith("2 more; --group-by scope")
