"""What is different between two models, as far as structure and weights go."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from pydantic import Field

from ndld_flow.records.base import Document, Record
from ndld_flow.records.formats import VERSIONS

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
"""What of an item changed. `consequence`: a node reads, or a graph gives, another tensor because that one, or the one
before, was added or removed. `source`: a graph's output is another tensor. `body`: something inside a function."""

Counted = Literal["added", "removed", "changed", "followed"] | Aspect
"""`followed`: of the changed ones, those that changed in consequence of others and in nothing else."""

Storage = Literal["inline", "external", "sparse", "constant"]
"""`constant`: in a Constant node."""
MatchedBy = Literal["name", "outputs", "structure", "neighbours", "position", "values"]

Part = Literal["nodes", "weights", "inputs", "outputs", "tensors", "functions", "opsets", "texts"]
PARTS: tuple[Part, ...] = ("nodes", "weights", "inputs", "outputs", "tensors", "functions", "opsets", "texts")
"""The parts of a diff, in the order in which they are told."""


class Change(Record):
    """One thing that an item said and now says otherwise."""

    aspect: Aspect
    detail: str = ""
    """Which: an attribute's name, an input's position, a metadata key."""
    before: str | None
    """As people write it, shortened; None where it was not there."""
    after: str | None


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
    """An initializer, or what a Constant node holds."""

    size_bytes: int
    storage: Storage


class FunctionItem(Record):
    """A local function."""

    name: str
    """`domain::Name`, with `:overload` where it has one."""
    node_count: int


class NodeChanged(Record):
    """One node of both models, and how it differs."""

    before: NodeItem
    after: NodeItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy
    """What says that the two are one."""


class TensorChanged(Record):
    """One value of both models, and how it differs."""

    before: TensorItem
    after: TensorItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy


class WeightChanged(Record):
    """One weight of both models, and how it differs."""

    before: WeightItem
    after: WeightItem
    changes: tuple[Change, ...]
    matched_by: MatchedBy
    elements: int | None = None
    """Number of elements, where the values were compared one by one."""
    differing: int | None = None
    """How many of them differ."""
    max_abs_difference: float | None = None
    """Infinite where one of two differing numbers is infinite or no number."""


class FunctionChanged(Record):
    """One local function of both models, and how it differs."""

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


class TextChange(Record):
    """What a model says of itself."""

    key: str
    """`ir_version`, `producer_name`, `doc_string`, `graph name`, or `metadata` with a key: `metadata: author`."""
    before: str | None
    after: str | None


class _Listing(Record):
    """Counts are complete; lists are cut, and then begin with what matters most."""

    counts: dict[Counted, int] = {}
    """`added`, `removed`, `changed`, and of the changed ones `followed` and each aspect -> how many. What there is none
    of is missing."""


class NodesDiff(_Listing):
    """Nodes of the main graph, subgraphs and functions."""

    added: tuple[NodeItem, ...] = ()
    removed: tuple[NodeItem, ...] = ()
    changed: tuple[NodeChanged, ...] = ()


class TensorsDiff(_Listing):
    """Of `ModelDiff.tensors`, what nodes make: it comes and goes with its node and is told only where it changed. Of
    `inputs` and `outputs`, those of the graphs and functions that both models have."""

    in_bodies: dict[Counted, int] = {}
    """Of `counts` of inputs and outputs, how many are of subgraphs and functions."""
    added: tuple[TensorItem, ...] = ()
    removed: tuple[TensorItem, ...] = ()
    changed: tuple[TensorChanged, ...] = ()


class WeightsDiff(_Listing):
    """Initializers of all graphs, and what Constant nodes hold: these come and go as nodes, and change as weights."""

    added: tuple[WeightItem, ...] = ()
    removed: tuple[WeightItem, ...] = ()
    changed: tuple[WeightChanged, ...] = ()
    values_compared: bool = True
    """False when values were left out."""


class FunctionsDiff(_Listing):
    """Local functions. Their nodes are among the nodes."""

    added: tuple[FunctionItem, ...] = ()
    removed: tuple[FunctionItem, ...] = ()
    changed: tuple[FunctionChanged, ...] = ()


