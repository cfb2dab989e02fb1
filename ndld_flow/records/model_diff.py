"""What is different between two models, as far as structure and weights go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Literal, TypeVar

from pydantic import Field

from ndld_flow.records.base import Record

Aspect = Literal[
    "name",
    "scope",
    "operator",
    "attribute",
    "input",
    "output",
    "consequence",
    "precision",
    "metadata",
    "doc string",
    "dtype",
    "shape",
    "values",
    "storage",
    "position",
    "source",
    "opset",
    "body",
]
"""What of an item changed. `consequence`: a node reads another tensor because that one, or the one before, was added or
removed. `source`: a graph's output is another tensor. `body`: something inside a function."""

Storage = Literal["inline", "external", "sparse"]
MatchedBy = Literal["name", "outputs", "structure", "neighbours", "position", "values"]

Part = Literal["nodes", "tensors", "weights", "inputs", "outputs", "functions", "opsets", "texts"]
PARTS: tuple[Part, ...] = ("nodes", "tensors", "weights", "inputs", "outputs", "functions", "opsets", "texts")
"""The parts of a diff, as `--only` names them."""

Item = TypeVar("Item", bound=Record)


class Listed(Record, Generic[Item]):
    """A list, of which a record keeps the beginning."""

    count: int = 0
    """Of all, kept or not."""
    items: tuple[Item, ...] = ()

    @property
    def left_out(self) -> int:
        return self.count - len(self.items)


class Change(Record):
    """One thing that an item said and now says otherwise."""

    aspect: Aspect
    detail: str = ""
    """Which: an attribute's name, an input's position, a metadata key."""
    before: str | None
    """As people write it, shortened; None where it was not there."""
    after: str | None


class Changed(Record, Generic[Item]):
    """One item in both models, and how it differs."""

    before: Item
    after: Item
    changes: tuple[Change, ...]
    matched_by: MatchedBy = "name"
    """What says that the two are one."""


class NodeItem(Record):
    """A node. Where it stands among the changed ones, its inputs and outputs are left out."""

    scope: str
    """Address of its graph: `""` is the main graph, else `If_0/then_branch` or `domain::Function`."""
    name: str
    """Its first output where it has none."""
    op_type: str
    """`Conv`, or `com.microsoft::FusedConv` for other domains."""
    inputs: tuple[str, ...] = ()
    """The first of them; empty text for one that is left out."""
    outputs: tuple[str, ...] = ()


class TensorItem(Record):
    """A value with its type."""

    scope: str
    name: str
    dtype: str
    """`float32`; what is no dense tensor as ONNX writes it, such as `seq(tensor(float))`; empty where not said."""
    shape: tuple[int | str | None, ...] | None
    """None when the model does not say."""


class WeightItem(TensorItem):
    """An initializer."""

    size_bytes: int
    storage: Storage


class WeightChanged(Changed[WeightItem]):
    """An initializer in both models."""

    elements: int | None = None
    """Number of elements, where the values were compared one by one."""
    differing: int | None = None
    """How many of them differ."""
    max_abs_difference: float | None = None
    """Infinite where one of two differing numbers is infinite or no number."""


class FunctionItem(Record):
    """A local function."""

    name: str
    """`domain::Name`, with `:overload` where it has one."""
    node_count: int


class OpsetChange(Record):
    """The version of a domain that a model or a function imports."""

    scope: str
    """`""` for the model, else the function."""
    domain: str
    before: int | None
    after: int | None


class TextChange(Record):
    """What a model says of itself."""

    key: str
    """`ir_version`, `producer_name`, `doc_string`, `graph name`, or `metadata` with a key: `metadata: author`."""
    before: str | None
    after: str | None


class Nodes(Record):
    """Of the main graph, subgraphs and functions."""

    added: Listed[NodeItem] = Field(default_factory=Listed[NodeItem])
    removed: Listed[NodeItem] = Field(default_factory=Listed[NodeItem])
    changed: Listed[Changed[NodeItem]] = Field(default_factory=Listed[Changed[NodeItem]])
    aspects: dict[Aspect, int] = {}
    """What changed -> in how many nodes."""


class Tensors(Record):
    """What nodes make. One that comes or goes does so with its node and is not told again."""

    changed: Listed[Changed[TensorItem]] = Field(default_factory=Listed[Changed[TensorItem]])
    aspects: dict[Aspect, int] = {}


class Weights(Record):
    """Initializers of all graphs."""

    added: Listed[WeightItem] = Field(default_factory=Listed[WeightItem])
    removed: Listed[WeightItem] = Field(default_factory=Listed[WeightItem])
    changed: Listed[WeightChanged] = Field(default_factory=Listed[WeightChanged])
    aspects: dict[Aspect, int] = {}
    values_compared: bool = True
    """False when values were left out."""


