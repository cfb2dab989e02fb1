"""Artifacts, and the keys under which the store has them. Every plan reads these; records of runs build on them."""

from typing import Literal, Self

from pydantic import JsonValue, model_validator

from ndld_flow.records.document import Count, Digest, InnerPath, StrictRecord


class ArtifactFile(StrictRecord):
    """One file of an artifact."""

    path: InnerPath
    """Relative to the artifact's folder, with forward slashes."""
    digest: Digest
    size_bytes: Count


class ArtifactRecord(StrictRecord):
    """An immutable, content-addressed set of files."""

    kind: str
    digest: Digest
    """blake3 over the kind-independent list of (path, digest, size) of its files."""
    files: tuple[ArtifactFile, ...]

    @model_validator(mode="after")
    def _refuse_clashes(self) -> Self:
        """Check that a file system can have these files together: no two equal paths, and no file as a folder."""
        paths = {file.path for file in self.files}
        folders = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "/"}
        if len(paths) < len(self.files) or not paths.isdisjoint(folders):
            raise ValueError("its files cannot exist together")
        return self

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class KeyParts(StrictRecord):
    """The parts of a step's key, which is their digest. Steps with equal keys have the same result."""

    step: str
    """The step type, as written in the recipe."""
    version: str
    settings: dict[str, JsonValue]
    """Every setting, defaults included."""
    inputs: dict[str, JsonValue]
    """The recipe's `inputs:` that the step reads."""
    reads: dict[str, Digest]
    """Key of an input (`from`, `reference`, a data file) -> digest of its contents."""
    libraries: dict[str, str]
    """Library -> version, for the libraries that the step names."""
    machine: str
    """Fingerprint; empty if the machine does not matter."""
    together: tuple[Digest | Literal["", "again"], ...] = ()
    """Keys of the steps with which it is measured in turns, each computed alone, in their order, with an empty string
    at its own position: a measurement belongs to its session. The last is `again` for a repeated measurement."""
