"""Weights in int4 or int8 blocks, by ONNX Runtime's `matmul_nbits_quantizer`, one weight after another.

Each weight is read in pieces, quantized and written to a scratch file, so that memory does not grow with the model.
Layout of `MatMulNBits` (https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md): for a weight
[K, N], integers [N, blocks, bytes of a block], scales [N, blocks], and offsets (packed if they have 4 bits).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ndld_flow.models.external_data import ALIGNMENT
from ndld_flow.models.lazy_tensors import Array, TransposedTensor, byte_pieces, on_disk
from ndld_flow.models.nodes import UniqueNames, add_initializer
from ndld_flow.quantize.calibration import captured_output
from ndld_flow.quantize.settings import QuantizeSettings

_DOMAIN = "com.microsoft"
_PIECE_ELEMENTS = 2**23


class _BlockQuantizer(Protocol):
    def __call__(self, piece: Array, /) -> tuple[Array, Array, Array | None]:
        """Return integers, scales and offsets of a part [K, N] of a weight, K a multiple of the block size or its
        end."""


def write_blocks(
    model: ir.Model,
    layers: Sequence[ir.Node],
    settings: QuantizeSettings,
    scratch: Path,
    progress: Callable[[int, int, str], None],
) -> None:
    """Replace MatMul nodes by MatMulNBits with weights in blocks, and Gather nodes by GatherBlockQuantized.

    Constants on disk go to the file `scratch`.
    """
    writer = _Writer(model, settings, scratch)
    for number, node in enumerate(layers, start=1):
        writer.replace(node)
        progress(number, len(layers), "quantizing")
    model.opset_imports.setdefault(_DOMAIN, 1)


@dataclass
class _Writer:
    model: ir.Model
    settings: QuantizeSettings
    scratch: Path
    _blocks: dict[tuple[ir.Value, str], list[ir.Value]] = field(default_factory=dict)
    """Weight and operator -> its integers, scales and offsets: several layers may read it."""

    def __post_init__(self) -> None:
        self._names = UniqueNames(self.model)
        self._quantizer = _hqq(self.settings) if self.settings.algorithm == "hqq" else _rtn(self.settings)
        # Tables have integer offsets only.
        self._quantizer_of_tables = _rtn(self.settings)

    def replace(self, node: ir.Node) -> None:
        """Turn a MatMul with a constant weight into a MatMulNBits of the same name and output, and a Gather of rows of
        a constant table into a GatherBlockQuantized.
        """
        is_table = node.op_type == "Gather"
        weight, other = (node.inputs[0], node.inputs[1]) if is_table else (node.inputs[1], node.inputs[0])
        assert weight is not None and weight.const_value is not None
        key = (weight, node.op_type)
        if key not in self._blocks:
            arrays = self._table(weight) if is_table else self._arrays(weight.const_value, self._quantizer)
            self._blocks[key] = self._registered(weight, arrays)
        first, *rest = self._blocks[key]
        inputs = [first, other, *rest] if is_table else [other, first, *rest]
        numbers = {"bits": self.settings.weight_bits, "block_size": self.settings.block_size}
        if is_table:
            numbers |= {"gather_axis": 0, "quantize_axis": 1}
        else:
            rows, columns = weight.const_value.shape.numpy()[-2:]
            numbers = {"K": rows, "N": columns, **numbers}
            if self.settings.accuracy_level:
                numbers["accuracy_level"] = self.settings.accuracy_level
        node.domain, node.op_type, node.version = _DOMAIN, "GatherBlockQuantized" if is_table else "MatMulNBits", None
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        node.attributes.clear()
        for name, number in numbers.items():
            node.attributes[name] = ir.AttrInt64(name, number)

    def _table(self, table: ir.Value) -> dict[str, Array]:
        """Return the arrays of a table, whose rows lie in blocks."""
        assert table.const_value is not None
        turned = TransposedTensor(table.const_value, (1, 0), table.name or "")
        arrays = self._arrays(turned, self._quantizer_of_tables)
        integers = f"Q{self.settings.weight_bits}"
        return {**arrays, integers: arrays[integers].reshape(len(arrays[integers]), -1)}

    def _arrays(self, tensor: ir.TensorProtocol, quantizer: _BlockQuantizer) -> dict[str, Array]:
        """Return the integers, scales and offsets of a matrix, in blocks along its rows, by the ends of their names."""
        rows, columns = tensor.shape.numpy()[-2:]
        blocks = -(-rows // self.settings.block_size)
        integers = np.empty((columns, blocks, self.settings.block_size * self.settings.weight_bits // 8), np.uint8)
        scales = np.empty((columns, blocks), tensor.dtype.numpy())
        offsets: Array | None = None
        for column, block, piece in _pieces(tensor, self.settings.block_size):
            numbers, steps, zeros = quantizer(piece)
            last = column + len(numbers)
            integers[column:last, block : block + numbers.shape[1]] = numbers
            scales[column:last, block : block + numbers.shape[1]] = steps
            if zeros is None:
                continue
            # Two offsets of 4 bits share a byte, and a piece starts at an even block.
            packed = 8 // self.settings.weight_bits if zeros.dtype == np.uint8 else 1
            if offsets is None:
                offsets = np.empty((columns, -(-blocks // packed)), zeros.dtype)
            offsets[column:last, block // packed : block // packed + zeros.shape[1]] = zeros
        arrays = {f"Q{self.settings.weight_bits}": integers, "scales": scales}
        return arrays if offsets is None else {**arrays, "zero_points": offsets}

    def _registered(self, weight: ir.Value, arrays: Mapping[str, Array]) -> list[ir.Value]:
        assert weight.const_value is not None
        outside = on_disk(weight.const_value)
        values: list[ir.Value] = []
        for suffix, array in arrays.items():
            name = self._names.value(f"{weight.name}_{suffix}")
            tensor = self._on_disk(array, name) if outside else ir.Tensor(array, name=name)
            values.append(add_initializer(self.model.graph, tensor))
        return values

    def _on_disk(self, array: Array, name: str) -> ir.ExternalTensor:
        with self.scratch.open("ab") as file:
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            offset = file.tell()
            file.write(array.tobytes())
        dtype, shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        return ir.ExternalTensor(
            self.scratch.name, offset, array.nbytes, dtype, shape=shape, name=name, base_dir=self.scratch.parent
        )


def _pieces(tensor: ir.TensorProtocol, block_size: int) -> Iterator[tuple[int, int, Array]]:
    """Yield (first column, first block, values [rows, columns]) of a weight, read in the order of its file."""
    source = tensor.source if isinstance(tensor, TransposedTensor) else tensor
    columns = source.shape.numpy()[-1]
    kind = np.dtype(source.dtype.numpy()).newbyteorder("<")
    step = max(1, _PIECE_ELEMENTS // columns)
    if source is tensor:
        step = max(1, step // (2 * block_size)) * 2 * block_size
    first = 0
    for data in byte_pieces(source, step * columns * kind.itemsize):
        piece = np.frombuffer(data, kind).reshape(-1, columns)
        if source is tensor:
            yield 0, first // block_size, piece
        else:
            yield first, 0, np.ascontiguousarray(piece.T)
        first += len(piece)


def _load_quantizers() -> Any:  # noqa: ANN401 - an untyped module
    """Return ONNX Runtime's module, without the handler that it adds to the root logger when it is imported."""
    with captured_output():
        return importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")


