"""Which tests reach a fault: one run of the tests on a copy in which the places of the faults report themselves."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.mutation.mutators import Mutant, line_offsets

_PROBE = "_reached_place"
_DEFINITION = """
def {probe}(number, known=set()):
    import os
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in known:
        known.add((number, test))
        try:
            file = os.open({record!r}, os.O_WRONLY | os.O_APPEND)
        except OSError:
            return
        os.write(file, f"{{number}}\\t{{test!r}}\\n".encode())
        os.close(file)
"""


def add_probes(source: str, mutants: Mapping[int, Mutant], record: Path) -> str:
    """Return a module in which a call precedes the statement of each mutant, and writes the running test to a file.

    A mutant outside functions gets none: importing the module would reach it, in whichever test comes first.
    """
    tree = ast.parse(source)
    places = [(_statement(tree, source, mutant), number) for number, mutant in mutants.items()]
    for place, number in places:
        if place is not None:
            body, statement = place
            body.insert(body.index(statement), ast.parse(f"{_PROBE}({number})").body[0])
    first = next((at for at, node in enumerate(tree.body) if not _is_header(node)), len(tree.body))
    tree.body[first:first] = ast.parse(_DEFINITION.format(probe=_PROBE, record=str(record))).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_header(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _statement(tree: ast.Module, source: str, mutant: Mutant) -> tuple[list[ast.stmt], ast.stmt] | None:
    """Return the innermost statement that holds a mutant, with the body that it is part of; None outside functions."""
    place = (mutant.line, mutant.start - line_offsets(source)[mutant.line - 1])
    position: tuple[list[ast.stmt], ast.stmt] | None = None
    is_inside = False
    body: list[ast.stmt] | None = tree.body
    while body is not None:
        holder = next((node for node in body if _holds(node, place)), None)
        if holder is None:
            break
        if is_inside:
            position = body, holder
        if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef) and place >= _start(holder.body[0]):
            is_inside = True
        body = next((part for part in _bodies(holder) if any(_holds(node, place) for node in part)), None)
    return position


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for holder in [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
        for name in ("body", "orelse", "finalbody"):
            part = getattr(holder, name, None)
            if isinstance(part, list):
                yield part


def _start(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _holds(node: ast.stmt, place: tuple[int, int]) -> bool:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _start(node) <= place < (node.end_lineno, node.end_col_offset)


def read_reached(record: Path) -> dict[int, list[str]]:
    """Return the tests that reached each mutant, as pytest's identifiers.

    A fixture may serve other tests too, so that a test that reached a place in its setup counts as its whole file.
    """
    reached: dict[int, dict[str, None]] = defaultdict(dict)
    for line in record.read_text(encoding="utf-8").splitlines():
        number, _, written = line.partition("\t")
        test, _, phase = ast.literal_eval(written).rpartition(" ")
        if test:
            reached[int(number)][test if phase == "(call)" else test.partition("::")[0]] = None
    return {number: list(_without_parts(tests)) for number, tests in reached.items()}


def nearest_first(tests: Iterable[str], nearest: Sequence[Path]) -> list[str]:
    """Sort tests by the order of their files."""
    ranks = {path.as_posix(): rank for rank, path in enumerate(nearest)}
    return sorted(tests, key=lambda test: ranks.get(test.partition("::")[0], len(ranks)))


def _without_parts(tests: Iterable[str]) -> Iterator[str]:
    """Leave out tests whose whole file is among them."""
    files = {test for test in tests if "::" not in test}
    return (test for test in tests if test in files or test.partition("::")[0] not in files)
