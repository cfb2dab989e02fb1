"""Write the best point's settings as a recipe of its own."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.recipe.apply_point import apply_point
from ndld_flow.recipe.config_files import finds_the_same
from ndld_flow.recipe.points import Sweep
from ndld_flow.records.sweep import SweepRecord
from ndld_flow.runner.state import Request
from ndld_flow.runner.sweep.try_points import Tried
from ndld_flow.store.files import write_bytes_atomically

MARK = "# The best of sweep "
"""How such a file begins: it may be written anew, and no other."""


def check_target(sweep: Sweep, request: Request) -> None:
    """Raise RequestError, before anything is done, where `--apply` could not write the best point in the end."""
    target = request.apply
    if target is None:
        return
    if not sweep.objectives:
        raise RequestError(
            f"--apply {target}: nothing is looked for, so no point will be best: say `sweep.minimize=METRIC`."
        )
    if target.exists() and not _is_ours(target):
        raise RequestError(f"--apply {target}: the file exists, and no sweep wrote it. Choose another name.")
    beside = request.recipe.absolute().parent
    values = sweep.variations.composed.file.values
    steps_from = "steps_from" in values and target.absolute().parent != beside
    if steps_from or not finds_the_same(values, request.recipe, target):
        key = "steps_from" if steps_from else "defaults"
        raise RequestError(
            f"--apply {target}: the recipe's `{key}:` names files relative to it, so write it beside: "
            f"{beside / target.name}."
        )


def apply_best(record: SweepRecord, tried: Tried, sweep: Sweep, request: Request) -> str:
    """Return the path of the recipe that was written; empty where none was asked for, or no point is best.

    It gets the point's true values: the record's are without credentials, and the recipe is the user's own.

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
