"""Packages: their variants with targets, measured latency and accuracy."""

from __future__ import annotations

from ndld_flow.base.quantities import milliseconds, size
from ndld_flow.base.text import short_name
from ndld_flow.records.package import PackageVariant
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.panel import Panel
from ndld_flow.report.tables import Column, Table, Value

_COLUMNS = (
    Column("Step", kind="label"),
    Column("Variant", kind="label"),
    Column("For"),
    Column("Size", kind="number", text=size),
    Column("Median latency", kind="number", text=milliseconds),
    Column("Measured on"),
    Column("Accuracy"),
)


def collect_packages(documents: RunDocuments) -> Table | None:
    """Return the variants of all packages in their order of preference; None if the run made none."""
    variants = [(step, variant) for step, package in documents.packages.items() for variant in package.variants]
    if not variants:
        return None
    failed = {row for row, (_, variant) in enumerate(variants) if variant.accuracy and not variant.accuracy.passed}
    rows = tuple(_row(step, variant) for step, variant in variants)
    return Table(_COLUMNS, rows, frozenset((row, 6) for row in failed))


def _row(step: str, variant: PackageVariant) -> tuple[Value, ...]:
    return (
        short_name(step),
        short_name(variant.name),
        short_name(variant.target),
        variant.size_bytes,
        variant.latency.median_ms if variant.latency is not None else None,
        short_name(variant.measured_on),
        short_name(variant.accuracy_text.partition(":")[0]),
    )


PANEL = Panel("Packages", collect_packages, after="layers")
