"""TypeScript's declarations of the pages' data, from the dataclasses that the pages pack.

`python -m tests.support.page_data_types` writes `page_data.d.ts` anew.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ndld_flow.report import page_data
from ndld_flow.report.bundle import report_files
from ndld_flow.report.engines_page import EnginesPage
from ndld_flow.report.history_page import HistoryPage

DECLARATIONS = Path(str(report_files())) / "static" / "page_data.d.ts"
_PAGES = (EnginesPage, HistoryPage)
_HEADER = """\
// The data of each page, as Python's dataclasses declare them.
// Do not edit: `python -m tests.support.page_data_types` writes this file.
"""
_NAMES: dict[Any, str] = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    NoneType: "null",
    object: "any",
}


_FORMER = {"int": "number", "float": "number", "str": "string", "bool": "boolean", "None": "null", "object": "any"}


def _former() -> str:
    body = ast.parse(Path(page_data.__file__).read_text("utf-8")).body
    parts = []
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            comment = _comment(_text(after), "")
            parts.append(f"{comment}type {statement.target.id} = {_former_type(statement.value)};\n")
        elif isinstance(statement, ast.ClassDef):
            parts.append(_former_interface(statement))
    return "\n".join(parts)


def _former_interface(declared: ast.ClassDef) -> str:
    lines = [_comment(ast.get_docstring(declared), ""), f"interface {declared.name} {{\n"]
    for statement, after in zip(declared.body, [*declared.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation, mark = statement.annotation, ""
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "NotRequired":
                annotation, mark = annotation.slice, "?"
            lines.append(_comment(_text(after), "  "))
            lines.append(f"  {statement.target.id}{mark}: {_former_type(annotation)};\n")
    return "".join((*lines, "}\n"))


def _text(statement: ast.stmt | None) -> str | None:
    """Return the text of a statement that is only a string."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return str(statement.value.value) if is_text else None  # type: ignore[union-attr]


def _former_type(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.BinOp):
        return f"{_former_type(annotation.left)} | {_former_type(annotation.right)}"
    if not isinstance(annotation, ast.Subscript):
        name = ast.unparse(annotation)
        return _FORMER.get(name, name)
    outer = ast.unparse(annotation.value)
    items = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    inner = [_former_type(item) for item in items]
    if outer == "tuple":
        return f"[{', '.join(inner)}]"
    if outer in ("dict", "Mapping"):
        return f"Record<{', '.join(inner)}>"
    assert outer in ("list", "Sequence"), f"no TypeScript type is known for {outer}"
    return f"({inner[0]})[]" if "|" in inner[0] else f"{inner[0]}[]"


def declarations() -> str:
    """Return the text of `page_data.d.ts`."""
    found: dict[str, type] = {}
    for page in _PAGES:
        _find(get_type_hints(page)["data"], found)
    return "\n".join([_HEADER, *(_interface(found[name]) for name in sorted(found)), _former()])


def _find(annotation: Any, found: dict[str, type]) -> None:
    """Add the dataclasses that a type refers to."""
    for inner in get_args(annotation):
        _find(inner, found)
    if not isinstance(annotation, type) or not is_dataclass(annotation) or found.get(annotation.__name__) is annotation:
        return
    assert annotation.__name__ not in found, f"two dataclasses are called {annotation.__name__}"
    found[annotation.__name__] = annotation
    for hint in get_type_hints(annotation).values():
        _find(hint, found)


def _interface(declared: type) -> str:
    hints, texts = get_type_hints(declared), _field_texts(declared)
    fields = (f"{_comment(texts.get(name), '  ')}  {name}: {_type(hint)};\n" for name, hint in hints.items())
    return f"{_comment(inspect.getdoc(declared), '')}interface {declared.__name__} {{\n{''.join(fields)}}}\n"


def _field_texts(declared: type) -> dict[str, str]:
    """Return the docstrings of fields: Python keeps them in the source alone."""
    (body,) = (
        statement.body
        for statement in ast.parse(inspect.getsource(declared)).body
        if isinstance(statement, ast.ClassDef)
    )
    texts = {}
    for statement, after in pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            texts[ast.unparse(statement.target)] = str(after.value.value)
    return texts


def _comment(text: str | None, indent: str) -> str:
    return f"{indent}/** {' '.join(text.split())} */\n" if text else ""


def _type(annotation: Any) -> str:
    outer, inner = get_origin(annotation), get_args(annotation)
    if outer is None:
        return _NAMES.get(annotation) or str(annotation.__name__)
    if outer is Literal:
        return " | ".join(f'"{word}"' for word in inner)
    parts = [_type(item) for item in inner if item is not Ellipsis]
    if outer in (Union, UnionType):
        return " | ".join(parts)
    if issubclass(outer, Mapping):
        return f"Record<{', '.join(parts)}>"
    if outer is tuple and Ellipsis not in inner:
        return f"[{', '.join(parts)}]"
    return f"({parts[0]})[]" if "|" in parts[0] else f"{parts[0]}[]"


if __name__ == "__main__":
    DECLARATIONS.write_text(declarations(), encoding="utf-8")
