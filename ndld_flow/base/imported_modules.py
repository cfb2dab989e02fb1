"""Modules that a person's Python file imports from where it lies: found without running it, loaded as they were read.

A file may import what lies beside it, also late (inside a function), by package or relatively. Its own folder comes
first, then the folders that it adds to `sys.path` by a path built from `__file__`, then Python's own search. Modules of
the standard library and of installed distributions are not followed: these have versions.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

from blake3 import blake3

_LIBRARIES = frozenset(
    (
        *("av", "blake3", "click", "filelock", "fsspec", "google", "hydra", "jinja2", "matplotlib", "ml_dtypes"),
        *("numpy", "omegaconf", "onnx", "onnx_graphsurgeon", "onnx_ir", "onnxruntime", "onnxscript", "optuna"),
        *("pandas", "polygraphy", "pydantic", "pydantic_core", "ray", "re2", "rich", "yaml"),
    )
)
"""What ndld_flow itself imports, also late: a file of that name beside a step does not take its place."""
_MOST_MODULES = 2000
"""More are no helpers of a step."""


@dataclass(frozen=True)
class ImportedModule:
    """A module as it was when it was read."""

    name: str
    path: Path | None
    """None for a package without a file of its own."""
    source: bytes
    folders: tuple[str, ...] = ()
    """Where modules inside it are looked for; empty for what is no package."""

    @cached_property
    def digest(self) -> str:
        """blake3 of its contents."""
        return blake3(self.source).hexdigest()


@dataclass(frozen=True)
class ImportedCode:
    """What a file imports and reads, and what those modules do."""

    modules: Mapping[str, ImportedModule] = field(default_factory=dict)
    """By dotted name, as Python will know them."""
    installed: tuple[str, ...] = ()
    """Top-level modules of installed distributions."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Other files that it reads by paths built from `__file__`, by their path from the file's folder."""
    missing: frozenset[str] = frozenset()
    """Names that it imports and that are no module, or none that is followed."""

    @property
    def digests(self) -> dict[str, str]:
        """Name -> digest, of modules that have contents."""
        return {name: module.digest for name, module in sorted(self.modules.items()) if module.path is not None}

    def conflict_with(self, other: ImportedCode) -> str:
        """Return the name of a module that is not the same here and there; empty where none is."""
        both = self.modules.keys() & other.modules.keys()
        return next((name for name in sorted(both) if self.modules[name].path != other.modules[name].path), "")


def files_of(code: ImportedCode) -> dict[str, Path]:
    """Return the files of modules, and those that they read, by the places that they need beside a copy of the file."""
    found = {name: path for name, path in code.files.items() if not name.startswith("..")}
    for name, module in code.modules.items():
        if module.path is not None:
            place = name.replace(".", "/")
            found[f"{place}/__init__.py" if module.folders else f"{place}{_suffix(module.path)}"] = module.path
    return found


def _suffix(path: Path) -> str:
    """`.py`, or all of `.cpython-311-x86_64-linux-gnu.so`."""
    return path.name[path.name.index(".") :]


def find_imported_by(module: ModuleType) -> ImportedCode | None:
    """Return what an imported module's file imports; None for a module of an installed distribution."""
    path = getattr(module, "__file__", None)
    if path is None or _is_installed(path):
        return None
    source = Path(path).read_bytes()
    return find_imported(Path(path), source)


def find_imported(path: Path, source: bytes) -> ImportedCode:
    """Return what a file imports and reads, directly and through its modules, as far as their text shows it."""
    return _Search(path.absolute()).run(source)


