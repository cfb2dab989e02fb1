"""A model whose inner tensors are outputs of a file that was built for inspection, such as a marked engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.accuracy.inside.divergence import Feeds, Observed
from ndld_flow.models.tensors import Array
from ndld_flow.records.execution import BuiltFile
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.runtimes.session_process import open_session


@dataclass(frozen=True)
class MarkedModel(Observed):
    """A model that a file with marked outputs runs; only these tensors can be captured."""

    request: SessionRequest
    built: BuiltFile
    scratch: Path

    def names(self) -> frozenset[str]:
        return frozenset(self.built.marked)

    def captured(self, part: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, Array]]:
        with closing(open_session(self.request, self.path, self.scratch)) as session:
            for feeds in samples:
                binding = session.bind(feeds)
                binding.run()
                outputs = binding.outputs()
                yield {name: array for name in part if (array := outputs.get(name)) is not None}

    def note(self, checked: str) -> str:
        """Return the caveat of a comparison of its layers; `checked` is the file whose outputs are judged."""
        return (
            f"layers were compared on {self.built.name}, whose {len(self.built.marked)} marked outputs make it fuse "
            f"layers differently from {checked}: they describe {self.built.name}, and the outputs {checked} itself"
        )
