"""Features by which the layers of a profile are matched: kind, names, shapes, weights and place in the data flow."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, TypeAlias

from ndld_flow.records.profile import Layer, TensorInfo

LayerClass: TypeAlias = Literal["compute", "reduce", "pointwise", "layout", "passing"]
"""`compute` multiplies matrices, `layout` moves elements, `passing` changes only a tensor's type, format or device."""

_KINDS: Mapping[str, tuple[LayerClass, str]] = {
    "deconv": ("compute", "deconv|convtranspose"),
    "conv": ("compute", "conv"),
    "matmul": ("compute", "gemm|matmul|matrixmultiply|fullyconnected|cublas|einsum"),
    "attention": ("compute", "attention|mha"),
    "rnn": ("compute", "lstm|gru|rnn"),
    "pool": ("reduce", "pool"),
    "softmax": ("reduce", "softmax"),
    "affine": ("pointwise", "batchnorm|scale"),
    "norm": ("reduce", "norm|lrn"),
    "reduce": ("reduce", "reduce|mean"),
    "select": ("reduce", "topk|argm|nonmax|nms"),
    "resize": ("reduce", "resize|upsample"),
    "concat": ("layout", "concat"),
    "slice": ("layout", "slice|split"),
    "pad": ("layout", "^pad"),
    "gather": ("layout", "gather|embed"),
    "dequantize": ("passing", "dequant"),
    "quantize": ("passing", "quant"),
    "reformat": ("passing", "reorder|reformat"),
    "cast": ("passing", "^cast$"),
    "move": ("layout", "transpose|shuffle|reshape|squeeze|flatten|expand|tile|identity|noop|shape|copy"),
}
"""Kind -> its class, and words in the types of ONNX, ONNX Runtime and TensorRT; the first that fits counts."""
_ROLES = ("reformat", "cast", "copy", "sync")
"""Roles of layers that the runtime inserts: these are their kinds, whatever their types."""


def kind_of(layer: Layer) -> str:
    """Return the kind of a layer: `conv` for ONNX Runtime's `FusedConv` and TensorRT's `CaskConvolution`.

    A type of no known kind is a kind of its own.
    """
    if layer.role == "quantize":
        return "dequantize" if re.search("deq", f"{layer.type} {layer.name}", re.IGNORECASE) else "quantize"
    return layer.role if layer.role in _ROLES else _kind(layer.type)


@lru_cache(maxsize=4096)
def _kind(type_: str) -> str:
    word = re.sub(r"_?nchwc$|[^a-z]", "", type_.rpartition(".")[2][:100].lower())
    for prefix in ("qlinear", "dynamicquantize"):  # operators that compute on quantized tensors
        if len(word) > len(prefix) and not word.startswith("dynamicquantizelinear"):
            word = word.removeprefix(prefix)
    return next((kind for kind, (_, pattern) in _KINDS.items() if re.search(pattern, word)), word)


def class_of(kind: str) -> LayerClass:
    """Return the class of a kind; kinds that are not known work on each element."""
    if kind in _ROLES:
        return "passing"
    return _KINDS[kind][0] if kind in _KINDS else "pointwise"


_GENERATED_TAIL = re.compile(
    r"(_nchwc|_token_\d+|:\d+|_output(_\d+)?|_(Dequantize|Quantize)Linear(_Output|_Input)?|_quantized|_cast(_\d+)?|_fp16)+$"
)
_GENERATED_HEAD = re.compile(
    r"^(InsertedPrecisionFreeCast_|Inserted_?[Cc]ast_?|fused |Reformatting CopyNode for (In|Out)put Tensor \d+ to )+"
)
_SEPARATORS = re.compile(r" \+ |\|\||[;,{}\[\]\x1e\x1f]")
_STEPS = re.compile(r"[/.](?=\w)")
_MULTIPLIES = re.compile(r"conv|gemm|matmul|dense|fc|einsum|weight|kernel", re.IGNORECASE)
_LONGEST_NAME = 2_000
"""Characters of a name that are read: a fused layer's name may list hundreds of others."""


def _tokens_of(layer: Layer, class_: LayerClass) -> frozenset[str]:
    """Return the words that name a layer: whole names, the beginnings of their paths, and steps with numbers.

    Of a layer that multiplies, only names of what multiplies count: an addition fused into it belongs to another block.
    """
    own = (layer.name, *layer.onnx_nodes, *(tensor.name for tensor in layer.outputs[:1]))
    parts = list(_parts([*own, *(weight.name for weight in layer.weights)]))
    if class_ == "compute":
        parts = [part for part in parts if _MULTIPLIES.search(_STEPS.split(part)[-1])] or parts
    tokens: set[str] = set()
    for part in parts:
        steps = [step for step in _STEPS.split(part) if step]
        tokens |= {part, *("/".join(steps[: end + 1]) for end in range(len(steps)))}
        tokens |= {step for step in steps if re.search(r"\d", step) and re.search(r"[A-Za-z]{2}", step)}
    return frozenset(tokens)


