"""The page of a reduced model: what fails, the smallest part with its values, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ndld_flow.base.quantities import counted
from ndld_flow.base.text import shortened, visible_text
from ndld_flow.drawing.graph import Reading
from ndld_flow.reduce.pack import Reduced
from ndld_flow.report.model_page import Reduction, write_model_page
from ndld_flow.report.value_text import Fact


def draw_reduced(
    reduced: Reduced, message: str, model: Path, inputs: Mapping[str, Path], tried: Sequence[tuple[int, str, bool]]
) -> None:
    """Write the page; `inputs` are the files of the first sample. Raises NdldFlowError if the model cannot be drawn."""
    from ndld_flow.models.model_document import read_document

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
