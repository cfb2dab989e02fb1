"""Settings of the variants of a package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ndld_flow.base.settings import Settings
from ndld_flow.engines.build_settings import ComputeCapability
from ndld_flow.step import DataFile, Reads
from ndld_flow.store.kinds import AccuracyDocument, Engine, Onnx, ProfileDocument

VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]
"""The name of a variant, which is also a part of folder names."""


class Variant(Settings):
    """A model or an engine for one target, with its measurements there.

    The same model measured on two machines is two variants, which share its files.
    """

    model: Annotated[str | None, Reads(Onnx)] = None
    """The step whose model it is, or `source`."""
    engine: Annotated[str | None, Reads(Engine)] = None
    """The step whose engine it is."""
    latency: Annotated[str | None, Reads(ProfileDocument)] = None
    """The step that measured this model or engine. The profile of anything else is rejected."""
    accuracy: Annotated[str | None, Reads(AccuracyDocument)] = None
    """The step that checked this model as its `candidate`; for an engine, the model from which it was built."""
    provider: str | None = None
    """Execution provider of ONNX Runtime: `cpu`, `cuda`, `tensorrt`, or the full name; by default the one that was
    measured. Without both, it is recorded as unknown."""
    cpu_features: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], ...] = ()
    """CPU features that it needs, by the names of /proc/cpuinfo, such as `avx512_vnni`."""
    compute_capabilities: tuple[ComputeCapability, ...] = ()
    """Compute capabilities of an engine whose build did not list them, such as `9.0`; by default it fits only GPUs of
    the name of the one that built it."""
    max_batch_size: Annotated[int, Field(ge=0)] = 0
    """Triton: the largest batch that its batcher forms. The first dimension of all inputs and outputs must then be
    dynamic. With 0, Triton passes requests as they are, whose shapes include the batch."""
    instances: Annotated[int, Field(ge=1, le=1000)] = 1
    """Triton: copies that run at the same time, on each GPU or on the CPU."""

    @model_validator(mode="after")
    def _check_kind(self) -> Variant:
        if (self.model is None) == (self.engine is None):
            raise ValueError("give either `model` or `engine`")
        if self.engine is not None and self.provider is not None:
            raise ValueError("`provider` is for a `model`: TensorRT runs an engine itself")
        if self.model is not None and self.compute_capabilities:
            raise ValueError("`compute_capabilities` are those of an `engine`: remove them")
        return self


class PackageSettings(Settings):
    """Settings of a package."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=60)] = ""
    """Name of the model in the package; by default the name of the recipe, or of this step."""
    package_version: str = ""
    """Version of the package, such as `1.4.0`."""
    description: str = ""
    """A sentence for the model card; by default the recipe's."""
    license: str = ""
    """Licence of the model, such as `Apache-2.0`; by default the one in the model's metadata. Without both, it is
    recorded as unknown."""
    license_files: Annotated[tuple[Path, ...], DataFile()] = ()
    """Files with the text of the licence, and notices, to include."""
    variants: dict[VariantName, Variant] = Field(default={})
    """Name -> model or engine, in order of preference."""

    @model_validator(mode="after")
    def _check_names(self) -> PackageSettings:
        names = [path.name.casefold() for path in self.license_files]
        if len(set(names)) < len(names):
            raise ValueError("`license_files` has two files of one name: rename one")
        folded = [name.casefold() for name in self.variants]
        if len(set(folded)) < len(folded):
            raise ValueError("`variants` has two names that differ only in case, which some disks cannot hold")
        return self
