"""The operators of ONNX as PyTorch code: a form each, or a small function, in the order of subjects.

An emitter returns the Python expression of a node's output; a new operator is a new row of `FORMS`, or a function with
`@emits`. What PyTorch defines otherwise is a function of `onnx_operators.py`. Each emitter is tested with every case
that the onnx package has for its operator.
"""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from ndld_flow.export.pytorch.call import (
    EMITTERS,
    Call,
    Emitted,
    Piece,
    Several,
    Slot,
    Unsupported,
    emits,
    literal,
    torch_dtype,
)
from ndld_flow.models.element_types import FLOATS

__all__ = ["EMITTERS", "FORMS"]

# --- forms ------------------------------------------------------------------------------------------------------------

_SAME_NAME = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Det", "Erf", "Exp", "Floor",
    "IsNaN", "Log", "Neg", "Reciprocal", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
"""Operators with the name of their function in `torch`."""
_SIGNS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Equal": "==", "Greater": ">", "GreaterOrEqual": ">=", "Less": "<",
    "LessOrEqual": "<=", "And": "&", "Or": "|", "Xor": "^", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^",
}  # fmt: skip
_SINCE_7 = {
    "PRelu": "torch.where({0} < 0, {1} * {0}, {0})",
    **{op_type: f"{{operand0}} {sign} {{operand1}}" for op_type, sign in _SIGNS.items()},
}
_SINCE_6 = {
    "Celu": "F.celu({0}, {alpha})",
    "Elu": "F.elu({0}, {alpha})",
    "HardSigmoid": "torch.clamp({alpha} * {0} + {beta}, 0, 1)",
    "InstanceNormalization": "F.instance_norm({0}, weight={1}, bias={2}, eps={epsilon})",
    "LeakyRelu": "F.leaky_relu({0}, {alpha})",
    "Selu": "ops.selu({0}, {alpha}, {gamma})",
    "Tile": "torch.tile({0}, {ints1})",
}
FORMS = {
    "ArgMax": "ops.arg_extreme({0}, True, {axis=0}, {keepdims=0}, {select_last_index=0})",
    "ArgMin": "ops.arg_extreme({0}, False, {axis=0}, {keepdims=0}, {select_last_index=0})",
    "BitwiseNot": "torch.bitwise_not({0})",
    "Compress": "ops.compress({0}, {1}, {axis})",
    "CumProd": "ops.cumulate({0}, {integer1}, {exclusive}, {reverse}, True)",
    "CumSum": "ops.cumulate({0}, {integer1}, {exclusive}, {reverse}, False)",
    "Expand": "ops.expand({0}, {ints1})",
    "GatherElements": "ops.gather_elements({0}, {1}, {axis})",
    "GatherND": "ops.gather_nd({0}, {1}, {batch_dims=0})",
    "HardSwish": "F.hardswish({0})",
    "IsInf": "ops.is_inf({0}, {detect_negative}, {detect_positive})",
    "LRN": "ops.local_response_normalization({0}, {size}, {alpha}, {beta}, {bias})",
    "LpNormalization": "ops.lp_normalization({0}, {axis}, {p})",
    "MatMul": "{0} @ {1}",
    "MatMulInteger": "ops.matmul_integer({0}, {1}, {2}, {3})",
    "Mish": "F.mish({0})",
    "Mod": "ops.mod({0}, {1}, {fmod})",
    "NonMaxSuppression": "ops.non_max_suppression({0}, {1}, {2}, {3}, {4}, {center_point_box})",
    "NonZero": "torch.nonzero({0}).T",
    "Not": "torch.logical_not({0})",
    "OneHot": "ops.one_hot({0}, {integer1}, {2}, {axis})",
    "Relu": "F.relu({0})",
    "ReverseSequence": "ops.reverse_sequence({0}, {1}, {batch_axis}, {time_axis})",
    "Scatter": 'ops.scatter_elements({0}, {1}, {2}, {axis}, "none")',
    "ScatterElements": 'ops.scatter_elements({0}, {1}, {2}, {axis}, {reduction="none"})',
    "ScatterND": 'ops.scatter_nd({0}, {1}, {2}, {reduction="none"})',
    "Shrink": "ops.shrink({0}, {lambd}, {bias})",
    "Size": "torch.tensor({0}.numel())",
    "Softplus": "torch.logaddexp({0}, torch.zeros_like({0}))",
    "Softsign": "F.softsign({0})",
    "SpaceToDepth": "ops.space_to_depth({0}, {blocksize})",
    "Squeeze": "ops.squeeze({0}, {axes1})",
    "Swish": "{0} * torch.sigmoid({alpha} * {0})",
    "ThresholdedRelu": "F.threshold({0}, {alpha}, 0.0)",
    "Trilu": "ops.trilu({0}, {integer1=0}, {upper})",
    "Unsqueeze": "ops.unsqueeze({0}, {axes1})",
    "Where": "torch.where({0}, {1}, {2})",
    **{op_type: f"torch.{op_type.lower()}({{0}})" for op_type in _SAME_NAME},
    **_SINCE_6,
    **_SINCE_7,
}
"""Operator -> its code: `{0}` is its first input, `{ints1}` the second as a list of integers, `{axis}` an attribute,
and `{axis=0}` one that older versions lack."""
_FIELD = re.compile(r"\{([a-z_]*)(\d*)(?:=([^}]*))?\}")


