"""The modules that a user's Python file imports from its own folders: found without running it, loaded as read.

A file may import from its own folder, also lazily inside a function, by package or relatively. Its own folder is
searched first, then the folders that it adds to `sys.path` by a path built from `__file__`, then Python's own path.
Modules of the standard library and of installed distributions are not followed: these have versions.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import ModuleType

from blake3 import blake3

_LIBRARIES = frozenset(
    (
        *("av", "blake3", "click", "filelock", "fsspec", "google", "hydra", "jinja2", "matplotlib", "ml_dtypes"),
        *("numpy", "omegaconf", "onnx", "onnx_graphsurgeon", "onnx_ir", "onnxruntime", "onnxscript", "openvino"),
        *("optuna", "pandas", "polygraphy", "pydantic", "pydantic_core", "ray", "re2", "rich", "yaml"),
    )
)
"""Libraries that ndld_flow itself imports, also lazily: a file with such a name in a step's folder does not shadow
them."""
_MOST_MODULES = 2000
"""Maximum number of modules followed from one file."""


@dataclass(frozen=True)
class ImportedModule:
    """A module with the contents that it had when it was read."""

    name: str
    path: Path | None
    """None for a package without `__init__.py`."""
    source: bytes
    folders: tuple[str, ...] = ()
    """Folders that are searched for its submodules; empty if it is not a package."""

    @cached_property
    def digest(self) -> str:
        """The blake3 digest of its contents."""
        return blake3(self.source).hexdigest()


@dataclass(frozen=True)
class ImportedCode:
    """The modules and files that a file imports and reads, directly or through its modules."""

    modules: Mapping[str, ImportedModule] = field(default_factory=dict)
    """Modules by dotted name."""
    installed: tuple[str, ...] = ()
    """Top-level modules of installed distributions."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Other files that it reads by paths built from `__file__`, keyed by their path relative to the file's folder."""
    missing: frozenset[str] = frozenset()
    """Imported names that are not modules, or not followed."""

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the modules that have contents, by name."""
        return {name: module.digest for name, module in sorted(self.modules.items()) if module.path is not None}

    def conflict_with(self, other: ImportedCode) -> str:
        """Return the name of a module that differs between the two; empty if none does."""
        both = self.modules.keys() & other.modules.keys()
        return next((name for name in sorted(both) if self.modules[name].path != other.modules[name].path), "")


def files_of(code: ImportedCode) -> dict[str, Path]:
    """Return the files of modules and those that they read, by the relative paths that a copy of the file needs."""
    files = {name: path for name, path in code.files.items() if not name.startswith("..")}
    for name, module in code.modules.items():
        if module.path is not None:
            place = name.replace(".", "/")
            # The full suffix: `.py`, or `.cpython-311-x86_64-linux-gnu.so`.
            suffix = module.path.name[module.path.name.index(".") :]
            files[f"{place}/__init__.py" if module.folders else f"{place}{suffix}"] = module.path
    return files


def find_imported_by(module: ModuleType) -> ImportedCode | None:
    """Return the imports of a module's file; None for a module of an installed distribution."""
    return find_imported_at(getattr(module, "__file__", None))


def find_imported_at(path: str | None) -> ImportedCode | None:
    """Return the imports of a file of Python; None for one of an installed distribution, and for no file."""
    if path is None or _is_installed(path):
        return None
    source = Path(path).read_bytes()
    return find_imported(Path(path), source)


def find_imported(path: Path, source: bytes) -> ImportedCode:
    """Return the imports and files of a file, directly and through its modules, as far as their source shows them."""
    return _Search(path.absolute()).run(source)


