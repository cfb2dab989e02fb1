"""The differences between two models in structure and weights, and the change of a graph by a step."""

from collections.abc import Collection
from typing import Literal

from pydantic import Field

from ndld_flow.records.document import Document, Record

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
"""The property that changed. `consequence`: a node reads, or a graph outputs, another tensor because the old or the new
one was removed or added. `source`: a graph's output is another tensor. `body`: something inside a function."""

Counted = Literal["added", "removed", "changed", "followed", "unknown"] | Aspect
"""`followed`: changed items that changed only as a consequence of others. `unknown`: weights of both models whose
values cannot be compared, since one of the two has no data."""

Storage = Literal["inline", "external", "sparse", "constant"]
"""`constant`: in a Constant node."""
MatchedBy = Literal["name", "outputs", "structure", "neighbours", "position", "values"]

Part = Literal["nodes", "weights", "inputs", "outputs", "tensors", "functions", "opsets", "texts"]
PARTS: tuple[Part, ...] = ("nodes", "weights", "inputs", "outputs", "tensors", "functions", "opsets", "texts")
"""The parts of a diff, in the order in which they are shown."""


class Change(Record):
    """A changed property of an item."""

    aspect: Aspect
    detail: str = ""
    """An attribute's name, an input's position, or a metadata key."""
    before: str | None
    """The old value as shortened text; None if there was none."""
    after: str | None


class NodeItem(Record):
    """A node. Inputs and outputs of changed nodes are omitted."""

    scope: str
    """Address of its graph: `""` is the main graph, else `If_0/then_branch` or `domain::Function`."""
    name: str
    """Its first output if it has no name."""
    op_type: str
    """`Conv`, or `com.microsoft::FusedConv` for other domains."""
    inputs: tuple[str, ...] = ()
    """The first inputs; an empty string for an omitted one."""
    outputs: tuple[str, ...] = ()


class TensorItem(Record):
    """A value with its type."""

    scope: str
    name: str
    dtype: str
    """`float32`; other types in ONNX's notation, such as `seq(tensor(float))`; empty if unknown."""
    shape: tuple[int | str | None, ...] | None
    """None if the model does not have it."""


class WeightItem(TensorItem):
    """An initializer, or the tensor of a Constant node."""

    size_bytes: int
    storage: Storage


class FunctionItem(Record):
    """A local function."""

    name: str
    """`domain::Name`, with `:overload` if it has one."""
    node_count: int


class NodeChanged(Record):
    """A node of both models with its changes."""

    before: NodeItem
    after: NodeItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy
    """The property by which the two nodes were matched."""


class TensorChanged(Record):
    """A value of both models with its changes."""

    before: TensorItem
    after: TensorItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy


class WeightChanged(Record):
    """A weight of both models with its changes."""

    before: WeightItem
    after: WeightItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy
    elements: int | None = None
    """Number of elements, if the values were compared one by one."""
    differing: int | None = None
    """Number of elements that differ."""
    max_abs_difference: float | None = None
    """Infinite if one of two differing values is infinite or NaN."""


class FunctionChanged(Record):
    """A local function of both models with its changes."""

    before: FunctionItem
    after: FunctionItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy


class OpsetChange(Record):
    """The version of a domain that a model or a function imports."""

    scope: str
    """`""` for the model, else the function."""
    domain: str
    before: int | None
    after: int | None

    @property
    def one_line(self) -> str:
        """Description of the change, such as `opset 17 -> 20` or `opset com.microsoft 1 added`."""
        named = "".join(f" {text}" for text in (self.domain, self.scope and f"of {self.scope}") if text)
        if self.before is None or self.after is None:
            return f"opset{named} {self.after} added" if self.before is None else f"opset{named} removed"
        return f"opset{named} {self.before} -> {self.after}"


class TextChange(Record):
    """A changed string or version of the model itself."""

    key: str
    """`ir_version`, `producer_name`, `doc_string`, `graph name`, or `metadata` with a key: `metadata: author`."""
    before: str | None
    after: str | None


class _Listing(Record):
    """Counts are complete; lists may be truncated, with the most important items first."""

    counts: dict[Counted, int] = {}
    """`added`, `removed`, `changed`, and for changed items `followed` and each aspect -> number. Zeros are missing."""


