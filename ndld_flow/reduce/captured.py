"""The values of tensors in a run of the whole model, kept in files that all parts of the model share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import prod
from pathlib import Path

from onnx import numpy_helper

from ndld_flow.accuracy.inside.capture import open_inside, tensor_bytes, tensors_of
from ndld_flow.accuracy.sequence_runs import States
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.models.files import model_inputs
from ndld_flow.models.tensors import Array, dtype_text
from ndld_flow.reduce.part import CaptureError, CutError, Whole
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.samples.sequences import make_sequences

_INDEX = "index.json"
_SETTINGS = OnnxruntimeRequest(optimization="disabled", memory_reuse=False)
_ALL_AT_ONCE_BYTES = 2**28
"""Up to this size, all tensors are captured in one run; above it, each part runs the model for what it lacks."""


class Captured:
    """Values of tensors of a model by name. Raises CaptureError if the model cannot run, and CutError for a tensor
    whose values cannot be captured."""

    def __init__(self, whole: Whole) -> None:
        self._whole, self._index = whole, whole.values / _INDEX
        self._numbers: dict[str, int] = {}
        self.types: dict[str, str] = {}
        """Tensor -> its type, such as `float32[1, 3]`; `?` where samples differ."""
        self.samples = 0
        with contextlib.suppress(OSError):
            known = json.loads(self._index.read_text(encoding="utf-8"))
            self._numbers, self.types, self.samples = known["numbers"], known["types"], known["samples"]

    def files(self, names: Sequence[str]) -> dict[str, list[Path]]:
        """Return the files with the values of tensors, one for each sample."""
        missing = [name for name in names if name not in self._numbers]
        if missing or not self.samples:
            self._capture(missing)
        for name in names:
            if name not in self._numbers:
                raise CutError(f"the values of {name!r} cannot be captured: it is not a tensor")
        return {name: [self._file(name, sample) for sample in range(self.samples)] for name in names}

    def read(self, name: str) -> list[Array]:
        """Return the values of a tensor."""
        return [read_array(path) for path in self.files([name])[name]]

    def _file(self, name: str, sample: int) -> Path:
        return self._whole.values / f"{self._numbers[name]}_{sample}.pb"

    def _capture(self, missing: Sequence[str]) -> None:
        self._whole.values.mkdir(parents=True, exist_ok=True)
        own = {spec.name for spec in model_inputs(self._whole.path)}
        inside = [name for name in missing if name not in own]
        try:
            shapes: dict[str, set[tuple[int, ...]]] = {}
            for sample, values in enumerate(_run(self._whole, inside)):
                for name, value in values.items():
                    self._numbers.setdefault(name, len(self._numbers))
                    self._file(name, sample).write_bytes(numpy_helper.from_array(value, name).SerializeToString())
                    shapes.setdefault(name, set()).add(value.shape)
                    self.types[name] = _type_text(value, shapes[name])
                self.samples = sample + 1
        except NdldFlowError as error:
            raise CaptureError(str(error)) from error
        found = {"numbers": self._numbers, "types": self.types, "samples": self.samples}
        unfinished = self._index.with_suffix(".new")
        unfinished.write_text(json.dumps(found), encoding="utf-8")
        unfinished.rename(self._index)


def read_array(path: Path) -> Array:
    """Return the values of a file with a TensorProto."""
    from onnx import TensorProto

    values: Array = numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))
    return values


def _type_text(value: Array, shapes: Iterable[tuple[int, ...]]) -> str:
    dims = [str(sizes.pop()) if len(sizes) == 1 else "?" for sizes in map(set, zip(*shapes, strict=True))]
    return f"{dtype_text(value.dtype)}[{', '.join(dims)}]"


def _run(whole: Whole, inside: Sequence[str]) -> Iterator[dict[str, Array]]:
    """Yield the values of the model's inputs, and of tensors inside it, for each sample or step of a sequence."""
    specs, path = model_inputs(whole.path), whole.path
    feeds: Iterable[dict[str, Array]]
    if whole.is_sequence:
        sequences = make_sequences(specs, whole.inputs, SampleSettings(samples=1, steps=whole.steps), str(path))
        feeds = ({name: fed.values for name, fed in each.feeds.items()} for each in sequences)
        states = States(sequences.feedback, specs, path)
        fed = [source.output for source in sequences.feedback.values()]
    else:
        samples = make_samples(specs, whole.inputs, SampleSettings(), str(path))
        feeds = ({name: fed.values for name, fed in each.feeds.items()} for each in islice(samples, whole.samples))
        states, fed = States({}, specs, path), []
    given = list(feeds)
    if not inside and not fed:
        yield from given
        return
    # Small tensors are captured all at once, because other parts will need them.
    places = [place for place in tensors_of(whole.path) if place.can_be_captured]
    sizes = tensor_bytes(whole.path, places, given[0], _SETTINGS) if not whole.is_sequence else {}
    known = bool(sizes) and prod((sum(sizes.values()), len(given))) <= _ALL_AT_ONCE_BYTES
    wanted = list(dict.fromkeys([*fed, *([place.name for place in places] if known else list(inside))]))
    session = open_inside(path, wanted, _SETTINGS)
    for arrays in given:
        inputs, outputs = states.run(session, arrays)
        yield {**inputs, **{name: value for name, value in outputs.items() if value is not None}}
