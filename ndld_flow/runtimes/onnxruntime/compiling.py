"""Optimized models of ONNX Runtime, and models of what an execution provider has compiled, as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnxruntime as ort

from ndld_flow.base.errors import BackendError
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import (
    SessionSettings,
    compiling_options,
    one_paragraph,
    open_model,
    version,
)


def compile_to_file(model: Path, settings: SessionSettings, form: str, file: Path) -> None:
    """Write the model as a session of these settings would run it; `form` is `onnx`, `ort` or `ep_context`.

    Raises as `open_model` does, and `BackendError` for a provider that cannot be saved so.
    """
    if form == "ep_context":
        _compile_nodes(model, settings, file)
        return
    open_model(model, replace(settings, optimized_model=file, optimized_format="ORT" if form == "ort" else "ONNX"))
    if not file.is_file():
        raise BackendError(
            f"{settings.provider} compiles nodes of {model}, which ONNX Runtime {version()} does not save as `format: "
            f"{form}`: set `format: ep_context`."
        )


def _compile_nodes(model: Path, settings: SessionSettings, file: Path) -> None:
    if not hasattr(ort, "ModelCompiler"):
        raise BackendError(f"`format: ep_context` needs ONNX Runtime 1.22 or later, and this is {version()}.")
    provider, options = compiling_options(settings)
    try:
        compiler = ort.ModelCompiler(
            options,
            model,
            embed_compiled_data_into_model=True,  # a path in the model would be read wherever it leads
            flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
            graph_optimization_level=options.graph_optimization_level,
        )
        compiler.compile_to_file(file)
    except Exception as error:  # ONNX Runtime raises its own classes
        raise BackendError(
            f"`format: ep_context`: {provider} does not compile {model}: {one_paragraph(error)}. Set `format: ort`, or "
            "another provider."
        ) from None
