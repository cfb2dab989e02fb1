"""Pack variants of a model for several targets into one package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from ndld_flow.base.quantities import counted, size
from ndld_flow.packages.settings import PackageSettings
from ndld_flow.records.measurement import Metric
from ndld_flow.step import Context, Reads, Result, Returns, Step, metrics
from ndld_flow.store.kinds import AccuracyDocument, Onnx, Package


class PackageModel(PackageSettings, Step[Onnx, Package]):
    """Pack variants of a model for several targets into one package.

    A package has the models and engines, the recipe, their measured latency and accuracy, licences, a model card
    (`README.md`), and the SHA-256 of every file. ONNX Runtime opens it as a model package (`manifest.json`), and Triton
    serves its folder `models`. `export: {dist/model.zip: STEP}` or `-o model.zip` writes it as one file, and `ndld-flow
    fits` names the variant for a machine. `from` is the model whose metadata describe the package; without `variants`
    it is the only variant. The same inputs give the same bytes.
    """

    also_called: ClassVar[tuple[str, ...]] = ("pack", "bundle", "deploy", "modelpackage", "triton")
    synonyms: ClassVar[Mapping[str, str]] = {"models": "variants", "licence": "license", "version": "package_version"}

    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir")
    keeps_recipe: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("variants", "files"),
        *metrics("package.bytes", unit="bytes"),
    )

    @property
    def read_through(self) -> tuple[str, ...]:
        """Return the accuracy checks, whose models must be those of the variants."""
        return tuple(held.dotted for held in self.held(Reads) if held.mark.kind is AccuracyDocument)

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.packages.write import PackageRequest, write_package

        package = write_package(PackageRequest(self, source, context), out)
        for note in (*package.notes, *(f"{each.name}: {note}" for each in package.variants for note in each.notes)):
            context.log.info("%s", note)
        total = sum(file.size_bytes for file in package.files)
        names = ", ".join(variant.name for variant in package.variants[:5])
        more = ", ..." if len(package.variants) > 5 else ""
        unknown = "" if package.licenses else "; licence unknown"
        return Result(
            f"{counted(len(package.variants), 'variant')} ({names}{more}), {size(total)}{unknown}",
            metrics={
                "variants": Metric(value=len(package.variants)),
                "files": Metric(value=len(package.files)),
                "package.bytes": Metric(value=total, unit="bytes"),
            },
        )
