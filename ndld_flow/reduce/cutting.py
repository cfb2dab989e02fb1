"""Cut a part out of a model, with the values of its inputs: captured from a run of the model, or generated.

Tensors that the nodes read from others become inputs, so that the part computes what it computes inside the model.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, numpy_helper

from ndld_flow.accuracy.inside.capture import open_inside, tensor_bytes, tensors_of
from ndld_flow.accuracy.sequence_runs import States
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.graph.edit.edit_file import sort_model
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.extracting import Part, keep_only, part_of_nodes
from ndld_flow.models.element_types import GRAPHS
from ndld_flow.models.files import all_graphs, load_model, model_inputs, save_model
from ndld_flow.models.nodes import is_used, node_label, read_values, values_of
from ndld_flow.models.tensors import Array, dtype_text
from ndld_flow.reduce.part import MODEL, CaptureError, Cut, CutError, CutPart, NodeFacts, Values, Whole
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.samples.generated_values import is_float, is_integer, random_stream
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import make_sequences

_VALUES = "values"
_LARGEST_STORED = 2**24
"""Size in bytes up to which what a constant node computes is stored instead of the node."""
_FEWEST_REPLACED = 16
"""Weights of fewer elements are sizes, axes and scales: they are kept."""


def open_whole(path: Path) -> EditedModel:
    """Return a model with sorted nodes, so that indices of nodes are the same each time."""
    edited = EditedModel(load_model(path), path)
    sort_model(edited.model)
    return edited


def list_nodes(path: Path) -> Iterator[NodeFacts]:
    """Yield the nodes of the model's main graph, in their order, except constants."""
    model = open_whole(path).model
    for index, node in enumerate(model.graph):
        if node.op_type != "Constant":
            has_bodies = node.op_identifier() in model.functions or any(
                attribute.type in GRAPHS for attribute in node.attributes.values()
            )
            outputs = tuple(str(value.name) for value in node.outputs if value.name)
            yield NodeFacts(
                index=index,
                op_type=node.op_type,
                name=node_label(node),
                inputs=tuple(str(value.name) for value in read_values(node)),
                outputs=outputs,
                bodies=has_bodies,
            )


def count_nodes(path: Path) -> int:
    """Return the number of nodes of a model, with those in bodies and functions, without constants."""
    return sum(node.op_type != "Constant" for graph in all_graphs(load_model(path)) for node in graph)


def cut_part(whole: Whole, cut: Cut, folder: Path) -> CutPart:
    """Write the part of some nodes to a folder: `model.onnx` and the values of its inputs.

    Raises `CutError` if the nodes cannot be a model, and `CaptureError` if the model that they are cut from cannot run.
    """
    try:
        return _cut(whole, cut, folder)
    except CutError:
        raise
    except NdldFlowError as error:
        raise CutError(str(error)) from error


def _cut(whole: Whole, cut: Cut, folder: Path) -> CutPart:
    edited, kept = open_whole(whole.path), frozenset(cut.kept)
    captured = Captured(whole)
    if whole.capture:
        captured.files([])
    chosen = [node for index, node in enumerate(edited.model.graph) if index in kept]
    part = part_of_nodes(edited, chosen)
    states = _states(whole, part) if cut.feedback else {}
    inside = [str(value.name) for value in part.inputs]
    files = _capture(captured, inside, part) if whole.capture else {}
    keep_only(edited, part, _edge_types(whole, part, captured))
    if whole.capture:
        _store_constants(edited.model.graph, frozenset(chosen), captured)
    names = [str(value.name) for value in edited.model.graph.inputs if not value.is_initializer()]
    labels = _replace_weights(edited.model, cut.original)
    save_model(edited.model, folder / MODEL)
    values = _Values(folder, _generate(whole, names, folder) if not whole.capture else files)
    count = len(next(iter(values.files.values()), [])) or captured.samples or 1
    values.choose(cut.chosen)
    labels += values.replace(names, cut.original)
    return CutPart(
        inputs={name: tuple(values.write(index, name)) for index, name in enumerate(names)},
        shapes=values.shapes,
        states={name: output for name, output in states.items() if name in names},
        replaceable=tuple(labels),
        is_captured=whole.capture,
        samples=count,
        names=tuple(
            sorted(
                {value.name for value in values_of(edited.model.graph) if value.name}
                | set(map(node_label, edited.model.graph))
            )
        ),
    )


