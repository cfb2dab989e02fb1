"""Write the project: fixed sources, the description of the model, its files, and a README."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import visible_name
from ndld_flow.export.cpp.described_inputs import DescribedInput, check_tensors, describe_inputs
from ndld_flow.export.cpp.engine_checks import check_engine
from ndld_flow.export.cpp.generated_code import ModelFiles, describe_model
from ndld_flow.graph.model_tool import copy_model
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import model_inputs, model_outputs
from ndld_flow.models.tensors import Array, TensorSpec
from ndld_flow.records.build import Build
from ndld_flow.records.engine_backend import TITLES
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.store.files import copy_file
from ndld_flow.store.kinds import Engine

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATE = Path(__file__).parent / "project"
_RENAMED = {"clang-format": ".clang-format"}
_RUNTIME_CMAKE = "cmake/runtime.cmake"


@dataclass(frozen=True)
class EngineFile:
    """An engine and the record of its build."""

    path: Path
    build: Build
    model_digest: str
    """Digest of the model that the step reads, from which the engine must be built."""


@dataclass(frozen=True)
class ExportRequest:
    """The model or engine to export, and the options of the project."""

    model: Path
    label: str
    """Name of the step that wrote the model, or `source`."""
    inputs: Mapping[str, InputSpec]
    arrays: tuple[str, ...]
    """Inputs that the program takes only as arrays."""
    custom_ops: tuple[Path, ...]
    out: Path
    engine: EngineFile | None = None
    """Run this engine of the model in TensorRT; None runs the model in ONNX Runtime."""


@dataclass(frozen=True)
class CppProject:
    """The written project."""

    inputs: tuple[DescribedInput, ...]
    outputs: tuple[TensorSpec, ...]
    runtime: str = "ONNX Runtime"
    """Or `TensorRT`, `TensorRT-RTX`."""
    runtime_version: str = ""
    """The release that built the engine, and must run it; empty for ONNX Runtime, which needs no certain one."""
    compute_capabilities: tuple[str, ...] = ()
    """GPUs of the engine; empty for ONNX Runtime, and for an engine of the kind of GPU that built it."""

    @property
    def library_names(self) -> str:
        """Return the names of the library that CMake searches."""
        return "nvinfer" if self.runtime == "TensorRT" else "tensorrt_rtx"

    @property
    def is_engine(self) -> bool:
        return bool(self.runtime_version)

    @property
    def reads_images(self) -> bool:
        return any(described.image is not None for described in self.inputs)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a line for each input whose conversion the program does not have."""
        return tuple(
            f"input {visible_name(each.spec.name)}: {visible_name(each.left_out)}"
            for each in self.inputs
            if each.left_out
        )


def write_project(request: ExportRequest) -> CppProject:
    """Write a CMake project that runs the model.

    Raises `RequestError` for types and conversions that the program does not have.
    """
    specs, outputs = model_inputs(request.model), model_outputs(request.model)
    check_tensors("input", specs)
    check_tensors("output", outputs)
    feeds = make_feeds(specs, request.inputs, model=request.label)
    inputs = describe_inputs(specs, request.inputs, feeds, request.arrays)
    engine = request.engine
    project = CppProject(tuple(inputs), outputs)
    if engine is not None:
        check_engine(engine.build, engine.model_digest, specs, outputs)
        build = engine.build
        project = replace(
            project,
            runtime=TITLES[build.backend],
            runtime_version=build.version,
            compute_capabilities=build.compute_capabilities,
        )
    files = ModelFiles(
        model="model/model.onnx" if engine is None else f"model/{Engine.main}",
        operator_libraries=tuple(_copy_libraries(request.custom_ops, request.out)),
        samples=tuple(f"samples/input_{place}.npy" for place in range(len(inputs))),
    )
    if engine is None:
        copy_model(request.model, request.out / "model")
    else:
        copy_file(engine.path, request.out / files.model)
    (request.out / "samples").mkdir()
    for described, path in zip(inputs, files.samples, strict=True):
        _save(request.out / path, described.feed.values)
    _write_sources(request, project)
    code = describe_model(inputs, outputs, files)
    (request.out / "src" / "model_description.cpp").write_text(code, encoding="utf-8")
    return project


def _copy_libraries(libraries: Sequence[Path], out: Path) -> list[str]:
    """Copy libraries of custom operators under names of our own: theirs come from the recipe."""
    paths = []
    for place, library in enumerate(libraries):
        if not library.is_file():
            raise RequestError(f"custom_ops: there is no file {library} (looked in {Path.cwd()}).")
        suffix = library.suffix if re.fullmatch(r"\.\w{1,8}", library.suffix, re.ASCII) else ""
        paths.append(f"operators/custom_ops_{place}{suffix}")
        copy_file(library, out / paths[-1])
    return paths


def _save(path: Path, values: Array) -> None:
    """Write a sample. bfloat16, which numpy does not have, is written as its two bytes."""
    stored = values.view("V2") if values.dtype.name == "bfloat16" else values
    np.save(path, np.ascontiguousarray(stored).reshape(values.shape), allow_pickle=False)


def _template_files(project: CppProject) -> Iterator[tuple[Path, str]]:
    """Yield the files of the template that the project has, and their paths in it."""
    unused = "onnxruntime" if project.is_engine else "tensorrt"
    for path in sorted(_TEMPLATE.rglob("*")):
        relative = path.relative_to(_TEMPLATE).as_posix().removesuffix(".j2")
        if path.is_file() and unused not in path.name:
            target = _RUNTIME_CMAKE if relative.startswith("cmake/") else relative
            yield path, _RENAMED.get(target, target)


def _write_sources(request: ExportRequest, project: CppProject) -> None:
    environment = _environment()
    for path, target in _template_files(project):
        if path.suffix == ".j2":
            template = environment.get_template(path.relative_to(_TEMPLATE).as_posix())
            (request.out / target).parent.mkdir(exist_ok=True)
            (request.out / target).write_text(template.render(project=project), encoding="utf-8")
        else:
            copy_file(path, request.out / target)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown and CMake: names pass through `code`
    )
    environment.filters["code"] = markdown_code
    return environment


def markdown_code(text: str) -> str:
    """Return text as code in Markdown.

    A name in which Markdown might find the end of the code, or of a table's cell, has entities instead of signs.
    """
    shown = visible_name(text)
    if shown.strip() == shown != "" and not set(shown) & set("`|\\"):
        return f"`{shown}`"
    entities = (letter if letter.isalnum() or letter == " " else f"&#{ord(letter)};" for letter in shown)
    return f"<code>{''.join(entities)}</code>"
