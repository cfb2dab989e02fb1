"""Draw reports, and the graphs of models and engines."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from ndld_flow.base.errors import RequestError, explaining_file
from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.drawing.engine_graph import engine_graph
from ndld_flow.drawing.graph import DrawnGraph, Look, Reading
from ndld_flow.profiles.read.read_profile import read_build, read_profile, recognize
from ndld_flow.records.run_folder import SWEEP_RECORD, read_sweep_record
from ndld_flow.report.model_page import write_model_page
from ndld_flow.report.run_page import draw_build, draw_profile, draw_report
from ndld_flow.report.sweep.page import draw_sweep
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runs.references import FoundSubject, find_subject, is_profile_file
from ndld_flow.store.files import share, write_bytes_atomically


def draw_any(reference: str, outputs: Path, to: Path | None = None) -> Path:
    """Draw the report of a run, a sweep or a point into its folder, or the page of a profile or an engine to `to`.

    `to` defaults to the label with `.html`, in the current directory; with `.xlsx` or `.csv`, the layers of any subject
    are written as a table. Raises RequestError if nothing has that name, or another `to` is given for a run or a sweep.
    """
    if to is not None and to.suffix.lower() in (".xlsx", ".csv"):
        return _write_table(find_subject(reference, Outputs(outputs)), to)
    if not is_profile_file(reference):
        kept = Outputs(outputs)
        folder = kept.find_any(reference, unfinished=True)
        if to is not None:
            raise RequestError(f"{reference} is a run or a sweep: its report is in its folder. Remove --to.")
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


def _write_table(subject: FoundSubject, target: Path) -> Path:
    """Write the layers of a subject's profiles as a workbook or as CSV. Raises RequestError if there are none."""
    from ndld_flow.report.exports.spreadsheets import layers_csv, layers_workbook

    profiles = [(found.name, found.profile) for found in subject.profiles if found.profile.layers]
    if not profiles:
        raise RequestError(f"{subject.reference} has no layers to write to {target}.")
    is_csv = target.suffix.lower() == ".csv"
    write_bytes_atomically(target, layers_csv(profiles).encode() if is_csv else layers_workbook(profiles))
    return target


def read_drawn(path: Path, reading: Reading) -> DrawnGraph:
    """Read the graph of a model, or the layers of an engine or a profile.

    Raises `RequestError` or `ModelError` if the file is none of these, has no layers, or lacks the parts in `reading`.
    """
    if not path.exists() or recognize(path) is None:
        from ndld_flow.graph.drawn_graph import read_graph

        return read_graph(path, reading)
    if reading.depth or reading.subgraph or reading.constants:
        raise RequestError(f"{path}: layers have no bodies and no constants: remove depth, subgraph and constants.")
    profile = read_profile(path)
    if not profile.layers:
        raise RequestError(f"{path} has no layers to draw.")
    return engine_graph(profile, reading.title or path.name, reading.shapes)


SUFFIXES = (".html", ".htm")


def draw_page(model: Path, target: Path, reading: Reading, look: Look) -> Path:
    """Write the page of a model and return its path.

    Raises `RequestError` for options that a page does not have, and for a file that is not a model; `ModelError` and
    `OutputsError` if it cannot be read or written.
    """
    usual = Look()
    asked = [field.name for field in fields(Look) if getattr(look, field.name) != getattr(usual, field.name)]
    asked += ["depth"] if reading.depth else []
    if asked:
        raise RequestError(
            f"{' and '.join(asked)}: these options are only for pictures. A page has its own theme, zoom and depth."
        )
    if model.exists() and recognize(model) is not None:
        raise RequestError(
            f"{model} contains layers of an engine or a profile: `ndld-flow report {model}` draws their page."
        )
    from ndld_flow.graph.drawn_graph import read_document

    with paused_garbage_collection():
        document = read_document(model, reading)
    with explaining_file(target, "the page"):
        target.parent.mkdir(parents=True, exist_ok=True)
    return write_model_page(document, target)
