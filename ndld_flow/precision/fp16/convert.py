"""Conversion of a model to fp16 with the fewest Casts: infer types, find hazards, group, choose, rewrite, save."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import ModelError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of
from ndld_flow.models.changed_model import check_changed_model, examine_model
from ndld_flow.models.element_types import TYPE_ATTRIBUTES, Types, dtype_of, infer_types, is_op, tensor_of, with_element
from ndld_flow.models.external_files import model_bytes
from ndld_flow.models.files import blaming_model, load_model, repairs_of, save_model, summarize_model
from ndld_flow.models.lazy_tensors import FORMATS, HALF, Array, Loss, RoundedTensor, SparseInitializer, rounded_sparse
from ndld_flow.models.nodes import UniqueNames, fixed_tensor, inline_functions, is_used, op_name
from ndld_flow.models.shape_inference import drop_stale_sizes
from ndld_flow.precision.fp16.choice import Fp16Options, blocked_nodes, choose_fp32, keep_blocked, keep_shape_arithmetic
from ndld_flow.precision.type_groups import Group, Groups, Use, group_places, insert_cast, is_constant
from ndld_flow.records.model_diff import GraphChange

_NAMED = 10
"""Maximum number of weights named in notes; the log has all."""
_USUAL_SHARE = 0.01
_SAFE_DEVIATIONS = 8.0
"""Activations of trained networks often reach this many standard deviations."""


def loss_lines(losses: Sequence[Loss]) -> list[str]:
    """Return a line for each converted weight that lost values, clamped ones first."""
    clamped = [
        f"{loss.name}: {loss.clamped} of {loss.size} values beyond fp16's 65504 were clamped "
        f"(largest {loss.largest:.4g})"
        for loss in losses
        if loss.clamped
    ]
    vanished = [
        f"{loss.name}: {loss.vanished} of {loss.size} values are too small for fp16" for loss in losses if loss.vanished
    ]
    return clamped + vanished


def loss_notes(losses: Sequence[Loss]) -> list[str]:
    """Return notes that summarize the losses."""
    notes = []
    clamped = sorted((loss for loss in losses if loss.clamped), key=lambda loss: -loss.largest)
    if clamped:
        count = sum(loss.clamped for loss in clamped)
        names = first_of([f"{loss.name} (largest {loss.largest:.4g})" for loss in clamped], _NAMED)
        notes.append(f"{count} weight values beyond fp16's 65504 were clamped, in {names}; see `block.values_outside`")
    # A few tiny values in a large weight are common and harmless; the log has them.
    many = (loss for loss in losses if loss.vanished > _USUAL_SHARE * loss.size)
    vanished = sorted(many, key=lambda loss: -loss.vanished / loss.size)
    if vanished:
        count = sum(loss.vanished for loss in vanished)
        names = first_of([f"{loss.name} ({loss.vanished} of {loss.size})" for loss in vanished], _NAMED)
        notes.append(f"{count} weight values are too small for fp16 and became 0 or {HALF.smallest:.1g}, in {names}")
    return notes


def normalization_notes(model: ir.Model, kept: Collection[ir.Node]) -> list[str]:
    """Return notes on BatchNormalization nodes whose statistics show that fp16 is too narrow for them or their input.

    Call it before the model is rewritten; `kept` are the nodes that stay fp32.
    """
    notes: list[str] = []
    for node in model.graph.all_nodes():
        if not is_op(node, "BatchNormalization"):
            continue
        changed = scale_in_half(node) if node not in kept else None
        if changed is not None:
            notes.append(
                f"BatchNormalization {node.name!r}: variance {changed.variance:.3g} + epsilon {changed.epsilon:.1g} "
                f"becomes {changed.half:.3g} in fp16, which scales a channel by {changed.factor:.3g}; keep the node in "
                "fp32 (`block.nodes` or `block.values_outside`)"
            )
        notes += _input_note(node, kept)
    return notes


@dataclass(frozen=True)
class ScaleInHalf:
    """The BatchNormalization channel that fp16 changes most."""

    variance: float
    epsilon: float
    half: float
    """variance + epsilon in fp16."""
    factor: float
    """Factor by which the channel is scaled."""


def scale_in_half(node: ir.Node) -> ScaleInHalf | None:
    """Return the effect of fp16 on 1 / sqrt(variance + epsilon); None if it is below 5 % or unknown."""
    variance = _values(node, 4) if is_op(node, "BatchNormalization") else None
    if variance is None:
        return None
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    exact = variance + epsilon
    half = np.minimum(variance, HALF.largest).astype(np.float16).astype(np.float64) + float(np.float16(epsilon))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(exact / half)
    worst = int(np.argmax(np.abs(np.nan_to_num(ratio, nan=np.inf) - 1.0)))
    if 0.95 < ratio[worst] < 1.05:
        return None
    return ScaleInHalf(float(variance[worst]), epsilon, float(half[worst]), float(ratio[worst]))


def _input_note(node: ir.Node, kept: Collection[ir.Node]) -> list[str]:
    """Return a note if the running statistics show that the node's input may exceed fp16."""
    mean, variance = _values(node, 3), _values(node, 4)
    maker = node.inputs[0].producer() if node.inputs[0] is not None else None
    if mean is None or variance is None or maker is None or maker in kept:
        return []
    deviation = np.sqrt(np.maximum(variance, 1e-30))
    room = (HALF.largest - np.abs(mean)) / deviation
    worst = int(np.argmin(room))
    if room[worst] >= _SAFE_DEVIATIONS:
        return []
    return [
        f"{maker.op_type} {maker.name!r} may overflow fp16: by the statistics of {node.name!r} its output has mean "
        f"{mean[worst]:.4g} and standard deviation {deviation[worst]:.4g}, so 65504 is {room[worst]:.1f} standard "
        "deviations away; keep it in fp32 too if large inputs give wrong results"
    ]


