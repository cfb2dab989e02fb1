"""Build an engine in a separate process: a builder that crashes or exhausts the memory does not end the run.

Steps that search also build engines for trials.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import TypeAdapter, model_validator

from ndld_flow.base import errors
from ndld_flow.base.errors import BackendError, ModelError, NdldFlowError, RequestError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.base.text import short_name, visible_text
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.foresight import build_versions, describe_missing, find_build_library, foresee_build
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.host import has_nvidia_gpu
from ndld_flow.processes.launch import run_worker_module
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.protocol import RuntimeNames, Session, SessionRequest
from ndld_flow.runtimes.settings import ReadArtifact, RuntimeSettings
from ndld_flow.runtimes.tensorrt.library import is_of_release
from ndld_flow.runtimes.tensorrt.required_library import provide_library
from ndld_flow.runtimes.tensorrt.settings import TensorrtSettings, describe_missing_gpu
from ndld_flow.step import Context, Foresight
from ndld_flow.store.files import make_folder, share
from ndld_flow.store.kinds import Engine, Onnx

if TYPE_CHECKING:
    from ndld_flow.records.build import Build

_REQUEST = "job.json"
_ANSWER = "answer.json"


@dataclass(frozen=True)
class BuildRequest:
    """A model to build an engine of, with all settings."""

    model: Path
    label: str
    """Name of the model in messages and reports."""
    digest: str
    inputs: Mapping[str, InputSpec]
    """The recipe's `inputs:`."""
    settings: BuildSettings
    out: Path
    """An existing folder for the files of the `Engine` artifact."""
    caches: Path
    """A persistent folder for caches, which only save time."""
    scratch: Path
    """An existing folder for the building process."""

    def write(self, folder: Path) -> None:
        (folder / _REQUEST).write_bytes(TypeAdapter(BuildRequest).dump_json(self))

    @classmethod
    def read(cls, folder: Path) -> BuildRequest:
        return TypeAdapter(cls).validate_json((folder / _REQUEST).read_bytes())