def _rtn(settings: QuantizeSettings) -> _BlockQuantizer:
    symmetric = bool(settings.symmetric)
    module = _load_quantizers()
    config = module.DefaultWeightOnlyQuantConfig(settings.block_size, is_symmetric=symmetric, bits=settings.weight_bits)
    quantizer = module.DefaultWeightOnlyQuantizer(config)

    def quantize(piece: Array) -> tuple[Array, Array, Array | None]:
        integers, scales, offsets = quantizer.qbits_block_quant(piece)
        return integers, scales, None if symmetric else offsets

    return quantize


def _hqq(settings: QuantizeSettings) -> _BlockQuantizer:
    """Return HQQ (https://mobiusml.github.io/hqq_blog/), whose offsets are floats."""
    torch = importlib.import_module("torch")  # optional

    bits, size = settings.weight_bits, settings.block_size
    module = _load_quantizers()
    quantizer = module.HQQWeightOnlyQuantizer(module.HQQWeightOnlyQuantConfig(block_size=size, bits=bits))

    def quantize(piece: Array) -> tuple[Array, Array, Array | None]:
        columns = torch.from_numpy(np.ascontiguousarray(piece.T))
        integers, scales, offsets = quantizer.quantize_internal(columns, bits=bits, group_size=size)
        numbers = integers.numpy().astype(np.uint8).reshape(len(columns), -1, size)
        packed = numbers if bits == 8 else numbers[..., ::2] | numbers[..., 1::2] << 4
        shape = packed.shape[:2]
        return packed, scales.numpy().reshape(shape), offsets.numpy().reshape(shape)

    return quantize