def _values(node: ir.Node, index: int) -> Array | None:
    """Return a per-channel input in float64 if it is a constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = fixed_tensor(value)
    return None if tensor is None or not tensor.size else tensor.numpy().astype(np.float64).ravel()


MIN_OPSET = 7
"""Earlier opsets define broadcasting and Cast differently."""


@dataclass(frozen=True)
class Fp16Conversion:
    """The result of a conversion."""

    change: GraphChange
    kept: Mapping[str, str]
    """Node that stayed fp32 -> why."""
    functions_inlined: int
    size_before: int
    """Bytes on disk, external data included."""
    size_after: int


def convert_to_fp16(
    source: Path, target: Path, request: Fp16Options, log: logging.Logger, progress: Progress
) -> Fp16Conversion:
    """Write `source` in fp16 to `target`, weight by weight, so that memory does not grow with the model.

    Raises `ModelError` for a model that cannot be read or converted and `RequestError` for an invalid selector.
    """
    model = load_model(source)
    with blaming_model(source):
        return _convert(model, source, target, request, log, progress)


def _convert(
    model: ir.Model, source: Path, target: Path, request: Fp16Options, log: logging.Logger, progress: Progress
) -> Fp16Conversion:
    before = summarize_model(model)
    functions = len(model.functions)
    notes = prepare(model, source)
    types = infer_types(model)
    groups = group_places(model, types, request.keep_io)
    keep_blocked(groups, blocked_nodes(model, request, notes))
    keep_shape_arithmetic(model, groups)
    fp32 = choose_fp32(groups)
    kept = {  # Casts do not count: they connect precisions
        node: members[0].kept
        for node, members in groups.of_node().items()
        if not is_op(node, "Cast") and all(group in fp32 for group in members)
    }
    notes += normalization_notes(model, kept)
    choice = {group: ir.DataType.FLOAT16 for group in groups.all if group not in fp32}
    rewriter = Rewriter(model, types, groups, choice, progress)
    rewriter.rewrite()
    save_model(model, target)
    reasons = Counter(kept.values()).most_common()
    notes += [f"{counted(count, 'node')} kept in fp32: {reason}" for reason, count in reasons]
    notes += loss_notes(rewriter.constants.losses)
    change = GraphChange(
        before=before, after=summarize_model(model), casts_added=rewriter.casts_added, notes=tuple(notes)
    )
    for node, why in kept.items():
        log.info("kept in fp32: %s %r: %s", op_name(node), node.name, why)
    for line in loss_lines(rewriter.constants.losses):
        log.info("%s", line)
    for note in notes:
        log.info("%s", note)
    log.info("%d Casts added, %d Casts of the model removed", rewriter.casts_added, rewriter.casts_removed)
    names = {node.name or f"{node.op_type} -> {node.outputs[0].name}": why for node, why in kept.items()}
    return Fp16Conversion(change, names, functions, model_bytes(source), model_bytes(target))


def refuse_broken(result: Path, source: Path, functions_inlined: int, log: logging.Logger) -> None:
    """Raise an error if a converted model has a defect that its source does not have.

    The checker does not check calls of local functions: `ModelError` if inlining them gives an invalid model.
    `RuntimeError`, a bug, if the checker accepts the source and not the result; `ModelError` if the source has defects
    too, or if only ONNX Runtime refuses the result.
    """
    try:
        check_changed_model(source, result, log, new_types=True)
    except ModelError as error:
        if functions_inlined:
            raise ModelError(f"{source}: inlining its local functions gives an invalid model: {error}") from None
        if examine_model(source).is_clean and not examine_model(result).is_clean:
            raise RuntimeError(f"the converted model is invalid although its source is valid: {error}") from None
        raise ModelError(f"{source}: its conversion is not valid: {error}") from None


def prepare(model: ir.Model, source: Path) -> list[str]:
    """Tidy a model into which Casts are inserted. Raises as `tidy` and `refuse_old` do."""
    refuse_old(model, source)
    return tidy(model, source)


def refuse_old(model: ir.Model, source: Path) -> None:
    """Raise `ModelError` for an opset that is too old for Casts and new constants."""
    opset = model.opset_imports.get("", MIN_OPSET)
    if opset < MIN_OPSET:
        raise ModelError(
            f"{source}: opset {opset} is too old for Casts and new constants. Convert it first with `edit` and "
            f"`set_opset: {{to: {MIN_OPSET}}}`, or export it anew."
        )


def tidy(model: ir.Model, source: Path) -> list[str]:
    """Inline functions, make names unique, sort nodes and drop stale sizes; return notes on it."""
    notes = repairs_of(model)
    functions = inline_functions(model, source)
    if functions:
        notes.append(f"inlined {functions} local functions")
    renamed = UniqueNames(model).rename_duplicates(model)
    if renamed:
        notes.append(f"renamed {counted(renamed, 'node')} with duplicate names")
    try:
        model.graph.sort()
    except ValueError:
        raise ModelError(f"{source}: the graph has a cycle, so it cannot be converted.") from None
    drop_stale_sizes(model)
    return notes


Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`"""


