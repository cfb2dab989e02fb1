"""Artifacts, and the keys under which the store has them. Every plan reads these; records of runs build on them."""

from __future__ import annotations

from pydantic import JsonValue

from ndld_flow.records.document import FolderName, InnerPath, Record


class ArtifactFile(Record):
    """One file of an artifact."""

    path: InnerPath
    """Relative to the artifact's folder, with forward slashes."""
    digest: str
    """blake3, hex."""
    size_bytes: int


class ArtifactRecord(Record):
    """An immutable, content-addressed set of files."""

    kind: str
    digest: FolderName
    """blake3 over the kind-independent list of (path, digest, size) of its files."""
    files: tuple[ArtifactFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class KeyParts(Record):
    """The parts of a step's key, which is their digest. Steps with equal keys have the same result."""

    step: str
    """The step type, as written in the recipe."""
    version: str
    settings: dict[str, JsonValue]
    """Every setting, defaults included."""
    inputs: dict[str, JsonValue]
    """The recipe's `inputs:` that the step reads."""
    reads: dict[str, str]
    """Key of an input (`from`, `reference`, a data file) -> digest of its contents."""
    libraries: dict[str, str]
    """Library -> version, for the libraries that the step names."""
    machine: str
    """Fingerprint; empty if the machine does not matter."""
    together: tuple[str, ...] = ()
    """Keys of the steps with which it is measured in turns, each computed alone, in their order, with an empty string
    at its own position: a measurement belongs to its session."""