def _capture(captured: Captured, inside: Sequence[str], part: Part) -> Values:
    """Return the values of a part's inputs; those of its outputs have the types that may not be inferred."""
    untyped = [str(value.name) for value in part.outputs if value.shape is None or value.type is None]
    try:
        files = captured.files([*inside, *untyped])
    except CaptureError:
        raise
    except CutError:  # sequences and optionals have no values to capture
        return captured.files(inside)
    return {name: files[name] for name in inside}


def _edge_types(whole: Whole, part: Part, captured: Captured) -> dict[str, str]:
    """Return the types of a part's inputs and outputs, as far as they are known.

    If all are, the shapes of the whole model need not be inferred, which takes longer than all the rest for a large
    one. An engine for a range of shapes needs inferred ones.
    """
    edges = {str(value.name): value for value in (*part.inputs, *part.outputs)}
    has_ranges = any(spec.opt is not None for spec in whole.inputs.values())
    if has_ranges or not all(name in captured.types for name in edges):
        unknown = [name for name, value in edges.items() if value.shape is None or value.type is None]
        return {name: captured.types[name] for name in unknown if name in captured.types}
    return {name: _declared(value, captured.types[name]) for name, value in edges.items()}


def _declared(value: ir.Value, found: str) -> str:
    """Return the declared type of an input of the model, else the found one."""
    if not value.is_graph_input() or value.shape is None:
        return found
    dims = ("?" if isinstance(dim, ir.SymbolicDim) and dim.value is None else str(dim) for dim in value.shape)
    return f"{found.partition('[')[0]}[{', '.join(dims)}]"


def _store_constants(graph: ir.Graph, chosen: Collection[ir.Node], captured: Captured) -> None:
    """Replace nodes that came along because they depend on no input by weights with their values."""
    along = [node for node in graph if node not in chosen and node.op_type != "Constant"]
    read = [
        value
        for node in along
        for value in node.outputs
        if value.name and any(user not in along for user, _ in value.uses())
    ]
    if any(value.is_graph_output() for value in read):
        return
    try:
        files = captured.files([str(value.name) for value in read])
    except CutError:  # sequences and optionals are no weights
        return
    for value in read:
        name, values = str(value.name), read_array(files[str(value.name)][0])
        if values.nbytes > _LARGEST_STORED or values.dtype.kind == "O":
            continue
        stored = ir.Value(name=f"{name}_stored", type=value.type, shape=value.shape, const_value=ir.tensor(values))
        assert stored.const_value is not None
        stored.const_value.name = stored.name
        graph.register_initializer(stored)
        value.replace_all_uses_with(stored)
    drop_unused(graph)


def drop_unused(graph: ir.Graph) -> None:
    """Remove nodes that nothing reads."""
    for node in reversed(list(graph)):
        if not any(map(is_used, node.outputs)):
            graph.remove(node, safe=True)
    unused = [value for value in graph.initializers.values() if not is_used(value)]
    graph.inputs[:] = [value for value in graph.inputs if value not in unused]  # in IR version 3, all are inputs too
    for value in unused:
        del graph.initializers[value.name or ""]


def _states(whole: Whole, part: Part) -> dict[str, str]:
    """Return the states that a part both reads and computes."""
    inputs, outputs = ({value.name for value in values} for values in (part.inputs, part.outputs))
    fed = {name: spec.fed_from for name, spec in whole.inputs.items() if spec.fed_from is not None}
    return {name: output for name, output in fed.items() if name in inputs and output in outputs}


def _generate(whole: Whole, names: Sequence[str], folder: Path) -> dict[str, list[Path]]:
    """Write generated values for the part's inputs to its folder."""
    given = {name: whole.inputs[name] for name in names if name in whole.inputs}
    found: dict[str, list[Path]] = {}
    (folder / _VALUES).mkdir(exist_ok=True)
    for index, (name, feed) in enumerate(make_feeds(model_inputs(folder / MODEL), given).items()):
        found[name] = [folder / _VALUES / f"generated_{index}.pb"]
        found[name][0].write_bytes(numpy_helper.from_array(feed.values, name).SerializeToString())
    return found


