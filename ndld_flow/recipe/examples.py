"""Presets and example recipes that come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.base.text import suggest
from ndld_flow.recipe.yaml_file import read_yaml
from ndld_flow.store.files import write_bytes_atomically

_PACKAGE = Path(__file__).parent.parent


def shipped_folder(name: str) -> Path:
    """Return the folder `configs` or `pipelines` of the package; in a clone it is the one of the repository."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def example_names() -> list[str]:
    """Return the names of the example recipes, such as `quickstart`."""
    return sorted(path.stem for path in shipped_folder("pipelines").glob("*.yaml"))


def write_example(name: str, *, overwrite: bool = False) -> Path:
    """Copy an example recipe and the data that it names to `pipelines/` in the current directory, where its own
    comments expect it; return the recipe's path. Existing files are kept.

    Raises RequestError for an unknown name and if the recipe exists.
    """
    if name not in example_names():
        raise RequestError(f"There is no example {name!r}; {suggest(name, example_names())}")
    shipped, target = shipped_folder("pipelines"), Path("pipelines")
    recipe = target / f"{name}.yaml"
    if recipe.exists() and not overwrite:
        raise RequestError(f"{recipe}: the file exists. Run it, or give --overwrite.")
    try:
        recipe.parent.mkdir(parents=True, exist_ok=True)
        for data in _data_files(read_yaml(shipped / recipe.name).values, shipped):
            copied = target / data.relative_to(shipped)
            if not copied.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                write_bytes_atomically(copied, data.read_bytes())
        write_bytes_atomically(recipe, (shipped / recipe.name).read_bytes())
    except OSError as error:
        raise OutputsError(f"{recipe}: the example cannot be written ({error.strerror}).") from None
    return recipe


def _data_files(values: object, shipped: Path) -> Iterator[Path]:
    """Yield the files that a recipe names by paths, globs or folders that start with `pipelines/`."""
    if isinstance(values, str) and values.startswith("pipelines/"):
        for path in shipped.parent.glob(values):
            yield from [path] if path.is_file() else path.glob("**/*.png")
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _data_files(value, shipped)