class _Search:
    """Follows imports from one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folders = [str(path.parent)]
        self._modules: dict[str, ImportedModule | None] = {}
        """None if there is no such module, or it is not followed."""
        self._installed: dict[str, None] = {}
        self._files: dict[str, Path] = {}
        self._waiting: list[tuple[Path, bytes, str]] = []
        """Path, source and package of files still to be read."""

    def run(self, source: bytes) -> ImportedCode:
        importlib.invalidate_caches()  # a file created within one tick of the clock would be missed
        self._waiting.append((self._path, source, ""))
        while self._waiting and len(self._modules) < _MOST_MODULES:
            self._read_source(*self._waiting.pop(0))
        modules = {name: module for name, module in self._modules.items() if module is not None}
        missing = frozenset(self._modules.keys() - modules.keys())
        return ImportedCode(modules, tuple(sorted(self._installed)), dict(sorted(self._files.items())), missing)

    def _read_source(self, path: Path, source: bytes, package: str) -> None:

        asked = read_imports(source, path)
        self._folders += [folder for folder in asked.folders if folder not in self._folders]
        for file in asked.files:
            self._add_file(Path(file))
        for level, name in asked.modules:
            base = package.split(".")[: len(package.split(".")) - level + 1] if level and package else []
            self._add_module(".".join([*base, name] if name else base))

    def _add_file(self, path: Path) -> None:
        folder = self._path.parent
        place = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
        if path == self._path or place in self._files or not path.is_file():
            return
        self._files[place] = path
        if path.suffix == ".py":
            self._waiting.append((path, path.read_bytes(), ""))

    def _add_module(self, name: str) -> bool:
        """Find a module, its packages first; return whether it is followed."""
        if not name or not all(word.isidentifier() for word in name.split(".")):
            return False
        if name not in self._modules:
            parent = name.rpartition(".")[0]
            inside = parent == "" or self._add_module(parent)
            self._modules[name] = self._find(name) if inside else None
        return self._modules[name] is not None

    def _find(self, name: str) -> ImportedModule | None:
        parent, _, word = name.rpartition(".")
        package = self._modules.get(parent)
        if package is not None:
            return self._read(name, _locate(word, package.folders))
        if name in sys.stdlib_module_names or name == "ndld_flow":
            return None
        candidate = None if name in _LIBRARIES else _locate(word, self._folders)
        if candidate is None or candidate.is_namespace:
            elsewhere = _locate_installed(name)
            if elsewhere == _INSTALLED or name in _LIBRARIES:
                self._installed[name] = None
                return None
            candidate = elsewhere or candidate
        return self._read(name, candidate)

    def _read(self, name: str, place: _Place | None) -> ImportedModule | None:
        if place is None:
            return None
        if place.file is None:
            return ImportedModule(name, None, b"", place.folders)
        try:
            module = ImportedModule(name, place.file, place.file.read_bytes(), place.folders)
        except OSError:
            return None  # the import itself will report it
        if place.file.suffix == ".py":
            package = name if place.folders else name.rpartition(".")[0]
            self._waiting.append((place.file, module.source, package))
        return module


@dataclass(frozen=True)
class _Place:
    """The location of a module."""

    file: Path | None
    folders: tuple[str, ...] = ()

    @property
    def is_namespace(self) -> bool:
        return self.file is None


_INSTALLED = _Place(None, ("installed",))


def _locate(word: str, folders: Sequence[str]) -> _Place | None:
    """Find a module in folders as Python does: a package, then a module, then a folder without `__init__.py`."""
    portions = []
    for folder in folders:
        package = Path(folder, word)
        if (package / "__init__.py").is_file():
            return _Place(package / "__init__.py", (str(package),))
        files = (Path(folder, f"{word}{suffix}") for suffix in (*importlib.machinery.EXTENSION_SUFFIXES, ".py"))
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            return _Place(file)
        if package.is_dir():
            portions.append(str(package))
    return _Place(None, tuple(portions)) if portions else None


def _locate_installed(name: str) -> _Place | None:
    """Find a top-level module as a fresh Python process would; `_INSTALLED` if it belongs to a distribution."""
    for finder in sys.meta_path:
        if finder is _FINDER:
            continue
        try:
            spec = finder.find_spec(name, None)
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            folders = tuple(spec.submodule_search_locations or ())
            file = Path(spec.origin) if spec.has_location and spec.origin else None
            places = [str(file)] if file is not None else list(folders)
            return _INSTALLED if not places or any(map(_is_installed, places)) else _Place(file, folders)
    return None


def _is_installed(place: str) -> bool:
    parts = Path(place).parts
    return "site-packages" in parts or "dist-packages" in parts or place.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(f"{paths[name]}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


# --- loading ---------------------------------------------------------------------------------------------------------


def use_modules(code: ImportedCode, *, alone: bool = False) -> None:
    """Make imports find these modules, with the contents that were read; modules with other contents are unloaded.

    Python's own loader would run outdated bytecode of a file that has just changed, and a long-lived process would keep
    its first import. With `alone`, the imports of other files are forgotten too.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    before = _FINDER.modules
    kept = {} if alone else {name: module for name, module in before.items() if name not in code.missing}
    _FINDER.modules = {**kept, **code.modules}
    if before.keys() - _FINDER.modules.keys() or any(map(_is_other, _FINDER.modules.values())):
        for name in {**before, **_FINDER.modules}:  # each importer of a changed module has its old contents
            sys.modules.pop(name, None)


