"""Typed data of the page of activations."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.quantities import count
from ndld_flow.base.text import short_name
from ndld_flow.records.activations import Activations, CapturedTensor
from ndld_flow.report.activations.collect_tensors import TensorRow, collect_tensors, link_to, snr_db, snr_words
from ndld_flow.report.activations.pack_maps import PackedMaps
from ndld_flow.report.activations.payload import activations_payload

_ARITHMETIC = {
    "stored": "stored: fp16 and bf16 tensors are rounded to their type after every node, and computed in fp32 "
    "in between, as on GPUs",
    "native": "native: computed as the execution provider does; on the CPU, ONNX Runtime computes fp16 in fp32 and "
    "hides the errors of a GPU",
}


@dataclass(frozen=True)
class Figure:
    """One figure of the overview."""

    title: str
    figure: str
    said: str
    tensor: str = ""
    link: str = ""
    """Link to its tensor."""


@dataclass(frozen=True)
class ActivationsPage:
    """The page of one document."""

    title: str
    verdict: str
    """`passed` if every captured value is finite."""
    said: str
    arithmetic: str
    ran: tuple[tuple[str, str], ...]
    """(name, value) of the conditions of the run."""
    figures: tuple[Figure, ...]
    rows: tuple[TensorRow, ...]
    two: bool
    """True if there is a reference."""
    notes: tuple[str, ...]
    chunks: tuple[str, ...]
    payload: str

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title)"""
        return (("depth", "Depth"), ("inspect", "Inspect")) if self.rows else ()


def collect_page(record: Activations, maps: PackedMaps, files: str) -> ActivationsPage:
    """Convert a record and its packed maps to page data. `files` is the path of the record's files from the page."""
    return ActivationsPage(
        title=title(record),
        verdict="failed" if not_finite(record) else "passed",
        said=said(record),
        arithmetic=_ARITHMETIC.get(record.arithmetic, short_name(record.arithmetic, 80)),
        ran=tuple((what, short_name(how, 300)) for what, how in _ran(record) if how),
        figures=figures(record),
        rows=collect_tensors(record),
        two=bool(record.reference),
        notes=tuple(short_name(note, 600) for note in (*record.notes, *maps.notes)),
        chunks=tuple(maps.chunks),
        payload=activations_payload(record, maps, files),
    )


def title(record: Activations) -> str:
    """Return `half against source`."""
    model, reference = short_name(record.model, 80), short_name(record.reference, 80)
    return f"{model} against {reference}" if reference else model


def not_finite(record: Activations) -> list[CapturedTensor]:
    """Return the tensors with NaN or infinity, in execution order."""
    return [one for one in record.tensors if one.range.nan_count or one.range.inf_count]


def said(record: Activations) -> str:
    """Return the result in a few words."""
    if not record.tensors:
        return "No tensor was captured"
    bad, total = len(not_finite(record)), len(record.tensors)
    if not bad:
        return "Every captured value is finite"
    return f"{count(bad)} of {count(total)} tensors hold{'s' if bad == 1 else ''} NaN or infinity"


def _ran(record: Activations) -> tuple[tuple[str, str], ...]:
    return (("On", record.provider), ("Noise", record.noise), ("Stopped at", record.stopped_at))


def figures(record: Activations) -> tuple[Figure, ...]:
    """Return the figures of the overview."""
    samples = len(record.samples)
    labels = ", ".join(short_name(sample.label, 40) for sample in record.samples[:3])
    more = f" and {samples - 3} more" if samples > 3 else ""
    return (
        Figure("Tensors", count(len(record.tensors)), "captured, in execution order"),
        Figure("Samples", count(samples), labels + more),
        _nonfinite(record),
        *_beyond(record),
        *_divergence(record),
    )


def _nonfinite(record: Activations) -> Figure:
    bad = not_finite(record)
    first = record.first_nonfinite or (bad[0].tensor if bad else "")
    if not first:
        return Figure("Not finite", "0", "no NaN, no infinity")
    return _about("Not finite", count(len(bad)), "first", first)


def _beyond(record: Activations) -> tuple[Figure, ...]:
    beyond = [one for one in record.tensors if one.range.beyond_share]
    if not beyond:
        return ()
    worst = max(beyond, key=lambda one: one.range.beyond_share)
    return (_about(f"Beyond {short_name(record.range_format, 20)}", count(len(beyond)), "most", worst.tensor),)


def _divergence(record: Activations) -> tuple[Figure, ...]:
    known = {one.tensor for one in record.tensors}
    measured = [
        (db, one.tensor) for one in record.divergence if (db := snr_db(one)) is not None and one.tensor in known
    ]
    if not measured:
        return ()
    db, tensor = min(measured)
    return (_about("Lowest signal to noise", snr_words(db), "at", tensor),)


def _about(heading: str, figure: str, words: str, tensor: str) -> Figure:
    return Figure(heading, figure, words, short_name(tensor, 60), link_to(tensor))
