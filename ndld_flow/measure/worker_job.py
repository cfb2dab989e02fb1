"""The job and the answer of a measuring process: plain values in JSON files. Imports little."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ndld_flow.measure.timing_pass import TimingPlan
from ndld_flow.models.tensors import Array, numpy_dtype
from ndld_flow.runtimes.protocol import RecordingPlan, SessionRequest, Timing
from ndld_flow.runtimes.registry import find_runtime
from ndld_flow.samples.feedback import FedFrom, Feedback

ANSWER = "answer.json"
"""The file that a worker writes into its job's folder."""


@dataclass(frozen=True)
class FeedFile:
    """Values of one input in a .npy file."""

    path: str
    dtype: str
    """Name in numpy or ml_dtypes: .npy files only store numpy's dtypes."""


@dataclass(frozen=True)
class Part:
    """Passes on one set of inputs."""

    feeds: Mapping[str, FeedFile]
    plan: TimingPlan
    what: str = ""
    """Prefix of the pass's number in progress messages."""
    steps: tuple[Mapping[str, FeedFile], ...] = ()
    """Inputs of the further steps of a sequence, without its states; `feeds` are those of the first step."""
    feedback: Feedback = field(default_factory=dict)
    """Input -> the output whose value it has at the next step."""


@dataclass(frozen=True)
class Job:
    """Open a model once and time its parts in order; then open it again to record its layers.

    Without `times_passes`, the parts are not timed, and only layers are recorded.
    """

    model: Path
    session: SessionRequest
    parts: tuple[Part, ...]
    layers: RecordingPlan | None = None
    """Recording of the layers, on the inputs of the first part."""
    times_passes: bool = True

    def write(self, file: Path) -> None:
        values = {
            "model": self.model,
            "runtime": self.session.runtime,
            "session": self.session.to_json(),
            "parts": [asdict(part) for part in self.parts],
            "layers": None if self.layers is None else asdict(self.layers),
            "times_passes": self.times_passes,
        }
        file.write_text(json.dumps(values, default=str), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Job:
        raw = json.loads(file.read_text(encoding="utf-8"))
        parts = (
            Part(
                {name: FeedFile(**feed) for name, feed in part["feeds"].items()},
                TimingPlan(**part["plan"]),
                part["what"],
                tuple({name: FeedFile(**feed) for name, feed in step.items()} for step in part["steps"]),
                {name: FedFrom(**{**fed, "shape": tuple(fed["shape"])}) for name, fed in part["feedback"].items()},
            )
            for part in raw["parts"]
        )
        layers = RecordingPlan(**raw["layers"]) if raw["layers"] else None
        session = find_runtime(raw["runtime"]).read_request(raw["session"])
        return cls(Path(raw["model"]), session, tuple(parts), layers, raw["times_passes"])


@dataclass
class Answer:
    """The measurements of a worker, or its error."""

    error: str = ""
    """Name of a class in `errors`."""
    message: str = ""
    load_ms: float = 0.0
    peak_bytes: int = 0
    """Peak memory of the first part; 0 if the system does not report it."""
    devices: list[str] = field(default_factory=list)
    outputs: list[tuple[str, str, list[int]]] = field(default_factory=list)
    """Name, dtype and shape of the outputs of the first part."""
    log: str = ""
    """Messages of the library while it loaded the model."""
    facts: dict[str, int | str | bool] = field(default_factory=dict)
    """Facts reported by the device, such as memory in bytes."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of libraries that only the worker loads."""
    notes: list[str] = field(default_factory=list)
    """Notes for the profile."""
    timings: list[Timing] = field(default_factory=list)
    """The timing of each part."""
    threads: int = 1
    """The thread that runs the model and those of the library; 1 if the system does not report them."""
    affinity: list[int] = field(default_factory=list)
    """CPUs it could use."""
    recording: str = ""
    """The file with the recorded layers; empty without a recording."""
    recording_ms: float = 0.0
    """Time of the recording, including loading."""

    def write(self, folder: Path) -> None:
        (folder / ANSWER).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Answer | None:
        """Read the answer; None if it is incomplete because the worker died."""
        try:
            raw: dict[str, Any] = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        timings = [Timing(**timing) for timing in raw.pop("timings")]
        return cls(
            **{name: raw[name] for name in (known.name for known in fields(cls)) if name in raw}, timings=timings
        )


def write_feeds(feeds: Mapping[str, Array], folder: Path) -> dict[str, FeedFile]:
    """Save arrays for workers; file names do not contain names of inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for number, (name, values) in enumerate(feeds.items()):
        path = folder / f"input-{number}.npy"
        np.save(path, values, allow_pickle=False)
        written[name] = FeedFile(str(path), values.dtype.name)
    return written


def write_steps(steps: Iterable[Mapping[str, Array]], folder: Path) -> list[dict[str, FeedFile]]:
    """Save the inputs of each step of a sequence; an input that does not change is saved once."""
    written: list[dict[str, FeedFile]] = []
    before: Mapping[str, Array] = {}
    for number, arrays in enumerate(steps):
        same = {name for name, array in arrays.items() if name in before and np.array_equal(before[name], array)}
        changed = write_feeds({name: array for name, array in arrays.items() if name not in same}, folder / str(number))
        written.append({name: written[-1][name] if name in same else changed[name] for name in arrays})
        before = arrays
    return written


def read_feeds(files: Mapping[str, FeedFile]) -> dict[str, Array]:
    """Return the arrays saved by `write_feeds`."""
    feeds = {}
    for name, file in files.items():
        values: Array = np.load(file.path, allow_pickle=False)
        dtype = numpy_dtype(file.dtype)
        # A dtype of ml_dtypes is loaded as raw bytes.
        feeds[name] = values if dtype is None or values.dtype == dtype else values.view(dtype)
    return feeds
