"""Run a model, and a second one beside it, on the same samples and tell what their tensors hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat, tee
from pathlib import Path

import numpy as np

from ndld_flow.accuracy.activations.choosing import Wanted, choose
from ndld_flow.accuracy.activations.feeding import Arrays, Feeding
from ndld_flow.accuracy.activations.layouts import Layout
from ndld_flow.accuracy.activations.map_files import MapFiles, MapLimits
from ndld_flow.accuracy.activations.model_view import ModelView
from ndld_flow.accuracy.activations.noise import Noise
from ndld_flow.accuracy.activations.opened_side import (
    OpenedSide,
    Side,
    cut_reference,
    cut_side,
    named_as_given,
    open_side,
)
from ndld_flow.accuracy.activations.tensor_meter import Looked, TensorMeter
from ndld_flow.base.errors import RequestError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.text import suggest
from ndld_flow.inputs import InputSpec
from ndld_flow.models.declared_inputs import model_inputs
from ndld_flow.models.float_tensors import Format
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.activations import Activations
from ndld_flow.runtimes.onnxruntime.execution_providers import full_name
from ndld_flow.runtimes.onnxruntime.model_matching import shared_inputs
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings
from ndld_flow.samples.generated_values import is_float
from ndld_flow.samples.sample_settings import SampleSettings

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Request:
    """What to look at, and how."""

    settings: SessionSettings
    given: Mapping[str, InputSpec]
    samples: SampleSettings
    wanted: Wanted
    limits: Format
    maps: MapLimits
    until: str = ""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Pattern -> layout of the tensors that it fits; the first that does counts."""
    noise: Noise | None = None
    stored: bool = True
    """Round fp16 and bf16 tensors to their type at every node."""


def look_inside(
    candidate: Side, reference: Side | None, request: Request, out: Path, scratch: Path, progress: Progress
) -> Activations:
    """Run on all samples and describe the tensors asked for; maps and pictures are written into `out`.

    One sample's tensors are held at a time. Raises `RequestError` for names that the model does not have, and for what
    else cannot be as asked; `ModelError` and `BackendError` when a model cannot be run.
    """
    progress(0, 0, "reading the model")
    folders = {scratch / "candidate": candidate, scratch / "reference": reference or candidate}
    for folder in folders:
        folder.mkdir()
    with named_as_given(folders):
        return _look(candidate, reference, request, out, tuple(folders), progress)


def _look(
    candidate: Side,
    reference: Side | None,
    request: Request,
    out: Path,
    folders: tuple[Path, ...],
    progress: Progress,
) -> Activations:
    cut = cut_side(candidate, request.until, folders[0])
    beside, notes = cut_reference(reference, request.until, folders[1]) if reference else (None, ())
    inputs = shared_inputs(model_inputs((beside or cut).path), model_inputs(cut.path))
    feeding = Feeding(inputs, request.given, request.samples, request.noise, candidate.label)
    shapes = feeding.first_shapes()
    own = {feeding.candidate_name(name): shape for name, shape in shapes.items()}
    mine = open_side(cut, own, request.stored, request.settings, folders[0])
    other = open_side(beside, shapes, request.stored, request.settings, folders[1]) if beside else None
    looking = _Looking(_choose_looked(mine.view, other.view if other else None, request), request, out)
    looking.run(mine, other, feeding, progress)
    told = (*notes, *mine.notes, *(other.notes if other else ()), *feeding.notes, *looking.notes)
    tensors = tuple(meter.record() for meter in looking.meters)
    return Activations(
        model=candidate.label,
        reference=reference.label if reference else "",
        provider=full_name(request.settings.provider),
        arithmetic="stored" if any(side.emulated for side in (mine, other) if side) else "native",
        range_format=request.limits.precision,
        noise=request.noise.describe(compared=reference is not None) if request.noise else "",
        stopped_at=request.until,
        samples=feeding.record(),
        tensors=tensors,
        divergence=tuple(layer for meter in looking.meters if (layer := meter.divergence())),
        first_nonfinite=next((each.tensor for each in tensors if each.range.nan_count or each.range.inf_count), ""),
        notes=tuple(dict.fromkeys(told)),
    )


