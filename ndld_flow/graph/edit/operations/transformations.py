"""Operations that replace many nodes by others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import AllowEmpty, NodeSelect, Patterns, Select

if TYPE_CHECKING:
    import onnx_ir as ir

    from ndld_flow.graph.edit.edited_model import EditedModel
    from ndld_flow.graph.edit.graph_edits import OperationEdits


Layout = Literal["NHWC", "NCHW", "NDHWC", "NCDHW", "NWC", "NCW", "HWC", "CHW"]


class ChangeLayout(Operation):
    """Change the layout of inputs and outputs, such as from NCHW to NHWC.

    The declared shapes change, names of dimensions stay. A Transpose at each changed input or output keeps the rest of
    the model as it is, so all results are exactly the same.

        change_layout: {inputs: image, to: NHWC, push: true}
    """

    inputs: Patterns = ()
    """Inputs to change."""
    outputs: Patterns = ()
    """Outputs to change."""
    to: Layout
    """The new layout. The current one has the channels at the other end: `NHWC` changes NCHW tensors."""
    push: bool = False
    """Move Transposes, including those of the model, through nodes that can compute in either layout (elementwise, Pad,
    Concat, Slice, Split, Softmax, reductions, Q/DQ) where that leaves fewer of them."""

    @model_validator(mode="after")
    def _check_something(self) -> Self:
        if not self.inputs and not self.outputs:
            raise ValueError("give `inputs` or `outputs`")
        return self

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.layouts import change_layouts

        names, fewer = change_layouts(edited, self.inputs, self.outputs, self.to, self.push)
        pushed = f"; pushing removed {fewer} Transposes" if fewer else ""
        return f"{', '.join(names)} in {self.to}{pushed}"


class Decompose(Operation):
    """Replace nodes by the simpler operators that define them, for runtimes that do not support them.

    Gemm becomes MatMul and Add: constant matrices are transposed at once, others by a Transpose; alpha and beta other
    than 1 become a Mul. All other nodes are replaced by the function body of ONNX's specification, which
    LayerNormalization, Gelu, HardSwish, GroupNormalization, Attention, Clip and many more have. The set depends on the
    model's opset; an operator without a definition is refused with the list. Results agree up to rounding (1e-5 of the
    largest for fp32), because kernels add in another order.

        decompose: {select: {op_type: [LayerNormalization, Gelu]}}
    """

    keeps_outputs = True

    select: Select
    """Nodes to decompose."""
    allow_empty: AllowEmpty = False

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.decomposing import decompose_nodes, is_gemm, split_gemms

        nodes = edited.select_nodes(self.select, self.allow_empty)
        gemms = [node for node in nodes if is_gemm(node)]
        more = split_gemms(edited, gemms)
        more += decompose_nodes(edited, [node for node in nodes if not is_gemm(node)])
        return f"{counted(len(nodes), 'node')} decomposed into {len(nodes) + more}"


class FuseGemm(Operation):
    """Fuse MatMul and Add into Gemm.

    Both factors must be matrices (rank 2) of known type, the addend a constant row, and the product must have no other
    reader. Results agree up to rounding (1e-6 of the largest for fp32).

        fuse_gemm: {}
    """

    keeps_outputs = True

    select: Select = NodeSelect(op_type=("Add",))
    """Add nodes; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when no such pair is selected."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.decomposing import fuse_gemms

        count = fuse_gemms(edited, edited.select_nodes(self.select, self.allow_empty))
        if not count and not self.allow_empty:
            raise RequestError(
                "no selected Add adds a constant row to a MatMul of two matrices; `allow_empty: true` accepts that"
            )
        return f"{count} MatMul + Add fused into Gemm"


ModelType = Literal[
    "bart", "bert", "bert_keras", "bert_tf", "clip", "conformer", "gpt2", "gpt2_tf", "gpt_neox", "mmdit", "phi",
    "qwen3", "sam2", "swin", "t5", "tnlr", "unet", "vae", "vit",
]  # fmt: skip
Fusion = Literal[
    "attention", "bias_add", "bias_gelu", "bias_skip_layer_norm", "bias_splitgelu", "embed_layer_norm", "gelu",
    "gelu_approximation", "gemm_fast_gelu", "group_norm", "layer_norm", "nhwc_conv", "packed_kv", "packed_qkv",
    "qordered_matmul", "rotary_embeddings", "skip_group_norm", "skip_layer_norm",
]  # fmt: skip
_OF_DIFFUSION = frozenset(
    ("bias_add", "bias_splitgelu", "group_norm", "nhwc_conv", "packed_kv", "packed_qkv", "skip_group_norm")
)
_ONLY_WHEN_ASKED = frozenset(("gelu_approximation", "gemm_fast_gelu"))
_MASKLESS = frozenset(("vit", "qwen3"))