def unseen_modules(before: Collection[str], code: Iterable[ImportedCode]) -> list[str]:
    """Return the modules, imported since `before` and not from a distribution, that no source names.

    Their names were computed, so that a change in them goes unnoticed.
    """
    seen = {str(path) for each in code for path in (*files_of(each).values(), *each.files.values())}
    new = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name not in before}
    return [
        name
        for name, file in new.items()
        if file and not _is_installed(file) and file not in seen and not name.startswith("ndld_flow")
    ]


def _is_other(module: ImportedModule) -> bool:
    loaded = sys.modules.get(module.name)
    return loaded is not None and getattr(loaded.__spec__, "loader_state", None) != (str(module.path), module.digest)


class _Finder:
    """Find the modules in use.

    Like `_Loader`, it has the methods of the protocol and not its base class, whose module imports many others.
    """

    def __init__(self) -> None:
        self.modules: dict[str, ImportedModule] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        module = self.modules.get(fullname)
        if module is None:
            return None
        if module.path is None:
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        else:
            compiled = module.path.suffix != ".py"
            loader = None if compiled else _Loader(module)
            # The stubs require `load_module`, which `exec_module` has replaced.
            located = importlib.util.spec_from_file_location(fullname, module.path, loader=loader)  # type: ignore[arg-type]
            assert located is not None  # it has a suffix of Python
            spec = located
        if module.folders:
            spec.submodule_search_locations = list(module.folders)
        spec.loader_state = (str(module.path), module.digest)
        return spec


