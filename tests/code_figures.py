"""Print the measurements of the package's code as a Markdown table, for CONTRIBUTING.md.

Usage: python -m tests.code_figures [FOLDER]
"""

from __future__ import annotations

import ast
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

SHORT_BODY = 5
"""Lines of a helper's body, up to which one that is used once may be no more than its header."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str
    lines: int
    comments: int
    tree: ast.Module

    @property
    def header_lines(self) -> int:
        """Lines up to the first statement that is neither the docstring nor an import."""
        for node in self.tree.body:
            is_header = isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node) or _is_for_type_checkers(node)
            if not is_header:
                decorated = isinstance(node, Function | ast.ClassDef) and node.decorator_list
                return (decorated[0] if decorated else node).lineno - 1
        return self.lines

    def functions(self) -> Iterator[Function]:
        """Yield functions and methods, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


def read_modules(root: Path) -> Sequence[Module]:
    """Return the modules of the package in the folder `root`."""
    modules = []
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        with tokenize.open(path) as file:
            comments = sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(file.readline))
        text = path.read_text()
        modules.append(Module(name, text.count("\n"), comments, ast.parse(text)))
    return modules


def imports_of(module: Module, names: frozenset[str]) -> frozenset[str]:
    """Return the modules of the package that a module imports, those inside functions included."""
    found = set()
    for node in _walk_run_code(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & names
            found |= submodules or {node.module}
    return frozenset(found & names - {module.name})


def deepest_path(imports: Mapping[str, frozenset[str]]) -> Sequence[str]:
    """Return the longest chain of modules in which each module imports the next.

    Raises ValueError if modules import each other in a circle.
    """
    open_names: set[str] = set()

    @cache
    def path_from(name: str) -> tuple[str, ...]:
        if name in open_names:
            raise ValueError(f"{name} imports itself through others")
        open_names.add(name)
        paths = [path_from(item) for item in sorted(imports[name])]
        open_names.remove(name)
        return name, *max(paths, key=len, default=())

    return max((path_from(name) for name in imports), key=len)


def count_single_use_helpers(modules: Sequence[Module]) -> int:
    """Count private functions with a short body whose name occurs once outside of their definition."""
    count = 0
    for module in modules:
        uses = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for function in module.functions():
            is_private = function.name.startswith("_") and not function.name.startswith("__")
            body = function.body[1:] if _is_text(function.body[0]) else function.body
            is_short = bool(body) and _last_line(body[-1]) - body[0].lineno < SHORT_BODY
            count += is_private and is_short and uses[function.name] == 1
    return count


def measure(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each measurement."""
    modules = read_modules(root)
    names = frozenset(module.name for module in modules)
    path = deepest_path({module.name: imports_of(module, names) for module in modules})
    lines = sum(module.lines for module in modules)
    yield "lines, files", f"{lines:,} in {len(modules)}"
    lengths = [_last_line(function) - function.lineno + 1 for module in modules for function in module.functions()]
    yield "lines of a function: median, 95th percentile, most", _describe(lengths)
    yield "lines of a file: median, 95th percentile, most", _describe([module.lines for module in modules])
    headers = sum(module.header_lines for module in modules)
    yield (
        "lines of docstring and imports at the top",
        f"{headers:,}, {headers / len(modules):.1f} a file",
    )
    yield f"private functions used once, of at most {SHORT_BODY} lines", f"{count_single_use_helpers(modules)}"
    yield "comments in 1,000 lines", f"{1000 * sum(module.comments for module in modules) / lines:.1f}"
    rooms = [name.split(".")[1] for name in path if "." in name]
    changes = [first for first, second in pairwise([*rooms, ""]) if first != second]
    yield "longest chain of imports, those inside functions included", f"{len(path)} modules ({' > '.join(changes)})"


def _walk_run_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, but not those in `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(tree):
        if not _is_for_type_checkers(child):
            yield child
            yield from _walk_run_code(child)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _describe(counts: Sequence[int]) -> str:
    percentile = statistics.quantiles(counts, n=20)[-1]
    return f"{statistics.median(counts):.0f} / {percentile:.0f} / {max(counts)}"


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "ndld_flow"
    print("| measurement | value |\n|---|---|")
    for name, value in measure(root):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