@emits(*FORMS.keys() - _SINCE_6.keys() - _SINCE_7.keys())
@emits(*_SINCE_6, since=6)
@emits(*_SINCE_7, since=7)
def form(call: Call) -> Emitted:
    readers = {"": call.x, "operand": call.operand, "ints": call.ints, "integer": call.integer, "axes": call.axes}

    def read(field: re.Match[str]) -> str:
        name, index, otherwise = field.groups()
        text = readers[name](int(index)) if index else literal(call.attribute(name))
        return otherwise if otherwise and text == "None" else text

    text = FORMS[call.node.op_type]
    if text.startswith("ops."):
        call.writer.use(text.partition("(")[0].removeprefix("ops."))
    return _FIELD.sub(read, text)


# --- elements ---------------------------------------------------------------------------------------------------------


@emits("Identity")
def identity(call: Call) -> Emitted:
    call.writer.bind(call.node.outputs[0], call.x())
    return None


@emits("Div", since=7)
def div(call: Call) -> Emitted:
    if call.dtype() in FLOATS:
        return f"{call.operand(0)} / {call.operand(1)}"
    return call.use("div", call.x(0), call.x(1))


@emits("Pow", since=7)
def power(call: Call) -> Emitted:
    exponent = call.operand(1)
    if call.dtype() in FLOATS and not exponent.startswith("self.") and exponent != call.x(1):
        return f"{call.x(0)} ** {exponent}" if not exponent.startswith("-") else f"{call.x(0)} ** ({exponent})"
    # In the wider of both types; the result has that of the base.
    return f"torch.pow({call.x(0)}, {call.x(1)}).to({call.x(0)}.dtype)"


@emits("BitShift")
def bit_shift(call: Call) -> Emitted:
    return f"torch.bitwise_{call.text('direction', 'LEFT', 'RIGHT').lower()}_shift({call.x(0)}, {call.x(1)})"


@emits("Max", "Min", "Sum", "Mean", since=8)
def variadic(call: Call) -> Emitted:
    first, *rest = call.xs()
    if call.node.op_type in ("Sum", "Mean"):
        total = " + ".join([first, *rest])
        return total if call.node.op_type == "Sum" else f"({total}) / {call.count}"
    function = "torch.maximum" if call.node.op_type == "Max" else "torch.minimum"
    for each in rest:
        first = f"{function}({first}, {each})"
    return first


@emits("Clip")
def clip(call: Call) -> Emitted:
    if call.version < 11:
        low, high = (call.attribute(name) for name in ("min", "max"))
        finite = [None if each is None or abs(each) > 3.4e38 else each for each in (low, high)]
        return call.use("clip", call.x(), values=finite)
    return call.use("clip", call.x(), call.number(1), call.number(2))


@emits("Gelu")
def gelu(call: Call) -> Emitted:
    return f"F.gelu({call.x()}, approximate={literal(call.text('approximate', 'none', 'tanh'))})"


@emits("Cast", since=6)
def cast(call: Call) -> Emitted:
    call.attribute("saturate", 1)  # of 8-bit floats only, which are refused
    torch_dtype(call.dtype())
    return f"{call.x()}.to({torch_dtype(call.attribute('to'))})"


@emits("CastLike")
def cast_like(call: Call) -> Emitted:
    call.attribute("saturate", 1)  # of 8-bit floats only, which are refused
    torch_dtype(call.dtype(0))
    torch_dtype(call.dtype(1))
    return f"{call.x(0)}.to({call.x(1)}.dtype)"


