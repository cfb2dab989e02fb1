"""Features of layers, and evidence that two of them do the same work, in nats.

The weights of the evidence were chosen on pairs of profiles with known truth; `python -m
tests.benchmarks.bench_matching` prints how much time is matched rightly and wrongly.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import combinations
from math import log, prod
from operator import or_
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
_NO_NAMES = ("ForeignNode", "ReorderInput", "ReorderOutput", "reorder")
"""Names that runtimes give to any layer or tensor of a kind."""
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
            if stripped and stripped not in _NO_NAMES:
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
        """Layers that read its outputs, directly or behind some that pass data on, which are left out."""
        makers: dict[str, int | None] = {}
        passed: dict[str, list[int]] = {}  # tensor -> the layers that passed it on
        for at, layer in enumerate(layers):
            made = dict.fromkeys(makers.get(tensor.name) for tensor in layer.inputs)
            self.reads.append([maker for maker in made if maker is not None])
            through = [place for tensor in layer.inputs for place in passed.get(tensor.name, ())]
            passes = self.classes[at] == "passing"
            source = next(iter(self.reads[at]), None) if passes else at
            makers |= {tensor.name: source for tensor in layer.outputs if tensor.name}
            if passes:
                passed |= {tensor.name: [*through, at] for tensor in layer.outputs if tensor.name}
            else:
                for place in (*self.reads[at], *through):
                    self.readers[place].append(at)

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

    @cached_property
    def twins(self) -> list[int | None]:
        """A number for each layer of branches that look alike and meet in an elementwise layer; twins have the same.

        The operands of that layer may be exchanged, so that nothing but names and weights distinguishes the branches.
        """
        numbers: dict[Hashable, int] = {}
        alike: list[int] = []  # for each layer, the number of its looks and of those of all layers before it
        behind: list[int] = []  # a bit for it and each layer before it
        found = 0
        for at, makers in enumerate(self.reads):
            before = [alike[maker] for maker in makers]
            if self.classes[at] == "pointwise":
                before.sort()
                for one, other in combinations(makers, 2):
                    found |= (behind[one] ^ behind[other]) if alike[one] == alike[other] else 0
            alike.append(numbers.setdefault((self.looks(at), tuple(before)), len(numbers)))
            behind.append(reduce(or_, (behind[maker] for maker in makers), 1 << at))
        return [number if found >> at & 1 else None for at, number in enumerate(alike)]

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


Scores = NDArray[np.float64]
"""A row for each layer of the first profile, a column for each of the second."""
NEVER = -1e9
"""Score of layers that cannot do the same work."""

_SAME_KIND = 0.5
_OTHER_KIND: Mapping[LayerClass, float] = {
    "compute": -1.0,
    "reduce": -4.0,
    "pointwise": -2.5,
    "layout": -4.0,
    "passing": NEVER,
}
_MOST_FOR_SHAPE = 3.0
_PADDED, _OTHER_OUTPUT = -1.0, -5.0
_SAME_INPUT, _OTHER_INPUT, _OTHER_INPUT_OF_COMPUTE = 0.5, -2.0, -5.0
_SAME_WINDOW, _OTHER_WINDOW = 0.5, -4.0
_SAME_SIZE, _OTHER_SIZE, _NEARLY = 0.5, -4.0, 1.4
"""By the largest weight. A size up to 1.4 times as large counts neither way: padding may explain it."""
_SAME_RESOLUTION = 0.3
"""Below this share of equal outputs of layers that multiply, the networks ran at different resolutions."""
_PADDED_TO = 16
_SHARED_WEIGHTS, _OTHER_WEIGHTS, _FOREIGN_WEIGHTS = 8.0, -1.0, -8.0
_KNOWN_WEIGHTS = 0.5
"""Other weights count against a pair only if more than this share of the weights occur on both sides."""


def score_looks(first: LayerFeatures, second: LayerFeatures) -> Scores:
    """Return the evidence by kinds, shapes, windows and sizes of weights; NEVER for layers of different classes."""
    scores = np.full((len(first), len(second)), NEVER)
    looks = _Looks(first, second)
    groups = [_alike(side) for side in (first, second)]
    for mine in groups[0]:
        for yours in groups[1]:
            value = looks(mine[0], yours[0])
            if value > NEVER:
                scores[np.ix_(mine, yours)] = value
    return scores


def _alike(side: LayerFeatures) -> list[list[int]]:
    """Return the layers in groups that look alike, so that each pair of looks is scored once."""
    groups: dict[object, list[int]] = defaultdict(list)
    for at in range(len(side)):
        groups[side.looks(at)].append(at)
    return list(groups.values())


class _Looks:
    """Scores pairs of layers by what they look like."""

    def __init__(self, first: LayerFeatures, second: LayerFeatures) -> None:
        self._sides = (first, second)
        self._counts = [Counter(zip(side.kinds, side.outputs, strict=True)) for side in self._sides]
        self._total = max(len(first), len(second))
        outputs = [
            Counter(output for output, class_ in zip(side.outputs, side.classes, strict=True) if class_ == "compute")
            for side in self._sides
        ]
        fewer = min(each.total() for each in outputs)
        self._is_scaled = (outputs[0] & outputs[1]).total() < _SAME_RESOLUTION * fewer

    def __call__(self, ours: int, theirs: int) -> float:
        first, second = self._sides
        class_ = first.classes[ours]
        if class_ != second.classes[theirs]:
            return NEVER
        same_kind = first.kinds[ours] == second.kinds[theirs]
        if class_ == "passing" and first.looks(ours)[:2] != second.looks(theirs)[:2]:
            return NEVER
        score = _SAME_KIND if same_kind else _OTHER_KIND[class_]
        score += self._score_output(ours, theirs) + self._score_input(ours, theirs)
        if same_kind:
            windows = first.windows[ours], second.windows[theirs]
            if None not in windows:
                score += _SAME_WINDOW if windows[0] == windows[1] else _OTHER_WINDOW
        sizes = sorted((first.largest[ours], second.largest[theirs]))
        if class_ == "compute" and sizes[0] > 1 and sizes[1] >= _NEARLY * sizes[0]:
            score += _OTHER_SIZE
        elif class_ == "compute" and sizes[0] > 1 and sizes[0] == sizes[1]:
            score += _SAME_SIZE
        return score

    def _score_output(self, ours: int, theirs: int) -> float:
        first, second = self._sides
        output, other = first.outputs[ours], second.outputs[theirs]
        if not output or not other:
            return 0.0
        if output == other:
            most = max(self._counts[0][first.kinds[ours], output], self._counts[1][second.kinds[theirs], other], 1)
            return min(_MOST_FOR_SHAPE, log(self._total / most))
        if self._is_scaled and len(output) == len(other) and not {*output}.isdisjoint(other):
            return 0.0  # another resolution keeps the channels
        return _PADDED if self._are_near(ours, output, other) else _OTHER_OUTPUT

    def _score_input(self, ours: int, theirs: int) -> float:
        first, second = self._sides
        input_, other = first.inputs[ours], second.inputs[theirs]
        if not input_ or not other or self._is_scaled or not first.outputs[ours] or not second.outputs[theirs]:
            return 0.0
        if input_ == other:
            return _SAME_INPUT
        if self._are_near(ours, input_, other):
            return 0.0
        return _OTHER_INPUT_OF_COMPUTE if first.classes[ours] == "compute" else _OTHER_INPUT

    def _are_near(self, ours: int, dims: Dims, others: Dims) -> bool:
        """Return whether dimensions differ only as padding or, in matrix products, another batch makes them differ."""
        if self._sides[0].kinds[ours] == "matmul" and len(dims) == len(others):
            return dims[0] == others[0]
        # Only one size may differ, as by channels that are filled up to a block.
        rest = [*(Counter(dims) - Counter(others)).elements()], [*(Counter(others) - Counter(dims)).elements()]
        if len(dims) != len(others) or len(rest[0]) != 1 or len(rest[1]) != 1:
            return False
        less, more = sorted((rest[0][0], rest[1][0]))
        return more <= -(-less // _PADDED_TO) * _PADDED_TO


def score_weights(first: LayerFeatures, second: LayerFeatures) -> Scores:
    """Return the evidence by the values of weights."""
    return _score_owned(*(side.owners(_digests, ("compute", "pointwise", "reduce")) for side in (first, second)))


def score_nodes(first: LayerFeatures, second: LayerFeatures) -> Scores:
    """Return the evidence by the nodes that layers run, in profiles of one model; none otherwise."""
    if first.models.isdisjoint(second.models):
        return np.zeros((len(first), len(second)))
    classes: Sequence[LayerClass] = ("compute", "pointwise", "reduce", "layout")
    return _score_owned(*(side.owners(lambda layer: iter(layer.onnx_nodes), classes) for side in (first, second)))


def _digests(layer: Layer) -> Iterator[str]:
    """Yield the digest of the largest weight, of several of one size all.

    A bias belongs to whatever it was fused into. A single number, such as an epsilon, occurs in many layers.
    """
    sizes = [prod(weight.shape) if weight.digest else 0 for weight in layer.weights]
    most = max(sizes, default=0)
    return (weight.digest for weight, size in zip(layer.weights, sizes, strict=True) if size == most > 1)


def _score_owned(owned: Sequence[frozenset[str]], theirs: Sequence[frozenset[str]]) -> Scores:
    scores = np.zeros((len(owned), len(theirs)))
    shared = frozenset[str]().union(*owned) & frozenset[str]().union(*theirs)
    if len(shared) > _KNOWN_WEIGHTS * min(sum(map(bool, owned)), sum(map(bool, theirs))):
        owns, have = (np.array([bool(items) for items in side], bool) for side in (owned, theirs))
        known, there = (np.array([bool(items & shared) for items in side], bool) for side in (owned, theirs))
        scores[np.outer(owns, have)] = _OTHER_WEIGHTS
        scores[np.outer(known, there)] = _FOREIGN_WEIGHTS
    holders = [{item: at for at, items in enumerate(side) for item in items & shared} for side in (owned, theirs)]
    for item in shared:
        scores[holders[0][item], holders[1][item]] = _SHARED_WEIGHTS
    return scores


_NUMBERED = re.compile(r"^([A-Za-z_.:/]|(?<=[A-Za-z])\d(?=[A-Za-z]))*\d+([./][a-z]+_\d+)?$")
"""Names that exporters count up, such as `Conv_12`, `onnx::Add_3` and `p2o.Conv.1`: one more layer shifts all that
follow.
"""
_CONTRADICTED = -6.0
_RARER = 0.7
"""Nats by which a name may be less rare than the best name that both layers share with others."""
_TELLING = 1.5
_COMMON = 4_000
"""Pairs of layers beyond which a shared word says nothing and is left out."""


def score_names(first: LayerFeatures, second: LayerFeatures) -> tuple[Scores, Scores]:
    """Return the evidence by the rarest word that two layers share, for words and for names with a counter.

    Words that exist on both sides, but not in both layers, speak against a pair.
    """
    shared = _shared_tokens(first, second)
    counts = [Counter(token for tokens in side for token in tokens) for side in shared]
    holders: dict[str, list[int]] = defaultdict(list)
    for at, tokens in enumerate(shared[1]):
        for token in tokens:
            holders[token].append(at)
    total = max(len(first), len(second))
    found = [np.zeros((len(first), len(second))) for _ in range(2)]
    for at, tokens in enumerate(shared[0]):
        for token in tokens:
            if counts[0][token] * counts[1][token] <= _COMMON:
                row = found[bool(_NUMBERED.match(token))][at]
                worth = log(total / max(counts[0][token], counts[1][token]))
                row[holders[token]] = np.maximum(row[holders[token]], worth)
    words, numbered = map(_contrast, found)
    return words, numbered


def _shared_tokens(first: LayerFeatures, second: LayerFeatures) -> list[list[set[str]]]:
    """Return the tokens of each layer that the other side has too, shortened where only a shorter form is there."""
    short = {token: _shorter(token) for side in (first, second) for tokens in side.tokens for token in tokens}
    known = [{form for tokens in side.tokens for token in tokens for form in short[token]} for side in (first, second)]
    return [
        [
            {form for token in tokens if (form := next((each for each in short[token] if each in other), None))}
            for tokens in side.tokens
        ]
        for side, other in ((first, known[1]), (second, known[0]))
    ]


def _shorter(token: str) -> list[str]:
    """Return a token and its forms without one or two words at either end: `quant_conv3` and `conv3` are the same.

    Without its counter, `onnx::Conv_136` has only the kind of layer, which any two networks share.
    """
    words = token.split("_")
    forms = ["_".join(words[cut:]) for cut in (1, 2)]
    forms += ["_".join(words[:-cut]) for cut in range(1, min(3, len(words))) if not words[-cut].isdigit()]
    return [token, *(form for form in forms if len(form) > 3)]


def _contrast(scores: Scores) -> Scores:
    """Keep the best names of each layer, and count the others as contradicted where both have telling ones."""
    best = np.minimum(scores.max(1, initial=0)[:, None], scores.max(0, initial=0)[None, :])
    return np.where(scores > best - _RARER, scores, np.where(best > _TELLING, _CONTRADICTED, 0.0))