class ModelDiff(Document):
    """What is different in a model, as seen from the one before.

    The other way round it says the same with the sides exchanged.
    """

    document: Literal["model diff"] = "model diff"
    format_version: int = VERSIONS["model diff"]
    nodes: NodesDiff = Field(default_factory=NodesDiff)
    weights: WeightsDiff = Field(default_factory=WeightsDiff)
    inputs: TensorsDiff = Field(default_factory=TensorsDiff)
    outputs: TensorsDiff = Field(default_factory=TensorsDiff)
    tensors: TensorsDiff = Field(default_factory=TensorsDiff)
    functions: FunctionsDiff = Field(default_factory=FunctionsDiff)
    opsets: tuple[OpsetChange, ...] = ()
    texts: tuple[TextChange, ...] = ()

    def only(self, parts: Collection[Part]) -> ModelDiff:
        """These parts, and nothing of the others."""
        return ModelDiff.model_validate({part: getattr(self, part) for part in PARTS if part in parts})

    @property
    def is_empty(self) -> bool:
        """Whether the two models are the same as far as was looked."""
        return not (any(getattr(self, part).counts for part in NOUNS) or self.opsets or self.texts)

    @property
    def one_line(self) -> str:
        """`3 nodes added, 1 removed, 12 renamed; 2 weights changed`; `no differences` for two equal models.

        What follows from the rest, and inputs and outputs of subgraphs and functions, are told where there is nothing
        else to tell.
        """
        return "; ".join(self._told()) or "; ".join(self._told_besides()) or "no differences"

    def _told(self) -> Iterator[str]:
        for part, noun in NOUNS.items():
            words = _few_words(noun, own_counts(getattr(self, part)), WORDS[part])
            if words:
                yield words
        yield from map(_opset_words, self.opsets)
        if self.texts:
            more = " and more" if len(self.texts) > 3 else ""
            yield f"{', '.join(text.key for text in self.texts[:3])}{more} changed"

    def _told_besides(self) -> Iterator[str]:
        for part, noun in NOUNS.items():
            listing = getattr(self, part)
            if listing.counts:
                yield counted_words(noun, listing.counts, WORDS[part])


NOUNS: dict[Part, str] = {
    "nodes": "node",
    "weights": "weight",
    "inputs": "input",
    "outputs": "output",
    "tensors": "tensor",
    "functions": "function",
}
"""What people call one thing of a part."""

_MOST_WAYS = 3
_ADDED: dict[Counted, str] = {"added": "added", "removed": "removed"}
_VALUE_WORDS: dict[Counted, str] = _ADDED | {
    "name": "renamed",
    "dtype": "retyped",
    "shape": "reshaped",
    "position": "moved",
    "source": "from another tensor",
    "consequence": "rewired in consequence",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
_NODE_WORDS: dict[Counted, str] = _ADDED | {
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
_WEIGHT_WORDS: dict[Counted, str] = _ADDED | {
    "name": "renamed",
    "scope": "moved",
    "dtype": "retyped",
    "shape": "reshaped",
    "values": "changed",
    "storage": "stored elsewhere",
    "metadata": "with other metadata",
    "doc string": "with another doc string",
}
WORDS: dict[Part, dict[Counted, str]] = {
    "nodes": _NODE_WORDS,
    "weights": _WEIGHT_WORDS,
    "inputs": _VALUE_WORDS,
    "outputs": _VALUE_WORDS,
    "tensors": _VALUE_WORDS,
    "functions": _ADDED | {"name": "renamed", "body": "changed"},
}
"""How people say what happened to how many, in the order in which it is told."""


def counted_words(noun: str, counts: dict[Counted, int], words: dict[Counted, str]) -> str:
    """`3 nodes added, 1 removed`: the noun stands with the first number. Empty for nothing."""
    told = [(counts[counted], word) for counted, word in words.items() if counts.get(counted)]
    first = "" if not told else f" {noun}" if told[0][0] == 1 else f" {noun}s"
    return ", ".join(f"{count:,}{'' if place else first} {word}" for place, (count, word) in enumerate(told))


def own_counts(listing: _Listing) -> dict[Counted, int]:
    """Counts without what is of subgraphs and functions: of inputs and outputs those that the model itself has."""
    bodies: dict[Counted, int] = listing.in_bodies if isinstance(listing, TensorsDiff) else {}
    left = {word: count - bodies.get(word, 0) for word, count in listing.counts.items()}
    return {word: count for word, count in left.items() if count}


def _few_words(noun: str, counts: dict[Counted, int], words: dict[Counted, str]) -> str:
    """What came, what went, and what changed by itself: in three ways at most, else only how many."""
    ways = [word for word in words if word not in ("added", "removed", "consequence") and counts.get(word)]
    if len(ways) <= _MOST_WAYS:
        told = {word: counts.get(word, 0) for word in ("added", "removed", *ways)}
        return counted_words(noun, told, words)
    told = {"added": counts.get("added", 0), "removed": counts.get("removed", 0)}
    told["changed"] = counts["changed"] - counts.get("followed", 0)
    return counted_words(noun, told, _ADDED | {"changed": "changed"})


def _opset_words(change: OpsetChange) -> str:
    named = "".join(f" {text}" for text in (change.domain, change.scope and f"of {change.scope}") if text)
    if change.before is None or change.after is None:
        return f"opset{named} {change.after} added" if change.before is None else f"opset{named} removed"
    return f"opset{named} {change.before} -> {change.after}"