class NodesDiff(_Listing):
    """Nodes of the main graph, subgraphs and functions."""

    added: tuple[NodeItem, ...] = ()
    removed: tuple[NodeItem, ...] = ()
    changed: tuple[NodeChanged, ...] = ()


class TensorsDiff(_Listing):
    """In `ModelDiff.tensors`, changed outputs of nodes (added and removed ones belong to their nodes). In `inputs` and
    `outputs`, those of the graphs and functions that both models have."""

    in_bodies: dict[Counted, int] = {}
    """The part of `counts` of inputs and outputs that belongs to subgraphs and functions."""
    added: tuple[TensorItem, ...] = ()
    removed: tuple[TensorItem, ...] = ()
    changed: tuple[TensorChanged, ...] = ()


class WeightsDiff(_Listing):
    """Initializers of all graphs, and tensors of Constant nodes (added and removed ones count as nodes)."""

    added: tuple[WeightItem, ...] = ()
    removed: tuple[WeightItem, ...] = ()
    changed: tuple[WeightChanged, ...] = ()
    values_compared: bool = True
    """False if values were not compared."""


class FunctionsDiff(_Listing):
    """Local functions. Their nodes are among the nodes."""

    added: tuple[FunctionItem, ...] = ()
    removed: tuple[FunctionItem, ...] = ()
    changed: tuple[FunctionChanged, ...] = ()


class ModelDiff(Document):
    """Differences of a model from an earlier one, printed by `diff`. The reverse has the two sides exchanged."""

    document: Literal["model diff"] = "model diff"
    format_version: int = 1
    nodes: NodesDiff = Field(default_factory=NodesDiff)
    weights: WeightsDiff = Field(default_factory=WeightsDiff)
    inputs: TensorsDiff = Field(default_factory=TensorsDiff)
    outputs: TensorsDiff = Field(default_factory=TensorsDiff)
    tensors: TensorsDiff = Field(default_factory=TensorsDiff)
    functions: FunctionsDiff = Field(default_factory=FunctionsDiff)
    opsets: tuple[OpsetChange, ...] = ()
    texts: tuple[TextChange, ...] = ()

    def only(self, parts: Collection[Part]) -> "ModelDiff":
        """Return a diff with only these parts."""
        return ModelDiff.model_validate({part: getattr(self, part) for part in PARTS if part in parts})

    @property
    def is_empty(self) -> bool:
        """True if no compared part differs; False if values of weights are unknown."""
        return not (any(getattr(self, part).counts for part in NOUNS) or self.opsets or self.texts)

    @property
    def is_renaming(self) -> bool:
        """True if nothing but names of nodes differs; False if values of weights are unknown."""
        counts = dict(self.nodes.counts)
        renamed = counts.pop("name", 0)
        others = any(getattr(self, part).counts for part in NOUNS if part != "nodes") or self.opsets or self.texts
        return counts in ({}, {"changed": renamed}) and not others

    @property
    def node_differences(self) -> int:
        """Number of nodes that were added, removed or changed, without those that only follow other changes."""
        counts = self.nodes.counts
        return sum(counts.get(word, 0) for word in ("added", "removed", "changed")) - counts.get("followed", 0)

    @property
    def one_line(self) -> str:
        """`3 nodes added, 1 removed, 12 renamed; 2 weights changed`; `no differences` for two equal models.

        Consequences, and inputs and outputs of subgraphs and functions, are shown only if there is nothing else.
        """
        described = (
            _describe_counts(noun, own_counts(getattr(self, part)), WORDS[part]) for part, noun in NOUNS.items()
        )
        parts = [*filter(None, described), *(change.one_line for change in self.opsets)]
        if self.texts:
            more = " and more" if len(self.texts) > 3 else ""
            parts.append(f"{', '.join(text.key for text in self.texts[:3])}{more} changed")
        consequences = [
            counted_words(noun, listing.counts, WORDS[part])
            for part, noun in NOUNS.items()
            if (listing := getattr(self, part)).counts
        ]
        return "; ".join(parts) or "; ".join(consequences) or "no differences"