def _parts(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for part in _SEPARATORS.split(name[:_LONGEST_NAME]):
            stripped = _GENERATED_TAIL.sub("", _GENERATED_HEAD.sub("", part.strip()))
            if stripped and stripped != "ForeignNode":
                yield stripped


Dims: TypeAlias = tuple[int, ...]


def _dims_of(kind: str, tensors: Sequence[TensorInfo]) -> Dims | None:
    """Return the sizes of the first tensor without the batch, in any layout; None if they are not recorded.

    Of a matrix product they are the columns and the number of elements, as runtimes flatten its rows.
    """
    if not tensors:
        return None
    shape = tensors[0].shape
    return (shape[-1], prod(shape)) if kind == "matmul" and shape else tuple(sorted(shape[1:]))


class LayerFeatures:
    """Features of the layers of one profile: each is a list with one entry per layer."""

    def __init__(self, layers: Sequence[Layer], models: frozenset[str] = frozenset()) -> None:
        self.layers = layers
        self.models = models
        """Digests of the measured models."""
        self.kinds = [kind_of(layer) for layer in layers]
        self.classes: list[LayerClass] = [class_of(kind) for kind in self.kinds]
        self.outputs = [_dims_of(kind, layer.outputs) for kind, layer in zip(self.kinds, layers, strict=True)]
        self.inputs = [_dims_of(kind, layer.inputs) for kind, layer in zip(self.kinds, layers, strict=True)]
        self.reads: list[list[int]] = []
        """Producers of a layer's inputs, those that only pass data on left out."""
        self.readers: list[list[int]] = [[] for _ in layers]
        self._follow_tensors()

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def knows_flow(self) -> bool:
        """True if names of tensors link the layers."""
        return any(self.reads)

    @cached_property
    def tokens(self) -> list[frozenset[str]]:
        return [_tokens_of(layer, class_) for layer, class_ in zip(self.layers, self.classes, strict=True)]

    @cached_property
    def windows(self) -> list[Hashable]:
        """Kernel, strides, dilations and groups; None if they are not recorded. Ones are defaults that some omit."""
        return [
            tuple(sorted(item for item in layer.attributes if set(item[1]) != {1})) if layer.attributes else None
            for layer in self.layers
        ]

    @cached_property
    def largest(self) -> list[int]:
        """Elements of the largest weight; 0 without weights."""
        return [max((prod(weight.shape) for weight in layer.weights), default=0) for layer in self.layers]

    def looks(self, at: int) -> tuple[Hashable, ...]:
        """Return everything that a layer is compared by, but for its names, its weights' values and its place."""
        # TensorRT calls a reformat that costs nothing `NoOp`.
        type_ = self.layers[at].type.replace("NoOp", "Reformat") if self.classes[at] == "passing" else ""
        kind, output, input_ = self.kinds[at], self.outputs[at], self.inputs[at]
        return kind, type_, output, input_, self.windows[at], self.largest[at]

    def owners(self, contents: Callable[[Layer], Iterator[str]], classes: Sequence[LayerClass]) -> list[frozenset[str]]:
        """Return for each layer what it alone contains; of several layers that contain it, the one that multiplies."""
        holders: dict[str, list[int]] = defaultdict(list)
        for at, layer in enumerate(self.layers):
            if self.classes[at] in classes:
                for item in set(contents(layer)):
                    holders[item].append(at)
        owned: list[set[str]] = [set() for _ in self.layers]
        for item, places in holders.items():
            multiplying = [at for at in places if self.classes[at] == "compute"]
            if len(multiplying or places) == 1:
                owned[(multiplying or places)[0]].add(item)
        return list(map(frozenset, owned))

    def _follow_tensors(self) -> None:
        makers: dict[str, int | None] = {}
        for at, layer in enumerate(self.layers):
            made = dict.fromkeys(makers.get(tensor.name) for tensor in layer.inputs)
            self.reads.append([maker for maker in made if maker is not None])
            passes = self.classes[at] == "passing"
            source = next(iter(self.reads[at]), None) if passes else at
            makers |= {tensor.name: source for tensor in layer.outputs if tensor.name}
            if not passes:
                for maker in self.reads[at]:
                    self.readers[maker].append(at)

    @cached_property
    def order(self) -> list[int]:
        """The layers in an order that two exports of one network share, as far as tensors link them.

        Depth first from the outputs, inputs in their order; of the operands of elementwise layers, which may be
        exchanged, the one behind more layers that multiply comes first. Layers that pass data on follow what they read.
        Without names of tensors it is the order of execution, in which runtimes interleave branches as they like.
        """
        return self._flow_order() if self.knows_flow else list(range(len(self)))

    def _flow_order(self) -> list[int]:
        depths: list[int] = []
        passing: dict[int, list[int]] = defaultdict(list)
        for at, makers in enumerate(self.reads):
            depths.append(max((depths[maker] for maker in makers), default=0) + (self.classes[at] == "compute"))
            if self.classes[at] == "passing":
                passing[makers[0] if makers else -1].append(at)
        order = [*passing[-1]]
        seen: set[int] = set()
        ends = [at for at, class_ in enumerate(self.classes) if class_ != "passing" and not self.readers[at]]
        for end in ends:
            waiting = [(end, False)]
            while waiting:
                at, is_done = waiting.pop()
                if is_done:
                    order += [at, *passing[at]]
                elif at not in seen:
                    seen.add(at)
                    makers = self._operands(at, depths)
                    waiting += [(at, True), *((maker, False) for maker in reversed(makers))]
        placed = set(order)
        return order + [at for at in range(len(self)) if at not in placed]

    def _operands(self, at: int, depths: Sequence[int]) -> list[int]:
        makers = self.reads[at]
        if self._computes_sizes(at):  # sizes are no data, though they are computed from it
            makers = [maker for maker in makers if self._computes_sizes(maker)]
        if self.classes[at] == "pointwise":
            makers = sorted(makers, key=lambda maker: -depths[maker])
        return makers

    def _computes_sizes(self, at: int) -> bool:
        outputs = self.layers[at].outputs
        return bool(outputs) and outputs[0].dtype in ("int64", "int32")
