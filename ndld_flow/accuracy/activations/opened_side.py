"""A model made ready to be looked into: cut where it should stop, its stored precisions emulated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.accuracy.activations.cutting import cut_behind
from ndld_flow.accuracy.activations.model_view import ModelView
from ndld_flow.accuracy.inside.capture import capture
from ndld_flow.base.errors import RequestError
from ndld_flow.models.tensors import Array
from ndld_flow.precision.emulate.stored_model import emulate_stored
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings

_CUT, _STORED = "cut.onnx", "stored.onnx"


@dataclass(frozen=True)
class Side:
    """One of the models."""

    path: Path
    label: str


@contextmanager
def named_as_given(folders: Mapping[Path, Side]) -> Iterator[None]:
    """What goes wrong with a model that was made in one of these folders is told of the side that it was made of:
    nobody knows the other, and it is gone by then.
    """
    try:
        yield
    except RequestError as error:
        told = str(error)
        for folder, side in folders.items():
            given = f"{side.label} ({side.path})"
            for made in (_CUT, _STORED):
                told = told.replace(str(folder / made), given)
        error.args = (told,)
        raise


def cut_side(side: Side, until: str, scratch: Path) -> Side:
    """The model as far as `until`; as it is where that is empty."""
    if not until:
        return side
    target = scratch / _CUT
    cut_behind(side.path, target, until)
    return Side(target, side.label)


def cut_reference(side: Side, until: str, scratch: Path) -> tuple[Side, tuple[str, ...]]:
    """The same for the model beside, which runs whole where it has no such place; and a note about that."""
    try:
        return cut_side(side, until, scratch), ()
    except RequestError:
        return side, (f"{side.label} has nothing called {until} and ran to its end",)


@dataclass(frozen=True)
class OpenedSide:
    """A side that is ready to run."""

    view: ModelView
    """Of the model as it is stored."""
    running: Path
    """The model that runs in its place."""
    settings: SessionSettings
    scratch: Path
    emulated: bool
    notes: tuple[str, ...]

    def captured(self, names: Sequence[str], samples: Iterator[Mapping[str, Array]]) -> Iterator[dict[str, Array]]:
        """Values of these tensors, inputs too, one dict a sample; what is no tensor is left out."""
        inside = [name for name in names if name not in self.view.inputs]
        outside = [name for name in names if name in self.view.inputs]
        fed: deque[Mapping[str, Array]] = deque()  # capturing may take several samples before it gives the first

        def noted() -> Iterator[Mapping[str, Array]]:
            for arrays in samples:
                fed.append(arrays)
                yield arrays

        for found in capture(self.running, inside, noted(), self.settings, self.scratch):
            arrays = fed.popleft()
            yield {name: arrays[name] for name in outside} | found


def open_side(
    side: Side, shapes: Mapping[str, tuple[int, ...]], stored: bool, settings: SessionSettings, scratch: Path
) -> OpenedSide:
    """Make a model ready to run on inputs of these shapes; `stored` rounds its fp16 and bf16 tensors at every node."""
    target = scratch / _STORED
    emulated = emulate_stored(side.path, target) if stored else None
    running = side.path if emulated is None else target
    notes = () if emulated is None else tuple(f"{side.label}: {note}" for note in emulated.notes)
    return OpenedSide(ModelView(side.path, shapes), running, settings, scratch, emulated is not None, notes)
