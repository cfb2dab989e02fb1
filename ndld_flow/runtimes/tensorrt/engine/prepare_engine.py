"""Checks of an engine before it is opened: its identity, its model, and its requirements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.models.files import model_inputs, model_outputs
from ndld_flow.records.build import Build, EngineBackend
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.tensorrt.engine.engine_session import EngineSession
from ndld_flow.runtimes.tensorrt.library import TITLES, Library, find_library
from ndld_flow.store.digest import digest_file
from ndld_flow.store.kinds import Engine, Onnx


@dataclass(frozen=True)
class EngineToRun:
    """An engine as a step names it, and how it is to be run."""

    backend: EngineBackend
    engine: Engine | None
    """Made by a step of the recipe; if None, `file` is one that was there before."""
    file: Path | None
    library: Path | None
    """Where another TensorRT lies than the installed one."""
    refit: bool
    trust: bool
    gpu: int
    optimization_profile: int
    streams: int
    cuda_graph: bool
    transfers: bool
    spin_wait: bool


def prepare_engine(wanted: EngineToRun, model: Onnx) -> tuple[EngineSession, Library]:
    """The session to open, and the TensorRT that is here for it.

    Raises `RequestError` when the engine is another model's or another library's, or needs what was not allowed;
    `BackendError` when TensorRT is not here.
    """
    library = find_library(wanted.backend, wanted.library)
    if not library.found:
        raise BackendError(f"{library.missing}.")
    build = None if wanted.engine is None else _read_build(wanted.engine)
    if wanted.engine is not None and build is not None:
        _refuse_other(wanted, wanted.engine, build, model)
    without_weights = build is not None and build.options.get("weights") == "strip"
    session = EngineSession(
        backend=wanted.backend,
        engine=_plan(wanted),
        model=_weights_of(wanted.engine, model),
        inputs=model_inputs(model.path),
        outputs=model_outputs(model.path),
        built_with="" if build is None else build.version,
        # An engine that a step has just built of this model has its weights, unless they were left out.
        refit=wanted.refit and (build is None or without_weights),
        without_weights=without_weights,
        plugins=() if build is None else _plugins(build),
        trust=wanted.trust,
        gpu=wanted.gpu,
        optimization_profile=wanted.optimization_profile,
        streams=wanted.streams,
        cuda_graph=wanted.cuda_graph,
        transfers=wanted.transfers,
        spin_wait=wanted.spin_wait,
    )
    return session, library


def _plan(wanted: EngineToRun) -> Path:
    if wanted.engine is not None:
        return wanted.engine.path
    assert wanted.file is not None  # the step's settings were validated
    return wanted.file.absolute()


def _read_build(engine: Engine) -> Build:
    try:
        return read_document(Build, engine.folder / Engine.build)
    except (OSError, ValidationError):
        raise RequestError(
            f"the engine of step {engine.label} has no record of its build that can be read: build it anew."
        ) from None


def _refuse_other(wanted: EngineToRun, engine: Engine, build: Build, model: Onnx) -> None:
    step = f"step {engine.label}"
    if build.backend != wanted.backend:
        raise RequestError(
            f"{step} built its engine for {TITLES[build.backend]}, and {TITLES[wanted.backend]} does not run it: set "
            f"`backend: {build.backend}`."
        )
    if model.digest != build.model_digest and not _is_typed_model(engine, model):
        raise RequestError(
            f"{step} built its engine from {build.label}, and {model.label} is another model: set "
            f"`from: {build.label}`, or name an engine of {model.label}."
        )
    if build.options.get("weights") == "strip" and not wanted.refit:
        raise RequestError(f"the engine of {step} has no weights: it runs only with `refit: true`.")
    if _has_code(build) and not wanted.trust:
        raise RequestError(
            f"the engine of {step} has code of its own embedded (version_compatible: true), and that runs only when it "
            "is allowed: set `trust_engine: true`, or build it with `exclude_lean_runtime: true` and without plugins."
        )


def _is_typed_model(engine: Engine, model: Onnx) -> bool:
    """Return whether the model is the one with Casts that the builder received instead of its input."""
    typed = engine.folder / Engine.typed_model
    return typed.is_file() and digest_file(typed) == digest_file(model.path)


def _weights_of(engine: Engine | None, model: Onnx) -> Path:
    """Where the engine's weights come from: of a model with Casts, the one that has them."""
    typed = None if engine is None else engine.folder / Engine.typed_model
    return typed if typed is not None and typed.is_file() else model.path


def _has_code(build: Build) -> bool:
    options = build.options
    embedded = not options.get("exclude_lean_runtime") or bool(options.get("plugins"))
    return bool(options.get("version_compatible")) and embedded


def _plugins(build: Build) -> tuple[Path, ...]:
    """Version compatible engines carry them along."""
    named = build.options.get("plugins")
    if not isinstance(named, list) or build.options.get("version_compatible"):
        return ()
    return tuple(Path(str(path)).absolute() for path in named)
