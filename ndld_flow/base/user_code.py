"""Python files that a recipe names and the user trusts: what may decide their results, and their import.

Nobody can know which files a program reads. So its results depend on every file in its folder and below, and on the
modules that importing it loads from elsewhere. Modules of the standard library and of installed distributions are not
among these: they have versions.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, ModuleType

from blake3 import blake3

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import one_paragraph

MAX_BYTES = 200_000_000
"""Size of a folder above which a recipe is refused: all of it would be read for each plan."""
MAX_FILES = 20_000
_GENERATED = frozenset({"outputs", "__pycache__"})
_STORE_MARK = "store/FORMAT"
"""The file that every outputs folder has before anything else is written to it."""
_OF_OUTPUTS = frozenset({"runs", "runs.jsonl", "store", "sweeps"})
"""Contents of an outputs folder, for one that users share with their own files."""
_LIBRARIES = frozenset(
    (
        *("av", "blake3", "click", "filelock", "fsspec", "google", "hydra", "jinja2", "matplotlib", "ml_dtypes"),
        *("ndld_flow", "numpy", "omegaconf", "onnx", "onnx_graphsurgeon", "onnx_ir", "onnxruntime", "onnxscript"),
        *("openvino", "optuna", "pandas", "polygraphy", "pydantic", "pydantic_core", "ray", "re2", "rich", "yaml"),
    )
)
"""Libraries that ndld_flow itself imports, also lazily: a file with such a name in a step's folder does not shadow
them."""


def list_files(path: Path) -> dict[str, Path]:
    """Return every file in a file's folder and below, by its path relative to that folder, in order.

    Left out are hidden folders, `__pycache__`, virtual environments, and outputs folders, whatever their name.
    Raises RequestError if the folder is too large to be read for each plan.
    """
    folder, files, size, folders = path.absolute().parent, dict[str, Path](), 0, 0
    around = {str(folder): frozenset({os.path.realpath(folder)})}
    """Folder -> the real paths of it and of those that it was reached through."""
    for place, names, leaves in os.walk(folder, followlinks=True):
        above, folders = around.pop(place), folders + 1
        left_out = _OF_OUTPUTS if _is_outputs(Path(place)) else frozenset[str]()
        inner = [Path(place, name) for name in sorted(names) if not name.startswith(".") and name not in left_out]
        names[:] = []
        for each in inner:
            # Only a link to a folder around it is left out: one to another folder counts, although that counts too, as
            # it may be made to point elsewhere.
            if (real := os.path.realpath(each)) not in above and not (
                each.name in _GENERATED or (each / "pyvenv.cfg").exists() or _is_outputs(each)
            ):
                around[os.path.join(place, each.name)] = above | {real}  # noqa: PTH118 - as `os.walk` writes it
                names.append(each.name)
        for leaf in sorted(Path(place, name) for name in leaves if name not in left_out):
            with contextlib.suppress(OSError):  # a link to nothing
                status = leaf.stat()
                if stat.S_ISREG(status.st_mode):
                    files[leaf.relative_to(folder).as_posix()] = leaf
                    size += status.st_size
        if size > MAX_BYTES or len(files) + folders > MAX_FILES:
            raise RequestError(
                f"{path}: all files in its folder and below are part of the key of a step that uses it, and {folder} "
                f"has more than {MAX_BYTES // 10**6} MB or {MAX_FILES:,} files. Give it a folder of its own, with the "
                "files that it needs."
            )
    return files


def _is_outputs(folder: Path) -> bool:
    return (folder / _STORE_MARK).is_file()


@dataclass(frozen=True)
class UserCode:
    """A user's Python file, as it was imported."""

    path: Path
    module: ModuleType | None
    """None if the import failed: the step that uses the file will report it."""
    modules: Mapping[str, ModuleType] = field(default_factory=dict)
    """The modules that importing it loaded, without those of installed distributions."""
    search: tuple[str, ...] = ()
    """Entries that it added to `sys.path`."""
    elsewhere: Mapping[str, Path] = field(default_factory=dict)
    """The modules that it imported from other folders, by name."""
    digest: str = ""
    """Digest of the Python files in its folder and of `elsewhere` when it was imported."""

    @property
    def installed(self) -> list[str]:
        """The top-level modules of installed distributions that the Python files in its folder import."""
        files = list_files(self.path)
        local = {part for name in files for part in _words(name)} | self.modules.keys()
        names = _imported_by(files) - sys.stdlib_module_names - {"ndld_flow"}
        return sorted(name for name in names if name in _LIBRARIES or name not in local)

    def conflict_with(self, other: UserCode) -> str:
        """Return a name that means a module of either folder; empty if none does, or the folders are the same."""
        if self.path.absolute().parent == other.path.absolute().parent:
            return ""
        return min(_local_imports(self.path) & _local_imports(other.path), default="")


