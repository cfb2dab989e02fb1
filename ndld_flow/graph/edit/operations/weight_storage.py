"""Operations on the way in which weights are stored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import Bytes, Fraction, share, size
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import EVERY_TENSOR, AllowEmpty, SelectTensors, TensorValue
from ndld_flow.step import DataFile
from ndld_flow.store.kinds import is_reserved

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class ExternalizeWeights(Operation):
    """Store weights in a data file next to the model.

        externalize_weights: {larger_than: 1 KiB, file: weights.bin}

    Weights that are already in data files are copied once, by the operating system, and not read into memory. Without
    this operation they are written to `model.onnx.data`, and weights inside the model stay there.
    """

    keeps_outputs = True

    select: SelectTensors | None = None
    """Initializers to store there; all by default."""
    larger_than: Bytes = 1024
    """Smaller ones stay in the model, where tools look for constant shapes and axes."""
    file: str = ""
    """Name of the data file; `model.onnx.data` by default. An export to `fast.onnx` renames it to `fast.onnx.data`."""
    alignment: int = Field(default=4096, ge=1, le=2**20)
    """Offsets of tensors are multiples of this many bytes."""
    allow_empty: AllowEmpty = False

    @field_validator("file")
    @classmethod
    def _check_file(cls, file: str) -> str:
        taken = is_reserved(file) or file.casefold().endswith(".onnx")
        if file and (taken or not _PLAIN_NAME.fullmatch(file)):
            raise ValueError(
                f"{file!r}: the data file is in the model's folder; give a plain name such as `weights.bin`"
            )
        return file

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import dense_initializers
        from ndld_flow.models.external_data import Placement, place

        weights = dense_initializers(edited.model, self.select, self.allow_empty)
        chosen = [weight for weight in weights if weight.tensor.nbytes > self.larger_than]
        if not chosen and not self.allow_empty:
            raise RequestError(f"no selected initializer is larger than {size(self.larger_than)}")
        for weight in chosen:
            place(weight.value, Placement(self.file, self.alignment))
        total = size(sum(weight.tensor.nbytes for weight in chosen))
        return f"{len(chosen)} initializers ({total}) moved to {self.file or 'model.onnx.data'}"


_MAX_MODEL_BYTES = 2**31 - 2**26
"""Protobuf limits a message to 2 GiB; some of it is for nodes."""


class InlineWeights(Operation):
    """Store weights of data files inside the model.

        inline_weights: {smaller_than: 64 KiB}

    The limit of a single model file is 2 GB; more is refused.
    """

    keeps_outputs = True

    select: SelectTensors | None = None
    """Initializers to store there; all by default."""
    smaller_than: Bytes | None = None
    """Larger ones stay in the data file."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import constant_tensors, dense_initializers
        from ndld_flow.models.external_data import Placement, place

        limit = self.smaller_than
        weights = dense_initializers(edited.model, self.select, self.allow_empty)
        chosen = [weight for weight in weights if limit is None or weight.tensor.nbytes < limit]
        if not chosen and not self.allow_empty:
            raise RequestError("no selected initializer is that small")
        for weight in chosen:
            place(weight.value, Placement(None))
        total = sum(weight.tensor.nbytes for weight in constant_tensors(edited.model) if weight.is_written_inline)
        if total > _MAX_MODEL_BYTES:
            raise RequestError(
                f"the model would contain {size(total)} of weights, and the limit of one file is 2 GB. Inline only "
                "small weights (`smaller_than`), or keep them in the data file"
            )
        return f"{len(chosen)} initializers ({size(sum(weight.tensor.nbytes for weight in chosen))}) go into the model"


