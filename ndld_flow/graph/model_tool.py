"""External programs that convert a model: their inputs, and checks of their output."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from ndld_flow.base.errors import ModelError, RequestError, check_known
from ndld_flow.graph.edit.edit_file import Entry, edit_file
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.operations.weights import ImportWeights
from ndld_flow.inputs import InputSpec
from ndld_flow.models.changed_model import check_changed_model
from ndld_flow.models.external_files import external_file, external_files
from ndld_flow.models.files import load_model, model_inputs
from ndld_flow.processes.launch import Program, run_program
from ndld_flow.records.model_diff import GraphChange
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.store.files import copy_file
from ndld_flow.store.kinds import Onnx, is_reserved


def copy_model(source: Path, folder: Path) -> Path:
    """Copy a model with its external data to another folder."""
    target = folder / Onnx.main
    copy_file(source, target)
    for name in external_files(source):
        copy_file(external_file(source, name).path, folder / name)
    return target


def run_on_model(program: Program, source: Path, on_line: Callable[[str], None]) -> None:
    """Run a program that must not change a model.

    Raises as `run_program` does, and `RequestError` if the model changed.
    """
    before = {path: _stamp(path) for path in (source, *(source.parent / name for name in external_files(source)))}
    run_program(program, on_line)
    changed = [path.name for path, stamp in before.items() if _stamp(path) != stamp]
    if changed:
        raise RequestError(
            f"the program {program.name!r} changed its input model ({', '.join(changed)}), which other steps read; "
            "set `in_place: true` to give it a copy"
        )


def _stamp(path: Path) -> tuple[int, int]:
    if not path.exists():
        return (-1, -1)
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def move_model(source: Path, output: Path, out: Path, name: str, log: logging.Logger) -> list[str]:
    """Move the model that a program made from `source`, with its external data, to `out`. Returns the other files that
    the program wrote.

    Raises `ModelError` if there is no model, it has a defect that its source does not have, or its external data is
    elsewhere.
    """
    if not output.is_file():
        left = sorted(path.name for path in output.parent.iterdir()) if output.parent.is_dir() else []
        listing = f"; it left {', '.join(left[:5])}" if left else ""
        raise ModelError(f"the program {name!r} succeeded but wrote no model to $Output{listing}")
    try:
        load_model(output)
        check_changed_model(source, output, log, new_types=True, strict=False)
    except ModelError as error:
        reason = str(error).removeprefix(f"{output}: ")
        raise ModelError(f"the output of program {name!r} is not a valid model: {reason}") from None
    files = [Onnx.main, *external_files(output)]
    for file in files:
        if is_reserved(file):
            raise ModelError(
                f"the program {name!r} wrote external data to {file}, a name reserved for the step's own files"
            )
        written, target = output.parent / file, out / file
        if written.is_symlink() or written.stat().st_nlink > 1:  # others could change it later
            copy_file(written.resolve(), target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(written, target)
    return sorted(str(path.relative_to(output.parent)) for path in output.parent.rglob("*") if path.is_file())


def write_input(model: Path, name: str, inputs: Mapping[str, InputSpec], folder: Path) -> Path:
    """Write the values of an input, as set by the recipe's `inputs:`, to a `.npy` file. Raises `RequestError`."""
    feeds = make_feeds(model_inputs(model), inputs)
    check_known([name], feeds, "the model has no input")
    path = folder / f"input_{list(feeds).index(name)}.npy"
    np.save(path, feeds[name].values, allow_pickle=False)
    return path


def import_trained(source: Path, weights: Path, names: Path, target: Path, log: logging.Logger) -> GraphChange:
    """Write a model with weights that a program trained in the module that `export_pytorch` made of it.

    Raises `RequestError` if they do not fit, as the operation `import_weights` does.
    """
    operation = ImportWeights(weights_from=(weights,), names=names)
    edited = EditedModel(load_model(source), source, log=log)
    return edit_file(edited, [Entry("$Weights", operation)], target)