NOUNS: dict[Part, str] = {
    "nodes": "node",
    "weights": "weight",
    "inputs": "input",
    "outputs": "output",
    "tensors": "tensor",
    "functions": "function",
}
"""The noun for an item of a part."""

_MOST_KINDS = 3
_ADDED: dict[Counted, str] = {"added": "added", "removed": "removed"}
_VALUE_WORDS: dict[Counted, str] = _ADDED | {
    "name": "renamed",
    "dtype": "retyped",
    "shape": "reshaped",
    "position": "moved",
    "source": "now another tensor",
    "consequence": "rewired as a consequence",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
_NODE_WORDS: dict[Counted, str] = _ADDED | {
    "name": "renamed",
    "scope": "moved",
    "operator": "with another operator",
    "attribute": "with other attributes",
    "input": "rewired",
    "output": "with other outputs",
    "consequence": "rewired as a consequence",
    "precision": "with another precision",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
_UNKNOWN: dict[Counted, str] = {"unknown": "with unknown values"}
_WEIGHT_WORDS: dict[Counted, str] = _ADDED | {
    "name": "renamed",
    "scope": "moved",
    "dtype": "retyped",
    "shape": "reshaped",
    "values": "changed",
    "storage": "stored elsewhere",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
    **_UNKNOWN,
}
WORDS: dict[Part, dict[Counted, str]] = {
    "nodes": _NODE_WORDS,
    "weights": _WEIGHT_WORDS,
    "inputs": _VALUE_WORDS,
    "outputs": _VALUE_WORDS,
    "tensors": _VALUE_WORDS,
    "functions": _ADDED | {"name": "renamed", "body": "changed"},
}
"""Phrases for counts, in the order in which they are shown."""


def counted_words(noun: str, counts: dict[Counted, int], words: dict[Counted, str]) -> str:
    """Return a description such as `3 nodes added, 1 removed`, with the noun after the first number; empty for no
    counts."""
    shown = [(counts[counted], word) for counted, word in words.items() if counts.get(counted)]
    first = "" if not shown else f" {noun}" if shown[0][0] == 1 else f" {noun}s"
    return ", ".join(f"{count:,}{'' if index else first} {word}" for index, (count, word) in enumerate(shown))


def own_counts(listing: _Listing) -> dict[Counted, int]:
    """Return counts without the inputs and outputs of subgraphs and functions."""
    bodies: dict[Counted, int] = listing.in_bodies if isinstance(listing, TensorsDiff) else {}
    left = {word: count - bodies.get(word, 0) for word, count in listing.counts.items()}
    return {word: count for word, count in left.items() if count}


def _describe_counts(noun: str, counts: dict[Counted, int], words: dict[Counted, str]) -> str:
    """Describe added, removed and changed items: at most three kinds of changes, else only their number."""
    always = (*_ADDED, *_UNKNOWN)
    kinds = [word for word in words if word not in (*always, "consequence") and counts.get(word)]
    if len(kinds) <= _MOST_KINDS:
        shown = {word: counts.get(word, 0) for word in (*always, *kinds)}
        return counted_words(noun, shown, words)
    shown = {word: counts.get(word, 0) for word in always}
    shown["changed"] = counts["changed"] - counts.get("followed", 0)
    return counted_words(noun, shown, _ADDED | {"changed": "changed"} | _UNKNOWN)


class GraphSummary(Record):
    """A model in numbers. Nodes of subgraphs and local functions are counted too."""

    nodes_by_type: dict[str, int]
    """`Conv`, or `com.microsoft::FusedConv` for other domains -> number of nodes, most frequent first."""
    parameter_count: int
    """Elements in all initializers and Constant nodes, sparse ones by their stored values."""
    initializer_bytes: int
    """Bytes of those elements."""
    opset: int
    """Version of the default ONNX domain."""
    ir_version: int

    @property
    def node_count(self) -> int:
        return sum(self.nodes_by_type.values())


class GraphChange(Record):
    """The model before and after a step."""

    before: GraphSummary
    after: GraphSummary
    casts_added: int = 0
    notes: tuple[str, ...] = ()
    """Notes: changes, and nodes that were left unchanged with the reason."""
    diff: ModelDiff | None = None
    """The difference node by node, from steps that edit; None from other steps."""
