"""Draw the report of a run from its folder."""

from __future__ import annotations

import os
from pathlib import Path

from ndld_flow.errors import OutputsError
from ndld_flow.report.collector_at_rest import collector_at_rest
from ndld_flow.report.page import collect_page
from ndld_flow.report.render import render
from ndld_flow.report.run_folder import read_run


def draw_report(run_folder: Path) -> Path:
    """Write `report.html` into a run's folder, whole or not at all, and return its path.

    Raises a `RequestError` when the folder holds no readable run, and an `OutputsError` when the
    report cannot be written.
    """
    with collector_at_rest():
        text = render(collect_page(read_run(run_folder)))
    report = run_folder / "report.html"
    aside = run_folder / f".report.{os.getpid()}.html"
    try:
        aside.write_text(text, encoding="utf-8", newline="\n")
        aside.replace(report)
    except OSError as error:
        raise OutputsError(
            f"{report} cannot be written ({error.strerror}). "
            "Make room or give yourself the right to write there, then run `ndld-flow report` again."
        ) from error
    finally:
        aside.unlink(missing_ok=True)
    return report
