"""The two models of a comparison, and the arithmetic they are run with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ndld_flow.accuracy.reduced_precision import reduced_precision
from ndld_flow.models.tensors import Array
from ndld_flow.precision.emulate.stored_model import emulate_stored
from ndld_flow.runtimes.onnxruntime.execution_providers import CPU, full_name
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model

Arithmetic = Literal["stored", "native"]


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    path: Path
    label: str
    settings: SessionSettings
    emulation: Path | None = None
    """The model that emulates its stored precision, to be run in its place."""
    stored_dtypes: Mapping[str, str] = field(default_factory=dict)
    """Outputs that the emulation gives as fp32 -> the dtype they are stored in."""
    notes: tuple[str, ...] = ()

    @property
    def to_run(self) -> Path:
        return self.emulation or self.path

    def emulated(self, target: Path) -> Side:
        """The same with its fp16 and bf16 tensors rounded as stored, by a model in `target`, if it has such tensors and
        runs on a CPU: ONNX Runtime would compute them in fp32 and hide what overflows.
        """
        if not self._on_cpu:
            return self
        done = emulate_stored(self.path, target)
        if done is None:
            return self
        return replace(self, emulation=target, stored_dtypes=done.outputs, notes=done.notes)

    def native(self) -> Side:
        """The same with a warning, where it is computed in a higher precision than it is stored in."""
        if not self._on_cpu or not (precision := reduced_precision(self.path)):
            return self
        warning = (
            f"ONNX Runtime computes {precision} in fp32 on the CPU, where nothing overflows: what a GPU makes of "
            f"{self.label} is only seen with `arithmetic: stored`"
        )
        return replace(self, notes=(warning,))

    @property
    def _on_cpu(self) -> bool:
        return full_name(self.settings.provider) == CPU


@dataclass
class Run:
    """A model being run, sample after sample."""

    side: Side
    provider: str = ""
    log: str = ""

    def over(self, feeds: Iterator[dict[str, Array]]) -> Iterator[dict[str, Array | None]]:
        """Its outputs by name, None for what is no tensor. The session is open as long as this is iterated."""
        model = open_model(self.side.to_run, self.side.settings)
        self.provider, self.log = model.providers[0], model.log
        for arrays in feeds:
            bound = model.bind(arrays)
            bound.once()
            yield bound.outputs()