class ConstantsToInitializers(Operation):
    """Turn Constant nodes into initializers of the same names.

        constants_to_initializers: {select: "*"}

    Constant nodes of local functions, which cannot have initializers, and those whose output is a graph output stay.
    """

    keeps_outputs = True

    select: SelectTensors = EVERY_TENSOR
    """Constant nodes, by the names of their outputs."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import select_held
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS
        from ndld_flow.models.nodes import add_initializer

        moved = 0
        allow_empty = self.allow_empty or self.select == EVERY_TENSOR
        for constant in select_held(edited.model, self.select, allow_empty, nodes=True):
            node, tensor = constant.node, constant.tensor
            if node is None or "::" in constant.scope or constant.value.is_graph_output():
                continue
            tensor.name = constant.name
            constant.value.replace_all_uses_with(add_initializer(constant.graph, tensor))
            constant.graph.remove(node, safe=True)
            moved += 1
        if not moved:
            edited.note("no Constant node becomes an initializer")
            return "nothing to do"
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
        return f"{moved} Constant nodes turned into initializers"


class InitializersToConstants(Operation):
    """Turn initializers into Constant nodes whose outputs have the same names.

        initializers_to_constants: {select: {smaller_than: 1 KiB}}

    Initializers in data files are refused.
    """

    keeps_outputs = True

    select: SelectTensors
    """Initializers to turn."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.constant_tensors import select_held
        from ndld_flow.models.nodes import put_constant

        initializers = select_held(edited.model, self.select, self.allow_empty)
        for initializer in initializers:
            name = initializer.name
            if initializer.value.is_graph_input():
                raise RequestError(f"initializer {name!r} is also an input; use `remove_initializer_inputs` first")
            if initializer.stored == "sparse":
                raise RequestError(f"initializer {name!r} is sparse; use `make_dense` first")
            if initializer.stored == "external":
                raise RequestError(
                    f"initializer {name!r} is in a data file, which few tools support for Constant nodes"
                )
        for initializer in initializers:
            value, tensor = initializer.value, initializer.tensor
            output = ir.Value(name=value.name, type=ir.TensorType(tensor.dtype), shape=value.shape)
            del initializer.graph.initializers[initializer.name]
            value.replace_all_uses_with(output, replace_graph_outputs=True)
            put_constant(initializer.graph, output, tensor)
        return f"{len(initializers)} initializers turned into Constant nodes"


class InitializersToInputs(Operation):
    """Turn initializers into inputs of the model, appended to the existing ones.

        initializers_to_inputs: {select: [scale, bias], keep_values: true}

    Programs that run the model can then feed other values.
    """

    keeps_outputs = True

    select: SelectTensors
    """Initializers of the main graph to turn."""
    keep_values: bool = False
    """Keep the values as defaults; otherwise the inputs must be fed."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        import onnx_ir as ir

        from ndld_flow.graph.edit.constant_tensors import select_held

        initializers = select_held(edited.model, self.select, self.allow_empty)
        for initializer in initializers:
            name = initializer.name
            if initializer.scope:
                where = f"{name!r} is in {initializer.scope!r}"
                raise RequestError(f"initializer {where}; only inputs of the main graph can be fed")
            if initializer.stored == "sparse":
                raise RequestError(f"initializer {name!r} is sparse; use `make_dense` first")
        for initializer in initializers:
            value, tensor = initializer.value, initializer.tensor
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            if not value.is_graph_input():
                initializer.graph.inputs.append(value)
            if not self.keep_values:
                del initializer.graph.initializers[initializer.name]
                value.const_value = None
        return f"{len(initializers)} initializers turned into inputs"


class RemoveInitializerInputs(Operation):
    """Remove initializers from the model's inputs: they become constants, which programs can no longer override.

        remove_initializer_inputs: {}

    Old exporters list all weights as inputs, which prevents constant folding and fusion.
    """

    keeps_outputs = True

    select: SelectTensors = EVERY_TENSOR
    """Initializers to remove from the inputs; all by default."""
    allow_empty: bool = False
    """Succeed when none of them is an input."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import select_held
        from ndld_flow.graph.edit.edited_model import FIRST_WITH_FREE_INITIALIZERS

        allow_empty = self.allow_empty or self.select == EVERY_TENSOR
        initializers = select_held(edited.model, self.select, allow_empty)
        inputs = [initializer for initializer in initializers if initializer.value.is_graph_input()]
        for initializer in inputs:
            initializer.graph.inputs.remove(initializer.value)
        if not inputs and not allow_empty:
            raise RequestError("no selected initializer is an input")
        if not inputs:
            edited.note("no initializer is an input")
            return "nothing to do"
        edited.raise_ir_version(FIRST_WITH_FREE_INITIALIZERS)
        return f"{len(inputs)} initializers removed from the inputs"


