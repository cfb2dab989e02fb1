"""A model whose inner tensors are outputs of a file that was built for inspection, such as a marked engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.accuracy.inside.capture import run_each
from ndld_flow.accuracy.inside.divergence import Feeds, Observed
from ndld_flow.base.quantities import counted
from ndld_flow.models.files import model_outputs
from ndld_flow.models.tensors import Array
from ndld_flow.records.execution import BuiltFile
from ndld_flow.runtimes.protocol import SessionRequest
from ndld_flow.runtimes.session_process import open_session


@dataclass(frozen=True)
class MarkedModel(Observed):
    """A model that a file with marked outputs or debug tensors runs; only these tensors can be captured."""

    request: SessionRequest
    built: BuiltFile
    scratch: Path

    def names(self) -> frozenset[str]:
        # Only a run shows the names of debug tensors that remain after fusion.
        return frozenset(self.built.marked) or super().names() - {each.name for each in model_outputs(self.path)}

    def captured(self, part: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, Array]]:
        with closing(open_session(self.request, self.path, self.scratch)) as session:
            for outputs in run_each(session, samples):
                yield {name: outputs[name] for name in part if name in outputs}

    def note(self, checked: str, compared: int) -> str:
        """Return the caveat of a comparison of its layers; `checked` is the file whose outputs are judged."""
        if not self.built.marked:
            other = "" if self.built.name == checked else f", another build than {checked}"
            return (
                f"{counted(compared, 'layer')} compared inside {self.built.name}{other}, by its debug tensors: those "
                "that it fused away, or that have another name in it than in the model, were not"
            )
        return (
            f"layers were compared on {self.built.name}, whose {len(self.built.marked)} marked outputs make it fuse "
            f"layers differently from {checked}: they describe {self.built.name}, and the outputs {checked} itself"
        )