@dataclass(frozen=True)
class BuildAnswer:
    """The outcome of a build: an error, or empty fields when the engine is built."""

    error: str = ""
    """Name of a class in `errors`, or `OSError`."""
    message: str = ""
    number: int = 0
    """errno of an OSError."""

    def write(self, folder: Path) -> None:
        (folder / _ANSWER).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> BuildAnswer | None:
        """Read the answer; None if it is incomplete because the process died."""
        try:
            return cls(**json.loads((folder / _ANSWER).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None


_NO_FILE_NAME = re.compile(r"[^\w.-]+")


def build_engine(request: BuildRequest, progress: Callable[[int, int, str], None]) -> Build:
    """Build the requested engine; all files of the `Engine` artifact are in `request.out` afterwards.

    `progress(done, total, what)` is called while it builds. Raises BackendError if the library is missing, does not
    support the settings, or fails while building; KilledError if a signal ends it; ModelError if the model does not
    parse; RequestError if shapes are missing; OSError if the disk is full. The building process has always ended
    afterwards, and ends with this one if this one is killed.
    """
    settings = request.settings
    library = find_build_library(settings)
    if missing := describe_missing(settings, library):
        raise BackendError(missing)
    library = provide_library(library, lambda text: progress(0, 0, text))
    folder = request.scratch / "building"
    folder.mkdir()
    job = replace(request, settings=settings.model_copy(update={"backend": library.backend}))
    job.write(folder)
    environment = library.environment(request.scratch) | see_one_gpu(settings.gpu)
    ended = run_worker_module("ndld_flow.engines.engine_building", folder, progress, environment)
    answer = BuildAnswer.read(folder)
    if answer is None:
        # The last line of the builder's log may have the reason.
        log, title = request.out / Engine.log, TITLES[library.backend]
        text = visible_text(log.read_text(encoding="utf-8", errors="replace")).strip() if log.is_file() else ""
        advice = f"Try a lower `optimization_level`, a smaller `workspace`, or fewer plugins.{_keep_log(request)}"
        task = f"built {request.label} with {title} {library.version}"
        raise ended.died("building", task, f"{title} or a plugin", advice, (text.splitlines() or [""])[-1])
    if answer.error:
        if answer.number:
            raise OSError(answer.number, answer.message, str(request.out))
        kind: type[NdldFlowError] = getattr(errors, answer.error)
        # A missing shape is explained in full; the log has more on an error of the library.
        raise kind(f"{answer.message.rstrip('.')}.{_keep_log(request)}" if kind is not RequestError else answer.message)
    from ndld_flow.records.build import Build

    build = read_document(Build, request.out / Build.file_name)
    versions = library.version, build.version  # the key has the former; one may be shorter
    if not (is_of_release(*versions) or is_of_release(*reversed(versions))):
        raise BackendError(
            f"{TITLES[library.backend]} {library.version} ({library.origin}) was to build the engine, and "
            f"{build.version} was imported: remove that one from PYTHONPATH and LD_LIBRARY_PATH, or set `library` to it"
        )
    return build


def see_one_gpu(device: int) -> dict[str, str]:
    """Return variables that let the process see one GPU, as its first. Raises BackendError for a hidden one."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return {"CUDA_VISIBLE_DEVICES": str(device)}
    seen = [name.strip() for name in shown.split(",") if name.strip()]
    if not seen:
        return {}
    if device >= len(seen):
        raise BackendError(
            f"`gpu: {device}`: CUDA_VISIBLE_DEVICES={short_name(shown)} lets this run see {len(seen)} GPU"
            f"{'' if len(seen) == 1 else 's'}, counted from 0; choose one of them, or make more visible."
        )
    return {"CUDA_VISIBLE_DEVICES": seen[device]}


def _keep_log(request: BuildRequest) -> str:
    """Copy the builder's log if no engine was built, and return a sentence with its path.

    Only the last log of each model is kept.
    """
    log = request.out / Engine.log
    if not log.exists():
        return ""
    kept = request.caches / "build-logs" / f"{_NO_FILE_NAME.sub('-', request.label)}.log"
    try:
        make_folder(kept.parent)
        shutil.copyfile(log, kept)
        share(kept)
    except OSError:
        return ""
    return f" The builder's log is {kept}."


@dataclass(frozen=True)
class TrialEngineRequest(SessionRequest):
    """A model to build into an engine and to run. Used in the process of the step, which starts those of TensorRT."""

    runtime: ClassVar[str] = "tensorrt"

    backend: EngineBackend
    settings: BuildSettings
    inputs: Mapping[str, InputSpec]
    """The recipe's `inputs:`, whose shapes the engines allow."""
    caches: Path
    scratch: Path

    def names(self) -> RuntimeNames:
        title = TITLES[self.backend]
        return RuntimeNames(self.backend, title, f"GPU {self.settings.gpu}", "Use another runtime")

    def open(self, model: Path) -> Session:
        """Build an engine, which is deleted when it is open.

        Raises `ModelError` too if TensorRT cannot build one: another model of the same step may have one.
        """
        from ndld_flow.runtimes.session_process import open_session

        folder = Path(tempfile.mkdtemp(prefix="engine-", dir=self.scratch))
        try:
            source = Onnx(model, model.stem, "")
            engine = self._build(source, folder)
            run = TensorrtSettings(
                backend=self.backend,
                engine="trial",
                library=self.settings.library,
                release=self.settings.release,
                gpu=self.settings.gpu,
                trust_engine=self.settings.version_compatible,  # built here a moment ago
            )
            return open_session(run.request(source, lambda _: engine), model, self.scratch)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _build(self, source: Onnx, folder: Path) -> Engine:
        from ndld_flow.models.files import model_inputs

        out, scratch = folder / "out", folder / "scratch"
        out.mkdir()
        scratch.mkdir()
        dynamic = {
            spec.name
            for spec in model_inputs(source.path)
            if spec.shape is None or not all(isinstance(size, int) for size in spec.shape)
        }
        shapes = {name: given.shapes for name, given in self.inputs.items() if name in dynamic}
        request = BuildRequest(
            source.path, source.label, source.digest, shapes, self.settings, out, self.caches, scratch
        )
        try:
            build_engine(request, lambda done, total, what: None)
        except BackendError as error:
            raise ModelError(str(error)) from None
        return Engine(out / Engine.main, "trial", "")


_REFUSED = {
    "lock": "a lock is of one model",
    "mark_outputs": "the step marks the tensors that it reads itself",
    "debug_tensors": "the step marks the tensors that it reads itself",
    "weights": "the engines of trials have weights",
    "compute_capabilities": "trials run on this machine's GPU",
}
"""Settings of `build_engine` that have no meaning for trials -> why."""


class TrialEngineSettings(BuildSettings, RuntimeSettings):
    """Settings by which each model of a step is built into an engine, as in `build_engine`."""

    title: ClassVar[str] = "TensorRT"

    backend: EngineBackend
    """TensorRT or TensorRT-RTX."""

    @model_validator(mode="after")
    def _check_trials(self) -> TrialEngineSettings:
        for name, why in _REFUSED.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"remove `{name}`: {why}")
        return self

    @property
    def device(self) -> str:
        return f"gpu-{self.gpu}"

    @property
    def built_as(self) -> BuildSettings:
        """Return the settings of the builds."""
        return BuildSettings.model_validate(self.model_dump())

    def foresee(self) -> Foresight:
        seen = foresee_build(self.built_as)
        missing = () if has_nvidia_gpu() else (describe_missing_gpu(self.backend),)
        lacks = tuple(text for text in seen.lacks if "no NVIDIA GPU" not in text or not missing)
        return Foresight(seen.notes, seen.problems, (*lacks, *missing))

    def library_versions(self) -> dict[str, str]:
        return build_versions(self.built_as)

    def request(self, model: Onnx, read: ReadArtifact) -> SessionRequest:
        raise NotImplementedError("trials need the step's context: `request_in`")

    def request_in(self, model: Onnx, context: Context, key: str) -> SessionRequest:
        return TrialEngineRequest(self.backend, self.built_as, context.inputs, context.caches, context.scratch)
