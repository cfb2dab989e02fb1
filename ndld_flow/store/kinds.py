"""The kinds of artifact that steps read and make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class Artifact:
    """An immutable set of files in one folder, known by its main file.

    Steps read artifacts where they lie and never write into them.
    """

    path: Path
    """The main file."""
    label: str
    """Name of the step that made it, or `source`."""
    digest: str
    """blake3 of its contents, external data included."""

    kind: ClassVar[str]
    main: ClassVar[str]
    """Name of the main file; a step that makes this kind must write it."""

    @property
    def folder(self) -> Path:
        return self.path.parent


RECORD_FILE = "record.json"
LOG_FILE = "log.txt"
"""What stands beside an artifact's files in the folder of its step: no file of an artifact may be called so."""


def is_reserved(name: str) -> bool:
    """Whether a file beside a main file cannot have this name, on systems that do not tell capitals apart either."""
    return name.casefold() in (RECORD_FILE, LOG_FILE)


class Onnx(Artifact):
    """An ONNX model: `model.onnx`, and its external data beside it."""

    kind = "onnx"
    main = "model.onnx"


class LintDocument(Artifact):
    """A `records.finding.Findings` as JSON."""

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


class ComparisonDocument(Artifact):
    """A `records.comparison.Comparison` as JSON."""

    kind = "comparison"
    main = "comparison.json"


class PrecisionDocument(Artifact):
    """A `records.precision_search.PrecisionSearch` as JSON."""

    kind = "precision"
    main = "precision.json"


class ActivationsDocument(Artifact):
    """A `records.activations.Activations` as JSON, and beside it the maps, arrays and pictures it names."""

    kind = "activations"
    main = "activations.json"


class Engine(Artifact):
    """A TensorRT engine: `model.engine`, and beside it how it came to be.

    `build.json` is a `records.build.Build`; `model.trt.json` tells its layers as TensorRT's engine inspector does;
    `build.log` is what the builder said; `typed.onnx` is the model that was built where Casts were put into it.
    """

    kind = "engine"
    main = "model.engine"
    build: ClassVar[str] = "build.json"
    layers: ClassVar[str] = "model.trt.json"
    log: ClassVar[str] = "build.log"
    typed_model: ClassVar[str] = "typed.onnx"