class RoundedConstants:
    """Converts a model's floating-point constants to other types and records what each loses."""

    def __init__(self, names: UniqueNames, progress: Progress) -> None:
        self._names = names
        self._progress = progress
        self._written = 0
        self._rounded: list[RoundedTensor] = []
        self._sparse: list[Loss] = []

    @property
    def losses(self) -> list[Loss]:
        """The loss of each converted tensor; complete once the model is saved, which converts them."""
        return [*(tensor.loss for tensor in self._rounded), *self._sparse]

    def rounded(self, tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
        """Return a tensor in another type, computed when it is written."""
        if tensor.dtype == dtype:
            return tensor
        if isinstance(tensor, SparseInitializer):
            converted, loss = rounded_sparse(tensor, dtype, name)
            self._sparse.append(loss)
            return converted
        self._rounded.append(RoundedTensor(tensor, dtype, name, self._report))
        return self._rounded[-1]

    def _report(self, name: str) -> None:
        self._written += 1
        self._progress(min(self._written, len(self._rounded)), len(self._rounded), name)

    def convert(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Give a constant another type in place."""
        tensor = self.rounded(tensor_of_constant(value), dtype, value.name or "")
        producer = value.producer()
        if producer is None:
            value.const_value = tensor
        else:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", tensor)
        value.type = type_with(value.type, dtype)

    def copy_in(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a copy of a constant in another type to its graph."""
        suffix = FORMATS[dtype].precision
        name = self._names.value(f"{value.name}_{suffix}")
        tensor = self.rounded(tensor_of_constant(value), dtype, name)
        copy = ir.Value(name=name, shape=value.shape, type=type_with(value.type, dtype))
        producer = value.producer()
        if producer is None:
            copy.const_value = tensor
            graph_of(value).register_initializer(copy)
        else:
            node_name = self._names.node(f"{producer.name or value.name}_{suffix}")
            attributes = [ir.AttrTensor("value", tensor)]
            node = ir.Node("", "Constant", [], attributes, outputs=[copy], name=node_name)
            graph_of(value).insert_after(producer, node)
        return copy


def tensor_of_constant(value: ir.Value) -> ir.TensorProtocol:
    """Return the tensor of a floating-point constant."""
    tensor = fixed_tensor(value)
    if tensor is None:
        raise TypeError(f"{value.name!r} is not a constant")
    return tensor


def graph_of(value: ir.Value) -> ir.Graph:
    """Return the graph that a value belongs to."""
    if value.graph is None:
        raise ValueError(f"{value.name!r} belongs to no graph")
    return value.graph


def type_with(type_: ir.TypeProtocol | None, dtype: ir.DataType) -> ir.TypeProtocol | None:
    """Return a type with another element type; a new object, since values may share types."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = type_with(type_.elem_type, dtype)
        return type_ if inner is None else type(type_)(inner, denotation=type_.denotation)
    if isinstance(type_, ir.TensorType | ir.SparseTensorType):
        return type(type_)(dtype, denotation=type_.denotation)
    return type_


_CAST_OPSET, _CAST_IR_VERSION = 13, 7


def import_casts(model: ir.Model) -> None:
    """Import the operators of ONNX into a model without them, such as one with only ai.onnx.ml operators."""
    if "" not in model.opset_imports:
        model.opset_imports[""] = _CAST_OPSET
        model.ir_version = max(model.ir_version or 0, _CAST_IR_VERSION)


Readers = dict[ir.DataType, list[Use]]
"""Type -> the uses that need it."""


class Rewriter:
    """Applies a choice of types to a model, in place, once."""

    def __init__(
        self, model: ir.Model, types: Types, groups: Groups, choice: Mapping[Group, ir.DataType], progress: Progress
    ) -> None:
        self.casts_added = 0
        self.casts_removed = 0
        self._model = model
        self._types = types
        self._names = UniqueNames(model)
        self.constants = RoundedConstants(self._names, progress)
        chosen = ((value, dtype) for group, dtype in choice.items() for value in group.values)
        self._new_types = {value: dtype for value, dtype in chosen if dtype_of(types[value]) != dtype}
        """Values whose type changes -> the new type."""
        # Groups without a choice need the original type.
        readers_by_type: dict[ir.Value, Readers] = {}
        for group in groups.all:
            for use in group.uses:
                if use.value is not None:
                    dtype = choice.get(group) or dtype_of(self._types[use.value])
                    readers_by_type.setdefault(use.value, {}).setdefault(dtype, []).append(use)
        self._readers = readers_by_type
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def rewrite(self) -> None:
        """Change the model."""
        for value, dtype in self._new_types.items():
            value.type = type_with(value.type, dtype)
            if value.const_value is not None and value.is_initializer():  # also an input, or it would be a constant
                value.const_value = self.constants.rounded(value.const_value, dtype, value.name or "")
        for node in list(self._model.graph.all_nodes()):
            self._set_attribute(node)
        for value in filter(is_constant, self._floats()):
            self._convert_constant(value)
        # First, so that their readers share a Cast with the readers of their source; inserting Casts makes others
        # redundant.
        self._remove_idle_casts()
        for value in self._floats():
            self._insert_cast(value)
        self._remove_idle_casts()
        if self.casts_added:
            import_casts(self._model)

    def _floats(self) -> list[ir.Value]:
        return [value for value in self._types if value in self._readers]

    def _set_attribute(self, node: ir.Node) -> None:
        """Update the attribute that sets the type of the output, if there is one."""
        dtype = next((self._new_types[value] for value in node.outputs if value in self._new_types), None)
        if dtype is None or not is_op(node, *TYPE_ATTRIBUTES):
            return
        name = TYPE_ATTRIBUTES[node.op_type]
        if name == "value":
            given, value_name = node.attributes.get(name), node.outputs[0].name or ""
            # Without the attribute, ConstantOfShape fills its output with zeros.
            tensor = ir.Tensor(np.zeros(1, np.float32)) if given is None else given.as_tensor()
            node.attributes[name] = ir.AttrTensor(name, self.constants.rounded(tensor, dtype, value_name))
        elif name in node.attributes or not self._inherits(node, dtype):
            node.attributes[name] = ir.AttrInt64(name, dtype.value)

    def _inherits(self, node: ir.Node, dtype: ir.DataType) -> bool:
        """Return whether the output gets an input's type if the attribute is absent."""
        readers_by_type = (self._readers.get(value, {}) for value in node.inputs if value is not None)
        return any(use.reader is node for readers in readers_by_type for use in readers.get(dtype, ()))

    def _convert_constant(self, value: ir.Value) -> None:
        """Give a constant the type that its readers need; add copies for further types."""
        readers_by_type, own = self._readers.pop(value), self._dtype(value)
        others = [dtype for dtype in readers_by_type if dtype != own]
        if not others:
            return
        # If the constant is a graph output, its name must stay with the type of that output.
        output = [d for d in others if any(use.reader is self._model.graph for use in readers_by_type[d])]
        # A constant that a Cast reads must keep its precision.
        is_cast = any(is_op(node, "Cast", "CastLike") for node in value.consumers())
        free = not output and (own in readers_by_type or is_cast)
        here = own if free else (output or others)[0]
        for dtype, uses in readers_by_type.items():
            if dtype != here:
                _redirect(uses, self.constants.copy_in(value, dtype))
        if here != own:
            self.constants.convert(value, here)
            self._new_types[value] = here

    def _insert_cast(self, value: ir.Value) -> None:
        """Insert one Cast between a value and all its readers that need the same other type."""
        produced = self._dtype(value)
        for wanted, uses in self._readers.pop(value, {}).items():
            if wanted == produced:
                continue
            if any(use.reader is self._model.graph for use in uses):
                name = value.name or ""
                value.name = self._names.value(f"{name}_{FORMATS[produced].precision}")
                _redirect(uses, self._cast(value, wanted, name))
                continue
            origin = self._cast_source(value)
            if origin is not None and self._type(origin) != tensor_of(wanted):
                origin = None
            _redirect(uses, origin or self._cast(value, wanted))
            if origin is not None:
                # The model's own Cast is removed once nothing reads it.
                cast, graph = value.producer(), value.graph
                if cast is not None and graph is not None and not is_used(value):
                    graph.remove(cast, safe=True)
                    self.casts_removed += 1

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str = "") -> ir.Value:
        """Return the output of a Cast right after the value's producer; never a Cast of a Cast, never a duplicate."""
        source = self._cast_source(value) or value
        if not name and (source, dtype) in self._casts:
            return self._casts[source, dtype]
        name = name or self._names.value(f"{value.name}_{FORMATS[dtype].precision}")
        node_name = self._names.node(f"{value.name}_to_{FORMATS[dtype].precision}")
        self._casts[source, dtype] = insert_cast(source, dtype, name, node_name)
        self.casts_added += 1
        return self._casts[source, dtype]

    def _cast_source(self, value: ir.Value) -> ir.Value | None:
        """Return the source of the Cast that computes a value, unless it has strings: few runtimes cast strings to
        fp16."""
        producer = value.producer()
        origin = producer.inputs[0] if producer is not None and is_op(producer, "Cast") else None
        return None if origin is None or self._type(origin) in (None, "tensor(string)") else origin

    def _type(self, value: ir.Value) -> str | None:
        type_ = self._types.get(value)
        return with_element(type_, self._new_types[value]) if type_ is not None and value in self._new_types else type_

    def _dtype(self, value: ir.Value) -> ir.DataType:
        """Return the type of a value's elements after the rewrite."""
        return self._new_types.get(value) or dtype_of(self._types[value])

    def _remove_idle_casts(self) -> None:
        """Remove the model's own Casts whose source now has their target type."""
        for node in list(self._model.graph.all_nodes()):
            source, graph = node.inputs[0] if node.inputs else None, node.graph
            if not is_op(node, "Cast") or source is None or graph is None or node.outputs[0].is_graph_output():
                continue
            if self._type(source) == tensor_of(ir.DataType(node.attributes["to"].as_int())):
                node.outputs[0].replace_all_uses_with(source)
                for dtype, uses in self._readers.pop(node.outputs[0], {}).items():
                    self._readers.setdefault(source, {}).setdefault(dtype, []).extend(uses)
                graph.remove(node, safe=True)
                self.casts_removed += 1


def _redirect(uses: list[Use], value: ir.Value) -> None:
    for use in uses:
        use.read(value)
