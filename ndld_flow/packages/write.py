"""Write a package: models and engines with their records, in the layouts of ONNX Runtime and Triton."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ndld_flow.graph.model_tool import copy_model
from ndld_flow.models.files import load_structure
from ndld_flow.packages import onnxruntime_package, triton_repository
from ndld_flow.packages.describe_variant import VariantSource, describe_variant
from ndld_flow.packages.model_card import write_card
from ndld_flow.packages.settings import PackageSettings, Variant
from ndld_flow.records.package import Package, PackagedFile, PackagedLicense, PackageVariant
from ndld_flow.step import Context
from ndld_flow.store.files import copy_file
from ndld_flow.store.kinds import Engine, Onnx
from ndld_flow.store.kinds import Package as PackageArtifact

RECIPE = "recipe.yaml"
CARD = "README.md"
_LICENSE_KEYS = ("license", "licence", "licenses", "license_name", "license_id", "spdx_license", "spdx")
"""Keys of metadata that name a licence, without regard to case."""


@dataclass(frozen=True)
class PackageRequest:
    """The settings and the sources of a package."""

    settings: PackageSettings
    source: Onnx
    context: Context

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe as plain data; empty if the step was run without one."""
        return yaml.safe_load(self.context.recipe) or {}

    @property
    def name(self) -> str:
        return self.settings.name or str(self.recipe.get("name") or self.context.name)

    def variants(self) -> Iterator[tuple[str, Variant, VariantSource]]:
        """Yield the name, settings and sources of each variant; the model that is read if none is named."""
        for name, variant in self.settings.variants.items():
            prefix = f"variants.{name}."
            read = {
                key.removeprefix(prefix): artifact
                for key, artifact in self.context.artifacts.items()
                if key.startswith(prefix) and "." not in key.removeprefix(prefix)
            }
            yield name, variant, VariantSource(name, variant, read)
        if not self.settings.variants:
            default = Variant(model=self.source.label)
            yield "model", default, VariantSource("model", default, {"model": self.source})


def write_package(request: PackageRequest, out: Path) -> Package:
    """Write a package into an empty folder.

    Raises `RequestError` if a measurement is not that of its variant, or a setting does not suit a model.
    """
    written: dict[tuple[str, str], PackageVariant] = {}
    variants: list[PackageVariant] = []
    for name, settings, source in request.variants():
        request.context.progress(len(variants), len(request.settings.variants) or 1, name)
        variant = describe_variant(source, folder=f"models/{request.name}.{name}/1", records=f"records/{name}")
        config = triton_repository.describe(variant, settings, source)
        known = written.get((variant.digest, config.text))
        if known is not None and known.file == variant.file:
            variant = variant.model_copy(update={"folder": known.folder})
        else:
            _copy_artifact(source, out / variant.folder)
            if config.text:
                (out / variant.folder).parent.joinpath("config.pbtxt").write_text(config.text, encoding="utf-8")
        triton = str(PurePosixPath(variant.folder).parent) if config.text else None
        notes = (*variant.notes, *([config.refusal] if config.refusal else []))
        variant = variant.model_copy(update={"triton": triton, "notes": notes})
        written.setdefault((variant.digest, config.text), variant)
        _copy_records(source, out / "records" / name)
        variants.append(variant)
    return _finish(request, variants, out)


def _copy_artifact(source: VariantSource, folder: Path) -> None:
    folder.mkdir(parents=True)
    if isinstance(source.artifact, Onnx):
        copy_model(source.artifact.path, folder)
    else:
        copy_file(source.artifact.path, folder / Engine.main)


def _copy_records(source: VariantSource, folder: Path) -> None:
    for path in source.record_files():
        copy_file(path, folder / path.name)


def _finish(request: PackageRequest, variants: Sequence[PackageVariant], out: Path) -> Package:
    """Write the files that describe the whole package, `package.json` last."""
    settings = request.settings
    if request.context.recipe:
        (out / RECIPE).write_text(request.context.recipe, encoding="utf-8")
    for path in settings.license_files:
        copy_file(path, out / "licenses" / path.name)
    manifest = onnxruntime_package.manifest(
        request.name, settings.package_version, _description(request), variants, out
    )
    package = Package(
        name=request.name,
        package_version=settings.package_version,
        description=_description(request),
        licenses=tuple(_licenses(request)),
        variants=tuple(variants),
        onnxruntime_schema=onnxruntime_package.SCHEMA if manifest else "",
        files=(),
        notes=tuple(_notes(variants)),
    )
    (out / CARD).write_text(write_card(package), encoding="utf-8")
    package = package.model_copy(update={"files": tuple(_list_files(out))})
    (out / PackageArtifact.main).write_text(package.to_json(), encoding="utf-8")
    return package


def _description(request: PackageRequest) -> str:
    return request.settings.description or str(request.recipe.get("description") or "")


def _licenses(request: PackageRequest) -> Iterator[PackagedLicense]:
    """Yield the licences that the recipe and the model's metadata state; both, if they differ."""
    files = tuple(f"licenses/{path.name}" for path in request.settings.license_files)
    given = request.settings.license.strip()
    if given:
        yield PackagedLicense(license=given, basis="recipe", files=files)
    elif files:
        yield PackagedLicense(license="see the files", basis="recipe", files=files)
    metadata = load_structure(request.source.path).metadata_props
    for key, value in sorted(metadata.items()):
        if key.casefold() in _LICENSE_KEYS and value.strip() and value.strip() != given:
            yield PackagedLicense(license=value.strip(), basis=f"metadata `{key}` of the model")


def _notes(variants: Sequence[PackageVariant]) -> Iterator[str]:
    """Yield differences between variants that a program which switches between them must know."""
    first = variants[0]
    for side in ("inputs", "outputs"):
        for variant in variants[1:]:
            one, other = ({(each.name, each.dtype) for each in getattr(part, side)} for part in (first, variant))
            if one != other:
                differing = ", ".join(sorted({name for name, _ in one ^ other}))
                yield f"{variant.name} and {first.name} have different {side}: {differing}"


def _list_files(out: Path) -> Iterator[PackagedFile]:
    for path in sorted(out.rglob("*"), key=lambda each: each.relative_to(out).as_posix()):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            name = path.relative_to(out).as_posix()
            yield PackagedFile(path=name, sha256=digest, size_bytes=path.stat().st_size)