@emits("Dropout", since=7)
def dropout(call: Call) -> Emitted:
    call.attribute("seed")
    if call.has(2) and (call.array(2) is None or bool(call.array(2))):
        raise Unsupported("`training_mode`")
    ratio = call.attribute("ratio", 0.5) if call.version < 12 else 0.5
    if call.version >= 12 and call.has(1):
        array = call.array(1)
        if array is None:
            raise Unsupported("a computed `ratio`")
        ratio = float(array)
    if len(call.node.outputs) > 1:
        return Several(f"({call.x()}, torch.ones_like({call.x()}, dtype=torch.bool))", 2)
    return f"{call.module(['nn.Dropout(', Slot('p', float(ratio)), ')'], {}, hint='dropout')}({call.x()})"


# --- reductions -------------------------------------------------------------------------------------------------------

_REDUCTIONS = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceL1": "l1", "ReduceL2": "l2", "ReduceLogSum": "log_sum", "ReduceLogSumExp": "log_sum_exp",
    "ReduceSumSquare": "sum_square",
}  # fmt: skip


@emits(*_REDUCTIONS)
def reduce_all(call: Call) -> Emitted:
    kind, axes = _REDUCTIONS[call.node.op_type], call.axes(1)
    keepdims, noop = call.attribute("keepdims"), call.attribute("noop_with_empty_axes", 0)
    if kind in ("sum", "mean") and call.dtype() in FLOATS and axes not in ("None", "[]") and axes.startswith("["):
        return f"{call.x()}.{kind}({axes}, keepdim={bool(keepdims)})"
    return call.use("reduce_all", literal(kind), call.x(), axes, literal(keepdims), literal(noop))


@emits("TopK", since=1)
def top_k(call: Call) -> Emitted:
    call.attribute("sorted")
    k = literal(call.attribute("k")) if call.version < 10 else call.integer(1)
    largest = literal(call.attribute("largest", 1))
    return Several(call.use("top_k", call.x(), k, literal(call.attribute("axis")), largest), 2)


