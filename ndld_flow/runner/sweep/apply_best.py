"""Write the best point's settings as a recipe."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.recipe.apply_point import apply_point
from ndld_flow.recipe.config_files import finds_the_same
from ndld_flow.recipe.points import Sweep
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.runner.request import Request
from ndld_flow.runner.sweep.try_points import TriedPoints
from ndld_flow.store.files import write_bytes_atomically

MARK = "# The best of sweep "
"""The beginning of such a file: only files that begin so are overwritten."""


def check_target(sweep: Sweep, request: Request) -> None:
    """Raise RequestError, before anything runs, where `--apply` could not write the best point at the end."""
    target = request.apply
    if target is None:
        return
    if request.given is not None:
        raise RequestError(f"--apply {target}: the recipe has no file, whose text the new recipe would keep.")
    if not sweep.objectives:
        raise RequestError(
            f"--apply {target}: the sweep has no objective, so no point will be best: set `sweep.minimize=METRIC`."
        )
    if target.exists() and not _is_ours(target):
        raise RequestError(f"--apply {target}: the file exists, and no sweep wrote it. Choose another name.")
    folder = request.recipe.absolute().parent
    values = sweep.variations.composed.file.values
    steps_from = "steps_from" in values and target.absolute().parent != folder
    if steps_from or not finds_the_same(values, request.recipe, target):
        key = "steps_from" if steps_from else "defaults"
        raise RequestError(
            f"--apply {target}: the recipe's `{key}:` names files relative to it, so write the new one next to it: "
            f"{folder / target.name}."
        )


def apply_best(record: SweepRecord, tried: TriedPoints, sweep: Sweep, request: Request) -> str:
    """Write the recipe of the best point; return its path, or an empty text without a request or a best point.

    It gets the point's true values: those of the record are without credentials, and the recipe is the user's own.
    Raises OutputsError when it cannot be written.
    """
    best = next((point for point in tried.points if point.number == record.best), None)
    if request.apply is None or best is None:
        return ""
    heading = f"{MARK}{record.recipe_name}/{record.id}: point {best.number}, by `ndld-flow run ... --apply`.\n"
    text = heading + apply_point(request.recipe, best.changes, sweep.plain_overrides)
    try:
        write_bytes_atomically(request.apply, text.encode())
    except OSError as error:
        raise OutputsError(f"--apply {request.apply}: it cannot be written: {error.strerror}.") from None
    return str(request.apply)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(MARK)) == MARK.encode()
    except OSError:
        return False
