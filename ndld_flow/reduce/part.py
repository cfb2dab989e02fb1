"""Parts of a model: any set of its nodes, with the values that they read in a run of the whole model.

This module has no heavy imports; `cutting` does the work, in a process of its own, because the model may be one that
crashes native code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.records.document import Record

MODEL = "model.onnx"


class Whole(Record):
    """The model to reduce, and the samples to run it on."""

    path: Path
    inputs: dict[str, InputSpec]
    """The recipe's `inputs:`."""
    samples: int
    """Number of samples, or of steps of a sequence, to capture; fewer if the files of the inputs have fewer."""
    values: Path
    """Folder for the values of tensors, which all parts of the model share."""
    steps: int | None = None
    """Length of sequences, where the data does not limit it."""
    capture: bool = True
    """False: values inside the model are generated, because running it crashes or fails."""

    @property
    def is_sequence(self) -> bool:
        """True if the model has states, which each step of a sequence passes on."""
        return any(spec.fed_from is not None for spec in self.inputs.values())


class NodeFacts(Record):
    """A node of the main graph that can be kept or left out. Constants belong to their readers."""

    index: int
    op_type: str
    name: str
    inputs: tuple[str, ...]
    """Tensors that it reads, in its bodies too."""
    outputs: tuple[str, ...]
    bodies: bool = False
    """True if it has bodies, or calls a local function."""


class Cut(Record):
    """The part to cut out."""

    kept: tuple[int, ...]
    """Indices of nodes."""
    original: tuple[str, ...] | None = None
    """Weights and inputs that keep their values, as `weight NAME` and `input NAME`; the others get random values of the
    same mean and deviation. None: all keep them."""
    chosen: tuple[int, ...] | None = None
    """Samples, from 0; None: all."""
    feedback: bool = False
    """Samples are the steps of a sequence: states that the part itself computes stay states."""


class CutPart(Record):
    """A part that was written."""

    inputs: dict[str, tuple[str, ...]]
    """Input -> files of its values, one for each sample, relative to the part's folder."""
    shapes: dict[str, tuple[int, ...]]
    """Input -> shape of its values; inputs whose samples have several shapes are left out."""
    states: dict[str, str] = {}
    """Input -> the output that it is fed from; empty unless the part is a sequence."""
    replaceable: tuple[str, ...]
    """Weights and inputs that can be replaced."""
    is_captured: bool
    samples: int = 1
    """Number of samples of the whole model, before any were chosen."""
    names: tuple[str, ...] = Field(default=(), repr=False)
    """Names of its nodes and tensors, which messages may quote."""


class CutError(RequestError):
    """A set of nodes that cannot be cut out."""


class CaptureError(CutError):
    """Running the whole model failed, so that no values inside it are known."""


Values = Mapping[str, Sequence[Path]]
"""Tensor -> files of its values, one for each sample."""


class Opened(Record):
    """A model in which a node was replaced by its body."""

    nodes: tuple[NodeFacts, ...]
    kept: tuple[int, ...]
    """Indices of the nodes that stand for the kept ones."""


@dataclass(frozen=True)
class ReduceOptions:
    """Limits of a reduction, and what must stay the same."""

    trials: int = 300
    """Maximum number of runs; then the smallest model found is packed."""
    samples: int = 4
    """Maximum number of samples that the reduced model gets, and of steps of a sequence where the data has no end."""
    keep_values: bool = False
    """Keep all weights and inputs; by default those that the failure does not need are replaced by random ones."""
    strict: bool = False
    """Count a failure as the same only if it is at the same outputs, by the same criteria, and at least half as far
    beyond the bound of a gate."""
