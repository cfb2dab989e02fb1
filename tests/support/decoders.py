"""Small decoder models, as the builders of language models write them, with and without a KV cache."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Style = Literal["standard", "group", "multi_head"]
"""`standard`: Attention, RotaryEmbedding and RMSNormalization of opset 23. `group`: GroupQueryAttention, normalizations
and MatMulNBits of ONNX Runtime, as onnxruntime-genai writes them. `multi_head`: MultiHeadAttention, as optimum's
optimizer writes it."""
STYLES: tuple[Style, ...] = ("standard", "group", "multi_head")

VOCABULARY, WIDTH, HEADS, HEAD, LONGEST, BLOCK = 50, 64, 4, 16, 64, 32
Array = npt.NDArray[Any]
Dims = list[int | str | None]
_MS = "com.microsoft"


class _Builder:
    def __init__(self, style: Style, cache: bool, quantized: bool) -> None:
        self.style, self.cache, self.quantized = style, cache, quantized
        self.kv_heads = HEADS if style == "multi_head" else HEADS // 2
        self.random = np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])]
        logits: Dims = ["batch", "seq", VOCABULARY]
        self.outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits)]

    def op(self, op_type: str, inputs: list[str], name: str, outputs: tuple[str, ...] = (), **attributes: Any) -> str:
        names = list(outputs) or [f"{name}/output_0"]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=name, **attributes))
        return names[0]

    def weight(self, name: str, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def random_weight(self, name: str, *shape: int) -> str:
        return self.weight(name, (self.random.standard_normal(shape) * 0.2).astype(np.float32))

    def linear(self, value: str, name: str, depth: int, width: int) -> str:
        if not self.quantized:
            return self.op("MatMul", [value, self.random_weight(f"{name}.weight", depth, width)], f"{name}/MatMul")
        blocks = depth // BLOCK
        packed = self.random.integers(0, 256, (width, blocks, BLOCK // 2)).astype(np.uint8)
        scales = self.random.uniform(0.01, 0.04, width * blocks).astype(np.float32)
        inputs = [value, self.weight(f"{name}.q4", packed), self.weight(f"{name}.scales", scales)]
        sizes: dict[str, Any] = {"K": depth, "N": width, "bits": 4, "block_size": BLOCK}
        return self.op("MatMulNBits", inputs, f"{name}/MatMul_Q4", domain=_MS, **sizes)

    def norm(self, value: str, name: str) -> str:
        scale = self.weight(f"{name}.weight", self.random.uniform(0.5, 1.5, WIDTH).astype(np.float32))
        if self.style == "standard":
            return self.op("RMSNormalization", [value, scale], name, epsilon=1e-6)
        # ONNX Runtime registers it in the default domain.
        return self.op("SimplifiedLayerNormalization", [value, scale], name, axis=-1, epsilon=1e-6, stash_type=1)

    def add_norm(self, skip: str, value: str, name: str) -> tuple[str, str]:
        """Return the normalized sum and the sum."""
        if self.style != "group":
            total = self.op("Add", [skip, value], f"{name}/Add")
            return self.norm(total, name), total
        scale = self.weight(f"{name}.weight", self.random.uniform(0.5, 1.5, WIDTH).astype(np.float32))
        outputs = (f"{name}/output_0", "", "", f"{name}/output_3")
        self.op("SkipSimplifiedLayerNormalization", [skip, value, scale], name, outputs, domain=_MS, epsilon=1e-6)
        return outputs[0], outputs[3]

    def rotary_tables(self) -> None:
        frequency = 100.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
        angles = np.arange(LONGEST)[:, None] * frequency
        self.weight("cos_cache", np.cos(angles).astype(np.float32))
        self.weight("sin_cache", np.sin(angles).astype(np.float32))

    def positions(self) -> None:
        if self.style != "group":
            dims = ["batch", "seq"]
            self.inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, dims))
            return
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])
        self.inputs.append(mask)
        step = self.weight("one", np.array([1], np.int64))
        total = self.op("ReduceSum", ["attention_mask", step], "mask/ReduceSum", keepdims=0)
        lengths = self.op("Sub", [total, step], "mask/Sub")
        self.op("Cast", [lengths], "mask/Cast", ("seqlens_k",), to=TensorProto.INT32)
        shape = self.op("Shape", ["attention_mask"], "mask/Shape")
        length = self.op("Gather", [shape, self.weight("axis", np.array(1, np.int64))], "mask/Gather")
        self.op("Cast", [length], "mask/Cast_1", ("total_sequence_length",), to=TensorProto.INT32)

    def cache_of(self, layer: int) -> tuple[list[str], list[str]]:
        """Declare the cache of a layer; return its names as inputs and outputs."""
        if not self.cache:
            return [], []
        given, present = [], []
        for part in ("key", "value"):
            given.append(f"past_key_values.{layer}.{part}")
            present.append(f"present.{layer}.{part}")
            before: Dims = ["batch", self.kv_heads, "past", HEAD]
            after: Dims = ["batch", self.kv_heads, "total", HEAD]
            self.inputs.append(helper.make_tensor_value_info(given[-1], TensorProto.FLOAT, before))
            self.outputs.append(helper.make_tensor_value_info(present[-1], TensorProto.FLOAT, after))
        return given, present

    def attention(self, value: str, layer: int) -> str:
        name = f"layers.{layer}/attn"
        q = self.linear(value, f"{name}/q", WIDTH, HEADS * HEAD)
        k = self.linear(value, f"{name}/k", WIDTH, self.kv_heads * HEAD)
        v = self.linear(value, f"{name}/v", WIDTH, self.kv_heads * HEAD)
        past, present = self.cache_of(layer)
        outputs = (f"{name}/output_0", *present)
        if self.style == "group":
            inputs = [q, k, v, *(past or ["", ""]), "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"]
            heads = {"num_heads": HEADS, "kv_num_heads": self.kv_heads, "do_rotary": 1}
            return self.op("GroupQueryAttention", inputs, f"{name}/GQA", outputs, domain=_MS, **heads)
        if self.style == "standard":
            q, k = (self._rotated(item, heads, name) for item, heads in ((q, HEADS), (k, self.kv_heads)))
            inputs = [q, k, v, *(["", *past] if past else [])]
            heads = {"q_num_heads": HEADS, "kv_num_heads": self.kv_heads, "is_causal": 1}
            return self.op("Attention", inputs, f"{name}/Attention", outputs, **heads)
        q, k = (
            self.op(
                "RotaryEmbedding",
                [item, "position_ids", "cos_cache", "sin_cache"],
                f"{item}/rotary",
                domain=_MS,
                num_heads=HEADS,
            )
            for item in (q, k)
        )
        inputs = [q, k, v, *(["", "", "", *past] if past else [])]
        return self.op(
            "MultiHeadAttention", inputs, f"{name}/MHA", outputs, domain=_MS, num_heads=HEADS, unidirectional=1
        )

    def _rotated(self, value: str, heads: int, name: str) -> str:
        inputs = [value, "cos_cache", "sin_cache", "position_ids"]
        return self.op("RotaryEmbedding", inputs, f"{value}/rotary", num_heads=heads)

    def feed_forward(self, value: str, layer: int) -> str:
        name = f"layers.{layer}/mlp"
        gate = self.linear(value, f"{name}/gate", WIDTH, 2 * WIDTH)
        up = self.linear(value, f"{name}/up", WIDTH, 2 * WIDTH)
        sigmoid = self.op("Sigmoid", [gate], f"{name}/Sigmoid")
        silu = self.op("Mul", [gate, sigmoid], f"{name}/SiLU")
        return self.linear(self.op("Mul", [silu, up], f"{name}/Mul"), f"{name}/down", 2 * WIDTH, WIDTH)

    def build(self) -> onnx.ModelProto:
        self.rotary_tables()
        self.positions()
        embedding = self.random_weight("embedding", VOCABULARY, WIDTH)
        total = self.op("Gather", [embedding, "input_ids"], "embed")
        normalized = self.norm(total, "layers.0/input_norm")
        for layer in range(2):
            attended = self.attention(normalized, layer)
            projected = self.linear(attended, f"layers.{layer}/attn/o", HEADS * HEAD, WIDTH)
            normalized, total = self.add_norm(total, projected, f"layers.{layer}/post_norm")
            update = self.feed_forward(normalized, layer)
            normalized, total = self.add_norm(total, update, f"layers.{layer + 1}/input_norm")
        head = self.random_weight("lm_head.weight", WIDTH, VOCABULARY)
        self.op("MatMul", [normalized, head], "lm_head", ("logits",))
        graph = helper.make_graph(self.nodes, "decoder", self.inputs, self.outputs, self.weights)
        opset = 23 if self.style == "standard" else 21
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(_MS, 1)]
        return helper.make_model(graph, ir_version=10, opset_imports=imports)


def decoder_model(style: Style, cache: bool = True, quantized: bool = False) -> onnx.ModelProto:
    """Return a decoder of two layers; with `cache`, it takes past keys and values and returns the present ones.

    `quantized` replaces MatMul in the layers by MatMulNBits.
    """
    return _Builder(style, cache, quantized).build()


def decoder_inputs(model: onnx.ModelProto, tokens: Array, past: dict[str, Array] | None = None) -> dict[str, Array]:
    """Return inputs for tokens `[batch, seq]` that follow a cache; `past` maps the names of past tensors to arrays."""
    cache = past or {}
    length = next((array.shape[2] for array in cache.values()), 0)
    batch, count = tokens.shape
    feeds: dict[str, Array] = {}
    for info in model.graph.input:
        if info.name == "input_ids":
            feeds[info.name] = tokens
        elif info.name == "position_ids":
            feeds[info.name] = np.tile(np.arange(length, length + count), (batch, 1))
        elif info.name == "attention_mask":
            feeds[info.name] = np.ones((batch, length + count), np.int64)
        elif info.name in cache:
            feeds[info.name] = cache[info.name]
        else:
            dims = info.type.tensor_type.shape.dim
            dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            feeds[info.name] = np.zeros((batch, dims[1].dim_value, 0, dims[3].dim_value), dtype)
    return feeds


def past_names(model: onnx.ModelProto) -> list[str]:
    """Return the names of the past keys and values, in the order of the present ones."""
    return [info.name for info in model.graph.input if info.name.startswith("past")]


def decode(model: onnx.ModelProto, tokens: Array) -> Array:
    """Return the logits of tokens `[batch, seq]` that are decoded one by one with a KV cache."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    past, logits = None, []
    for index in range(tokens.shape[1]):
        outputs = session.run(None, decoder_inputs(model, tokens[:, index : index + 1], past))
        logits.append(outputs[0])
        past = dict(zip(past_names(model), outputs[1:], strict=True))
    return np.concatenate(logits, axis=1)


def full_pass(model: onnx.ModelProto, tokens: Array) -> Array:
    """Return the logits of tokens `[batch, seq]` that are read in one run, with an empty cache if there is one."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    logits: Array = session.run(["logits"], decoder_inputs(model, tokens))[0]
    return logits