class _Values:
    """The values of a part's inputs: files to copy, or arrays that replace them."""

    def __init__(self, folder: Path, files: Values) -> None:
        self._folder = folder
        self.files = {name: list(paths) for name, paths in files.items()}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._replaced: dict[str, list[Array]] = {}

    def choose(self, chosen: Sequence[int] | None) -> None:
        """Keep the samples of these numbers."""
        if chosen is not None:
            self.files = {
                name: [paths[index] for index in chosen if index < len(paths)] for name, paths in self.files.items()
            }

    def replace(self, names: Sequence[str], original: Sequence[str] | None) -> list[str]:
        """Replace values of inputs that need not be original; return the labels of all that can be replaced."""
        labels = []
        for name in names:
            if name not in self.files:
                raise CutError(f"there are no values for the input {name!r}")
            arrays = [read_array(path) for path in self.files[name]]
            shapes = {array.shape for array in arrays}
            if len(shapes) == 1:
                self.shapes[name] = shapes.pop()
            label = f"input {name}"
            random = [_random_like(array, f"{label} {number}") for number, array in enumerate(arrays)]
            drawn = [values for values in random if values is not None]
            if len(drawn) < len(random):
                continue
            labels.append(label)
            if original is not None and label not in original:
                self._replaced[name] = drawn
        return labels

    def write(self, place: int, name: str) -> Iterator[str]:
        """Write the values of an input to the part's folder, and yield its files."""
        (self._folder / _VALUES).mkdir(exist_ok=True)
        for number, path in enumerate(self.files[name]):
            file = f"{_VALUES}/input_{place}_{number}.pb"
            if name in self._replaced:
                tensor = numpy_helper.from_array(self._replaced[name][number], name)
                (self._folder / file).write_bytes(tensor.SerializeToString())
            elif path.is_relative_to(self._folder):
                path.rename(self._folder / file)
            else:
                shutil.copyfile(path, self._folder / file)
            yield file


def _replace_weights(model: ir.Model, original: Sequence[str] | None) -> list[str]:
    """Replace weights that need not be the original ones; return the labels of all that can be replaced."""
    labels = []
    for name, value in sorted(model.graph.initializers.items()):
        if value.const_value is None or value.const_value.size < _FEWEST_REPLACED:
            continue
        label = f"weight {name}"
        random = _random_like(value.const_value.numpy(), label)
        if random is None:
            continue
        labels.append(label)
        if original is not None and label not in original:
            value.const_value = ir.Tensor(random, dtype=value.const_value.dtype, name=name)
    return labels


def _random_like(values: Array, label: str) -> Array | None:
    """Return seeded values of the same mean, deviation and range; None for other types, and for non-finite values."""
    stream = random_stream(label, 0)
    if not values.size:
        return None
    drawn: Array
    if is_float(values.dtype):
        wide = values.astype(np.float64)
        if not np.isfinite(wide).all():
            return None
        drawn = np.clip(stream.normal(wide.mean(), wide.std(), wide.shape), wide.min(), wide.max())
    elif is_integer(values.dtype):
        whole = values.astype(np.int64)
        drawn = stream.integers(whole.min(), whole.max(), whole.shape, endpoint=True)
    else:
        return None
    return drawn.astype(values.dtype)


_SETTINGS = OnnxruntimeRequest(optimization="disabled", memory_reuse=False)
_ALL_AT_ONCE_BYTES = 2**28
"""Up to this size, all tensors are captured in one run; above it, each part runs the model for what it lacks."""


