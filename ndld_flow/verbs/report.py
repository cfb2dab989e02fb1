"""Redraw the report of a run or a sweep from its records.

RUN is a tag, a recipe's name (its newest run or sweep), an id or its first characters, a path, or `latest`; the
suffix `#17` or `#best` names a point of a sweep. Or it is a profile that belongs to no run (exports of trtexec, a
TREx folder, ONNX Runtime's profile, a profile.json) or an engine (the output of TensorRT's engine inspector,
.trt.json, or a build.json), whose page is written to the current directory. No model, GPU or inference library is
needed.

`--to layers.csv` writes the layers of any of them, or of RUN:STEP, as a table instead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.errors import RequestError
from ndld_flow.cli.options import Given, NewFile, options_of, outputs_option
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, public

if TYPE_CHECKING:
    from ndld_flow.runs.references import FoundSubject


@click.argument("run", default="latest")
@click.option(
    "--to",
    type=NewFile(".html", ".htm", ".csv"),
    metavar="FILE",
    help="File for the page of a profile or an engine; with .csv, for the layers.",
)
@public
def report(run: str, *, outputs: str | Path = DEFAULT_OUTPUTS, to: str | Path | None = None) -> Path:
    """Draw the report of a run or a sweep (tag, recipe, id, path), or of a sweep's point (`RUN#17`, `RUN#best`), from
    its records again; return its path.

    The page of a profile file or a folder of exports is written to `to`, or to the current directory. If `to` ends in
    `.csv`, the layers of the subject are written there as a table.
    """
    from ndld_flow.records.run_folder import SWEEP_RECORD, read_sweep_record
    from ndld_flow.report.run_page import draw_build, draw_profile, draw_report
    from ndld_flow.runs.outputs import Outputs
    from ndld_flow.runs.references import find_subject, is_profile_file
    from ndld_flow.store.files import share

    kept, to = Outputs(Path(outputs)), Path(to) if to is not None else None
    if to is not None and to.suffix.lower() == ".csv":
        return _write_table(find_subject(run, kept), to)
    if not is_profile_file(run):
        folder = kept.find_any(run, unfinished=True)
        if to is not None:
            raise RequestError(f"{run} is a run or a sweep: its report is in its folder. Remove --to.")
        if (folder / SWEEP_RECORD).is_file():
            from ndld_flow.report.sweep.page import draw_sweep

            drawn = draw_sweep(read_sweep_record(folder), folder)
        else:
            drawn = draw_report(folder, kept.outcome(folder))
        share(drawn)
        return drawn
    subject = find_subject(run, kept)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", subject.label).strip("-.") or "profile"
    target = (to or Path(f"{name}.html")).absolute()
    if subject.kind == "build":
        from ndld_flow.profiles.read.read_profile import read_build

        return draw_build(read_build(Path(run)), subject.label, target)
    return draw_profile(subject.profiles[0].profile, subject.label, target)


def _write_table(subject: FoundSubject, target: Path) -> Path:
    """Write the layers of a subject's profiles as CSV. Raises RequestError if there are none."""
    from ndld_flow.report.exports.spreadsheets import layers_csv
    from ndld_flow.store.files import write_text_atomically

    profiles = [(found.name, found.profile) for found in subject.profiles if found.profile.layers]
    if not profiles:
        raise RequestError(f"{subject.reference} has no layers to write to {target}.")
    write_text_atomically(target, layers_csv(profiles))
    return target


@click.command("report", help=__doc__, params=options_of(report))
@click.option("--open", "open_it", is_flag=True, help="Open the report in a browser.")
@outputs_option
def command(open_it: bool, **options: Given) -> None:
    path = report(**options)
    click.echo(path)
    if open_it:
        click.launch(path.as_uri())
