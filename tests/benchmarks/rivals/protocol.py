"""The request that a rival reads, and the models that it delivers. It imports only numpy, as rivals run elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

ROOT = Path(__file__).parents[3]
Sample = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Request:
    """A model to make faster."""

    model: Path
    """An ONNX model whose inputs have fixed shapes."""
    calibration: Path
    """A .npz: input -> all samples, along a new first axis."""
    bound: float
    """The smallest accepted cosine similarity of the worst output of the worst sample."""
    threads: int
    folder: Path
    """An empty folder for whatever is written."""
    is_transformer: bool = False
    budget: str = ""
    """The time for everything, such as `60 s`; by default the tool's own."""

    @classmethod
    def read(cls, path: str | Path) -> Request:
        """Return the request in a file."""
        values = json.loads(Path(path).read_text())
        return cls(**{**values, **{name: Path(values[name]) for name in ("model", "calibration", "folder")}})

    def samples(self) -> list[Sample]:
        """Return the samples to calibrate with."""
        return read_samples(self.calibration)

    def split(self) -> tuple[list[Sample], list[Sample]]:
        """Return two thirds to calibrate with, and every third to validate with."""
        samples = self.samples()
        return [sample for number, sample in enumerate(samples) if number % 3 != 2], samples[2::3]


@dataclass(frozen=True)
class Delivery:
    """A delivered model, and how to run it."""

    model: str
    """Path of an .onnx, or of an .xml of OpenVINO."""
    runtime: Literal["onnxruntime", "openvino"] = "onnxruntime"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of ONNX Runtime's `SessionOptions`, or properties of OpenVINO's `compile_model`."""
    name: str = ""
    """Its name among several."""
    budget_s: float | None = None
    """The time that its tool promised for everything."""
    command_s: float | None = None
    """Seconds of the tool's own command, if it is one."""
    ending: str = ""
    """The tool's word for what it found, such as `nothing pays`."""


def read_samples(path: Path) -> list[Sample]:
    """Return the samples of a .npz."""
    import numpy as np

    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]


def cosine(reference: Sequence[np.ndarray[Any, Any]], candidate: Sequence[np.ndarray[Any, Any]]) -> float:
    """Return the cosine similarity of the worst output of a sample; -1 if shapes differ or a value is not finite."""
    import numpy as np

    worst = 1.0
    for item, other in zip(reference, candidate, strict=True):
        if item.shape != other.shape or not np.isfinite(other).all():
            return -1.0
        r, c = item.astype(np.float64).ravel(), other.astype(np.float64).ravel()
        lengths = float(np.sqrt(r @ r) * np.sqrt(c @ c))
        worst = min(worst, float(r @ c) / lengths if lengths else float(not r.any() and not c.any()))
    return worst


def serve(deliver: Callable[[Request], Sequence[Delivery]]) -> None:
    """Run a rival on the request that the first argument names, and write `deliveries.json` into its folder."""
    request = Request.read(sys.argv[1])
    found = [asdict(delivery) for delivery in deliver(request)]
    (request.folder / "deliveries.json").write_text(json.dumps(found))
