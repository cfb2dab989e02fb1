"""Records of inspecting a model: its summary, nodes, tensors and weights, and the findings of lints."""

from __future__ import annotations

from typing import Literal

from ndld_flow.records.document import Document, Record

Dims = tuple[int | str | None, ...]
Role = Literal["input", "output", "initializer", "constant", "tensor"]
Stored = Literal["inline", "external", "sparse"]


class Port(Record):
    """A tensor that a node reads or writes."""

    name: str
    """Empty for an omitted input or output."""
    dtype: str = ""
    """`float32`; other types in ONNX's notation, such as `seq(tensor(float))`; empty if unknown."""
    shape: Dims | None = None
    """None if it is not known."""
    made_by: str = ""
    """The node that writes it, or `input`, `initializer`."""
    read_by: tuple[str, ...] = ()
    """The nodes that read it; `output` if it is an output of its graph."""


class InspectedNode(Record):
    """A node."""

    scope: str
    """Address of its graph: `""` is the main one, `If_0/then_branch` a subgraph, `domain::Name` a local function."""
    name: str
    """Its first output if it has no name."""
    op_type: str
    """`Conv`, or `com.microsoft::FusedConv` for other domains."""
    attributes: dict[str, str]
    """Attributes as display text."""
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    precision: str = ""
    """The precision that was requested for it."""
    subgraphs: tuple[str, ...] = ()
    """Addresses of its bodies."""


class Numbers(Record):
    """Statistics of all elements of a tensor. NaN and infinities are only counted."""

    minimum: int | float | None
    """None if no element is finite, as are the three below."""
    maximum: int | float | None
    mean: float | None
    """None also if the sum exceeds the range of a double."""
    std: float | None
    """Population standard deviation."""
    nans: int
    infinities: int
    zeros: int
    histogram: tuple[int, ...] = ()
    """Counts of the finite elements in equal parts from minimum to maximum; one part if these are equal, none if there
    is no range."""


class InspectedTensor(Port):
    """A tensor, with the contents of one that the model stores."""

    scope: str
    role: Role
    elements: int | None = None
    """Elements of an initializer or Constant node, as are all fields below."""
    size_bytes: int | None = None
    stored: Stored | None = None
    file: str = ""
    """The data file that contains it."""
    offset: int | None = None
    no_data: str = ""
    """The reason why its data are missing, such as `model.data is missing`; empty if they are not."""
    numbers: Numbers | None = None
    """Only if requested."""
    unread: str = ""
    """The reason why there are no numbers although they were requested."""
    first: tuple[int | float | str, ...] = ()
    """Its first elements, if requested."""


class WeightGroup(Record):
    """Initializers and Constant nodes of one kind."""

    count: int
    elements: int
    size_bytes: int


class NodeGroup(Record):
    """Nodes with a common property."""

    value: str
    count: int
    op_types: dict[str, int]
    """Operator -> number of nodes, most frequent first."""


class DataFileEntry(Record):
    """A file of external data."""

    location: str
    size_bytes: int | None
    """None if it is missing."""
    tensors: int


class ModelSummary(Record):
    """A model in brief."""

    ir_version: int
    opsets: dict[str, int]
    """Domain -> version; ONNX's own is `ai.onnx`."""
    producer: str
    graph_name: str
    metadata: dict[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    node_count: int
    nodes_by_type: dict[str, int]
    """Including subgraphs and functions, most frequent first."""
    weights_by_dtype: dict[str, WeightGroup]
    largest: tuple[InspectedTensor, ...]
    subgraphs: tuple[str, ...]
    functions: tuple[str, ...]
    nodes_by_graph: dict[str, int]
    """Address of a subgraph or function -> number of its own nodes."""
    precisions: dict[str, int]
    """Requested precision -> number of nodes."""
    files: tuple[DataFileEntry, ...]
    """External data."""
    without_data: dict[str, WeightGroup] = {}
    """Reason -> weights whose data are missing, with their size by their shapes."""


class Inspection(Record):
    """The requested parts; the others are None."""

    model: str
    summary: ModelSummary | None = None
    nodes: tuple[InspectedNode, ...] | None = None
    tensors: tuple[InspectedTensor, ...] | None = None
    groups: tuple[NodeGroup, ...] | None = None
    weights: dict[str, WeightGroup] | None = None
    """Initializers and Constant nodes by dtype."""


Severity = Literal["error", "warning", "info"]
"""The severity of a finding."""


class Finding(Record):
    """One finding in a model."""

    severity: Severity
    check: str
    """The check that found it: `onnx.checker`, `shape_inference`, `onnxruntime`, `unused_node`, ..."""
    message: str
    node: str = ""
    """Name of the node it belongs to; empty if it belongs to the model."""
    op_type: str = ""


UNDECIDED = "no result: "
"""Beginning of the reason of a check that was to run."""


class Findings(Document):
    """All findings of one `lint`, and the checks that ran or were skipped."""

    document: Literal["findings"] = "findings"
    format_version: int = 1
    file_name = "findings.json"
    findings: tuple[Finding, ...]
    checks_run: tuple[str, ...]
    checks_skipped: dict[str, str] = {}
    """Check -> the reason why it was skipped."""

    @property
    def undecided(self) -> dict[str, str]:
        """Check that was to run and has no result -> the reason."""
        return {
            check: reason.removeprefix(UNDECIDED)
            for check, reason in self.checks_skipped.items()
            if reason.startswith(UNDECIDED)
        }

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)
