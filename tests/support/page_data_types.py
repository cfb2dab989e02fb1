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

from ndld_flow.records.document import Record
from ndld_flow.report.activations.page import ActivationsPage
from ndld_flow.report.comparison.page import ComparisonPage
from ndld_flow.report.encoding import Columns, field_names
from ndld_flow.report.engines_page import EnginesPage
from ndld_flow.report.history_page import HistoryPage
from ndld_flow.report.model_page import DiffPage, ModelPage
from ndld_flow.report.panel import find_panels
from ndld_flow.report.render import report_files
from ndld_flow.report.run_page import RunPage
from ndld_flow.report.sweep.page import SweepPage

DECLARATIONS = Path(str(report_files())) / "static" / "page_data.d.ts"
_PAGES = (ActivationsPage, ComparisonPage, DiffPage, EnginesPage, HistoryPage, ModelPage, RunPage, SweepPage)
_HEADER = """\
// The data of each page, as Python's dataclasses declare them.
// Do not edit: `python -m tests.support.page_data_types` writes this file.

/** An object with a list for each field of some rows. */
type Columns<Row> = { [Field in keyof Row]: Row[Field][] };
"""
_NAMES: dict[Any, str] = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    NoneType: "null",
    Mapping[str, object]: "Panels",
}


def declarations() -> str:
    """Return the text of `page_data.d.ts`."""
    scripts = {name: panel.data for name, panel in find_panels().items() if panel.data}
    panels = {name: get_type_hints(data)["return"] for name, data in scripts.items()}
    found: dict[str, type] = {}
    for data in (*(get_type_hints(page)["data"] for page in _PAGES), *panels.values()):
        _find(data, found)
    fields = "".join(f"  {name}?: {_type(data)};\n" for name, data in panels.items())
    of_panels = f"/** The data of each panel that a page has. */\ninterface Panels {{\n{fields}}}\n"
    return "\n".join([_HEADER, of_panels, *(_interface(found[name]) for name in sorted(found))])


def _find(annotation: Any, found: dict[str, type]) -> None:
    """Add the dataclasses and records that a type refers to."""
    for inner in get_args(annotation):
        _find(inner, found)
    if not isinstance(annotation, type) or not (is_dataclass(annotation) or issubclass(annotation, Record)):
        return
    if found.get(annotation.__name__) is annotation:
        return
    assert annotation.__name__ not in found, f"two classes are called {annotation.__name__}"
    found[annotation.__name__] = annotation
    for hint in map(get_type_hints(annotation).get, field_names(annotation)):
        _find(hint, found)


def _interface(declared: type) -> str:
    hints, texts = get_type_hints(declared), _field_texts(declared)
    fields = (f"{_comment(texts.get(name), '  ')}  {name}: {_type(hints[name])};\n" for name in field_names(declared))
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
    if annotation in _NAMES or outer is None:
        return _NAMES.get(annotation) or str(annotation.__name__)
    if outer is Literal:
        return " | ".join(f'"{word}"' for word in inner)
    parts = [_type(item) for item in inner if item is not Ellipsis]
    if outer in (Union, UnionType):
        return " | ".join(parts)
    if outer is Columns:
        return f"Columns<{parts[0]}>"
    if issubclass(outer, Mapping):
        return f"Record<{', '.join(parts)}>"
    if outer is tuple and Ellipsis not in inner:
        return f"[{', '.join(parts)}]"
    return f"({parts[0]})[]" if "|" in parts[0] else f"{parts[0]}[]"


if __name__ == "__main__":
    DECLARATIONS.write_text(declarations(), encoding="utf-8")
