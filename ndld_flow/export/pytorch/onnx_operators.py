"""Operators of ONNX that PyTorch lacks or defines differently, as functions of tensors.

`export_pytorch` copies those that a model needs into its folder; nothing here may import `ndld_flow`. Definitions
follow https://onnx.ai/onnx/operators/; arguments have the names of ONNX's attributes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def div(a: Tensor, b: Tensor | float) -> Tensor:
    """Divide; integers are truncated towards zero."""
    return a / b if a.is_floating_point() or a.is_complex() else torch.div(a, b, rounding_mode="trunc")


def mod(a: Tensor, b: Tensor, fmod: int) -> Tensor:
    """Return the remainder with the sign of the divisor, or of the dividend with `fmod`."""
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def clip(x: Tensor, low: Tensor | float | None, high: Tensor | float | None) -> Tensor:
    """Limit values; where `low` exceeds `high`, the result is `high`."""
    if low is not None:
        x = torch.maximum(x, torch.as_tensor(low, dtype=x.dtype, device=x.device))
    if high is not None:
        x = torch.minimum(x, torch.as_tensor(high, dtype=x.dtype, device=x.device))
    return x


def selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    """Return gamma x for positive x, gamma alpha (exp(x) - 1) for others."""
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0)))


def shrink(x: Tensor, lambd: float, bias: float) -> Tensor:
    """Return x + bias below -lambd, x - bias above lambd, and 0 between."""
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))


def is_inf(x: Tensor, detect_negative: int, detect_positive: int) -> Tensor:
    """Return where values are infinite, of the signs wanted."""
    return (torch.isneginf(x) & bool(detect_negative)) | (torch.isposinf(x) & bool(detect_positive))


def reduce_all(
    kind: str, x: Tensor, axes: Sequence[int] | None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """Reduce axes, all of them by default, by `sum`, `mean`, `max`, `min`, `prod`, `l1`, `l2`, `log_sum`,
    `log_sum_exp` or `sum_square`.
    """
    if not axes and noop_with_empty_axes:
        return _reduce_elements(kind, x)
    dims = sorted({axis % x.ndim for axis in axes} if axes else range(x.ndim))
    if not dims:
        return _reduce_elements(kind, x)
    kept = [size for axis, size in enumerate(x.shape) if axis not in dims]
    rows = x.permute([axis for axis in range(x.ndim) if axis not in dims] + dims)
    rows = rows.reshape([*kept, math.prod(rows.shape[len(kept) :])])
    if kind in ("max", "min") and rows.shape[-1] == 0:
        reduced = torch.full(kept, _extreme(x.dtype, kind), dtype=x.dtype, device=x.device)
    else:
        reduced = _reduce_rows(kind, rows).to(x.dtype)
    return reduced.reshape([1 if axis in dims else size for axis, size in enumerate(x.shape)]) if keepdims else reduced


def _reduce_rows(kind: str, rows: Tensor) -> Tensor:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "sum": lambda rows: rows.sum(-1),
        "mean": lambda rows: rows.mean(-1) if rows.is_floating_point() else rows.double().mean(-1).trunc(),
        "max": lambda rows: rows.amax(-1),
        "min": lambda rows: rows.amin(-1),
        "prod": lambda rows: rows.prod(-1),
        "l1": lambda rows: rows.abs().sum(-1),
        "l2": lambda rows: (rows * rows).sum(-1).sqrt(),
        "log_sum": lambda rows: rows.sum(-1).log(),
        "log_sum_exp": lambda rows: torch.logsumexp(rows, -1),
        "sum_square": lambda rows: (rows * rows).sum(-1),
    }
    return functions[kind](rows)


def _reduce_elements(kind: str, x: Tensor) -> Tensor:
    """Reduce each element alone, as if the axes of the reduction had the size 1."""
    return _reduce_rows(kind, x.unsqueeze(-1)).to(x.dtype)


def _extreme(dtype: torch.dtype, kind: str) -> float | bool:
    """Return the value that is no larger (`max`) or no smaller (`min`) than any other of its type."""
    if dtype == torch.bool:
        return kind == "min"
    limits: tuple[float, float] = (-math.inf, math.inf)
    if not dtype.is_floating_point:
        limits = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return limits[kind == "min"]


def arg_extreme(x: Tensor, largest: bool, axis: int, keepdims: int, select_last_index: int) -> Tensor:
    """Return the index of the largest or smallest element along an axis; of equal ones the first, or the last."""
    pick = torch.argmax if largest else torch.argmin
    if not select_last_index:
        # PyTorch promises no order of equal elements, so the first extreme is searched.
        extreme = x.amax(axis, keepdim=True) if largest else x.amin(axis, keepdim=True)
        return (
            torch.argmax((x == extreme).to(torch.uint8), axis, keepdim=bool(keepdims)) if x.numel() else pick(x, axis)
        )
    index = arg_extreme(x.flip(axis), largest, axis, keepdims, 0)
    return x.shape[axis] - 1 - index


def top_k(x: Tensor, k: int, axis: int, largest: int) -> tuple[Tensor, Tensor]:
    """Return the k largest or smallest elements along an axis in order, and their indices; equal ones by index."""
    values, indices = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def cumulate(x: Tensor, axis: int, exclusive: int, reverse: int, product: bool = False) -> Tensor:
    """Return the cumulative sum or product along an axis."""
    x = x.flip(axis) if reverse else x
    total = torch.cumprod(x, axis, dtype=x.dtype) if product else torch.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        size = x.shape[axis]
        first = torch.full_like(total.narrow(axis, 0, min(size, 1)), int(product))
        total = torch.cat([first, total.narrow(axis, 0, max(size - 1, 0))], axis)
    return total.flip(axis) if reverse else total


def over_rows(function: Callable[[Tensor, int], Tensor], x: Tensor, axis: int) -> Tensor:
    """Apply a softmax to the rows that dimensions from `axis` on form together, as operators before opset 13 do."""
    axis = axis % x.ndim if x.ndim else 0
    rows = math.prod(x.shape[:axis])
    return function(x.reshape(rows, -1), 1).reshape(x.shape)


def hardmax(x: Tensor, axis: int) -> Tensor:
    """Return 1 at the first largest element along an axis, and 0 elsewhere."""
    index = arg_extreme(x, True, axis, 1, 0)
    return torch.zeros_like(x).scatter(axis, index, 1)


def pad_same(
    x: Tensor, kernel_shape: Sequence[int], strides: Sequence[int], dilations: Sequence[int], auto_pad: str
) -> Tensor:
    """Pad as `auto_pad: SAME_UPPER` or `SAME_LOWER`, so that the output has the size of the input by the stride."""
    return _pad_spatial(x, _window_pads(x, kernel_shape, strides, auto_pad, dilations, 0)[0], 0.0)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Tensor:
    """Convolve in one to three dimensions; `pads` are those at the begin of each dimension, then those at its end."""
    function = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    return function(_pad_spatial(x, pads, 0.0), weight, bias, list(strides), 0, list(dilations), group)


def _pad_spatial(x: Tensor, pads: Sequence[int], value: float) -> Tensor:
    half = len(pads) // 2
    flat = [each for axis in reversed(range(half)) for each in (pads[axis], pads[half + axis])]
    return F.pad(x, flat, value=value) if any(flat) else x


def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    pads: Sequence[int] | str,
    dilations: Sequence[int],
    group: int,
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None,
) -> Tensor:
    """Convolve transposed; `pads` are cut off, or `SAME_UPPER` or `SAME_LOWER`, and result from `output_shape`."""
    spatial, kernel = x.shape[2:], weight.shape[2:]
    full = [
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, stride, k, dilation in zip(spatial, strides, kernel, dilations, strict=True)
    ]
    if isinstance(pads, str) or output_shape is not None:
        wanted = output_shape or [size * stride for size, stride in zip(spatial, strides, strict=True)]
        totals = [a + extra - b for a, extra, b in zip(full, output_padding, wanted, strict=True)]
        less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = [*less, *more] if pads == "SAME_UPPER" else [*more, *less]
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.ndim - 3]
    y = function(x, weight, None, list(strides), 0, 0, group, list(dilations))
    # Negative pads of F.pad cut; output_padding adds zeros at the end.
    half = len(pads) // 2
    cut = [-each for each in pads[:half]]
    cut += [extra - after for extra, after in zip(output_padding, pads[half:], strict=True)]
    y = _pad_spatial(y, cut, 0.0)
    return y if bias is None else y + bias.reshape([1, -1] + [1] * len(spatial))


def _window_pads(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | str,
    dilations: Sequence[int],
    ceil: int,
) -> tuple[list[int], list[int]]:
    """Return the pads, and how much the last windows exceed the padded size at the end of each dimension."""
    begin, end, extra = [], [], []
    half = len(kernel)
    for axis, (size, k, stride, dilation) in enumerate(zip(x.shape[2:], kernel, strides, dilations, strict=True)):
        extent = (k - 1) * dilation + 1
        if isinstance(pads, str):
            total = 0 if pads == "VALID" else max((math.ceil(size / stride) - 1) * stride + extent - size, 0)
            first = total // 2 if pads == "SAME_UPPER" else total - total // 2
            before, after = first, total - first
        else:
            before, after = pads[axis], pads[half + axis]
        steps = (size + before + after - extent) / stride
        count = (math.ceil(steps) if ceil else math.floor(steps)) + 1
        if ceil and (count - 1) * stride >= size + before:
            count -= 1
        begin.append(before)
        end.append(after)
        extra.append(max((count - 1) * stride + extent - (size + before + after), 0))
    return [*begin, *end], extra


def max_pool(
    x: Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | str,
    dilations: Sequence[int],
    ceil_mode: int,
    storage_order: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and its index in the flattened input."""
    given, extra = _window_pads(x, kernel_shape, strides, pads, dilations, ceil_mode)
    half = len(kernel_shape)
    given = [*given[:half], *(after + more for after, more in zip(given[half:], extra, strict=True))]
    wide = x if x.is_floating_point() else x.double()
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    padded = _pad_spatial(wide, given, -math.inf)
    values, places = function(
        padded, list(kernel_shape), list(strides), 0, list(dilations), ceil_mode=False, return_indices=True
    )
    index = torch.zeros_like(places)
    order = list(range(half)) if not storage_order else list(reversed(range(half)))
    coordinates = torch.unravel_index(places, padded.shape[2:])
    for axis in order:
        index = index * x.shape[2 + axis] + coordinates[axis] - given[axis]
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape([*x.shape[:2]] + [1] * half)
    return values.to(x.dtype), index + planes * math.prod(x.shape[2:])