def _words(name: str) -> Iterator[str]:
    """Yield the names by which a file may be imported: those of its folders, and its own without suffixes."""
    *folders, leaf = name.split("/")
    yield from folders
    yield leaf.partition(".")[0]


def _imported_by(files: Mapping[str, Path]) -> frozenset[str]:
    """Return the top-level names that the Python files among these import, anywhere in them."""
    sources = (file.read_bytes() for name, file in files.items() if name.endswith(".py"))
    return frozenset().union(*map(_imported_names, sources))


def _local_imports(path: Path) -> frozenset[str]:
    files = list_files(path)
    neighbours = {name.split("/")[0].partition(".")[0] for name in files}
    return _imported_by(files) & neighbours - _LIBRARIES - sys.stdlib_module_names


@lru_cache(maxsize=2000)
def _imported_names(source: bytes) -> frozenset[str]:
    """Return the top-level names that a source imports; none if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return frozenset(name.partition(".")[0] for name in names)


def is_installed(place: str) -> bool:
    """Return whether a file belongs to the standard library, to an installed distribution, or to ndld_flow."""
    parts = place.split(os.sep)  # noqa: PTH206 - `Path.parts` takes ten times as long, and there are thousands of modules
    return "site-packages" in parts or "dist-packages" in parts or place.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    own = f"{Path(__file__).parents[1]}{os.sep}"
    return (own, *(f"{paths[name]}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")))


# --- importing -------------------------------------------------------------------------------------------------------

_IMPORTED: dict[Path, UserCode] = {}


def import_code(path: Path) -> UserCode:
    """Import a user's file, or return it as imported before if no Python file that decides this has changed.

    Raises RequestError if the file cannot be read or is not Python, and whatever its code raises.
    """
    known = _IMPORTED.get(path.absolute())
    if known is not None and known.module is not None and known.digest == _digest_code(known):
        return known
    with user_imports():
        before = [*sys.path]
        module = _run_file(path)
        modules, search = dict(_users_modules()), tuple(entry for entry in sys.path if entry not in before)
        code = UserCode(path, module, modules, search, _find_elsewhere(path))
    code = _IMPORTED[path.absolute()] = replace(code, digest=_digest_code(code))
    return code


def _find_elsewhere(path: Path) -> dict[str, Path]:
    """Return the modules that a file has imported from other folders, by name.

    A program that uses the API may have imported one before, so that importing the file loads nothing.
    """
    folder, own, imported = path.absolute().parent, _users_modules(), _imported_by(list_files(path))
    named = {name: module for name, module in sys.modules.items() if name in own or name.partition(".")[0] in imported}
    files = {name: module.__file__ for name, module in named.items() if getattr(module, "__file__", None)}
    found = {name: Path(file) for name, file in sorted(files.items()) if file and not is_installed(file)}
    return {name: file for name, file in found.items() if not file.is_relative_to(folder)}


def find_code(path: Path) -> UserCode:
    """Return a user's file as `import_code` does, also if its import fails. What it prints is dropped."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return import_code(path)
        except (Exception, SystemExit):  # the step that uses it will report it
            return UserCode(path, None)


def _digest_code(code: UserCode) -> str:
    files = {name: path for name, path in list_files(code.path).items() if name.endswith((".py", ".so", ".pyd"))}
    hasher = blake3()
    for name, path in {**files, **code.elsewhere}.items():
        with contextlib.suppress(FileNotFoundError):
            hasher.update(f"{name}\0{blake3(path.read_bytes()).hexdigest()}\n".encode())
    return hasher.hexdigest()


@contextlib.contextmanager
def user_imports(code: UserCode | None = None) -> Iterator[None]:
    """Let a user's file import from its folder inside the block, and forget the users' modules afterwards.

    Those of an enclosing block are hidden: two files may have different modules of one name next to them.
    """
    path, folders, hidden, writes_none = [*sys.path], _FINDER.folders, _users_modules(), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # what code loads by a path gets Python's own loader: see `_SourceLoader`
    _forget(hidden)
    _FINDER.folders = ()
    try:
        if code is not None:
            _search(code.path.absolute().parent)
            sys.path[:0] = code.search
            _remember(code.modules)
        yield
    finally:
        _forget(_users_modules())
        sys.path[:] = path
        _remember(hidden)
        sys.dont_write_bytecode = writes_none
        _FINDER.folders = folders
        if not folders and _FINDER in sys.meta_path:
            sys.meta_path.remove(_FINDER)
            sys.path_hooks.remove(_open_folder)
            _drop_folders()


def unseen_modules(codes: Mapping[str, UserCode]) -> list[str]:
    """Return the users' modules that this process has imported, and that are in no folder of `codes` or imported by
    them: a change in them goes unnoticed.
    """
    seen = {
        str(path) for code in codes.values() for path in (*list_files(code.path).values(), *code.elsewhere.values())
    }
    return [name for name, module in _users_modules().items() if module.__file__ and module.__file__ not in seen]