class FuseTransformer(Operation):
    """Fuse nodes of transformers into operators of ONNX Runtime: Attention, SkipLayerNormalization, BiasGelu, ...

    This runs the transformer optimizer of ONNX Runtime in a separate process on the whole model (at most 1.5 GiB of
    weights). Most fused operators are in the domain com.microsoft, which other runtimes do not support;
    LayerNormalization requires opset 17. An RMSNorm becomes RMSNormalization, and below opset 23 ONNX Runtime's
    SimplifiedLayerNormalization. Outputs differ in the last bits (about 1e-4 of the largest for fp32).

        fuse_transformer: {model_type: bert, without: [embed_layer_norm]}

        fuse_transformer: {model_type: bert, fusions: [layer_norm, gelu]}
    """

    keeps_outputs = True

    libraries: ClassVar[tuple[str, ...]] = ("onnxruntime",)

    model_type: ModelType
    """Kind of transformer, which selects the patterns to fuse. `bert` fits most encoders."""
    num_heads: Annotated[int, Field(ge=0)] = 0
    """Number of attention heads; 0 detects it."""
    hidden_size: Annotated[int, Field(ge=0)] = 0
    """Width of the hidden states; 0 detects it."""
    fusions: tuple[Fusion, ...] = ()
    """Fusions to apply; by default all of the model type, except `gelu_approximation` and `gemm_fast_gelu`, which
    change the results."""
    without: tuple[Fusion, ...] = ()
    """Fusions to skip."""
    multi_head_attention: bool = False
    """Fuse into MultiHeadAttention, which keeps the projections of query, key and value separate."""
    mask: Literal["auto", "raw", "none", "right_padded"] = "auto"
    """Form of attention masks: `raw`, 0 or 1 for each position; `none`; `right_padded`, the number of positions, which
    is faster, and wrong for padding elsewhere. `auto` is `raw`, and `none` for vit and qwen3."""
    allow_empty: bool = False
    """Succeed when nothing is fused."""

    @property
    def keeps_values(self) -> bool:
        return False  # off by 1e-4

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.transformer_fusions import fuse_transformer

        known: tuple[Fusion, ...] = Fusion.__args__  # type: ignore[attr-defined]
        of_diffusion = self.model_type in ("unet", "vae", "clip")
        usual = {name for name in known if of_diffusion or name not in _OF_DIFFUSION} - _ONLY_WHEN_ASKED
        wanted = (set(self.fusions) or usual) - set(self.without)
        options = {f"enable_{name}": name in wanted for name in known}
        options["use_multi_head_attention"] = self.multi_head_attention
        mask = self.mask if self.mask != "auto" else ("none" if self.model_type in _MASKLESS else "raw")
        job = {
            "model_type": self.model_type,
            "options": options,
            "mask": mask,
            "num_heads": self.num_heads,
            "hidden_size": self.hidden_size,
        }
        fused = fuse_transformer(edited, job)
        if not fused and not self.allow_empty:
            raise RequestError(
                f"nothing was fused: the model has none of the patterns of `{self.model_type}`; try another "
                "`model_type`, sanitize the model first, or give `num_heads` and `hidden_size`"
            )
        operators = ", ".join(f"{count} {name}" for name, count in sorted(fused.items()))
        return f"fused into {operators}" if operators else "nothing to fuse"


class LoopToLstm(Operation):
    """Replace Loops whose iteration is the step of an LSTM, as models of TensorFlow have them, by LSTM.

        loop_to_lstm: {}

    A Loop is replaced if its data flow shows that it computes an LSTM over a whole sequence, with constant weights; a
    mask over time, as Keras writes it, may leave out steps. Others stay, with the reason in the record. Outputs differ
    by rounding, and sequences must have at least one step.
    """

    keeps_outputs = True

    select: Select = NodeSelect(op_type=("Loop",))
    """Loops; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when no Loop is replaced."""

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, label
        from ndld_flow.graph.edit.loop_bodies import LoopBody, UnlikeError, named_inputs
        from ndld_flow.graph.edit.lstm_loops import FIRST_OPSET, match_lstm, replace_by_lstm
        from ndld_flow.models.element_types import is_op

        edits, reasons, done = OperationEdits(edited), [], 0
        nodes = edited.select_nodes(self.select, allow_empty=True)
        for loop in [node for node in nodes if is_op(node, "Loop")]:
            name = label(loop)
            try:
                if edits.opset_of(loop) < FIRST_OPSET:
                    raise UnlikeError(f"opset {edits.opset_of(loop)} is older than {FIRST_OPSET}")
                # Again for each: a Loop may read the output of another.
                with named_inputs(edited.model), known_shapes(edited.model):
                    replace_by_lstm(edits, loop, match_lstm(LoopBody(edits, loop)))
                done += 1
            except UnlikeError as error:
                reasons.append(f"{name} stays: {error}")
            except RecursionError:  # in the match, which changes nothing
                reasons.append(f"{name} stays: its body is too deep to be understood")
        for reason in reasons:
            edited.note(reason)
        if not done and not self.allow_empty:
            reason = reasons[0] if reasons else "there is none among the selected nodes"
            raise RequestError(f"no Loop is replaced by LSTM: {reason}; `allow_empty: true` accepts that")
        return f"{counted(done, 'Loop')} replaced by LSTM"


