"""The kinds of artifacts that steps read and write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Artifact:
    """An immutable set of files in one folder, identified by its main file. Steps read it and never write into it."""

    path: Path
    """The main file."""
    label: str
    """Name of the step that wrote it, or `source`."""
    digest: str
    """blake3 of its contents, external data included."""

    kind: ClassVar[str]
    main: ClassVar[str]
    """Name of the main file, which a step with this output must write."""

    @property
    def folder(self) -> Path:
        return self.path.parent


def known_kinds(kind: type[Artifact] = Artifact) -> Iterator[type[Artifact]]:
    """Yield all kinds of artifacts, including those of steps from files."""
    for known in kind.__subclasses__():
        yield known
        yield from known_kinds(known)


RECORD_FILE = "record.json"
LOG_FILE = "log.txt"
"""Files next to an artifact's files in the folder of its step: no file of an artifact may have these names."""


def is_reserved(name: str) -> bool:
    """Return whether an artifact's file cannot have this name, also on case-insensitive systems."""
    return name.casefold() in (RECORD_FILE, LOG_FILE)


class Onnx(Artifact):
    """An ONNX model: `model.onnx`, and its external data.

    A step that chose layers by measurements adds a `records.placement.Placement` as `placement.json`.
    """

    kind = "onnx"
    main = "model.onnx"


class LintDocument(Artifact):
    """`Findings` as JSON."""

    kind = "lint"
    main = "findings.json"


class AccuracyDocument(Artifact):
    """A `records.accuracy.Accuracy` as JSON."""

    kind = "accuracy"
    main = "accuracy.json"


class ProfileDocument(Artifact):
    """A `records.profile.Profile` as JSON."""

    kind = "profile"
    main = "profile.json"
    graph = "optimized.onnx"
    """The graph that the runtime ran, without large weights; profiles in a private environment have it."""


class ComparisonDocument(Artifact):
    """A `records.comparison.Comparison` as JSON."""

    kind = "comparison"
    main = "comparison.json"


class PrecisionDocument(Artifact):
    """A `records.precision_search.PrecisionSearch` as JSON."""

    kind = "precision"
    main = "precision.json"


class ActivationsDocument(Artifact):
    """A `records.activations.Activations` as JSON, and the maps, arrays and images that it names."""

    kind = "activations"
    main = "activations.json"


class ImagesDocument(Artifact):
    """A `records.rendered_images.RenderedImages` as JSON, and the images that it names."""

    kind = "images"
    main = "images.json"


class Engine(Artifact):
    """A TensorRT engine: `model.engine`, and the record of its build.

    `build.json` is a `records.build.Build`; `model.trt.json` has the layers in the form of TensorRT's engine inspector;
    `build.log` is the builder's log; `engine.lock` is a `records.engine_lock.EngineLock`; `typed.onnx` is the model
    with inserted Casts, if there are any.
    """

    kind = "engine"
    main = "model.engine"
    layers: ClassVar[str] = "model.trt.json"
    log: ClassVar[str] = "build.log"
    typed_model: ClassVar[str] = "typed.onnx"


class TorchModule(Artifact):
    """A PyTorch module as code: `model.py`, `onnx_operators.py`, weights in `model.safetensors`, and `names.json`."""

    kind = "pytorch"
    main = "model.py"


class CppProject(Artifact):
    """A CMake project in C++ that runs a model: sources, the model, sample inputs and a README."""

    kind = "cpp_project"
    main = "CMakeLists.txt"