class Ports(Record):
    """Inputs, or outputs, of all graphs and functions."""

    added: Listed[TensorItem] = Field(default_factory=Listed[TensorItem])
    removed: Listed[TensorItem] = Field(default_factory=Listed[TensorItem])
    changed: Listed[Changed[TensorItem]] = Field(default_factory=Listed[Changed[TensorItem]])
    aspects: dict[Aspect, int] = {}


class Functions(Record):
    """Local functions. Their nodes are among the nodes."""

    added: Listed[FunctionItem] = Field(default_factory=Listed[FunctionItem])
    removed: Listed[FunctionItem] = Field(default_factory=Listed[FunctionItem])
    changed: Listed[Changed[FunctionItem]] = Field(default_factory=Listed[Changed[FunctionItem]])
    aspects: dict[Aspect, int] = {}


class ModelDiff(Record):
    """What is different in `after`, as seen from `before`. Counts are complete, lists are kept to some hundred items.

    The other way round it says the same with the sides exchanged.
    """

    format_version: int = 1
    nodes: Nodes = Field(default_factory=Nodes)
    tensors: Tensors = Field(default_factory=Tensors)
    weights: Weights = Field(default_factory=Weights)
    inputs: Ports = Field(default_factory=Ports)
    outputs: Ports = Field(default_factory=Ports)
    functions: Functions = Field(default_factory=Functions)
    opsets: tuple[OpsetChange, ...] = ()
    texts: tuple[TextChange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the two models are the same as far as was looked."""
        return not any(self._told())

    @property
    def one_line(self) -> str:
        """`3 nodes added, 1 removed, 12 renamed; 2 weights changed`; `no differences` for two equal models."""
        return "; ".join(filter(None, self._told())) or "no differences"

    def _told(self) -> Iterator[str]:
        yield _counted("node", self.nodes, _NODE_WORDS)
        yield _counted("weight", self.weights, _WEIGHT_WORDS)
        yield _counted("input", self.inputs, _PORT_WORDS)
        yield _counted("output", self.outputs, _PORT_WORDS)
        yield _counted("tensor", self.tensors, _PORT_WORDS)
        yield _counted("function", self.functions, _FUNCTION_WORDS)
        yield from map(_opset_words, self.opsets)
        if self.texts:
            more = " and more" if len(self.texts) > 3 else ""
            yield f"{', '.join(text.key for text in self.texts[:3])}{more} changed"


_NODE_WORDS: dict[Aspect, str] = {
    "name": "renamed",
    "scope": "moved",
    "operator": "of another operator",
    "attribute": "with other attributes",
    "input": "rewired",
    "output": "with other outputs",
    "consequence": "rewired in consequence",
    "precision": "of another precision",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
_PORT_WORDS: dict[Aspect, str] = {
    "name": "renamed",
    "dtype": "retyped",
    "shape": "reshaped",
    "position": "moved",
    "source": "from another tensor",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
_WEIGHT_WORDS: dict[Aspect, str] = {
    "name": "renamed",
    "scope": "moved",
    "dtype": "retyped",
    "shape": "reshaped",
    "values": "changed",
    "storage": "stored elsewhere",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
_FUNCTION_WORDS: dict[Aspect, str] = {"name": "renamed", "body": "changed"}


def aspect_words(part: Part) -> dict[Aspect, str]:
    """How people say that an aspect changed, in the order in which it is told."""
    words: dict[Part, dict[Aspect, str]] = {
        "nodes": _NODE_WORDS,
        "weights": _WEIGHT_WORDS,
        "functions": _FUNCTION_WORDS,
    }
    return words.get(part, _PORT_WORDS)


def _counted(noun: str, part: Nodes | Tensors | Weights | Ports | Functions, words: dict[Aspect, str]) -> str:
    """`3 nodes added, 1 removed`: the noun stands with the first number."""
    counts: list[tuple[int, str]] = []
    if not isinstance(part, Tensors):
        counts = [(part.added.count, "added"), (part.removed.count, "removed")]
    counts += [(part.aspects.get(aspect, 0), word) for aspect, word in words.items()]
    told = [f"{count:,} {word}" for count, word in counts if count]
    if not told:
        return ""
    number, _, rest = told[0].partition(" ")
    return ", ".join([f"{number} {noun if number == '1' else noun + 's'} {rest}", *told[1:]])


def _opset_words(change: OpsetChange) -> str:
    of = f" of {change.scope}" if change.scope else ""
    domain = f" {change.domain}" if change.domain else ""
    before = "none" if change.before is None else str(change.before)
    return f"opset{domain}{of} {before} -> {'none' if change.after is None else change.after}"
