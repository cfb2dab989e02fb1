"""Fuse the nodes of transformers into ONNX Runtime's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.operation import Operation

if TYPE_CHECKING:
    from ndld_flow.graph.edit.edited_model import EditedModel

ModelType = Literal[
    "bart",
    "bert",
    "bert_keras",
    "bert_tf",
    "clip",
    "conformer",
    "gpt2",
    "gpt2_tf",
    "gpt_neox",
    "mmdit",
    "phi",
    "qwen3",
    "sam2",
    "swin",
    "t5",
    "tnlr",
    "unet",
    "vae",
    "vit",
]
Fusion = Literal[
    "attention",
    "bias_add",
    "bias_gelu",
    "bias_skip_layer_norm",
    "bias_splitgelu",
    "embed_layer_norm",
    "gelu",
    "gelu_approximation",
    "gemm_fast_gelu",
    "group_norm",
    "layer_norm",
    "nhwc_conv",
    "packed_kv",
    "packed_qkv",
    "qordered_matmul",
    "rotary_embeddings",
    "skip_group_norm",
    "skip_layer_norm",
]
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

    heading = "transformations"
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

        mask = self.mask if self.mask != "auto" else ("none" if self.model_type in _MASKLESS else "raw")
        job = {
            "model_type": self.model_type,
            "options": self._options(),
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

    def _options(self) -> dict[str, bool]:
        known: tuple[Fusion, ...] = Fusion.__args__  # type: ignore[attr-defined]
        of_diffusion = self.model_type in ("unet", "vae", "clip")
        usual = {name for name in known if of_diffusion or name not in _OF_DIFFUSION} - _ONLY_WHEN_ASKED
        wanted = (set(self.fusions) or usual) - set(self.without)
        options = {f"enable_{name}": name in wanted for name in known}
        return options | {"use_multi_head_attention": self.multi_head_attention}
