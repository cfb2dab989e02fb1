"""Repeat the check that `optimize` made of a model on samples which its search had not seen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import FormatError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of, joined, short_name
from ndld_flow.models.external_files import declared_inputs, external_files
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sample_files import RANDOM_SAMPLES
from ndld_flow.recipe.sources import find_model
from ndld_flow.recipe.write_recipe import HELD_SEED
from ndld_flow.records.document import read_document
from ndld_flow.records.optimization import describe_runtime
from ndld_flow.records.run_record import ExportRecord, HeldOutCheck
from ndld_flow.runner.export import Export
from ndld_flow.runtimes.registry import runtime_names
from ndld_flow.store.digest import sha256_of
from ndld_flow.store.store import Store


@dataclass(frozen=True)
class FoundCheck:
    """The check that the record next to a model describes, if it is of these two models."""

    check: HeldOutCheck | None = None
    data: tuple[str, ...] = ()
    """Its samples, each as `INPUT=PATH`; empty if they were generated, or are lacking."""
    lack: str = ""
    """Why a recorded check cannot be repeated; empty if it can, or if none is recorded."""

    def describe(self, candidate: Path) -> str:
        """Return `the 10 samples that fast.onnx was proved on, by cosine >= 0.999`."""
        assert self.check is not None
        count = max(map(len, self.check.samples.values()), default=RANDOM_SAMPLES)
        samples = counted(count, "sample" if self.data else "generated sample")
        conditions = f", by {joined(self.check.conditions)}" if self.check.conditions else ""
        return f"the {samples} that {candidate} was proved on{conditions}"

    @property
    def settings(self) -> str:
        """Return the settings of `check_accuracy` that repeat it, as in a recipe."""
        assert self.check is not None
        samples = "" if self.data else f", samples: {RANDOM_SAMPLES}, seed: {HELD_SEED}"
        return f"{samples}, tolerance: null" if self.check.conditions else samples


def relative_to_model(file: Path, model: Path) -> str:
    """Return the path of a sample from the folder of a model, where it stays when the result is moved."""
    return Path(os.path.relpath(file.parent.resolve() / file.name, model.parent.resolve())).as_posix()


def find_check(base: Path, candidate: Path, store: Store) -> FoundCheck:
    """Return the check in the record next to a candidate, if it is of these two models.

    The record may come from anyone: its samples are used only if their contents have the digests that it gives.
    """
    path = Export("", candidate).record_path
    try:
        record = read_document(ExportRecord, path)
    except FileNotFoundError:
        return FoundCheck()
    except (OSError, ValueError, FormatError):
        return FoundCheck(lack=f"{path} is invalid, or of another version")
    check = record.check
    if check is None:
        return FoundCheck()
    names = (candidate.name, *external_files(candidate))
    if not all(_is_file_of(candidate.parent / name, record.sha256.get(name)) for name in names):
        return FoundCheck(lack=f"{path} is of another model than {candidate}")
    source = find_model(ModelSource(source=str(base.absolute())), store, lambda _: None)
    if source.record.digest != record.source_digest:
        return FoundCheck(lack=f"{candidate} was not made from {base}")
    lack = _find_lack(check, base)
    return FoundCheck(lack=f"{path} has {lack}") if lack else _find_samples(check, base, candidate)


def _find_lack(check: HeldOutCheck, base: Path) -> str:
    """Return what a check names that does not exist here; empty if nothing."""
    used = {describe_runtime(each).partition(" ")[0] for each in (check.runtime, check.source_runtime)}
    if not used <= {*runtime_names()}:
        return "an unknown runtime"
    return "" if {*check.samples, *check.shapes} <= declared_inputs(base).keys() else f"other inputs than {base}"


def _find_samples(check: HeldOutCheck, base: Path, candidate: Path) -> FoundCheck:
    """Return a check with its samples, or with why they are lacking."""
    samples = [(name, *pair) for name, digests in check.samples.items() for pair in digests.items()]
    found = [(name, os.path.relpath(base.parent.resolve() / file), digest) for name, file, digest in samples]
    # In a recipe, `${...}` would refer to something else.
    lacking = [file for _, file, digest in found if "${" in file or not _is_file_of(Path(file), digest)]
    if lacking:
        some = first_of([short_name(file, 200) for file in lacking], 1)
        lack = f"of the samples that {candidate} was proved on, {some} cannot be found as recorded"
        return FoundCheck(check, lack=lack)
    return FoundCheck(check, tuple(f"{name}={file}" for name, file, _ in found))


def _is_file_of(path: Path, digest: str | None) -> bool:
    """Return whether a path is a regular file with this SHA-256."""
    try:
        return path.is_file() and sha256_of(path) == digest
    except OSError:
        return False
