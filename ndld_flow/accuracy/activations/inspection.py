"""Capture and measurement of the tensors inside a model, and inside a reference, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat, tee
from pathlib import Path

import onnx_ir as ir

from ndld_flow.accuracy.activations.feeding import Arrays, Feeding
from ndld_flow.accuracy.activations.maps import MapFiles, MapLimits
from ndld_flow.accuracy.activations.selection import ModelView, TensorSelection, choose
from ndld_flow.accuracy.activations.tensor_meter import InspectedTensor, Layout, TensorMeter
from ndld_flow.accuracy.inside.capture import capture_with_inputs
from ndld_flow.accuracy.model_comparison import storable
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.name_patterns import name_matcher
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import load_model, model_inputs, save_model
from ndld_flow.models.lazy_tensors import Format
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.records.activations import Activations
from ndld_flow.records.execution import BuiltFile
from ndld_flow.runtimes.onnxruntime.execution_providers import full_name
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.runtimes.protocol import Session, SessionRequest
from ndld_flow.runtimes.session_process import open_session
from ndld_flow.samples.feeds import shared_inputs
from ndld_flow.samples.sample_settings import Noise, SampleSettings


def _found(graph: ir.Graph, until: str) -> tuple[ir.Node, list[ir.Value]]:
    for node in graph:
        ends = [value for value in node.outputs if value.name == until]
        if ends:
            return node, ends
    for node in graph:
        if node.name == until:
            return node, [value for value in node.outputs if value.name]
    names = (name for node in graph for name in (*(value.name for value in node.outputs), node.name) if name)
    raise UnknownNameError(f'until: the model has no tensor and no node "{until}"', until, names)


_UNFUSED = "ran in {} in its own arithmetic; a tensor that is read is an output, across which it fuses no nodes"
_CUT, _STORED = "cut.onnx", "stored.onnx"


@dataclass(frozen=True)
class InspectedModel:
    """One of the models to inspect."""

    path: Path
    label: str


@contextmanager
def report_original_paths(folders: Mapping[Path, InspectedModel]) -> Iterator[None]:
    """Replace paths of temporary models in a `RequestError` by the original model.

    The temporary model is unknown to the user, and deleted by then.
    """
    try:
        yield
    except RequestError as error:
        message = str(error)
        for folder, side in folders.items():
            given = f"{side.label} ({side.path})"
            for name in (_CUT, _STORED):
                message = message.replace(str(folder / name), given)
        error.args = (message,)
        raise


def truncate_model(side: InspectedModel, until: Sequence[str], scratch: Path) -> InspectedModel:
    """Return the model up to the last of some tensors, or nodes with all their outputs; the whole model without any.

    All nodes before it in the order of execution stay, and all inputs. Raises `RequestError` with the nearest name
    if the main graph has neither such a tensor nor such a node.
    """
    if not until:
        return side
    model = load_model(side.path)
    graph = model.graph
    found = [_found(graph, name) for name in until]
    nodes = list(graph)
    last = max(nodes.index(node) for node, _ in found)
    later = nodes[last + 1 :]
    graph.outputs[:] = list(dict.fromkeys(value for _, values in found for value in values))
    graph.remove(later, safe=True)
    unused = [name for name, value in graph.initializers.items() if not value.uses() and not value.is_graph_input()]
    for name in unused:
        del graph.initializers[name]
    target = scratch / _CUT
    save_model(model, target)
    return InspectedModel(target, side.label)


def truncate_reference(
    side: InspectedModel, until: Sequence[str], scratch: Path
) -> tuple[InspectedModel, tuple[str, ...]]:
    """Truncate the reference, which runs in full if it lacks one of the tensors, and return a note about that."""
    try:
        return truncate_model(side, until, scratch), ()
    except RequestError:
        return side, (f"{side.label} has no tensor or node {' or '.join(until)} and ran to its end",)


@dataclass(frozen=True)
class PreparedModel:
    """A model that is ready to run."""

    label: str
    view_path: Path
    """The model as stored."""
    view: ModelView
    running: Path
    """The model that runs in its place."""
    settings: SessionRequest
    scratch: Path
    emulated: bool
    notes: tuple[str, ...]

    def captured(self, names: Sequence[str], samples: Iterator[Mapping[str, Array]]) -> Iterator[dict[str, Array]]:
        """Yield the values of these tensors and inputs, one dict per sample; non-tensors are left out."""
        inside = [name for name in names if name not in self.view.inputs]
        for values in capture_with_inputs(self.running, inside, samples, self.settings, self.scratch):
            yield {name: values[name] for name in names if name in values}


def prepare_model(
    side: InspectedModel, shapes: Mapping[str, tuple[int, ...]], stored: bool, settings: SessionRequest, scratch: Path
) -> PreparedModel:
    """Prepare a model to run on inputs of these shapes; `stored` rounds its fp16 and bf16 tensors after every node."""
    target = scratch / _STORED
    emulated = emulate_stored(side.path, target) if stored else None
    running = side.path if emulated is None else target
    notes = () if emulated is None else tuple(f"{side.label}: {note}" for note in emulated.notes)
    view = ModelView(side.path, shapes)
    return PreparedModel(side.label, side.path, view, running, settings, scratch, emulated is not None, notes)


@dataclass(frozen=True)
class BuiltModel(PreparedModel):
    """A model that a built file runs, such as an engine: its inputs, outputs and marked tensors can be inspected."""

    session: Session
    built: BuiltFile

    @property
    def available(self) -> frozenset[str]:
        """Return the names of the tensors that can be inspected."""
        return frozenset({*self.view.inputs, *(spec.name for spec in self.session.describe().outputs)})

    def captured(self, names: Sequence[str], samples: Iterator[Mapping[str, Array]]) -> Iterator[dict[str, Array]]:
        for arrays in samples:
            binding = self.session.bind(arrays)
            binding.run()
            values = {**binding.outputs(), **arrays}
            yield {name: array for name in names if (array := values.get(name)) is not None}

    def note(self) -> str:
        """Return the file that ran, and the caveat of its marked tensors."""
        marked = len(self.available.difference(self.view.inputs, self.view.outputs))
        caveat = f"; its {counted(marked, 'marked tensor')} make it fuse layers differently from one without them"
        return f"{self.label} ran as the engine {self.built.described} in its own arithmetic{caveat if marked else ''}"


@contextmanager
def opened_file(prepared: PreparedModel, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[PreparedModel]:
    """Open the file that runs instead of a model on inputs of these shapes, if there is one, inside the block."""
    built = prepared.settings.describe_built_file()
    if built is None:
        yield prepared
        return
    request = prepared.settings.with_inner_outputs(list(prepared.view.places))
    request.refuse_shapes(shapes)
    with closing(open_session(request, prepared.view_path, prepared.scratch)) as session:
        yield BuiltModel(**vars(prepared), session=session, built=built)


Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Request:
    """The tensors to inspect, the samples, and limits of the maps."""

    settings: OnnxruntimeRequest
    given: Mapping[str, InputSpec]
    samples: SampleSettings
    selection: TensorSelection
    limits: Format
    maps: MapLimits
    until: Sequence[str] = ()
    """Tensors or nodes; the run stops after the last of them."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """Pattern -> layout of the tensors that match it; the first match counts."""
    noise: Noise | None = None
    stored: bool = True
    """Round fp16 and bf16 tensors to their type after every node."""
    runtime: SessionRequest | None = None
    """Runs the inspected model, in its own arithmetic; None for ONNX Runtime with `settings`, which runs the
    reference."""

    @property
    def describes(self) -> str:
        """Return the execution provider that runs the inspected model, or its runtime and device."""
        if self.runtime is None:
            return full_name(self.settings.provider)
        names = self.runtime.names()
        return f"{names.library} {names.device}"


def inspect_tensors(
    candidate: InspectedModel,
    reference: InspectedModel | None,
    request: Request,
    out: Path,
    scratch: Path,
    progress: Progress,
) -> Activations:
    """Run on all samples and describe the selected tensors; write maps and images into `out`.

    The tensors of one sample are held at a time. Raises `RequestError` for names that the model does not have and for
    settings that cannot be met; `ModelError` and `BackendError` if a model cannot be run.
    """
    progress(0, 0, "reading the model")
    folders = {scratch / "candidate": candidate, scratch / "reference": reference or candidate}
    for folder in folders:
        folder.mkdir()
    with report_original_paths(folders):
        return _inspect(candidate, reference, request, out, tuple(folders), progress)


def _inspect(
    candidate: InspectedModel,
    reference: InspectedModel | None,
    request: Request,
    out: Path,
    folders: tuple[Path, ...],
    progress: Progress,
) -> Activations:
    cut = truncate_model(candidate, request.until, folders[0])
    cut_reference, notes = truncate_reference(reference, request.until, folders[1]) if reference else (None, ())
    inputs = shared_inputs(model_inputs((cut_reference or cut).path), model_inputs(cut.path))
    whole = (reference or candidate).path
    feeding = Feeding(inputs, request.given, request.samples, request.noise, candidate.label, whole)
    shapes = feeding.first_shapes()
    own = {feeding.candidate_name(name): shape for name, shape in shapes.items()}
    stored = request.stored and request.runtime is None
    mine = prepare_model(cut, own, stored, request.runtime or request.settings, folders[0])
    other = (
        prepare_model(cut_reference, shapes, request.stored, request.settings, folders[1]) if cut_reference else None
    )
    with opened_file(mine, own) as runnable:
        built = runnable if isinstance(runnable, BuiltModel) else None
        selected = _select_tensors(mine.view, other.view if other else None, request, built)
        inspection = _Inspection(selected, request, out)
        inspection.run(runnable, other, feeding, progress)
        if built is not None:
            notes = (*notes, built.note())
        elif request.runtime is not None:
            notes = (*notes, f"{candidate.label} {_UNFUSED.format(request.runtime.names().library)}")
    notes_of_all = (*notes, *mine.notes, *(other.notes if other else ()), *feeding.notes, *inspection.notes)
    tensors = tuple(meter.record() for meter in inspection.meters)
    return Activations(
        model=candidate.label,
        reference=reference.label if reference else "",
        provider=request.describes,
        arithmetic="stored" if any(side.emulated for side in (mine, other) if side) else "native",
        range_format=request.limits.precision,
        noise=request.noise.describe(compared=reference is not None) if request.noise else "",
        stopped_at=", ".join(request.until),
        samples=feeding.record(),
        tensors=tensors,
        divergence=tuple(layer for meter in inspection.meters if (layer := meter.divergence())),
        first_nonfinite=next((each.tensor for each in tensors if each.range.nan_count or each.range.inf_count), ""),
        notes=tuple(dict.fromkeys(notes_of_all)),
    )


def _select_tensors(
    view: ModelView, reference: ModelView | None, request: Request, built: BuiltModel | None
) -> list[InspectedTensor]:
    """Return the tensors to inspect, in order. Raises `RequestError` for names and patterns that match nothing."""
    names = choose(view, request.selection, reference) if built is None else _choose_built(view, request, built)
    if len(request.until) > 1:  # each stopping point is of interest, whatever else is selected
        wanted = {*names, *view.outputs}
        names = [name for name in (*view.inputs, *view.places) if name in wanted]
    layouts = _layouts(names, view, request.layouts)
    return [
        InspectedTensor(
            name=name,
            node=place.node if (place := view.places.get(name)) else "",
            op_type=place.op_type if place else "Input",
            position=place.position if place else -1,
            dtype=view.dtype(name),
            reference_dtype=reference.dtype(name) if reference and name in reference else "",
            in_both=reference is not None and name in reference,
            channels=view.channels(name),
            layout=layouts.get(name),
            bounds=view.bounds(name),
        )
        for name in names
    ]


def _choose_built(view: ModelView, request: Request, built: BuiltModel) -> list[str]:
    """Return the selected tensors that a built file has, all of them by default."""
    if request.selection.is_empty:
        known = [*view.inputs, *(place.name for place in view.floats)]
        return [name for name in known if name in built.available]
    chosen = choose(view, request.selection)
    found = [name for name in chosen if name in built.available]
    if not found:
        has = ", ".join(short_name(name) for name in sorted(built.available)[:5])
        raise RequestError(
            f"{built.built.name} has no selected tensor ({counted(len(chosen), 'name')}) as an output: build it with "
            f"`mark_outputs`, or select others (it has {has})."
        )
    return found


def _layouts(names: Sequence[str], view: ModelView, patterns: Mapping[str, Layout]) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    for pattern, layout in patterns.items():
        matches = name_matcher(pattern)
        matching = [
            name for name in names if matches(name) or (name in view.places and matches(view.places[name].node))
        ]
        if not matching:
            raise UnknownNameError(f'layout: no captured tensor matches "{pattern}"', pattern, names)
        for name in matching:
            layouts.setdefault(name, layout)
    return layouts


class _Inspection:
    """Runs both models sample by sample and feeds a meter for every tensor."""

    def __init__(self, tensor: Sequence[InspectedTensor], request: Request, out: Path) -> None:
        self._looked, self._request, self._out = tensor, request, out
        self.meters: list[TensorMeter] = []
        self.notes: list[str] = []

    def run(self, mine: PreparedModel, other: PreparedModel | None, feeding: Feeding, progress: Progress) -> None:
        """Run all samples, each on both models before the next."""
        shown = self._request.maps.samples
        fed = feeding.samples(self._out, shown)
        # `tee` would buffer every sample for a branch that is never read.
        first, second = tee(fed) if other else (fed, iter(()))
        names = [tensor.name for tensor in self._looked]
        both = [tensor.name for tensor in self._looked if tensor.in_both]
        ours = mine.captured(names, (each.candidate for each in first))
        theirs = other.captured(both, (each.reference for each in second)) if other else repeat({})
        files = MapFiles(self._out, self._request.maps, min(shown, len(feeding)))
        for number, (candidate, reference) in enumerate(zip(ours, theirs, strict=False)):
            progress(number, len(feeding), f"inspecting {feeding.shown[number].label}")
            self.meters = self.meters or list(self._new_meters(candidate, reference))
            captured = [(meter, _sides(meter, candidate, reference)) for meter in self.meters]
            for meter, sides in captured:
                meter.add(sides["candidate"], sides.get("reference"))
            if number < shown:
                files.write(number, captured)

    def _new_meters(self, candidate: Arrays, reference: Arrays) -> Iterator[TensorMeter]:
        for tensor in self._looked:
            name = tensor.name
            if name not in candidate or candidate[name].dtype.kind not in "biufV":
                self.notes.append(f"{name} ({tensor.op_type}) is not a numeric tensor and was skipped")
                continue
            mine, other = storable(candidate[name]), storable(reference[name]) if name in reference else None
            if other is not None and other.shape != mine.shape:
                shapes = f"{shape_text(other.shape)} in the reference, {shape_text(mine.shape)} here"
                self.notes.append(f"{name} is {shapes}, so it is not compared")
                other = None
            dtype = tensor.dtype or candidate[name].dtype.name
            yield TensorMeter(replace(tensor, dtype=dtype), self._request.limits, mine, other)


def _sides(meter: TensorMeter, candidate: Arrays, reference: Arrays) -> dict[str, Array]:
    name = meter.tensor.name
    sides = {"candidate": storable(candidate[name])}
    return sides | {"reference": storable(reference[name])} if meter.compared else sides