@emits("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call) -> Emitted:
    functions = {"Softmax": "torch.softmax", "LogSoftmax": "torch.log_softmax"}
    function = functions.get(call.node.op_type) or call.writer.use("hardmax")
    axis = call.attribute("axis")
    rank = call.known_rank()
    if call.version < 13 and axis != -1 and (rank is None or axis % rank != rank - 1):
        return call.use("over_rows", function, call.x(), literal(axis))
    return f"{function}({call.x()}, {literal(axis)})"


# --- products ---------------------------------------------------------------------------------------------------------


@emits("Gemm", since=7)
def gemm(call: Call) -> Emitted:
    alpha, beta = call.attribute("alpha"), call.attribute("beta")
    trans_a, trans_b = call.attribute("transA"), call.attribute("transB")
    weight, bias = call.value(1), call.value(2)
    plain = alpha == 1 and not trans_a and trans_b and (bias is None or beta == 1)
    if plain and call.own_weights(1, 2):
        assert weight is not None and weight.shape is not None
        rows, columns = (int(dim) for dim in weight.shape.numpy())
        if bias is None or (bias.shape is not None and [rows] == list(bias.shape.numpy())):
            sizes: list[Piece] = [Slot("in_features", columns), ", ", Slot("out_features", rows)]
            more = _module_options(call, bias is not None)
            return f"{call.module(['nn.Linear(', *sizes, more, ')'], {'weight': 1, 'bias': 2})}({call.x()})"
    a, b = call.x(0) + (".T" if trans_a else ""), call.x(1) + (".T" if trans_b else "")
    product = f"{a} @ {b}" if alpha == 1 else f"{literal(alpha)} * ({a} @ {b})"
    if bias is None or beta == 0:
        return product
    return f"{product} + {call.x(2)}" if beta == 1 else f"{product} + {literal(beta)} * {call.x(2)}"


def _module_options(call: Call, has_bias: bool) -> str:
    """Return the arguments of a module without a bias, or of another type than float32."""
    dtype = torch_dtype(call.value(1).dtype)  # type: ignore[union-attr]
    return ("" if has_bias else ", bias=False") + ("" if dtype == "torch.float32" else f", dtype={dtype}")


@emits("Einsum")
def einsum(call: Call) -> Emitted:
    equation = str(call.attribute("equation"))
    if not equation.isascii() or any(letter not in " ,.->" and not letter.isalpha() for letter in equation):
        raise Unsupported("an equation of other signs than letters")
    return f"torch.einsum({literal(equation)}, {', '.join(call.xs())})"


# --- convolutions and windows -----------------------------------------------------------------------------------------


def _kernel(call: Call, index: int = 1) -> list[int]:
    """Return the kernel's size, an attribute or the weight's shape."""
    given = call.attribute("kernel_shape")
    if given is not None:
        return [int(each) for each in given]
    shape = call.value(index).shape  # type: ignore[union-attr]
    if shape is None or not shape.is_static():
        raise Unsupported("a kernel of unknown size")
    return [int(each) for each in shape.numpy()[2:]]


def _per_axis(call: Call, name: str, count: int, default: int = 1) -> list[int]:
    given = call.attribute(name)
    return [default] * count if given is None or not len(given) else [int(each) for each in given]


def _dims(count: int) -> int:
    if not 1 <= count <= 3:
        raise Unsupported(f"{count} spatial dimensions")
    return count


@emits("Conv")
def conv(call: Call) -> Emitted:
    kernel = _kernel(call)
    count = _dims(len(kernel))
    strides, dilations = _per_axis(call, "strides", count), _per_axis(call, "dilations", count)
    group, auto_pad = call.attribute("group"), call.text("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    pads = _per_axis(call, "pads", 2 * count, 0)
    if auto_pad == "VALID":
        pads = [0] * 2 * count
    x = call.x(0)
    if auto_pad.startswith("SAME"):
        x = call.use("pad_same", x, values=(kernel, strides, dilations, auto_pad))
        pads = [0] * 2 * count
    if not call.own_weights(1, 2) or not call.has(1):
        return call.use("convolution", x, call.x(1), call.x(2), values=(strides, pads, dilations, group))
    same = pads[:count] == pads[count:]
    if not same:
        flat = [each for axis in reversed(range(count)) for each in (pads[axis], pads[count + axis])]
        x = f"F.pad({x}, {literal(flat)})"
    shape = call.value(1).shape.numpy()  # type: ignore[union-attr]
    pieces: list[Piece] = [f"nn.Conv{count}d(", Slot("in_channels", int(shape[1]) * group), ", "]
    pieces += [Slot("out_channels", int(shape[0])), ", ", Slot("kernel_size", _size(kernel))]
    pieces += _window_options(strides, pads[:count] if same else [0] * count, dilations, group)
    pieces += [_module_options(call, call.has(2)), ")"]
    return f"{call.module(pieces, {'weight': 1, 'bias': 2})}({x})"


def _size(values: list[int]) -> int | tuple[int, ...]:
    return values[0] if len(set(values)) == 1 else tuple(values)


def _window_options(strides: list[int], pads: list[int], dilations: list[int], group: int) -> list[Piece]:
    options = {
        "stride": (_size(strides), 1),
        "padding": (_size(pads), 0),
        "dilation": (_size(dilations), 1),
        "groups": (group, 1),
    }
    pieces: list[Piece] = []
    for name, (value, default) in options.items():
        if value != default:
            pieces += [f", {name}=", Slot(name, value)]
    return pieces


@emits("ConvTranspose")
def conv_transpose(call: Call) -> Emitted:
    kernel = _kernel(call)
    count = _dims(len(kernel))
    strides, dilations = _per_axis(call, "strides", count), _per_axis(call, "dilations", count)
    group, extra = call.attribute("group"), _per_axis(call, "output_padding", count, 0)
    wanted, pads = call.attribute("output_shape"), _per_axis(call, "pads", 2 * count, 0)
    auto_pad = call.text("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    symmetric = auto_pad in ("NOTSET", "VALID") and wanted is None and pads[:count] == pads[count:]
    if auto_pad == "VALID":
        pads = [0] * 2 * count
    if not (symmetric and call.own_weights(1, 2) and call.has(1)) or any(
        each >= max(stride, dilation) for each, stride, dilation in zip(extra, strides, dilations, strict=True)
    ):
        padding: object = auto_pad if auto_pad.startswith("SAME") else pads
        values = (strides, padding, dilations, group, extra, wanted)
        return call.use("transposed_convolution", call.x(0), call.x(1), call.x(2), values=values)
    shape = call.value(1).shape.numpy()  # type: ignore[union-attr]
    pieces: list[Piece] = [f"nn.ConvTranspose{count}d(", Slot("in_channels", int(shape[0])), ", "]
    pieces += [Slot("out_channels", int(shape[1]) * group), ", ", Slot("kernel_size", _size(kernel))]
    pieces += _window_options(strides, pads[:count], dilations, group)
    pieces += [", output_padding=", Slot("output_padding", _size(extra))] if any(extra) else []
    pieces += [_module_options(call, call.has(2)), ")"]
    return f"{call.module(pieces, {'weight': 1, 'bias': 2})}({call.x(0)})"


def _pool_arguments(call: Call) -> tuple[list[int], list[int], object, list[int], int]:
    kernel = [int(each) for each in call.attribute("kernel_shape")]
    count = _dims(len(kernel))
    auto_pad = call.text("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    pads: object = _per_axis(call, "pads", 2 * count, 0)
    pads = pads if auto_pad == "NOTSET" else auto_pad
    ceil_mode = call.attribute("ceil_mode", 0)
    return kernel, _per_axis(call, "strides", count), pads, _per_axis(call, "dilations", count), ceil_mode


def _torch_padding(kernel: list[int], pads: object) -> list[int] | None:
    """Return the padding as PyTorch's pooling has it; None if it does not have it."""
    if pads == "VALID":
        return [0] * len(kernel)
    if not isinstance(pads, list) or pads[: len(kernel)] != pads[len(kernel) :]:
        return None
    half: list[int] = pads[: len(kernel)]
    return half if all(2 * pad <= size for pad, size in zip(half, kernel, strict=True)) else None


@emits("MaxPool")
def max_pool(call: Call) -> Emitted:
    kernel, strides, pads, dilations, ceil_mode = _pool_arguments(call)
    storage = call.attribute("storage_order", 0)
    padding = _torch_padding(kernel, pads)
    if len(call.node.outputs) == 1 and padding is not None and not ceil_mode and call.dtype() in FLOATS:
        sizes = f"{_size(kernel)}, {_size(strides)}, {_size(padding)}, {_size(dilations)}"
        return f"F.max_pool{len(kernel)}d({call.x()}, {sizes})"
    expression = call.use("max_pool", call.x(), values=(kernel, strides, pads, dilations, ceil_mode, storage))
    return Several(expression, 2) if len(call.node.outputs) == 2 else f"{expression}[0]"


@emits("AveragePool", since=7)
def average_pool(call: Call) -> Emitted:
    kernel, strides, pads, dilations, ceil_mode = _pool_arguments(call)
    include = call.attribute("count_include_pad")
    padding = _torch_padding(kernel, pads)
    if padding is not None and not ceil_mode and set(dilations) == {1}:
        sizes = f"{_size(kernel)}, {_size(strides)}, {_size(padding)}, count_include_pad={bool(include)}"
        return f"F.avg_pool{len(kernel)}d({call.x()}, {sizes})"
    return call.use("average_pool", call.x(), values=(kernel, strides, pads, dilations, ceil_mode, include))


@emits("GlobalAveragePool", "GlobalMaxPool")
def global_pool(call: Call) -> Emitted:
    dims = list(range(2, call.rank()))
    function = "mean" if call.node.op_type == "GlobalAveragePool" else "amax"
    return f"{call.x()}.{function}({literal(dims)}, keepdim=True)"


# --- normalization ----------------------------------------------------------------------------------------------------


@emits("BatchNormalization", since=7)
def batch_normalization(call: Call) -> Emitted:
    epsilon, momentum = call.attribute("epsilon"), call.attribute("momentum")
    if call.attribute("training_mode", 0) or len(call.node.outputs) > 1 or not call.attribute("spatial", 1):
        raise Unsupported("statistics of the batch")
    if not (all(map(call.has, range(1, 5))) and call.own_weights(1, 2, 3, 4)) or call.known_rank() not in (2, 3, 4, 5):
        statistics = f"{call.x(3)}, {call.x(4)}, {call.x(1)}, {call.x(2)}"
        return f"F.batch_norm({call.x(0)}, {statistics}, False, {literal(momentum)}, {literal(epsilon)})"
    channels = int(call.value(1).shape.numpy()[0])  # type: ignore[union-attr]
    name = {2: 1, 3: 1, 4: 2, 5: 3}[call.rank()]
    pieces: list[Piece] = [f"nn.BatchNorm{name}d(", Slot("num_features", channels), ", eps=", Slot("eps", epsilon)]
    # ONNX's momentum weighs the old value, PyTorch's the new one.
    pieces += [", momentum=", Slot("momentum", round(1 - momentum, 6)), _module_options(call, True), ")"]
    weights = {"weight": 1, "bias": 2, "running_mean": 3, "running_var": 4}
    return f"{call.module(pieces, weights, extra=['num_batches_tracked'])}({call.x(0)})"


@emits("LayerNormalization")
def layer_normalization(call: Call) -> Emitted:
    axis, epsilon, stash = (call.attribute(name) for name in ("axis", "epsilon", "stash_type"))
    scale, bias = call.value(1), call.value(2)
    last = axis in (-1, (call.known_rank() or 0) - 1) and call.known_rank() is not None and len(call.node.outputs) == 1
    vectors = all(each is not None and each.shape is not None and len(each.shape) == 1 for each in (scale, bias))
    if last and vectors and call.own_weights(1, 2) and scale.shape == bias.shape:  # type: ignore[union-attr]
        size = int(scale.shape.numpy()[0])  # type: ignore[union-attr]
        last_dim = call.value(0).shape[-1]  # type: ignore[union-attr,index]
        if last_dim == size and size > 1:
            pieces: list[Piece] = ["nn.LayerNorm(", Slot("size", size), ", eps=", Slot("eps", epsilon)]
            pieces += [_module_options(call, True), ")"]
            return f"{call.module(pieces, {'weight': 1, 'bias': 2})}({call.x(0)})"
    arguments = (literal(axis), literal(epsilon), torch_dtype(stash) if stash else "None")
    expression = call.use("layer_normalization", call.x(0), call.x(1), call.x(2), *arguments)
    return Several(expression, 3) if len(call.node.outputs) > 1 else f"{expression}[0]"


@emits("GroupNormalization")
def group_normalization(call: Call) -> Emitted:
    call.attribute("stash_type")
    values = (call.attribute("num_groups"), call.attribute("epsilon"))
    return call.use("group_normalization", call.x(0), call.x(1), call.x(2), values=values)


# --- shapes -----------------------------------------------------------------------------------------------------------


@emits("Reshape", since=5)
def reshape(call: Call) -> Emitted:
    allowzero, array = call.attribute("allowzero", 0), call.array(1)
    if array is not None and (allowzero or 0 not in array):
        return f"{call.x()}.reshape({call.ints(1)})"
    return call.use("reshape", call.x(), call.ints(1), literal(allowzero))


@emits("Flatten")
def flatten(call: Call) -> Emitted:
    axis = call.attribute("axis")
    if axis == 1 and (call.known_rank() or 0) > 1:
        return f"torch.flatten({call.x()}, 1)"
    return call.use("flatten", call.x(), values=(axis,))


@emits("Transpose")
def transpose(call: Call) -> Emitted:
    perm = call.attribute("perm")
    order = list(perm) if perm is not None else list(reversed(range(call.rank())))
    return f"{call.x()}.permute({literal(order)})"


@emits("Concat", since=4)
def concat(call: Call) -> Emitted:
    return f"torch.cat([{', '.join(call.xs())}], {literal(call.attribute('axis'))})"


@emits("Split", since=2)
def split(call: Call) -> Emitted:
    axis, count = literal(call.attribute("axis")), len(call.node.outputs)
    sizes = call.axes(1, "split")
    call.attribute("num_outputs")
    if sizes == "None":
        return Several(call.use("split_evenly", call.x(), literal(count), axis), count)
    return Several(f"torch.split({call.x()}, {sizes}, {axis})", count)


@emits("Slice")
def slice_axes(call: Call) -> Emitted:
    if call.version < 10:
        ranges = [call.attribute(name) for name in ("starts", "ends", "axes")]
        return call.use("slice_axes", call.x(), values=(*ranges, None))
    return call.use("slice_axes", call.x(), *(call.ints(index) for index in range(1, 5)))


@emits("Gather")
def gather(call: Call) -> Emitted:
    axis, index = call.attribute("axis"), call.array(1, 1)
    if index is not None and not index.ndim:
        return f"{call.x()}.select({literal(axis)}, {literal(int(index))})"
    return call.use("gather", call.x(0), call.x(1), literal(axis))


@emits("Pad", since=2)
def pad(call: Call) -> Emitted:
    mode = call.text("mode", "constant", "reflect", "edge", "wrap")
    if call.version < 11:
        return call.use("pad", call.x(), values=(call.attribute("pads"), mode, call.attribute("value"), None))
    return call.use("pad", call.x(), call.ints(1), literal(mode), call.number(2), call.ints(3))


@emits("Shape")
def shape(call: Call) -> Emitted:
    start, end = call.attribute("start", 0), call.attribute("end")
    return call.use("shape_of", call.x(), values=(start, end) if start or end is not None else ())


@emits("ConstantOfShape")
def constant_of_shape(call: Call) -> Emitted:
    tensor = call.attribute("value")
    value, dtype = (0.0, "torch.float32") if tensor is None else (tensor.numpy().item(), torch_dtype(tensor.dtype))
    return f"torch.full({call.ints(0)}, {literal(value)}, dtype={dtype})"


@emits("Range")
def arange(call: Call) -> Emitted:
    numbers = ", ".join(f"{call.x(index)}.item()" for index in range(3))
    return f"torch.arange({numbers}, dtype={torch_dtype(call.dtype())})"


@emits("EyeLike")
def eye_like(call: Call) -> Emitted:
    dtype = call.attribute("dtype")
    return call.use("eye_like", call.x(), "None" if dtype is None else torch_dtype(dtype), literal(call.attribute("k")))


@emits("DepthToSpace")
def depth_to_space(call: Call) -> Emitted:
    mode = "DCR" if call.version < 11 else call.text("mode", "DCR", "CRD")
    return call.use("depth_to_space", call.x(), values=(call.attribute("blocksize"), mode))


# --- images -----------------------------------------------------------------------------------------------------------

_COORDINATES = (
    "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize", "half_pixel_symmetric",
)  # fmt: skip


@emits("Resize", since=11)
def resize(call: Call) -> Emitted:
    mode = call.text("mode", "nearest", "linear", "cubic")
    coordinates = call.text("coordinate_transformation_mode", *_COORDINATES, "tf_half_pixel_for_nn")
    nearest = call.text("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    cubic, exclude = call.attribute("cubic_coeff_a"), call.attribute("exclude_outside")
    extrapolation, antialias = call.attribute("extrapolation_value"), call.attribute("antialias", 0)
    policy, axes = call.attribute("keep_aspect_ratio_policy", "stretch"), call.attribute("axes")
    scales, sizes = call.array(2), call.array(3)
    if scales is not None and not scales.size:
        scales = None
    whole = scales is not None and len(scales) == 4 and axes is None and list(scales[:2]) == [1, 1]
    if whole and scales is not None and (mode, coordinates, nearest) == ("nearest", "asymmetric", "floor"):
        factors = [float(each) for each in scales[2:]]
        if all(math.log2(each).is_integer() for each in factors):
            factor = literal(factors[0]) if len(set(factors)) == 1 else f"({', '.join(map(literal, factors))})"
            return f'F.interpolate({call.x()}, scale_factor={factor}, mode="nearest")'
    region = call.x(1) if coordinates == "tf_crop_and_resize" else "None"
    given = ("None", call.ints(3)) if call.has(3) and (sizes is None or sizes.size) else (call.floats(2), "None")
    options = (axes, mode, coordinates, nearest, cubic, exclude, extrapolation, antialias, policy)
    return call.use("resize", call.x(), region, *given, values=options)


@emits("Upsample", since=7)
def upsample(call: Call) -> Emitted:
    mode = call.text("mode", "nearest", "linear")
    scales = call.floats(1) if call.version >= 9 else literal(call.attribute("scales"))
    options = (None, mode, "asymmetric", "floor", -0.75, 0, 0.0, 0, "stretch")
    return call.use("resize", call.x(), "None", scales, "None", values=options)


@emits("GridSample")
def grid_sample(call: Call) -> Emitted:
    mode = call.text("mode", "bilinear", "linear", "nearest", "bicubic", "cubic")
    if call.rank() == 5 and "cubic" in mode:
        raise Unsupported(f"`mode: {mode}` in three dimensions")
    padding = call.text("padding_mode", "zeros", "border", "reflection")
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    options = f"{literal(name)}, {literal(padding)}, {bool(call.attribute('align_corners'))}"
    return f"F.grid_sample({call.x(0)}, {call.x(1)}, {options})"


# --- quantization -----------------------------------------------------------------------------------------------------


@emits("QuantizeLinear")
def quantize(call: Call) -> Emitted:
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    if not call.attribute("saturate", 1) or call.attribute("precision", 0):
        raise Unsupported("`saturate: 0` or `precision`")
    dtype = call.attribute("output_dtype", 0)
    target = call.dtype(2) if call.has(2) else ir.DataType(dtype) if dtype else ir.DataType.UINT8
    if target not in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32):
        raise Unsupported(f"quantization to {target.name.lower() if target else 'an unknown type'}")
    arguments = (literal(axis), literal(block), torch_dtype(target))
    return call.use("quantize", call.x(0), call.x(1), call.x(2), *arguments)


@emits("DequantizeLinear")
def dequantize(call: Call) -> Emitted:
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    dtype = call.attribute("output_dtype", 0)
    if dtype and ir.DataType(dtype) != call.dtype(1):
        raise Unsupported("`output_dtype` other than the scale's")
    if call.dtype(0) not in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.INT32):
        raise Unsupported(f"dequantization of {call.dtype(0)}")
    return call.use("dequantize", call.x(0), call.x(1), call.x(2), literal(axis), literal(block))


@emits("DynamicQuantizeLinear")
def dynamic_quantize(call: Call) -> Emitted:
    return Several(call.use("dynamic_quantize", call.x()), 3)


# --- recurrence and control flow --------------------------------------------------------------------------------------

_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_KNOWN_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "HardSigmoid", "Elu", "Softsign", "Softplus")


@emits("RNN", "GRU", "LSTM", since=7)
def recurrent(call: Call) -> Emitted:
    kind, direction = call.node.op_type, call.text("direction", "forward", "reverse", "bidirectional")
    call.attribute("hidden_size")
    count = 2 if direction == "bidirectional" else 1
    given = call.attribute("activations") if "activations" in call.node.attributes else ()
    names = [str(each) for each in given] or _ACTIVATIONS[kind] * count
    if any(name not in _KNOWN_ACTIVATIONS for name in names):
        raise Unsupported(f"activations {', '.join(names)}")
    clip_to, layout = call.attribute("clip"), call.attribute("layout", 0)
    before, forget = call.attribute("linear_before_reset", 0), call.attribute("input_forget", 0)
    inputs = [call.x(index) for index in range(6)] + [call.x(6) if kind == "LSTM" else "None"]
    inputs += [call.x(7) if kind == "LSTM" else "None"]
    options = (direction, names, clip_to, layout, before, forget)
    expression = call.use("recurrent", literal(kind), *inputs, values=options)
    count = len(call.node.outputs)
    if count == 3:
        return Several(expression, 3)
    return Several(f"{expression}[:2]", 2) if count == 2 else f"{expression}[0]"


@emits("If")
def if_else(call: Call) -> Emitted:
    writer, outputs = call.writer, call.node.outputs
    names = [writer.variable("chosen") for _ in outputs]
    for keyword, branch in ((f"if bool({call.x()}):", "then_branch"), ("else:", "else_branch")):
        graph = call.attribute(branch)
        writer.line(keyword)
        with writer.indented():
            for name, result in zip(names, writer.emit_graph(graph), strict=True):
                writer.line(f"{name} = {result}")
    for name, output in zip(names, outputs, strict=True):
        writer.bind(output, name)
    return None


@emits("Loop")
def loop(call: Call) -> Emitted:
    writer, body = call.writer, call.attribute("body")
    states = call.count - 2
    scans = len(call.node.outputs) - states
    number, condition, *inner = body.inputs
    names = [writer.variable("state") for _ in range(states)]
    lists = [writer.variable("scan") for _ in range(scans)]
    going, counter = writer.variable("going"), writer.variable("iteration")
    for name, index in zip(names, range(2, call.count), strict=True):
        writer.line(f"{name} = {call.x(index)}")
    for name in lists:
        writer.line(f"{name} = []")
    writer.line(f"{going} = {call.x(1) if call.has(1) else 'torch.tensor(True)'}")
    writer.line(f"for {counter} in {call.use('loop_count', call.x(0))}:")
    with writer.indented():
        writer.line(f"if not bool({going}):")
        with writer.indented():
            writer.line("break")
        writer.bind(number, f"torch.tensor({counter})")
        writer.bind(condition, going)
        for name, value in zip(names, inner, strict=True):
            writer.bind(value, name)
        results = writer.emit_graph(body)
        targets = [going, *names, *lists]
        for name, result in zip(lists, results[1 + states :], strict=True):
            writer.line(f"{name}.append({result})")
        writer.line(f"{', '.join(targets[: 1 + states])} = {', '.join(results[: 1 + states])}")
    for name, output in zip(names, call.node.outputs, strict=False):
        writer.bind(output, name)
    for name, output, scanned in zip(lists, call.node.outputs[states:], body.outputs[1 + states :], strict=True):
        if scanned.shape is None or not scanned.shape.is_static():
            expression = f"torch.stack({name})"
        else:
            expression = call.use("stack_scans", name, literal(list(scanned.shape.numpy())), torch_dtype(scanned.dtype))
        variable = writer.variable("stacked")
        writer.line(f"{variable} = {expression}")
        writer.bind(output, variable)
    return None