class _Search:
    """Follows imports from one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folders = [str(path.parent)]
        self._modules: dict[str, ImportedModule | None] = {}
        """None: there is no such module, or it is not followed."""
        self._installed: dict[str, None] = {}
        self._files: dict[str, Path] = {}
        self._waiting: list[tuple[Path, bytes, str]] = []
        """Path, source and package of what is still to be looked through."""

    def run(self, source: bytes) -> ImportedCode:
        importlib.invalidate_caches()  # a file that came within a tick of the clock would not be seen
        self._waiting.append((self._path, source, ""))
        while self._waiting and len(self._modules) < _MOST_MODULES:
            self._look_through(*self._waiting.pop(0))
        modules = {name: module for name, module in self._modules.items() if module is not None}
        missing = frozenset(self._modules.keys() - modules.keys())
        return ImportedCode(modules, tuple(sorted(self._installed)), dict(sorted(self._files.items())), missing)

    def _look_through(self, path: Path, source: bytes, package: str) -> None:
        from ndld_flow.base.source_imports import read_imports

        asked = read_imports(source, path)
        self._folders += [folder for folder in asked.folders if folder not in self._folders]
        for file in asked.files:
            self._add_file(Path(file))
        for level, name in asked.modules:
            base = package.split(".")[: len(package.split(".")) - level + 1] if level and package else []
            self._add_module(".".join([*base, name] if name else base))

    def _add_file(self, path: Path) -> None:
        place = _relative(path, self._path.parent)
        if path == self._path or place in self._files or not path.is_file():
            return
        self._files[place] = path
        if path.suffix == ".py":
            self._waiting.append((path, path.read_bytes(), ""))

    def _add_module(self, name: str) -> bool:
        """Look for a module, its packages first; return whether it is one to follow."""
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
        beside = None if name in _LIBRARIES else _locate(word, self._folders)
        if beside is None or beside.is_namespace:
            elsewhere = _locate_installed(name)
            if elsewhere == _INSTALLED or name in _LIBRARIES:
                self._installed[name] = None
                return None
            beside = elsewhere or beside
        return self._read(name, beside)

    def _read(self, name: str, place: _Place | None) -> ImportedModule | None:
        if place is None:
            return None
        if place.file is None:
            return ImportedModule(name, None, b"", place.folders)
        try:
            module = ImportedModule(name, place.file, place.file.read_bytes(), place.folders)
        except OSError:
            return None  # importing it will tell
        if place.file.suffix == ".py":
            package = name if place.folders else name.rpartition(".")[0]
            self._waiting.append((place.file, module.source, package))
        return module


@dataclass(frozen=True)
class _Place:
    """Where a module lies."""

    file: Path | None
    folders: tuple[str, ...] = ()

    @property
    def is_namespace(self) -> bool:
        return self.file is None


_INSTALLED = _Place(None, ("installed",))


def _locate(word: str, folders: Sequence[str]) -> _Place | None:
    """Find a module in folders as Python does: a package before a module, a folder without `__init__.py` at last."""
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
    """Find a top-level module as Python would in a process of its own; `_INSTALLED` where it has a version."""
    for finder in sys.meta_path:
        if finder is _FINDER:
            continue
        try:
            spec = finder.find_spec(name, None)
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            return _place_of(spec)
    return None


def _place_of(spec: importlib.machinery.ModuleSpec) -> _Place:
    folders = tuple(spec.submodule_search_locations or ())
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    places = [str(file)] if file is not None else list(folders)
    return _INSTALLED if not places or any(map(_is_installed, places)) else _Place(file, folders)


def _is_installed(place: str) -> bool:
    parts = Path(place).parts
    return "site-packages" in parts or "dist-packages" in parts or place.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(f"{paths[name]}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


# --- loading ---------------------------------------------------------------------------------------------------------


def use_modules(code: ImportedCode, *, alone: bool = False) -> None:
    """Have imports find these modules, as they were read, from now on; those of other contents are forgotten.

    Python's own loader would run compiled code of before where a file was changed quickly, and a process that lasts
    would go on with what it imported first. `alone`: what other files import is forgotten too.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    before = _FINDER.modules
    kept = {} if alone else {name: module for name, module in before.items() if name not in code.missing}
    _FINDER.modules = {**kept, **code.modules}
    if before.keys() - _FINDER.modules.keys() or any(map(_is_other, _FINDER.modules.values())):
        for name in {**before, **_FINDER.modules}:  # whatever imported one of them holds its old contents
            sys.modules.pop(name, None)


def unseen_modules(before: Collection[str], code: Iterable[ImportedCode]) -> list[str]:
    """Return the modules that were imported since then from where no distribution is installed, and that no text shows:
    by a name that was computed. Nothing notices a change in them.
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


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules in use."""

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
            found = importlib.util.spec_from_file_location(fullname, module.path, loader=loader)
            assert found is not None  # it ends as Python files do
            spec = found
        if module.folders:
            spec.submodule_search_locations = list(module.folders)
        spec.loader_state = (str(module.path), module.digest)
        return spec


class _Loader(importlib.abc.Loader):
    """Runs a module's source as it was read."""

    def __init__(self, module: ImportedModule) -> None:
        self._module = module

    def exec_module(self, module: ModuleType) -> None:
        code = compile(self._module.source, str(self._module.path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - trusted, as the file that imports it

    def is_package(self, fullname: str) -> bool:
        del fullname
        return bool(self._module.folders)


_FINDER = _Finder()