class AddSparseInitializer(Operation):
    """Add an initializer that is stored as its nonzero values and their positions.

        add_sparse_initializer: {name: mask, values: [1.5, -2], indices: [[0, 1], [2, 3]], shape: [3, 4]}

    Long lists can be read from `.npy` files: `values_file` and `indices_file`.
    """

    name: str
    """Name of the initializer; must be unique among tensors and nodes."""
    values: JsonValue = None
    """The nonzero values: a list of at most 10,000."""
    values_file: Annotated[Path | None, DataFile()] = None
    """The values in a `.npy` file."""
    indices: JsonValue = None
    """Their positions, in ascending order: an index into the flattened tensor or a row of coordinates for each."""
    indices_file: Annotated[Path | None, DataFile()] = None
    """The positions in a `.npy` file."""
    shape: tuple[int, ...] = Field(min_length=1)
    """Shape of the dense tensor."""
    dtype: str = "float32"
    """Element type."""
    scope: str = ""
    """The graph to add it to: `""` is the main graph."""
    connect: tuple[str, ...] = ()
    """Inputs that read it: `matmul_1.B` by the operator's name for the input, or `matmul_1.1` by index, from 0."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        for name in ("values", "indices"):
            if (getattr(self, name) is None) == (getattr(self, f"{name}_file") is None):
                raise ValueError(f"give either `{name}` or `{name}_file`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from onnx_ir import DataType

        from ndld_flow.graph.edit.constant_tensors import (
            FIRST_WITH_SPARSE_INITIALIZERS,
            add_initializer,
            connect_readers,
            make_tensor,
            sparse_of,
        )
        from ndld_flow.graph.edit.value_grammar import parse_dtype

        if "::" in self.scope:
            raise RequestError(f"{self.scope!r} is a local function, which cannot have initializers")
        written = TensorValue(value=self.values, file=self.values_file)
        values = make_tensor(written, self.name, parse_dtype(self.dtype))
        written = TensorValue(value=self.indices, file=self.indices_file)
        indices = make_tensor(written, f"{self.name}_indices", DataType.INT64)
        value = add_initializer(edited, sparse_of(values, indices, self.shape, self.name), self.name, self.scope)
        edited.raise_ir_version(FIRST_WITH_SPARSE_INITIALIZERS)
        connect_readers(edited, value, self.connect)
        return f"sparse initializer {self.name} added, {len(self.connect)} inputs read it"


class MakeSparse(Operation):
    """Store initializers with many zeros as their nonzero values and positions.

        make_sparse: {select: {larger_than: 1 MiB}, zeros: 80 %}

    ONNX Runtime makes them dense when it loads the model: files get smaller, inference gets no faster.
    """

    keeps_outputs = True

    select: SelectTensors
    """Initializers to consider; those with fewer zeros stay dense."""
    zeros: Fraction = 0.75
    """Minimum fraction of zeros. A position takes eight bytes: for fp32, less than two thirds saves nothing."""
    allow_empty: bool = False
    """Succeed when nothing is selected, or nothing has so many zeros."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import (
            FIRST_WITH_SPARSE_INITIALIZERS,
            can_be_sparse,
            find_tensors,
            to_sparse,
            zeros_share,
        )

        selected = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        shares = {held.value: zeros_share(held.tensor) for held in selected if can_be_sparse(held)}
        chosen = [held for held in selected if shares.get(held.value, -1) >= self.zeros]
        if not chosen and not self.allow_empty:
            most = f"the largest fraction is {share(max(shares.values()))}" if shares else "none of them can be sparse"
            raise RequestError(f"no initializer has {share(self.zeros)} zeros; {most}")
        for held in chosen:
            edited.log.info("%s: %s zeros", held.name, share(shares[held.value]))
            held.value.const_value = to_sparse(held.tensor, held.name)
        if chosen:
            edited.raise_ir_version(FIRST_WITH_SPARSE_INITIALIZERS)
        return f"{len(chosen)} initializers made sparse"


class MakeDense(Operation):
    """Make sparse initializers dense.

        make_dense: {select: "*"}

    Required for engine builders that do not support sparse initializers.
    """

    keeps_outputs = True

    select: SelectTensors
    """Initializers; dense ones are ignored."""
    allow_empty: bool = False
    """Succeed when no sparse initializer is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.constant_tensors import find_tensors, to_dense
        from ndld_flow.models.lazy_tensors import SparseInitializer

        selected = find_tensors(edited.model, self.select, self.allow_empty, constants=False)
        sparse = [(held, held.tensor) for held in selected if isinstance(held.tensor, SparseInitializer)]
        if not sparse and not self.allow_empty:
            raise RequestError("no selected initializer is sparse")
        for held, tensor in sparse:
            held.hold(to_dense(tensor, held.name))
        return f"{len(sparse)} initializers made dense"
