"""What is known of a model's nodes before and after a search: errors of each alone, and where two runs diverge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from ndld_flow.backends.emulating.stored_model import emulate_stored
from ndld_flow.backends.models.tensors import Array
from ndld_flow.backends.observing.divergence import Observed, diverge
from ndld_flow.backends.observing.local_error import LocalError, local_errors
from ndld_flow.backends.precision.taken_branches import write_taken
from ndld_flow.backends.running.onnxruntime_session import SessionSettings
from ndld_flow.backends.running.sample_feeds import Samples
from ndld_flow.records.divergence import LayerDivergence

_OBSERVED = 4
"""Samples that are looked at inside; trials are judged on all of them."""


class FewSamples(Sequence[Mapping[str, Array]]):
    """The first samples, as arrays; each round reads them again."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return min(len(self._samples), _OBSERVED)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for sample in islice(self._samples, _OBSERVED):
            yield {name: feed.values for name, feed in sample.feeds.items()}

    def __getitem__(self, index: int) -> Mapping[str, Array]:  # type: ignore[override]
        return next(islice(self, index, None))


@dataclass(frozen=True)
class Observer:
    """Looks inside the model that is searched."""

    reference: Path
    precision: str
    samples: Samples
    settings: SessionSettings
    scratch: Path

    @cached_property
    def _reference(self) -> Path:
        return self._inside(self.reference, "reference_inside.onnx")

    def _inside(self, path: Path, name: str) -> Path:
        return write_taken(path, self.scratch / name, FewSamples(self.samples), self.settings)

    def errors(self) -> dict[str, LocalError]:
        """First output of a node -> what it alone does wrong; none for int8, whose errors depend on its scales."""
        if self.precision == "int8":
            return {}
        samples = FewSamples(self.samples)
        return local_errors(self._reference, self.precision, samples, self.settings, self.scratch)

    def layers(self, reduced: Path) -> tuple[LayerDivergence, ...]:
        """How far each layer of a reduced model is from the reference's, in the order of execution."""
        emulated = self.scratch / "observed.onnx"
        path = reduced if emulate_stored(reduced, emulated) is None else emulated
        candidate = self._inside(path, "observed_inside.onnx")
        precision = "" if self.precision == "int8" else self.precision
        pair = Observed(self._reference, self.settings), Observed(candidate, self.settings)
        return diverge(*pair, FewSamples(self.samples), precision=precision)