class ReplaceErf(Operation):
    """Replace Erf, a part of the exact Gelu, by other operators; the error is recorded.

    replace_erf: {by: tanh}
    """

    keeps_outputs = True

    by: Literal["tanh", "polynomial"]
    """`tanh`: the usual approximation of Gelu (error up to 3.6e-4); `polynomial`: as accurate as fp32 (error up to
    1.5e-7), uses Exp."""
    select: Select = NodeSelect(op_type=("Erf",))
    """Erf nodes; other nodes are ignored."""
    allow_empty: bool = False
    """Succeed when there is no Erf."""

    @property
    def keeps_values(self) -> bool:
        return self.by == "polynomial"

    def apply(self, edited: EditedModel) -> str:
        from ndld_flow.graph.edit.graph_edits import OperationEdits, known_shapes, label
        from ndld_flow.models.element_types import FLOATS, is_op

        edits, (write, error) = OperationEdits(edited), _FORMULAS[self.by]
        nodes = edited.select_nodes(self.select, self.allow_empty)
        erfs = [node for node in nodes if is_op(node, "Erf")]
        if not erfs and not self.allow_empty:
            raise RequestError("there is no Erf among the selected nodes; `allow_empty: true` accepts that")
        with known_shapes(edited.model):
            for node in erfs:
                source = node.inputs[0]
                dtype = node.outputs[0].dtype or (source.dtype if source is not None else None)
                if source is None or dtype not in FLOATS:
                    raise RequestError(
                        f"{label(node)}: its type must be a float and is unknown; inline functions first"
                    )
                edits.take_over(write(_terms(edits, node, dtype), source), node.outputs[0])
                edits.remove(node)
        if erfs:
            edited.note(f"{len(erfs)} Erf replaced by the {self.by} formula: the error of each is at most {error:.1e}")
        return f"{len(erfs)} Erf replaced"


def _terms(edits: OperationEdits, node: ir.Node, dtype: ir.DataType) -> Callable[..., ir.Value]:
    """Return a function that inserts a term, an operator of tensors and numbers, before the Erf that it replaces."""
    from ndld_flow.models.nodes import graph_of

    def put(op_type: str, *inputs: ir.Value | float) -> ir.Value:
        wish = f"{node.name or 'erf'}_{op_type}"
        values = [
            edits.constant_like(graph_of(node), term, dtype, f"{wish}_constant")
            if isinstance(term, int | float)
            else term
            for term in inputs
        ]
        return edits.put_for(node, op_type, values, wish=wish)

    return put


# erf(x) = tanh(2 / sqrt(pi) * (x + 0.08943 x^3)), which makes Gelu its usual tanh approximation
_TANH_FACTOR, _TANH_CUBIC = 2 / math.sqrt(math.pi), 0.08943
# Abramowitz and Stegun, 7.1.26
_P = 0.3275911
_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _tanh(put: Callable[..., ir.Value], x: ir.Value) -> ir.Value:
    cubic = put("Mul", put("Mul", put("Mul", x, x), x), _TANH_CUBIC)
    return put("Tanh", put("Mul", put("Add", x, cubic), _TANH_FACTOR))


def _polynomial(put: Callable[..., ir.Value], x: ir.Value) -> ir.Value:
    """Return sign(x) * (1 - (a1 t + ... + a5 t^5) exp(-x^2)) where t = 1 / (1 + p |x|)."""
    size = put("Abs", x)
    t = put("Reciprocal", put("Add", put("Mul", size, _P), 1.0))
    total = put("Mul", t, _A[0])
    for factor in _A[1:]:
        total = put("Mul", put("Add", total, factor), t)
    tail = put("Mul", total, put("Exp", put("Neg", put("Mul", x, x))))
    return put("Mul", put("Sign", x), put("Sub", 1.0, tail))


_FORMULAS = {"tanh": (_tanh, 3.6e-4), "polynomial": (_polynomial, 1.5e-7)}
"""Formula, and its largest error in exact arithmetic."""