class Captured:
    """Values of tensors of a model by name. Raises CaptureError if the model cannot run, and CutError for a tensor
    whose values cannot be captured."""

    def __init__(self, whole: Whole) -> None:
        self._whole, self._index = whole, whole.values / "index.json"
        self._numbers: dict[str, int] = {}
        self.types: dict[str, str] = {}
        """Tensor -> its type, such as `float32[1, 3]`; `?` where samples differ."""
        self.samples = 0
        with contextlib.suppress(OSError):
            known = json.loads(self._index.read_text(encoding="utf-8"))
            self._numbers, self.types, self.samples = known["numbers"], known["types"], known["samples"]

    def files(self, names: Sequence[str]) -> dict[str, list[Path]]:
        """Return the files with the values of tensors, one for each sample."""
        missing = [name for name in names if name not in self._numbers]
        if missing or not self.samples:
            self._capture(missing)
        for name in names:
            if name not in self._numbers:
                raise CutError(f"the values of {name!r} cannot be captured: it is not a tensor")
        return {name: [self._file(name, sample) for sample in range(self.samples)] for name in names}

    def read(self, name: str) -> list[Array]:
        """Return the values of a tensor."""
        return [read_array(path) for path in self.files([name])[name]]

    def _file(self, name: str, sample: int) -> Path:
        return self._whole.values / f"{self._numbers[name]}_{sample}.pb"

    def _capture(self, missing: Sequence[str]) -> None:
        self._whole.values.mkdir(parents=True, exist_ok=True)
        own = {spec.name for spec in model_inputs(self._whole.path)}
        inside = [name for name in missing if name not in own]
        try:
            shapes: dict[str, set[tuple[int, ...]]] = {}
            for sample, values in enumerate(_run(self._whole, inside)):
                for name, value in values.items():
                    self._numbers.setdefault(name, len(self._numbers))
                    self._file(name, sample).write_bytes(numpy_helper.from_array(value, name).SerializeToString())
                    shapes.setdefault(name, set()).add(value.shape)
                    dims = [
                        str(sizes.pop()) if len(sizes) == 1 else "?"
                        for sizes in map(set, zip(*shapes[name], strict=True))
                    ]
                    self.types[name] = f"{dtype_text(value.dtype)}[{', '.join(dims)}]"
                self.samples = sample + 1
        except NdldFlowError as error:
            raise CaptureError(str(error)) from error
        found = {"numbers": self._numbers, "types": self.types, "samples": self.samples}
        unfinished = self._index.with_suffix(".new")
        unfinished.write_text(json.dumps(found), encoding="utf-8")
        unfinished.rename(self._index)


def read_array(path: Path) -> Array:
    """Return the values of a file with a TensorProto."""
    values: Array = numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))
    return values


def _run(whole: Whole, inside: Sequence[str]) -> Iterator[dict[str, Array]]:
    """Yield the values of the model's inputs, and of tensors inside it, for each sample or step of a sequence."""
    specs, path = model_inputs(whole.path), whole.path
    feeds: Iterable[dict[str, Array]]
    if whole.is_sequence:
        sequences = make_sequences(specs, whole.inputs, SampleSettings(samples=1, steps=whole.steps), str(path))
        feeds = ({name: fed.values for name, fed in each.feeds.items()} for each in sequences)
        states = States(sequences.feedback, specs, path)
        fed = [source.output for source in sequences.feedback.values()]
    else:
        samples = make_samples(specs, whole.inputs, SampleSettings(), str(path))
        feeds = ({name: fed.values for name, fed in each.feeds.items()} for each in islice(samples, whole.samples))
        states, fed = States({}, specs, path), []
    given = list(feeds)
    if not inside and not fed:
        yield from given
        return
    # Small tensors are captured all at once, because other parts will need them.
    places = [place for place in tensors_of(whole.path) if place.can_be_captured]
    sizes = tensor_bytes(whole.path, places, given[0], _SETTINGS) if not whole.is_sequence else {}
    known = bool(sizes) and prod((sum(sizes.values()), len(given))) <= _ALL_AT_ONCE_BYTES
    wanted = list(dict.fromkeys([*fed, *([place.name for place in places] if known else list(inside))]))
    session = open_inside(path, wanted, _SETTINGS)
    for arrays in given:
        inputs, outputs = states.run(session, arrays)
        yield {**inputs, **{name: value for name, value in outputs.items() if value is not None}}
