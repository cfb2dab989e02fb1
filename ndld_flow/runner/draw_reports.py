"""Draw the report of whatever a person names: a run, a sweep, or a profile or an engine that belongs to none."""

from __future__ import annotations

import re
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.read.read_profile import read_build
from ndld_flow.report.draw import draw_report
from ndld_flow.report.profile_page import draw_build, draw_profile
from ndld_flow.report.sweep.draw import draw_sweep
from ndld_flow.report.sweep.read import SWEEP_RECORD, read_sweep_record
from ndld_flow.runner.runs import Outputs
from ndld_flow.runner.subjects import find_subject, is_profile_file
from ndld_flow.store.sharing import share


def draw_any(reference: str, outputs: Path, to: Path | None = None) -> Path:
    """Draw the report of a run, a sweep or a sweep's point into its folder, or the page of a profile or an engine to
    `to` (default: its name with `.html`, here).

    Raises RequestError where there is nothing of that name, or `to` is said of what has a folder.
    """
    if not is_profile_file(reference):
        if to is not None:
            raise RequestError(f"{reference} is a run or a sweep: its report lies in its folder. Leave --to out.")
        kept = Outputs(outputs)
        folder = kept.find_any(reference, unfinished=True)
        is_sweep = (folder / SWEEP_RECORD).is_file()
        drawn = draw_sweep(read_sweep_record(folder), folder) if is_sweep else draw_report(folder, kept.outcome(folder))
        share(drawn)
        return drawn
    subject = find_subject(reference, Outputs(outputs))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", subject.label).strip("-.") or "profile"
    target = (to or Path(f"{name}.html")).absolute()
    if subject.kind == "build":
        return draw_build(read_build(Path(reference)), subject.label, target)
    return draw_profile(subject.profiles[0].profile, subject.label, target)
