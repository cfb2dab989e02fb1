"""Images that the models of a run received."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.quantities import percent
from ndld_flow.base.text import short_name
from ndld_flow.records.images import ReceivedImage, ReceivedInputs
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.measured import Fact, facts_of
from ndld_flow.report.panel import Panel


@dataclass(frozen=True)
class ReceivedView:
    """One image, and the steps whose models received it."""

    input: str
    steps: str
    description: str
    jpeg: str
    facts: tuple[Fact, ...]


def collect_inputs(documents: RunDocuments) -> tuple[ReceivedView, ...]:
    """Return the images that models received; equal ones of several steps once."""
    steps: dict[str, list[str]] = {}
    images: dict[str, ReceivedImage] = {}
    for step, received in documents.of(ReceivedInputs).items():
        for image in received.images:
            key = image.model_dump_json()
            images[key] = image
            steps.setdefault(key, []).append(short_name(step))
    return tuple(_view(image, ", ".join(steps[key])) for key, image in images.items())


def _view(image: ReceivedImage, steps: str) -> ReceivedView:
    facts = {
        "Image": f"{image.width}x{image.height}",
        "Tensor": f"{image.dtype} {'x'.join(map(str, image.shape))}",
        "Values": f"{image.minimum:.4g} to {image.maximum:.4g}",
        **image.settings,
    }
    if image.clipped_share > 0:
        facts["Values of no pixel"] = percent(image.clipped_share)
    described = short_name(image.description, 300)
    return ReceivedView(short_name(image.input), steps, described, image.jpeg, facts_of(facts))


PANEL = Panel("Inputs", collect_inputs, after="accuracy", closed=True)