class _Loader:
    """Run a module's source as it was read."""

    def __init__(self, module: ImportedModule) -> None:
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave the creation of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        code = compile(self._module.source, str(self._module.path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - trusted, as the file that imports it

    def is_package(self, fullname: str) -> bool:
        del fullname
        return bool(self._module.folders)


_FINDER = _Finder()


_IMPORTERS = {"import_module", "__import__"}
_JOINS = {"join", "joinpath"}
_KEEPS = {"abspath", "absolute", "expanduser", "fspath", "normpath", "Path", "PurePath", "realpath", "resolve", "str"}


@dataclass(frozen=True)
class SourceImports:
    """The imports and paths in a file's source."""

    modules: tuple[tuple[int, str], ...]
    """Level (0 is absolute) and dotted name of each module that it may import, anywhere in the file; for
    `from a import b` both `a` and `a.b`."""
    folders: tuple[str, ...]
    """Folders that it adds to `sys.path`."""
    files: tuple[str, ...]
    """Other paths that it builds from its own (`Path(__file__).parent / "table.json"`), whether they exist or not."""


@lru_cache(maxsize=1000)
def read_imports(source: bytes, path: Path) -> SourceImports:
    """Return the imports of a source; none if it is not Python, which the import itself will report."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return SourceImports((), (), ())
    nodes = list(ast.walk(tree))
    paths = _Paths(str(path.absolute()), _constants(tree))
    folders = [value for node in nodes if (argument := _added_to_path(node)) and (value := paths.evaluate(argument))]
    files = [value for node in nodes if isinstance(node, ast.expr) and (value := paths.evaluate(node))]
    modules = [value for node in nodes for value in _imported(node)]
    return SourceImports(tuple(dict.fromkeys(modules)), tuple(dict.fromkeys(folders)), tuple(dict.fromkeys(files)))


def _imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((0, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        yield node.level, base
        yield from ((node.level, f"{base}.{alias.name}".lstrip(".")) for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and _called(node) in _IMPORTERS and node.args:
        first = node.args[0]
        name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
        yield len(name) - len(name.lstrip(".")), name.lstrip(".")


def _added_to_path(node: ast.AST) -> ast.expr | None:
    """Return the argument of `sys.path.insert(0, ...)` or `.append(...)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return None
    held = node.func.value
    on_path = isinstance(held, ast.Attribute) and held.attr == "path" and _name(held.value) == "sys"
    return node.args[-1] if on_path and node.func.attr in ("insert", "append") else None


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values assigned to names at the top level of a module."""
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            constants |= {target.id: node.value for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            constants[node.target.id] = node.value
    return constants


@dataclass(frozen=True)
class _Paths:
    """Evaluates paths that are built from `__file__`."""

    file: str
    constants: Mapping[str, ast.expr]

    def evaluate(self, node: ast.expr) -> str:
        """Return the path that an expression evaluates to; empty if unknown, or not built from `__file__`."""
        path, from_file = self._evaluate(node, 20)
        return os.path.normpath(path) if path and from_file else ""

    def _evaluate(self, node: ast.expr, depth: int) -> tuple[str, bool]:
        """Return the text, empty if unknown, and whether it is built from `__file__`."""
        if depth == 0:
            return "", False
        if isinstance(node, ast.Constant):
            return (node.value, False) if isinstance(node.value, str) else ("", False)
        if isinstance(node, ast.Name):
            return self._evaluate_name(node.id, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return self._join([node.left, node.right], depth)
        if isinstance(node, ast.Attribute):
            return self._parent(node.value, 1, depth) if node.attr == "parent" else ("", False)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, depth)
        return self._call(node, depth) if isinstance(node, ast.Call) else ("", False)

    def _evaluate_name(self, name: str, depth: int) -> tuple[str, bool]:
        if name == "__file__":
            return self.file, True
        return self._evaluate(self.constants[name], depth - 1) if name in self.constants else ("", False)

    def _call(self, node: ast.Call, depth: int) -> tuple[str, bool]:
        called, method = _called(node), isinstance(node.func, ast.Attribute)
        if called in _JOINS:
            before = [node.func.value] if isinstance(node.func, ast.Attribute) and called == "joinpath" else []
            return self._join([*before, *node.args], depth)
        if called == "dirname" and node.args:
            return self._parent(node.args[0], 1, depth)
        if called in _KEEPS and len(node.args) == 1:
            return self._evaluate(node.args[0], depth - 1)
        if called in _KEEPS and len(node.args) > 1:
            return self._join(node.args, depth)
        if called in _KEEPS and method and isinstance(node.func, ast.Attribute):
            return self._evaluate(node.func.value, depth - 1)
        return "", False

    def _subscript(self, node: ast.Subscript, depth: int) -> tuple[str, bool]:
        """Evaluate `Path(__file__).parents[1]`."""
        held, index = node.value, node.slice
        if isinstance(held, ast.Attribute) and held.attr == "parents" and isinstance(index, ast.Constant):
            return self._parent(held.value, index.value + 1, depth) if isinstance(index.value, int) else ("", False)
        return "", False

    def _parent(self, node: ast.expr, count: int, depth: int) -> tuple[str, bool]:
        text, from_file = self._evaluate(node, depth - 1)
        for _ in range(min(count, 50)):
            text = os.path.dirname(text)  # noqa: PTH120 - text, as in the source
        return text, from_file

    def _join(self, nodes: list[ast.expr], depth: int) -> tuple[str, bool]:
        parts = [self._evaluate(node, depth - 1) for node in nodes]
        if not all(text for text, _ in parts):
            return "", False
        return os.path.join(*(text for text, _ in parts)), parts[0][1]  # noqa: PTH118


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