def _sum_windows(x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Tensor:
    planes = x.reshape([-1, 1, *x.shape[2:]])
    ones = torch.ones([1, 1, *kernel], dtype=x.dtype, device=x.device)
    function = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    sums = function(planes, ones, None, list(strides), 0, list(dilations))
    return sums.reshape([*x.shape[:2], *sums.shape[2:]])


def average_pool(
    x: Tensor,
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | str,
    dilations: Sequence[int],
    ceil_mode: int,
    count_include_pad: int,
) -> Tensor:
    """Return the mean of each window, of the elements inside the input or, with `count_include_pad`, its padding."""
    given, extra = _window_pads(x, kernel_shape, strides, pads, dilations, ceil_mode)
    beyond = [0] * len(kernel_shape) + extra
    padded = _pad_spatial(_pad_spatial(x, given, 0.0), beyond, 0.0)
    counted = _pad_spatial(_pad_spatial(torch.ones_like(x[:1, :1]), given, float(count_include_pad)), beyond, 0.0)
    return _sum_windows(padded, kernel_shape, strides, dilations) / _sum_windows(
        counted, kernel_shape, strides, dilations
    )


def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None, axis: int, epsilon: float, stash: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the dimensions from `axis` on; returns also the mean and the inverse standard deviation."""
    wide = x if stash is None else x.to(stash)
    dims = list(range(axis % x.ndim, x.ndim))
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + epsilon)
    y = (centred * inverse).to(x.dtype) * scale
    return y if bias is None else y + bias, mean, inverse


def group_normalization(x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float) -> Tensor:
    """Normalize groups of channels; scale and bias have an element for each channel, or for each group."""
    repeats = x.shape[1] // scale.numel()
    return F.group_norm(x, num_groups, scale.repeat_interleave(repeats), bias.repeat_interleave(repeats), epsilon)


def local_response_normalization(x: Tensor, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """Divide by a power of the sum of squares over neighbouring channels."""
    squares = (x * x).movedim(1, -1)
    padded = F.pad(squares, ((size - 1) // 2, size - 1 - (size - 1) // 2))
    sums = padded.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * sums) ** beta


def lp_normalization(x: Tensor, axis: int, p: int) -> Tensor:
    """Divide by the norm along an axis; rows of zeros stay zero."""
    norm = x.norm(p, axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


def reshape(x: Tensor, shape: Sequence[int], allowzero: int = 0) -> Tensor:
    """Reshape; a 0 keeps the dimension of the input, unless `allowzero` is set."""
    if allowzero:
        return x.reshape(list(shape))
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)])


def flatten(x: Tensor, axis: int) -> Tensor:
    """Return a matrix whose rows are the dimensions before `axis`."""
    rows = math.prod(x.shape[: axis if axis >= 0 else axis + x.ndim])
    return x.reshape(rows, x.numel() // rows if rows else math.prod(x.shape[axis:]))


def squeeze(x: Tensor, axes: Sequence[int] | None) -> Tensor:
    """Remove dimensions of size 1, all of them by default."""
    return x.squeeze() if axes is None else x.squeeze(tuple(axes)) if axes else x


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Insert dimensions of size 1 at places of the result."""
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def split_evenly(x: Tensor, num_outputs: int, axis: int) -> tuple[Tensor, ...]:
    """Split a tensor into equal parts; the last part may be smaller."""
    size = math.ceil(x.shape[axis] / num_outputs)
    sizes = [max(min(size, x.shape[axis] - size * number), 0) for number in range(num_outputs)]
    parts: tuple[Tensor, ...] = torch.split(x, sizes, axis)
    return parts


def slice_axes(
    x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> Tensor:
    """Slice axes, with NumPy's rules for starts and ends beyond the size, and with negative steps."""
    axes = range(len(starts)) if axes is None else axes
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        first, last, stride = (
            slice(start, end, step).indices(x.shape[axis]) if step > 0 else _backwards(start, end, step, x.shape[axis])
        )
        if stride > 0:
            x = x.narrow(axis, first, max(last - first, 0))
            x = x[(slice(None),) * (axis % x.ndim) + (slice(None, None, stride),)] if stride > 1 else x
        else:
            x = x.index_select(axis, torch.arange(first, last, stride, device=x.device))
    return x


def _backwards(start: int, end: int, step: int, size: int) -> tuple[int, int, int]:
    """Return the range of a slice with a negative step, never empty by an overflow of its start."""
    first = min(start + size if start < 0 else start, size - 1)
    last = max(end + size if end < 0 else end, -1)
    return (first, last, step) if first > last else (0, 0, -1)


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the slices along an axis at indices; negative ones count from the end."""
    axis = axis % x.ndim
    indices = indices.long()
    flat = torch.where(indices < 0, indices + x.shape[axis], indices).reshape(-1)
    return x.index_select(axis, flat).reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def gather_elements(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the elements at indices along an axis; negative ones count from the end."""
    return x.gather(axis, torch.where(indices < 0, indices + x.shape[axis], indices).long())


def gather_nd(x: Tensor, indices: Tensor, batch_dims: int) -> Tensor:
    """Return the slices at coordinates, the last dimension of `indices`, after common leading dimensions."""
    batch = x.shape[:batch_dims]
    rows, places = x.reshape([-1, *x.shape[batch_dims:]]), indices.long().reshape([-1, *indices.shape[batch_dims:]])
    parts = [row[tuple(place.unbind(-1))] for row, place in zip(rows, places, strict=True)]
    taken = torch.stack(parts)
    return taken.reshape([*batch, *taken.shape[1:]])


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
    """Write or reduce elements at indices along an axis of a copy."""
    places = torch.where(indices < 0, indices + x.shape[axis], indices).long()
    if reduction == "none":
        return x.scatter(axis, places, updates)
    kinds = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return x.scatter_reduce(axis, places, updates, kinds[reduction], include_self=True)


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Write or reduce slices at coordinates, the last dimension of `indices`, of a copy."""
    depth = indices.shape[-1]
    sizes = list(x.shape[:depth])
    place = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for axis, size in enumerate(sizes):
        index = indices[..., axis].long()
        place = place * size + torch.where(index < 0, index + size, index)
    rows = x.reshape(math.prod(sizes), -1)
    new = updates.reshape(place.numel(), -1)
    where = place.reshape(-1, 1).expand_as(new)
    return scatter_elements(rows, where, new, 0, reduction).reshape(x.shape)


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcast to a shape, in both directions."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def pad(x: Tensor, pads: Sequence[int], mode: str, value: Tensor | float | None, axes: Sequence[int] | None) -> Tensor:
    """Pad, or cut by negative pads, in the mode `constant`, `reflect`, `edge` or `wrap`."""
    axes = range(x.ndim) if axes is None else axes
    for number, axis in enumerate(axes):
        before, after = pads[number], pads[number + len(pads) // 2]
        x = _pad_axis(x, axis % x.ndim, before, after, mode, 0 if value is None else value)
    return x


def _pad_axis(x: Tensor, axis: int, before: int, after: int, mode: str, value: Tensor | float) -> Tensor:
    if before < 0 or after < 0:
        x = x.narrow(axis, max(-before, 0), x.shape[axis] - max(-before, 0) - max(-after, 0))
        before, after = max(before, 0), max(after, 0)
    if not (before or after):
        return x
    size = x.shape[axis]
    if mode == "constant":
        filler = torch.as_tensor(value, dtype=x.dtype, device=x.device).reshape([1] * x.ndim)
        shapes = [[*x.shape[:axis], count, *x.shape[axis + 1 :]] for count in (before, after)]
        return torch.cat([filler.expand(shapes[0]), x, filler.expand(shapes[1])], axis)
    places = torch.arange(-before, size + after, device=x.device)
    if mode == "edge":
        places = places.clamp(0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = places % period
        places = torch.where(places >= size, period - places, places)
    return x.index_select(axis, places)


def shape_of(x: Tensor, start: int = 0, end: int | None = None) -> Tensor:
    """Return the sizes of dimensions as an int64 tensor."""
    return torch.tensor(x.shape[start:end], dtype=torch.int64, device=x.device)


def eye_like(x: Tensor, dtype: torch.dtype | None, k: int) -> Tensor:
    """Return a matrix of the input's size with ones on the k-th diagonal."""
    return torch.diagonal_scatter(
        torch.zeros(x.shape, dtype=dtype or x.dtype, device=x.device),
        torch.ones_like(torch.diagonal(x, k), dtype=dtype or x.dtype),
        k,
    )


def one_hot(indices: Tensor, depth: int, values: Tensor, axis: int) -> Tensor:
    """Return the second of `values` where an index is that of the new axis, and the first elsewhere."""
    axis = axis % (indices.ndim + 1)
    places = torch.arange(depth, device=indices.device).reshape([-1] + [1] * (indices.ndim - axis))
    return torch.where(torch.remainder(indices, depth).unsqueeze(axis).long() == places, values[1], values[0])


def compress(x: Tensor, condition: Tensor, axis: int | None) -> Tensor:
    """Return the slices along an axis where the condition holds; without an axis, elements of the flattened input."""
    x = x.reshape(-1) if axis is None else x
    return x.index_select(axis or 0, condition.nonzero().reshape(-1))


def trilu(x: Tensor, k: int, upper: int) -> Tensor:
    """Return the upper or lower triangle of matrices, with zeros elsewhere."""
    return torch.triu(x, k) if upper else torch.tril(x, k)


def depth_to_space(x: Tensor, blocksize: int, mode: str) -> Tensor:
    """Move channels to pixels of blocks, depth first (`DCR`) or column first (`CRD`)."""
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    y = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // blocksize**2, h * blocksize, w * blocksize)


def space_to_depth(x: Tensor, blocksize: int) -> Tensor:
    """Move pixels of blocks to channels, depth first."""
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(n, c * blocksize**2, h // blocksize, w // blocksize)


def reverse_sequence(x: Tensor, sequence_lens: Tensor, batch_axis: int, time_axis: int) -> Tensor:
    """Reverse the first elements along the time axis, as many as the length of each sequence."""
    y = x.movedim((batch_axis, time_axis), (0, 1)).clone()
    for row, length in enumerate(sequence_lens.tolist()):
        y[row, :length] = y[row, :length].flip(0)
    return y.movedim((0, 1), (batch_axis, time_axis))


def resize(
    x: Tensor,
    roi: Tensor | None,
    scales: Sequence[float] | None,
    sizes: Sequence[int] | None,
    axes: Sequence[int] | None,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    antialias: int,
    keep_aspect_ratio_policy: str,
) -> Tensor:
    """Resize dimensions one after the other, each by a matrix of interpolation weights."""
    dims = [axis % x.ndim for axis in (range(x.ndim) if axes is None else axes)]
    regions = [0.0] * len(dims) + [1.0] * len(dims) if roi is None or not roi.numel() else roi.tolist()
    if sizes:
        scales, sizes = _scales_of([x.shape[axis] for axis in dims], sizes, keep_aspect_ratio_policy)
    assert scales is not None
    for number, (axis, scale) in enumerate(zip(dims, scales, strict=True)):
        size = x.shape[axis]
        region = (regions[number], regions[number + len(dims)])
        crop = coordinate_transformation_mode == "tf_crop_and_resize"
        length = sizes[number] if sizes else math.floor(size * ((region[1] - region[0]) if crop else 1) * scale)
        if scale == 1 and length == size and not crop:
            continue
        places = _source_places(length, size, scale, coordinate_transformation_mode, region, x.device)
        if mode == "nearest":
            y = x.index_select(axis, _nearest(places, nearest_mode).clamp(0, size - 1))
        else:
            shrinking = min(scale, 1.0) if antialias else 1.0
            weights = _interpolation_weights(places, size, mode, cubic_coeff_a, shrinking, exclude_outside)
            y = torch.tensordot(x, weights.to(x.dtype), ([axis], [1])).movedim(-1, axis)
        if crop:
            outside = ((places < 0) | (places > size - 1)).reshape([-1] + [1] * (x.ndim - 1 - axis))
            y = torch.where(outside, torch.as_tensor(extrapolation_value, dtype=x.dtype, device=x.device), y)
        x = y
    return x


def _scales_of(shape: Sequence[int], sizes: Sequence[int], policy: str) -> tuple[list[float], list[int]]:
    scales = [size / old for size, old in zip(sizes, shape, strict=True)]
    if policy == "stretch":
        return scales, list(sizes)
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(scales), [math.floor(scale * old + 0.5) for old in shape]


def _source_places(
    length: int, size: int, scale: float, mode: str, region: tuple[float, float], device: torch.device
) -> Tensor:
    """Return where each element of the output is in the input, in units of its elements."""
    x = torch.arange(length, dtype=torch.float64, device=device)
    scaled = scale * size
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * ((size - 1) / (length - 1)) if length != 1 else x * 0
    if mode == "tf_crop_and_resize":
        start, end = region
        if length > 1:
            return start * (size - 1) + x * ((end - start) * (size - 1) / (length - 1))
        return x * 0 + 0.5 * (start + end) * (size - 1)
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - length / scaled)
        return offset + (x + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if mode == "pytorch_half_pixel" and length == 1:
        return x * 0 - 0.5
    return (x + 0.5) / scale - 0.5


def _nearest(places: Tensor, mode: str) -> Tensor:
    rounded = {
        "round_prefer_floor": lambda: torch.ceil(places - 0.5),
        "round_prefer_ceil": lambda: torch.floor(places + 0.5),
        "floor": lambda: torch.floor(places),
        "ceil": lambda: torch.ceil(places),
    }[mode]()
    return rounded.long()


def _interpolation_weights(
    places: Tensor, size: int, mode: str, a: float, shrinking: float, exclude_outside: int
) -> Tensor:
    """Return a matrix: weight of each element of the input in each element of the output."""
    reach = 1 if mode == "linear" else 2
    support = math.ceil(reach / shrinking)
    first = torch.floor(places).long() - support + 1
    taps = first.unsqueeze(1) + torch.arange(2 * support, device=places.device)
    distance = ((taps - places.unsqueeze(1)) * shrinking).abs()
    weights = torch.clamp(1 - distance, min=0) if mode == "linear" else _cubic(distance, a)
    if exclude_outside:
        weights = torch.where((taps >= 0) & (taps < size), weights, torch.zeros_like(weights))
    weights = weights / weights.sum(1, keepdim=True)
    matrix = torch.zeros(len(places), size, dtype=weights.dtype, device=places.device)
    return matrix.scatter_add(1, taps.clamp(0, size - 1), weights)


def _cubic(x: Tensor, a: float) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, block_size: int, dtype: torch.dtype
) -> Tensor:
    """Return round(x / scale) + zero_point, half to even, saturated."""
    scale = _along_axis(scale, x, axis, block_size)
    limits = torch.iinfo(dtype)
    y = torch.round(x.to(scale.dtype) / scale) if scale.is_floating_point() else torch.round(x / scale)
    if zero_point is not None:
        y = y + _along_axis(zero_point, x, axis, block_size).to(y.dtype)
    return y.clamp(limits.min, limits.max).to(dtype)


def dequantize(x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, block_size: int) -> Tensor:
    """Return (x - zero_point) * scale in the type of the scale."""
    wide = x.to(torch.int32)
    if zero_point is not None:
        wide = wide - _along_axis(zero_point, x, axis, block_size).to(torch.int32)
    return wide.to(scale.dtype) * _along_axis(scale, x, axis, block_size)


def _along_axis(value: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Return a scale or zero point in a shape that broadcasts: one element, one per index of an axis, or per block."""
    if value.numel() == 1 and value.ndim <= 1:
        return value.reshape([])
    if block_size:
        return value.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    return value.reshape([-1 if number == axis % x.ndim else 1 for number in range(x.ndim)])


def dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize to uint8 by the range of the values; returns also scale and zero point."""
    low, high = torch.clamp(x.min(), max=0), torch.clamp(x.max(), min=0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero_point = torch.round(torch.clamp(-low / scale, 0, 255)).to(torch.uint8)
    return quantize(x, scale, zero_point, 0, 0, torch.uint8), scale, zero_point


def matmul_integer(a: Tensor, b: Tensor, a_zero_point: Tensor | None, b_zero_point: Tensor | None) -> Tensor:
    """Multiply matrices of integers less their zero points, which rows of a and columns of b may have alone."""
    left, right = a.to(torch.int32), b.to(torch.int32)
    if a_zero_point is not None:
        left = left - (a_zero_point.unsqueeze(-1) if a_zero_point.ndim == 1 else a_zero_point).to(torch.int32)
    if b_zero_point is not None:
        right = right - b_zero_point.to(torch.int32)
    return torch.matmul(left, right)


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Tensor | None,
    iou_threshold: Tensor | None,
    score_threshold: Tensor | None,
    center_point_box: int,
) -> Tensor:
    """Return (sample, class, box) of the boxes that overlap no better one of their class."""
    most = int(max_output_boxes_per_class) if max_output_boxes_per_class is not None else 0
    overlap = float(iou_threshold) if iou_threshold is not None else 0.0
    if center_point_box:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        boxes = torch.cat([centre - half, centre + half], -1)
    low, high = torch.minimum(boxes[..., :2], boxes[..., 2:]), torch.maximum(boxes[..., :2], boxes[..., 2:])
    chosen: list[list[int]] = []
    for sample, kind in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        order = torch.argsort(scores[sample, kind], descending=True, stable=True)
        if score_threshold is not None:
            order = order[scores[sample, kind][order] > float(score_threshold)]
        kept = _suppress(low[sample], high[sample], order, overlap, most)
        chosen += [[sample, kind, box] for box in kept]
    return torch.tensor(chosen, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _suppress(low: Tensor, high: Tensor, order: Tensor, overlap: float, most: int) -> list[int]:
    kept: list[int] = []
    areas = (high - low).prod(-1)
    while order.numel() and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        sides = (torch.minimum(high[best], high[order]) - torch.maximum(low[best], low[order])).clamp(min=0)
        both = sides.prod(-1)
        order = order[both / (areas[best] + areas[order] - both) <= overlap]
    return kept


def _activation(name: str, clip_to: float | None) -> Callable[[Tensor], Tensor]:
    """Return an activation function of a recurrent operator with ONNX's default parameters, of limited values."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "affine": lambda x: x,
        "leakyrelu": lambda x: F.leaky_relu(x, 0.01),
        "hardsigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
        "elu": F.elu,
        "softsign": F.softsign,
        "softplus": F.softplus,
    }
    function = functions[name.lower()]
    return function if clip_to is None else lambda x: function(x.clamp(-clip_to, clip_to))


def recurrent(
    kind: str,
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    peepholes: Tensor | None,
    direction: str,
    activations: Sequence[str],
    clip_to: float | None,
    layout: int,
    linear_before_reset: int = 0,
    input_forget: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an `RNN`, `GRU` or `LSTM` with weights as ONNX has them; returns all outputs, the last one, and the last
    cell state.
    """
    if layout:
        x = x.transpose(0, 1)
        initial_h, initial_c = (None if each is None else each.transpose(0, 1) for each in (initial_h, initial_c))
    steps, batch = x.shape[:2]
    directions, _, hidden = recurrence.shape
    lengths = torch.full([batch], steps, device=x.device) if sequence_lens is None else sequence_lens
    per = len(activations) // directions
    outputs, last_h, last_c = [], [], []
    for number in range(directions):
        backwards = direction == "reverse" or number == 1
        names = activations[number * per : (number + 1) * per]
        # The third, of an LSTM's new cell state, gets all values.
        functions = [_activation(name, clip_to if index < 2 else None) for index, name in enumerate(names)]
        gates = recurrence.shape[1]
        both = torch.zeros(2 * gates, dtype=x.dtype, device=x.device) if bias is None else bias[number]
        zeros = torch.zeros(batch, hidden, dtype=x.dtype, device=x.device)
        h = zeros if initial_h is None else initial_h[number]
        c = zeros if initial_c is None else initial_c[number]
        peep = torch.zeros(3 * hidden, dtype=x.dtype, device=x.device) if peepholes is None else peepholes[number]
        results: list[Tensor] = [zeros] * steps
        for step in reversed(range(steps)) if backwards else range(steps):
            weights = (weight[number], recurrence[number], both[:gates], both[gates:], peep)
            flag = linear_before_reset if kind == "GRU" else input_forget
            new_h, new_c = _CELLS[kind](x[step], h, c, weights, functions, flag)
            running = (step < lengths).unsqueeze(1)
            h, c = torch.where(running, new_h, h), torch.where(running, new_c, c)
            results[step] = torch.where(running, new_h, zeros)
        outputs.append(torch.stack(results) if steps else zeros.new_zeros(0, batch, hidden))
        last_h.append(h)
        last_c.append(c)
    y, y_h, y_c = torch.stack(outputs, 1), torch.stack(last_h), torch.stack(last_c)
    if layout:
        return y.permute(2, 0, 1, 3), y_h.transpose(0, 1), y_c.transpose(0, 1)
    return y, y_h, y_c


_Weights = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_Functions = Sequence[Callable[[Tensor], Tensor]]
_States = tuple[Tensor, Tensor]


def _rnn_cell(x: Tensor, h: Tensor, c: Tensor, weights: _Weights, functions: _Functions, flag: int) -> _States:
    w, r, wb, rb, _ = weights
    return functions[0](x @ w.T + h @ r.T + wb + rb), c


def _gru_cell(x: Tensor, h: Tensor, c: Tensor, weights: _Weights, functions: _Functions, flag: int) -> _States:
    w, r, wb, rb, _ = weights
    size = h.shape[-1]
    xz, xr, xh = (x @ w.T + wb).split(size, -1)
    hz, hr, _ = (h @ r.T + rb).split(size, -1)
    update, reset = functions[0](xz + hz), functions[0](xr + hr)
    rh, rbh = r[2 * size :], rb[2 * size :]
    state = reset * (h @ rh.T + rbh) if flag else (reset * h) @ rh.T + rbh
    return (1 - update) * functions[1](xh + state) + update * h, c


def _lstm_cell(x: Tensor, h: Tensor, c: Tensor, weights: _Weights, functions: _Functions, flag: int) -> _States:
    w, r, wb, rb, peep = weights
    size = h.shape[-1]
    into, out, forget, cell = (x @ w.T + h @ r.T + wb + rb).split(size, -1)
    peep_in, peep_out, peep_forget = peep.split(size)
    i = functions[0](into + peep_in * c)
    f = 1 - i if flag else functions[0](forget + peep_forget * c)
    new_c = f * c + i * functions[1](cell)
    return functions[0](out + peep_out * new_c) * functions[2](new_c), new_c


_CELLS = {"RNN": _rnn_cell, "GRU": _gru_cell, "LSTM": _lstm_cell}


def loop_count(trip_count: Tensor | None) -> Sequence[int]:
    """Return the numbers of a loop's iterations, at most; without a count there is no limit."""
    return range(2**62 if trip_count is None else int(trip_count))


def stack_scans(parts: Sequence[Tensor], like: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return what each iteration of a loop put out, stacked."""
    return torch.stack(list(parts)) if parts else torch.zeros([0, *like], dtype=dtype)