def load_user_module(path: Path) -> ModuleType:
    """Import a file, which may import modules from its own folder, from the source that it has now.

    Raises RequestError with the failing line if the file cannot be read, is not Python, or fails.
    """
    with locating_errors(path):
        return _run_file(path)


def _run_file(path: Path) -> ModuleType:
    """Import a file as `load_user_module` does, but raise what its code raises."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: the file cannot be read ({error.strerror})") from None
    _search(path.absolute().parent)
    digest = blake3(f"{path.absolute()}\0".encode() + source).hexdigest()
    name = f"ndld_flow_user_{path.stem}_{digest[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{path}: it is not Python: its name does not end in `.py`")
    # It is in `sys.modules` before its code runs, because dataclasses and pydantic look annotations up there.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - it is trusted
    except BaseException:
        del sys.modules[name]
        raise
    return module


def failing_line(error: BaseException, path: Path) -> str:
    """Return the innermost line of the file in an error's traceback, as `:12`; empty if it has none."""
    file = path.absolute()
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).absolute() == file:
        return f":{error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).absolute() == file:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line


@contextlib.contextmanager
def locating_errors(path: Path) -> Iterator[None]:
    """Turn any exception of the file's code into a RequestError of one paragraph, with the failing line."""
    try:
        yield
    except RequestError:
        raise
    except (Exception, SystemExit) as error:
        reason = one_paragraph(error)
        description = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise RequestError(f"{path}{failing_line(error, path)}: {description}") from error


def _search(folder: Path) -> None:
    """Make imports search a folder first, for all names but those of libraries."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
        sys.path_hooks.insert(0, _open_folder)
        _drop_folders()
    _FINDER.folders = tuple(dict.fromkeys((str(folder), *_FINDER.folders)))
    importlib.invalidate_caches()  # a file created within one tick of the clock would be missed


def _drop_folders() -> None:
    """Make Python open the folders of users' modules again."""
    for entry in [entry for entry in sys.path_importer_cache if not is_installed(f"{entry}{os.sep}")]:
        del sys.path_importer_cache[entry]


def _users_modules() -> dict[str, ModuleType]:
    """Return the modules that were loaded for users' files, with their namespace packages."""
    if not _FINDER.has_loaded:  # a program has thousands of modules, and each step asks four times
        return {}
    modules = {
        name: module
        for name, module in sys.modules.items()
        if isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _FROM_FOLDERS)
    }
    packages = {name.rpartition(".")[0] for name in modules if "." in name} - modules.keys()
    found = {name: sys.modules[name] for name in packages if name in sys.modules}
    return modules | {name: package for name, package in found.items() if getattr(package, "__file__", None) is None}


def _forget(modules: Mapping[str, ModuleType]) -> None:
    """Take all the users' modules out of `sys.modules`."""
    for name in modules:
        sys.modules.pop(name, None)
    _FINDER.has_loaded = False


def _remember(modules: Mapping[str, ModuleType]) -> None:
    """Put the users' modules of a file or of an enclosing block back."""
    sys.modules.update(modules)
    _FINDER.has_loaded = _FINDER.has_loaded or bool(modules)


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compile a module from its source.

    Python compares cached bytecode by size and by whole seconds, and would run the previous code of a file that has
    just changed, under the digest of the new code.
    """

    def get_code(self, fullname: str) -> CodeType:
        _FINDER.has_loaded = True
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _ExtensionLoader(importlib.machinery.ExtensionFileLoader):
    """Load a compiled module of a user."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        _FINDER.has_loaded = True
        return super().create_module(spec)


_FROM_FOLDERS = (_SourceLoader, _ExtensionLoader)


def _open_folder(entry: str) -> importlib.machinery.FileFinder:
    """Return a finder of users' modules in a folder; it is a hook of `sys.path_hooks`."""
    if is_installed(f"{entry}{os.sep}") or not Path(entry or ".").is_dir():
        raise ImportError(f"{entry} is no folder of a user")
    return importlib.machinery.FileFinder(
        entry or ".",
        (_ExtensionLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_SourceLoader, importlib.machinery.SOURCE_SUFFIXES),
    )


class _Finder:
    """Find the modules in the folders of users' files, before those on Python's path."""

    folders: tuple[str, ...] = ()
    has_loaded = False
    """True if `sys.modules` may contain modules from users' files."""

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None or fullname in _LIBRARIES or fullname in sys.stdlib_module_names:
            return None
        own = importlib.machinery.PathFinder.find_spec(fullname, self.folders, target)
        if own is None or (own.loader is not None and own.origin is not None):
            return own
        # A folder without `__init__.py`: Python prefers a package from anywhere on its path.
        return importlib.machinery.PathFinder.find_spec(fullname, [*self.folders, *sys.path], target)


_FINDER = _Finder()