def _choose_looked(view: ModelView, beside: ModelView | None, request: Request) -> list[Looked]:
    """The tensors to look at, in order. Raises `RequestError` for names and patterns that fit nothing."""
    names = choose(view.choice(beside), request.wanted)
    layouts = _layouts(names, view, request.layouts)
    return [
        Looked(
            name=name,
            node=place.node if (place := view.places.get(name)) else "",
            op_type=place.op_type if place else "Input",
            position=place.position if place else -1,
            dtype=view.dtype(name),
            reference_dtype=beside.dtype(name) if beside and name in beside else "",
            in_both=beside is not None and name in beside,
            channels=view.channels(name),
            layout=layouts.get(name),
            bounds=view.bounds(name),
        )
        for name in names
    ]


def _layouts(names: Sequence[str], view: ModelView, asked: Mapping[str, Layout]) -> dict[str, Layout]:
    found: dict[str, Layout] = {}
    for pattern, layout in asked.items():
        fits = name_matcher(pattern)
        fitting = [name for name in names if fits(name) or (name in view.places and fits(view.places[name].node))]
        if not fitting:
            raise RequestError(f'layout: no captured tensor is called "{pattern}"; {suggest(pattern, names)}')
        for name in fitting:
            found.setdefault(name, layout)
    return found


class _Looking:
    """Runs both sides in step and fills a meter for every tensor."""

    def __init__(self, looked: Sequence[Looked], request: Request, out: Path) -> None:
        self._looked, self._request, self._out = looked, request, out
        self.meters: list[TensorMeter] = []
        self.notes: list[str] = []

    def run(self, mine: OpenedSide, other: OpenedSide | None, feeding: Feeding, progress: Progress) -> None:
        """Run all samples, each on both sides before the next."""
        shown = self._request.maps.samples
        fed = feeding.samples(self._out, shown)
        # What nobody reads would be kept for ever.
        first, second = tee(fed) if other else (fed, iter(()))
        names = [looked.name for looked in self._looked]
        both = [looked.name for looked in self._looked if looked.in_both]
        ours = mine.captured(names, (each.candidate for each in first))
        theirs = other.captured(both, (each.reference for each in second)) if other else repeat({})
        files = MapFiles(self._out, self._request.maps, min(shown, len(feeding)))
        for number, (candidate, reference) in enumerate(zip(ours, theirs, strict=False)):
            progress(number, len(feeding), f"looking at {feeding.shown[number].label}")
            self.meters = self.meters or list(self._begun(candidate, reference))
            captured = [(meter, _sides(meter, candidate, reference)) for meter in self.meters]
            for meter, sides in captured:
                meter.add(sides["candidate"], sides.get("reference"))
            if number < shown:
                files.write(number, captured)

    def _begun(self, candidate: Arrays, reference: Arrays) -> Iterator[TensorMeter]:
        for looked in self._looked:
            name = looked.name
            if name not in candidate or candidate[name].dtype.kind not in "biufV":
                self.notes.append(f"{name} ({looked.op_type}) is no tensor of numbers and is left out")
                continue
            mine, other = _plain(candidate[name]), _plain(reference[name]) if name in reference else None
            if other is not None and other.shape != mine.shape:
                shapes = f"{shape_text(other.shape)} in the reference, {shape_text(mine.shape)} here"
                self.notes.append(f"{name} is {shapes}, so it is not compared")
                other = None
            dtype = looked.dtype or candidate[name].dtype.name
            yield TensorMeter(replace(looked, dtype=dtype), self._request.limits, mine, other)


def _sides(meter: TensorMeter, candidate: Arrays, reference: Arrays) -> dict[str, Array]:
    name = meter.looked.name
    sides = {"candidate": _plain(candidate[name])}
    return sides | {"reference": _plain(reference[name])} if meter.compared else sides


def _plain(values: Array) -> Array:
    """In a dtype that numpy computes with: bfloat16 and its like as float32, which holds them exactly."""
    if values.dtype.isbuiltin == 1:
        return values
    return values.astype(np.float32 if is_float(values.dtype) else np.int64)
