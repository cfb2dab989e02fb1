"""A program that makes a model out of a model: what it is given, and what it may leave."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.text import suggest
from ndld_flow.inputs import InputSpec
from ndld_flow.models.declared_inputs import model_inputs
from ndld_flow.models.external_files import external_files
from ndld_flow.models.files import check_model, load_model
from ndld_flow.processes.program import Program, run_program
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.store.files import copy_file
from ndld_flow.store.kinds import Onnx, is_reserved


def copy_model(source: Path, folder: Path) -> Path:
    """A model with its external data in another folder."""
    target = folder / Onnx.main
    copy_file(source, target)
    for name in external_files(source):
        copy_file(source.parent / name, folder / name)
    return target


def run_on_model(program: Program, source: Path, hear: Callable[[str], None]) -> None:
    """Run a program that must leave a model as it is. Raises as `run_program` does, and `RequestError` when it did not
    leave it.
    """
    before = _stamps(source)
    run_program(program, hear)
    changed = [path.name for path, stamp in before.items() if _stamp(path) != stamp]
    if changed:
        raise RequestError(
            f"the program {program.name!r} changed the model it was given ({', '.join(changed)}), which others read; "
            "say `in_place: true`, then it gets a copy"
        )


def _stamps(source: Path) -> dict[Path, tuple[int, int]]:
    paths = [source, *(source.parent / name for name in external_files(source))]
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> tuple[int, int]:
    if not path.exists():
        return (-1, -1)
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def take_model(made: Path, out: Path, name: str) -> list[str]:
    """Move the model that a program made, and its external data, to `out`. Returns what else it left.

    Raises `ModelError` when there is none, it is not valid, or its external data lies elsewhere.
    """
    if not made.is_file():
        left = sorted(path.name for path in made.parent.iterdir()) if made.parent.is_dir() else []
        told = f"; it left {', '.join(left[:5])}" if left else ""
        raise ModelError(f"the program {name!r} ended well but wrote no model to $Output{told}")
    try:
        load_model(made)
        check_model(made)
    except ModelError as error:
        reason = str(error).removeprefix(f"{made}: ")
        raise ModelError(f"what the program {name!r} wrote to $Output is no valid model: {reason}") from None
    files = [Onnx.main, *external_files(made)]
    for file in files:
        if is_reserved(file):
            raise ModelError(f"the program {name!r} wrote external data to {file}, which is kept for the step's own")
        _take(made.parent / file, out / file)
    return sorted(str(path.relative_to(made.parent)) for path in made.parent.rglob("*") if path.is_file())


def _take(made: Path, target: Path) -> None:
    """Move a file; of a link, or a file that has other names too, take a copy: nobody else may change it later."""
    if made.is_symlink() or made.stat().st_nlink > 1:
        copy_file(made.resolve(), target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)


def write_input(model: Path, name: str, inputs: Mapping[str, InputSpec], folder: Path) -> Path:
    """The values of an input, as the recipe's `inputs:` say, in a `.npy` file. Raises `RequestError`."""
    feeds = make_feeds(model_inputs(model), inputs)
    if name not in feeds:
        raise RequestError(f"the model has no input {name!r}; {suggest(name, feeds)}")
    path = folder / f"input_{list(feeds).index(name)}.npy"
    np.save(path, feeds[name].values, allow_pickle=False)
    return path
