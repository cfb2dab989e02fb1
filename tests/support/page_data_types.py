"""TypeScript's declarations of the pages' data, from the typed dictionaries in `ndld_flow.report.page_data`.

`python -m tests.support.page_data_types` writes `page_data.d.ts` anew.
"""

from __future__ import annotations

import ast
from pathlib import Path

from ndld_flow.report import page_data

DECLARATIONS = Path(page_data.__file__).parent / "static" / "page_data.d.ts"

_HEADER = """\
// The data of each page, as `ndld_flow/report/page_data.py` declares them.
// Do not edit: `python -m tests.support.page_data_types` writes this file.
"""
_NAMES = {"int": "number", "float": "number", "str": "string", "bool": "boolean", "None": "null", "object": "any"}


def declarations() -> str:
    """Return the text of `page_data.d.ts`."""
    body = ast.parse(Path(page_data.__file__).read_text("utf-8")).body
    parts = [_HEADER]
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            comment = _comment(_text(after), "")
            parts.append(f"{comment}type {statement.target.id} = {_type(statement.value)};\n")
        elif isinstance(statement, ast.ClassDef):
            parts.append(_interface(statement))
    return "\n".join(parts)


def _interface(declared: ast.ClassDef) -> str:
    lines = [_comment(ast.get_docstring(declared), ""), f"interface {declared.name} {{\n"]
    for statement, after in zip(declared.body, [*declared.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation, mark = statement.annotation, ""
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "NotRequired":
                annotation, mark = annotation.slice, "?"
            lines.append(_comment(_text(after), "  "))
            lines.append(f"  {statement.target.id}{mark}: {_type(annotation)};\n")
    return "".join((*lines, "}\n"))


def _text(statement: ast.stmt | None) -> str | None:
    """Return the text of a statement that is only a string."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return str(statement.value.value) if is_text else None  # type: ignore[union-attr]


def _comment(text: str | None, indent: str) -> str:
    return f"{indent}/** {' '.join(text.split())} */\n" if text else ""


def _type(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.BinOp):
        return f"{_type(annotation.left)} | {_type(annotation.right)}"
    if not isinstance(annotation, ast.Subscript):
        name = ast.unparse(annotation)
        return _NAMES.get(name, name)
    outer = ast.unparse(annotation.value)
    items = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    inner = [_type(item) for item in items]
    if outer == "tuple":
        return f"[{', '.join(inner)}]"
    if outer in ("dict", "Mapping"):
        return f"Record<{', '.join(inner)}>"
    assert outer in ("list", "Sequence"), f"no TypeScript type is known for {outer}"
    return f"({inner[0]})[]" if "|" in inner[0] else f"{inner[0]}[]"


if __name__ == "__main__":
    DECLARATIONS.write_text(declarations(), encoding="utf-8")
