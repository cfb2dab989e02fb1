"""The zip of a reduced model: model, values, recipe, and a README with the command that shows the failure; its page."""

from __future__ import annotations

import json
import platform
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ndld_flow.base.errors import explaining_file
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.drawing.graph import Reading
from ndld_flow.records.document import Record
from ndld_flow.reduce.trials import RECIPE
from ndld_flow.report.measured import Fact
from ndld_flow.report.model_page import Reduction, write_model_page
from ndld_flow.store.files import make_folder, writing_atomically

README, FAILURE = "README.md", "failure.json"
_ZIPPED_AT = (2020, 1, 1, 0, 0, 0)
"""Equal reductions are equal files."""


class Reduced(Record):
    """The result of a reduction."""

    path: str
    """The zip."""
    page: str
    """The page of the reduced model; empty if it is too large to be drawn."""
    failure: str
    """The failure that persists, as a clause."""
    nodes: int
    """Number of nodes, without constants; those in bodies are counted too."""
    nodes_before: int
    trials: int
    """Number of runs of the recipe on a smaller model."""
    minimal: bool
    """True if the failure vanishes without any single one of the nodes."""
    captured: bool
    """False if values of inputs are generated, since running the whole model crashes or fails."""
    original_values: tuple[str, ...]
    """Weights and inputs of 16 or more elements with their original values, because the failure needs them."""
    other_files: tuple[str, ...]
    """Files that the recipe names and the zip does not contain."""
    samples: int = 1
    """Number of samples, or of steps of the sequence."""
    steps: tuple[str, ...] = ()
    """Steps of the recipe that are left."""
    verified: int = 1
    """Number of runs of the reduced model before it was packed."""
    failed: int = 1
    """Number of these that failed in the same way."""


def write_zip(folder: Path, target: Path, reduced: Reduced, versions: Mapping[str, str], message: str) -> None:
    """Add README and failure to a folder with a model and its recipe, and pack it.

    `message` is that of the failure. Raises OutputsError if the file cannot be written.
    """
    (folder / README).write_text(_describe(reduced, versions, message), encoding="utf-8")
    facts = {
        "failure": reduced.failure,
        "message": message,
        "command": _COMMAND,
        "versions": dict(versions),
        "nodes": reduced.nodes,
        "failed": reduced.failed,
        "verified": reduced.verified,
    }
    (folder / FAILURE).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with explaining_file(target, "the reduced model"):
        make_folder(target.absolute().parent)
        with writing_atomically(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(f"{target.stem}/{path.relative_to(folder).as_posix()}", _ZIPPED_AT)
                entry.compress_type = zipfile.ZIP_DEFLATED
                with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as written:
                    while piece := source.read(2**20):
                        written.write(piece)


_COMMAND = f"ndld-flow run {RECIPE}"


def _describe(reduced: Reduced, versions: Mapping[str, str], message: str) -> str:
    """Return the README of a zip."""
    values = ", ".join(reduced.original_values) or "none; all inputs, and weights of 16 or more elements, are random"
    quoted = "\n".join(f"    {line}" for line in shortened(message, 4000).splitlines())
    installed = " ".join(f"{name}=={versions[name].rpartition(' ')[2]}" for name in _INSTALLED if name in versions)
    lines = [
        "# A failure, reduced",
        "",
        f"With this model, {shortened(reduced.failure, 2000).rstrip('.')}. In this folder:",
        "",
        f"    pip install {installed}",
        f"    {_COMMAND}{' --trust' if reduced.other_files else ''}",
        "",
        *(["The failure's text:", "", quoted, ""] if message else []),
        f"- {counted(reduced.nodes, 'node')} of {reduced.nodes_before}, "
        + ("all of them needed" if reduced.minimal else "not minimal: the limit of trials was reached"),
        f"- failed in {reduced.failed} of {counted(reduced.verified, 'run')}",
        f"- {counted(reduced.samples, 'sample')}; "
        f"values inside the model: {'captured from its run' if reduced.captured else 'generated'}",
        f"- original values: {values}",
        *(f"- not included: {file}" for file in reduced.other_files),
        f"- Python {platform.python_version()}, {', '.join(f'{name} {version}' for name, version in versions.items())}",
        "",
    ]
    return "\n".join(lines)


_INSTALLED = ("onnxruntime", "onnx", "openvino")


def draw_reduced(
    reduced: Reduced, message: str, model: Path, inputs: Mapping[str, Path], tried: Sequence[tuple[int, str, bool]]
) -> None:
    """Write the page; `inputs` are the files of the first sample. Raises NdldFlowError if the model cannot be drawn."""
    from ndld_flow.graph.drawn_graph import read_document

    document = read_document(model, Reading(constants=True, title=Path(reduced.path).name), inputs)
    facts = (
        Fact("Nodes", f"{reduced.nodes} of {reduced.nodes_before}{', all needed' if reduced.minimal else ''}"),
        Fact("Failed", f"in {reduced.failed} of {counted(reduced.verified, 'run')}"),
        Fact("Samples", str(reduced.samples)),
        Fact("Steps", ", ".join(reduced.steps)),
        Fact("Original values", ", ".join(reduced.original_values) or "none, all are random"),
        Fact("Values inside", "captured from a run" if reduced.captured else "generated"),
    )
    reduction = Reduction(
        visible_text(reduced.failure),
        visible_text(shortened(message, 4000)),
        tuple(Fact(fact.name, visible_text(fact.value)) for fact in facts),
        tuple(tried),
    )
    write_model_page(document, Path(reduced.page), reduction)
