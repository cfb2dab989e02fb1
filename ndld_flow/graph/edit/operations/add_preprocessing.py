"""Add preprocessing to an image input, and postprocessing to an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import RequestError, check_known
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.graph_edits import OperationEdits
    from ndld_flow.graph.sanitize.edits import Array


Size = Annotated[int, Field(ge=1)]
NotZero = Annotated[float, Field(gt=0)]


class AddPreprocessing(Operation):
    """Add preprocessing to an image input, which then takes camera frames: uint8, channels last, not normalized.

    The model gets (frame * scale - mean) / std, computed in fp32; the results are those of preprocessed floats up to
    1e-6 of the largest.

        add_preprocessing: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], swap_channels: true}
    """

    heading = "transformations"

    input: str | None = None
    """The input; optional when only one has 4 dimensions. It keeps its name."""
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    """Layout of the frames."""
    dtype: Literal["uint8", "uint16", "int8", "float16", "float32"] = "uint8"
    """Element type of the frames."""
    model_layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Current layout of the input."""
    swap_channels: bool = False
    """Convert BGR frames to RGB, or RGB to BGR."""
    scale: float = 1 / 255
    """Factor by which frames are multiplied first."""
    mean: tuple[float, ...] = ()
    """Mean that is subtracted after scaling: one number, or one for each channel in the model's order; 0 by default."""
    std: tuple[NotZero, ...] = ()
    """Standard deviation to divide by: one number, or one for each channel; 1 by default."""
    resize_to: tuple[Size, Size] | None = None
    """Height and width to which frames of any size are resized (linear, half-pixel centres); not resized by default."""
    fold: bool = False
    """Fold scale, mean, std and the channel swap into the weights of the first Conv if possible; otherwise the record
    states the reason. For a Conv with padding, the mean is still subtracted before it. Outputs differ in the last bits
    (about 1e-5 of the largest)."""

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.graph_edits import OperationEdits
        from ndld_flow.models.element_types import FLOATS

        edits = OperationEdits(edited)
        value = _image_input(edited.model, self.input)
        if value.dtype not in FLOATS:
            name = "unknown" if value.dtype is None else value.dtype.name.lower()
            raise RequestError(
                f"input {value.name} has the type {name}, not floats; `change_layout` changes only its layout"
            )
        assert value.dtype is not None
        dtype = value.dtype
        assert value.shape is not None
        channels = value.shape[self.model_layout.index("C")]
        gain, shift = _affine(self, channels, value.name or "")
        uses, shape, outputs = tuple(value.uses()), value.shape, value.is_graph_output()
        if not uses or outputs:
            raise RequestError(f"input {value.name} is unused or an output itself: there is nothing to preprocess for")
        settings = self
        absorbed = _fold(edited, edits, value, self, gain, shift) if self.fold else None
        if absorbed is not None:
            settings, gain, shift = absorbed
        chain = _Chain(edits, edits.model.graph[0], value.name or "image", value)
        _declare(value, settings, shape)
        _build(chain, settings, channels, gain, shift, dtype)
        for use in uses:
            use.node.replace_input_with(use.idx, chain.value)
        chain.value.type, chain.value.shape = ir.TensorType(dtype), None
        return f"{value.name} takes {self.dtype} frames in {self.layout}"


_FIRST_OPSET_OF_RESIZE = 11
_FIRST_OPSET_OF_RESIZE_AXES = 18


