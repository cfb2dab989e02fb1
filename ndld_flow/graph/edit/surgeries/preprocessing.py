"""Camera frames as a model's input: what a program does to a frame before it feeds it is done inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.graph.edit.dtype_words import dtype_of_word
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.surgeries.layouts import order, permuted
from ndld_flow.graph.edit.surgeries.rewriting import Rewriting, label
from ndld_flow.graph.sanitize.edits import FLOATS, Array, int_attribute, ints_attribute
from ndld_flow.models.input_shapes import real_inputs, show_shape

_FIRST_OPSET_OF_RESIZE = 11
_FIRST_OPSET_OF_RESIZE_AXES = 18


@dataclass(frozen=True)
class Camera:
    """What comes in, and what the model wants of it: (frame * scale - mean) / std in the model's channel order."""

    layout: str = "NHWC"
    dtype: str = "uint8"
    model_layout: str = "NCHW"
    swap_channels: bool = False
    scale: float = 1.0
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    resize_to: tuple[int, int] | None = None
    """Height and width that frames of any size get."""
    fold: bool = False


@dataclass
class _Chain:
    """Nodes between the frame and the model, one after the other at the front of the graph."""

    edits: Rewriting
    anchor: ir.Node
    name: str
    value: ir.Value
    made: list[ir.Node] = field(default_factory=list)

    def put(self, op_type: str, what: str, *more: ir.Value | None, **attributes: object) -> None:
        """Do something to the value."""
        self.value = self.side(op_type, what, self.value, *more, **attributes)

    def side(self, op_type: str, what: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        """A node beside the chain."""
        value = self.edits.put_before(self.anchor, op_type, inputs, attributes, f"{self.name}_{what}")  # type: ignore[arg-type]
        producer = value.producer()
        assert producer is not None
        self.made.append(producer)
        return value

    def numbers(self, array: Array, what: str) -> ir.Value:
        return self.edits.add_initializer(self.edits.model.graph, array, f"{self.name}_{what}")


def add_preprocessing_to(edited: EditedModel, name: str | None, camera: Camera) -> str:
    """Let an input take frames; returns its name.

    Raises `RequestError` for an input that is no image of floats, numbers that do not fit its channels, and opsets
    that cannot resize.
    """
    edits = Rewriting(edited)
    value = _image_input(edited.model, name)
    dtype = _checked_dtype(value)
    assert value.shape is not None
    channels = value.shape[camera.model_layout.index("C")]
    gain, shift = _affine(camera, channels, value.name or "")
    uses, shape, outputs = tuple(value.uses()), value.shape, value.is_graph_output()
    if not uses or outputs:
        raise RequestError(
            f"input {value.name} is read by no node, or is an output itself: there is nothing to prepare"
        )
    absorbed = _fold(edited, edits, value, camera, gain, shift) if camera.fold else None
    if absorbed is not None:
        camera, gain, shift = absorbed
    chain = _Chain(edits, edits.model.graph[0], value.name or "image", value)
    _declare(value, camera, shape)
    _build(chain, camera, channels, gain, shift, dtype)
    for use in uses:
        use.node.replace_input_with(use.idx, chain.value)
    chain.value.type, chain.value.shape = ir.TensorType(dtype), None
    return value.name or ""


def _image_input(model: ir.Model, name: str | None) -> ir.Value:
    inputs = {value.name or "": value for value in real_inputs(model)}
    images = [value for value in inputs.values() if value.shape is not None and len(value.shape) == 4]
    if name is None:
        if len(images) != 1:
            known = ", ".join(value.name or "" for value in images)
            raise RequestError(f"say which `input`: the model has {len(images)} of 4 dimensions ({known or 'none'})")
        return images[0]
    if name not in inputs:
        raise RequestError(f"the model has no input {name!r}; {suggest(name, inputs)}")
    if inputs[name] not in images:
        raise RequestError(f"input {name} is no image of 4 dimensions: its shape is {show_shape(inputs[name].shape)}")
    return inputs[name]


def _checked_dtype(value: ir.Value) -> ir.DataType:
    if value.dtype not in FLOATS:
        told = "unknown" if value.dtype is None else value.dtype.name.lower()
        raise RequestError(f"input {value.name} is of type {told}, not of floats; `change_layout` gives it a layout")
    assert value.dtype is not None
    return value.dtype


def _affine(camera: Camera, channels: int | ir.SymbolicDim, name: str) -> tuple[Array, Array]:
    """(frame * scale - mean) / std = gain * frame + shift; one number, or one for each channel, in float64."""
    for what, numbers in (("mean", camera.mean), ("std", camera.std)):
        if len(numbers) > 1 and len(numbers) != channels:
            raise RequestError(f"`{what}` has {len(numbers)} numbers, but {name} has {channels} channels")
    if camera.swap_channels and channels != 3:
        raise RequestError(f"`swap_channels` needs 3 channels; {name} has {channels}")
    std = np.array(camera.std or (1.0,), np.float64)
    mean = np.array(camera.mean or (0.0,), np.float64)
    return camera.scale / std, -mean / std


def _declare(value: ir.Value, camera: Camera, shape: ir.Shape) -> None:
    """The input as the camera has it."""
    value.type = ir.TensorType(dtype_of_word(camera.dtype))
    dims = list(shape)
    if camera.resize_to is not None:
        for axis, what in (("H", "height"), ("W", "width")):
            dims[camera.model_layout.index(axis)] = ir.SymbolicDim(f"{value.name}_{what}")
    value.shape = permuted(ir.Shape(dims), order(camera.model_layout, camera.layout))


def _build(
    chain: _Chain, camera: Camera, channels: int | ir.SymbolicDim, gain: Array, shift: Array, dtype: ir.DataType
) -> None:
    # TensorRT takes uint8 inputs only where a Cast reads them, so it comes first. Halves are too coarse to subtract in.
    exact = dtype if dtype == ir.DataType.DOUBLE or _is_plain(camera, gain, shift) else ir.DataType.FLOAT
    if dtype_of_word(camera.dtype) != exact:
        chain.put("Cast", "cast", to=int(exact))
    if camera.layout != camera.model_layout:
        perm = list(order(camera.layout, camera.model_layout))
        chain.put("Transpose", camera.model_layout.lower(), perm=perm)
    axis = camera.model_layout.index("C")
    if camera.swap_channels:
        swapped = chain.numbers(np.array([2, 1, 0], np.int64), "swapped_channels")
        chain.put("Gather", "swap_channels", swapped, axis=axis)
    if camera.resize_to is not None:
        _resize(chain, camera, channels, exact)
    _normalize(chain, axis, gain.astype(exact.numpy()), shift.astype(exact.numpy()))
    if exact != dtype:
        chain.put("Cast", "to_model", to=int(dtype))
    if chain.value.producer() is None:
        raise RequestError(f"input {chain.name} would stay as it is: say what is different in the frames")


def _is_plain(camera: Camera, gain: Array, shift: Array) -> bool:
    """Whether nothing is computed that would lose digits."""
    return bool((gain == 1).all()) and not shift.any() and camera.resize_to is None


def _normalize(chain: _Chain, axis: int, gain: Array, shift: Array) -> None:
    per_channel = [-1 if place == axis else 1 for place in range(4)]
    if (gain != 1).any():
        chain.put("Mul", "scale", chain.numbers(gain.reshape(per_channel), "gain"))
    if shift.any():
        chain.put("Add", "shift", chain.numbers(shift.reshape(per_channel), "offset"))


def _resize(chain: _Chain, camera: Camera, channels: int | ir.SymbolicDim, exact: ir.DataType) -> None:
    opset = chain.edits.opset(chain.edits.model.graph)
    if opset < _FIRST_OPSET_OF_RESIZE:
        raise RequestError(f"`resize_to` needs opset {_FIRST_OPSET_OF_RESIZE}; the model has {opset}: convert it first")
    assert camera.resize_to is not None
    sizes = dict(zip("HW", camera.resize_to, strict=True))
    attributes: dict[str, object] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    region = chain.numbers(np.zeros(0, exact.numpy()), "no_region") if opset < 13 else None
    scales = chain.numbers(np.zeros(0, np.float32), "no_scales") if opset < 13 else None
    if opset >= _FIRST_OPSET_OF_RESIZE_AXES:
        attributes["axes"] = [camera.model_layout.index(axis) for axis in "HW"]
        size = chain.numbers(np.array(camera.resize_to, np.int64), "size")
    else:
        if not isinstance(channels, int):
            raise RequestError(f"`resize_to` needs to know how many channels {chain.name} has, before opset 18")
        rest = np.array([sizes.get(axis, channels) for axis in camera.model_layout[1:]], np.int64)
        first = [chain.numbers(np.array([number], np.int64), what) for number, what in ((0, "first"), (1, "second"))]
        batch = chain.side("Slice", "batch", chain.side("Shape", "shape", chain.value), *first)
        size = chain.side("Concat", "sizes", batch, chain.numbers(rest, "size"), axis=0)
    chain.put("Resize", "resize", region, scales, size, **attributes)


def _fold(
    edited: EditedModel, edits: Rewriting, value: ir.Value, camera: Camera, gain: Array, shift: Array
) -> tuple[Camera, Array, Array] | None:
    """What is left to do when the first Conv's weights do the rest; None when they cannot, which is told."""
    conv, reason = _first_conv(edits, value)
    if conv is not None and camera.dtype == "uint16" and value.dtype == ir.DataType.FLOAT16:
        conv, reason = None, "halves end at 65504, frames of uint16 do not"
    if conv is None:
        edited.note(f"nothing is folded into a Conv: {reason}")
        return None
    weight_value = conv.inputs[1]
    weight, bias = edits.array(weight_value), _bias(edits, conv)
    assert weight is not None and weight_value is not None
    exact = weight.astype(np.float64)
    channels = exact.shape[1]
    gain, shift = np.broadcast_to(gain, channels), np.broadcast_to(shift, channels)
    added = exact.reshape(*exact.shape[:2], -1).sum(-1) @ shift
    scaled = exact * gain.reshape(1, -1, *(1,) * (exact.ndim - 2))
    if camera.swap_channels:
        # the weights meet the channels as the camera has them
        scaled, gain, shift = scaled[:, ::-1], gain[::-1], shift[::-1]
    graph = edits.model.graph
    conv.replace_input_with(1, edits.add_initializer(graph, scaled.astype(weight.dtype), f"{weight_value.name}_folded"))
    edits.drop_unread(weight_value)
    left = Camera(camera.layout, camera.dtype, camera.model_layout, resize_to=camera.resize_to)
    if not shift.any():
        return left, np.ones(1), np.zeros(1)
    if _pads(conv):
        edited.note(f"{label(conv)} pads with zeros, so the mean is still subtracted before it")
        return left, np.ones(1), shift / gain
    old = conv.inputs[2] if len(conv.inputs) > 2 else None
    total = (0 if bias is None else bias.astype(np.float64)) + added
    new = edits.add_initializer(graph, total.astype(weight.dtype), f"{conv.name or 'conv'}_bias_folded")
    if len(conv.inputs) < 3:
        conv.resize_inputs(3)
    conv.replace_input_with(2, new)
    if old is not None:
        edits.drop_unread(old)
    return left, np.ones(1), np.zeros(1)


def _first_conv(edits: Rewriting, value: ir.Value) -> tuple[ir.Node | None, str]:
    """The Conv that alone reads the input, or why there is none to fold into."""
    uses = tuple(value.uses())
    node = uses[0].node
    if len(uses) != 1 or node.op_type != "Conv" or node.domain != "" or uses[0].idx != 0:
        return None, f"{value.name} is not read by one Conv alone"
    if node.graph is not edits.model.graph:
        return None, f"{label(node)} stands in a subgraph"
    if int_attribute(node, "group", 1) != 1:
        return None, f"{label(node)} has groups"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if edits.array(node.inputs[1]) is None or (bias is not None and edits.array(bias) is None):
        return None, f"the weights of {label(node)} are not constant"
    return node, ""


def _bias(edits: Rewriting, conv: ir.Node) -> Array | None:
    return edits.array(conv.inputs[2]) if len(conv.inputs) > 2 else None


def _pads(conv: ir.Node) -> bool:
    auto = conv.attributes.get("auto_pad")
    if auto is not None and auto.as_string() in ("SAME_UPPER", "SAME_LOWER"):
        return True
    return any(ints_attribute(conv, "pads") or ())