@dataclass
class _Chain:
    """The nodes between the input and the model, at the front of the graph."""

    edits: OperationEdits
    anchor: ir.Node
    name: str
    value: ir.Value

    def put(self, op_type: str, what: str, *more: ir.Value | None, **attributes: object) -> None:
        """Append a node that transforms the value."""
        self.value = self.side(op_type, what, self.value, *more, **attributes)

    def side(self, op_type: str, what: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        """Add a node outside the chain."""
        return self.edits.put_before(self.anchor, op_type, inputs, attributes, f"{self.name}_{what}")  # type: ignore[arg-type]

    def numbers(self, array: Array, what: str) -> ir.Value:
        return self.edits.add_initializer(self.edits.model.graph, array, f"{self.name}_{what}")


def _image_input(model: ir.Model, name: str | None) -> ir.Value:
    from ndld_flow.models.input_shapes import real_inputs, show_shape

    inputs = {value.name or "": value for value in real_inputs(model)}
    images = [value for value in inputs.values() if value.shape is not None and len(value.shape) == 4]
    if name is None:
        if len(images) != 1:
            known = ", ".join(value.name or "" for value in images)
            raise RequestError(f"give `input`: the model has {len(images)} of 4 dimensions ({known or 'none'})")
        return images[0]
    check_known([name], inputs, "the model has no input")
    if inputs[name] not in images:
        raise RequestError(
            f"input {name} is not an image of 4 dimensions: its shape is {show_shape(inputs[name].shape)}"
        )
    return inputs[name]


def _affine(settings: AddPreprocessing, channels: int | ir.SymbolicDim, name: str) -> tuple[Array, Array]:
    """Return gain and shift, per channel or for all: (frame * scale - mean) / std = gain * frame + shift."""
    import numpy as np

    for what, numbers in (("mean", settings.mean), ("std", settings.std)):
        if len(numbers) > 1 and len(numbers) != channels:
            raise RequestError(f"`{what}` has {len(numbers)} numbers, but {name} has {channels} channels")
    if settings.swap_channels and channels != 3:
        raise RequestError(f"`swap_channels` needs 3 channels; {name} has {channels}")
    std = np.array(settings.std or (1.0,), np.float64)
    mean = np.array(settings.mean or (0.0,), np.float64)
    return settings.scale / std, -mean / std


def _declare(value: ir.Value, settings: AddPreprocessing, shape: ir.Shape) -> None:
    """Set the input's type and shape to those of the frames."""
    import onnx_ir as ir

    from ndld_flow.graph.edit.layouts import order, permuted
    from ndld_flow.graph.edit.value_grammar import parse_dtype

    value.type = ir.TensorType(parse_dtype(settings.dtype))
    dims = list(shape)
    if settings.resize_to is not None:
        for axis, what in (("H", "height"), ("W", "width")):
            dims[settings.model_layout.index(axis)] = ir.SymbolicDim(f"{value.name}_{what}")
    value.shape = permuted(ir.Shape(dims), order(settings.model_layout, settings.layout))


def _build(
    chain: _Chain,
    settings: AddPreprocessing,
    channels: int | ir.SymbolicDim,
    gain: Array,
    shift: Array,
    dtype: ir.DataType,
) -> None:
    # TensorRT supports uint8 inputs only if a Cast reads them, so it comes first. FP16 is too coarse for the mean.
    import numpy as np
    import onnx_ir as ir

    from ndld_flow.graph.edit.layouts import order
    from ndld_flow.graph.edit.value_grammar import parse_dtype

    loses_nothing = bool((gain == 1).all()) and not shift.any() and settings.resize_to is None
    exact = dtype if dtype == ir.DataType.DOUBLE or loses_nothing else ir.DataType.FLOAT
    if parse_dtype(settings.dtype) != exact:
        chain.put("Cast", "cast", to=int(exact))
    if settings.layout != settings.model_layout:
        perm = list(order(settings.layout, settings.model_layout))
        chain.put("Transpose", settings.model_layout.lower(), perm=perm)
    axis = settings.model_layout.index("C")
    if settings.swap_channels:
        swapped = chain.numbers(np.array([2, 1, 0], np.int64), "swapped_channels")
        chain.put("Gather", "swap_channels", swapped, axis=axis)
    if settings.resize_to is not None:
        _resize(chain, settings, channels, exact)
    _normalize(chain, axis, gain.astype(exact.numpy()), shift.astype(exact.numpy()))
    if exact != dtype:
        chain.put("Cast", "to_model", to=int(dtype))
    if chain.value.producer() is None:
        raise RequestError(f"input {chain.name} would not change: give what differs between frames and the input")


def _normalize(chain: _Chain, axis: int, gain: Array, shift: Array) -> None:
    per_channel = [-1 if index == axis else 1 for index in range(4)]
    if (gain != 1).any():
        chain.put("Mul", "scale", chain.numbers(gain.reshape(per_channel), "gain"))
    if shift.any():
        chain.put("Add", "shift", chain.numbers(shift.reshape(per_channel), "offset"))


def _resize(chain: _Chain, settings: AddPreprocessing, channels: int | ir.SymbolicDim, exact: ir.DataType) -> None:
    import numpy as np

    opset = chain.edits.opset(chain.edits.model.graph)
    if opset < _FIRST_OPSET_OF_RESIZE:
        raise RequestError(f"`resize_to` needs opset {_FIRST_OPSET_OF_RESIZE}; the model has {opset}: convert it first")
    assert settings.resize_to is not None
    sizes = dict(zip("HW", settings.resize_to, strict=True))
    attributes: dict[str, object] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    region = chain.numbers(np.zeros(0, exact.numpy()), "no_region") if opset < 13 else None
    scales = chain.numbers(np.zeros(0, np.float32), "no_scales") if opset < 13 else None
    if opset >= _FIRST_OPSET_OF_RESIZE_AXES:
        attributes["axes"] = [settings.model_layout.index(axis) for axis in "HW"]
        size = chain.numbers(np.array(settings.resize_to, np.int64), "size")
    else:
        if not isinstance(channels, int):
            raise RequestError(f"`resize_to` requires a fixed number of channels of {chain.name} before opset 18")
        rest = np.array([sizes.get(axis, channels) for axis in settings.model_layout[1:]], np.int64)
        first = [chain.numbers(np.array([number], np.int64), what) for number, what in ((0, "first"), (1, "second"))]
        batch = chain.side("Slice", "batch", chain.side("Shape", "shape", chain.value), *first)
        size = chain.side("Concat", "sizes", batch, chain.numbers(rest, "size"), axis=0)
    chain.put("Resize", "resize", region, scales, size, **attributes)


def _fold(
    edited: EditedModel, edits: OperationEdits, value: ir.Value, settings: AddPreprocessing, gain: Array, shift: Array
) -> tuple[AddPreprocessing, Array, Array] | None:
    """Fold into the first Conv and return the remaining settings, gain and shift; None, with a note, if impossible."""
    import numpy as np
    import onnx_ir as ir

    from ndld_flow.graph.edit.graph_edits import label, prune_values

    conv, reason = _first_conv(edits, value)
    if conv is not None and settings.dtype == "uint16" and value.dtype == ir.DataType.FLOAT16:
        conv, reason = None, "uint16 frames exceed the range of FP16"
    if conv is None:
        edited.note(f"nothing is folded into a Conv: {reason}")
        return None
    weight_value = conv.inputs[1]
    weight = edits.array(weight_value)
    bias = edits.array(conv.inputs[2]) if len(conv.inputs) > 2 else None
    assert weight is not None and weight_value is not None
    exact = weight.astype(np.float64)
    channels = exact.shape[1]
    gain, shift = np.broadcast_to(gain, channels), np.broadcast_to(shift, channels)
    added = exact.reshape(*exact.shape[:2], -1).sum(-1) @ shift
    scaled = exact * gain.reshape(1, -1, *(1,) * (exact.ndim - 2))
    if settings.swap_channels:
        # the weights apply to the channels in the order of the frames
        scaled, gain, shift = scaled[:, ::-1], gain[::-1], shift[::-1]
    graph = edits.model.graph
    conv.replace_input_with(1, edits.add_initializer(graph, scaled.astype(weight.dtype), f"{weight_value.name}_folded"))
    prune_values([weight_value])
    left = settings.model_copy(update={"swap_channels": False, "scale": 1.0, "mean": (), "std": ()})
    if not shift.any():
        return left, np.ones(1), np.zeros(1)
    if _pads(conv):
        edited.note(f"{label(conv)} has zero padding, so the mean is still subtracted before it")
        return left, np.ones(1), shift / gain
    old = conv.inputs[2] if len(conv.inputs) > 2 else None
    total = (0 if bias is None else bias.astype(np.float64)) + added
    new = edits.add_initializer(graph, total.astype(weight.dtype), f"{conv.name or 'conv'}_bias_folded")
    if len(conv.inputs) < 3:
        conv.resize_inputs(3)
    conv.replace_input_with(2, new)
    if old is not None:
        prune_values([old])
    return left, np.ones(1), np.zeros(1)


def _first_conv(edits: OperationEdits, value: ir.Value) -> tuple[ir.Node | None, str]:
    """Return the only reader of the input if it is a suitable Conv, or else the reason why it is not."""
    from ndld_flow.graph.edit.graph_edits import label
    from ndld_flow.graph.sanitize.edits import int_attribute

    uses = tuple(value.uses())
    node = uses[0].node
    if len(uses) != 1 or node.op_type != "Conv" or node.domain != "" or uses[0].idx != 0:
        return None, f"{value.name} is not read by a single Conv"
    if node.graph is not edits.model.graph:
        return None, f"{label(node)} is in a subgraph"
    if int_attribute(node, "group", 1) != 1:
        return None, f"{label(node)} has groups"
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if edits.array(node.inputs[1]) is None or (bias is not None and edits.array(bias) is None):
        return None, f"the weights of {label(node)} are not constant"
    return node, ""


def _pads(conv: ir.Node) -> bool:
    from ndld_flow.graph.sanitize.edits import ints_attribute

    auto = conv.attributes.get("auto_pad")
    if auto is not None and auto.as_string() in ("SAME_UPPER", "SAME_LOWER"):
        return True
    return any(ints_attribute(conv, "pads") or ())


Cast = Literal["float16", "float32", "float64", "int32", "int64", "uint8"]


class AddPostprocessing(Operation):
    """Add Softmax, ArgMax, TopK or a Cast to an output.

    The result replaces the output under its name; TopK has two results, `<output>_values` and `<output>_indices`.

        add_postprocessing: {output: logits, activation: softmax, top_k: 5}
    """

    heading = "transformations"

    output: str | None = None
    """The output; optional when there is only one."""
    activation: Literal["softmax", "sigmoid"] | None = None
    """The activation, applied first."""
    argmax: bool = False
    """Output the index of the largest value along `axis`, which is removed."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Output this many of the largest values along `axis`, and their indices."""
    axis: int = -1
    """The axis of classes."""
    cast: Cast | None = None
    """Element type of the result, converted last."""
    keep: bool = False
    """Keep the original output too, under its name."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.argmax and self.top_k is not None:
            raise ValueError("`argmax` and `top_k` exclude each other")
        if not (self.activation or self.argmax or self.top_k or self.cast):
            raise ValueError("give `activation`, `argmax`, `top_k` or `cast`")
        return self

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.graph_edits import OperationEdits, put_outputs
        from ndld_flow.graph.edit.interface import find_output
        from ndld_flow.graph.edit.value_grammar import parse_dtype

        edits = OperationEdits(edited)
        output = find_output(edited.model, self.output)
        axis = _normalized_axis(output, self.axis)
        if output.is_graph_input():
            raise RequestError(f"output {output.name} is also an input of the model: nothing is computed there")
        self._check_type(output)
        results = self._add_nodes(edits, output, axis)
        if self.cast is not None:
            dtype = parse_dtype(self.cast)
            results = [_put_node(edits, "Cast", [value], value, to=int(dtype)) for value in results]
            for value in results:
                value.type = ir.TensorType(dtype)
        put_outputs(edits.model.graph, [output], [output, *results] if self.keep else results)
        if not self.keep and len(results) == 1:
            name = output.name
            output.name = edits.new_name(f"{name}_raw")
            results[0].name = name
        return f"outputs added: {', '.join(value.name or '' for value in results)}"

    def _check_type(self, output: ir.Value) -> None:
        import onnx_ir as ir

        from ndld_flow.models.element_types import FLOATS, dtype_name

        if output.type is None:
            return
        if not isinstance(output.type, ir.TensorType):
            raise RequestError(f"output {output.name} is a sequence or optional, not a tensor: nothing can follow it")
        dtype, name = output.type.dtype, dtype_name(output.type.dtype)
        if self.activation is not None and dtype not in FLOATS:
            raise RequestError(f"output {output.name} is {name}; `activation` requires floats: insert a Cast before it")
        unordered = (ir.DataType.STRING, ir.DataType.BOOL, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
        if (self.argmax or self.top_k is not None) and dtype in unordered:
            raise RequestError(f"output {output.name} is {name}, which has no order and so no largest value")

    def _add_nodes(self, edits: OperationEdits, output: ir.Value, axis: int) -> list[ir.Value]:
        import onnx_ir as ir

        value = output
        if self.activation == "softmax":
            opset = edits.opset(edits.model.graph)
            last = output.shape is not None and axis == len(output.shape) - 1
            if opset < _FIRST_OPSET_OF_SOFTMAX_AXIS and not last:
                raise RequestError(
                    f"before opset {_FIRST_OPSET_OF_SOFTMAX_AXIS} Softmax normalizes over all axes from {axis} on; "
                    f"the model has opset {opset}: convert it first"
                )
            value = _put_node(edits, "Softmax", [value], output, axis=axis)
        elif self.activation is not None:
            value = _put_node(edits, self.activation.capitalize(), [value], output)
        if self.argmax:
            index = _put_node(edits, "ArgMax", [value], output, axis=axis, keepdims=0)
            index.type, index.shape = ir.TensorType(ir.DataType.INT64), _shape_with(output, axis, ())
            return [index]
        return _put_top_k(edits, value, output, self.top_k, axis) if self.top_k is not None else [value]


_FIRST_OPSET_OF_TOP_K = 10
_FIRST_OPSET_OF_SOFTMAX_AXIS = 13
"""Before, Softmax normalizes over all axes from `axis` on."""


def _normalized_axis(output: ir.Value, axis: int) -> int:
    from ndld_flow.models.input_shapes import show_shape

    if output.shape is None:
        return axis
    rank = len(output.shape)
    if not -rank <= axis < rank:
        raise RequestError(f"output {output.name} has no axis {axis}: its shape is {show_shape(output.shape)}")
    return axis % rank


def _put_top_k(edits: OperationEdits, value: ir.Value, output: ir.Value, count: int, axis: int) -> list[ir.Value]:
    import numpy as np
    import onnx_ir as ir

    graph = edits.model.graph
    opset = edits.opset(graph)
    if opset < _FIRST_OPSET_OF_TOP_K:
        raise RequestError(f"`top_k` needs opset {_FIRST_OPSET_OF_TOP_K}; the model has {opset}: convert it first")
    size = output.shape[axis] if output.shape is not None else None
    if isinstance(size, int) and count > size:
        raise RequestError(f"`top_k` is {count}, but axis {axis} of output {output.name} has only {size} elements")
    number = edits.add_initializer(graph, np.array([count], np.int64), f"{output.name}_k")
    node = ir.node("TopK", [value, number], {"axis": axis}, num_outputs=2, name=edits.new_name(f"{output.name}_top_k"))
    graph.append(node)
    for result, kind in zip(node.outputs, ("values", "indices"), strict=True):
        result.name = edits.new_name(f"{output.name}_{kind}")
        result.shape = _shape_with(output, axis, (count,))
    node.outputs[0].type, node.outputs[1].type = output.type, ir.TensorType(ir.DataType.INT64)
    return list(node.outputs)


def _put_node(
    edits: OperationEdits, op_type: str, inputs: Sequence[ir.Value], output: ir.Value, **attributes: int
) -> ir.Value:
    value = edits.put_last(edits.model.graph, op_type, inputs, attributes, f"{output.name}_{op_type.lower()}")
    value.type, value.shape = output.type, output.shape
    return value


def _shape_with(output: ir.Value, axis: int, dims: tuple[int, ...]) -> ir.Shape | None:
    import onnx_ir as ir

    if output.shape is None:
        return None
    return ir.Shape([*output.shape[:axis], *dims, *output.shape[axis + 1 :]])
