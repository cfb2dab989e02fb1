"""The model card of a package, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ndld_flow.base.quantities import milliseconds, size
from ndld_flow.base.text import short_name
from ndld_flow.records.package import Package, PackagedTensor

UNKNOWN = "unknown"
_ACTIVE = re.compile(r"([\\`*_{}\[\]()<>#+!|~&-])")
_LONGEST = 400


def write_card(package: Package) -> str:
    """Return the card: variants with their requirements, latency and accuracy, inputs and outputs, licences, files."""
    return "\n".join(_lines(package)) + "\n"


def plain(text: str) -> str:
    """Return text for Markdown without an effect: names and metadata in models may be hostile."""
    return _ACTIVE.sub(r"\\\1", short_name(text, _LONGEST))


def _lines(package: Package) -> Iterator[str]:
    version = f" {plain(package.package_version)}" if package.package_version else ""
    yield f"# {plain(package.name)}{version}"
    yield ""
    if package.description:
        yield plain(package.description)
        yield ""
    yield f"`ndld-flow fits .` names the variant for a machine. The order is that of preference: {_names(package)}."
    yield ""
    yield "## Variants"
    yield ""
    yield from _table(
        ("Variant", "For", "Size", "Latency (median)", "Measured on", "Accuracy"),
        [
            (
                plain(each.name),
                plain(each.target),
                size(each.size_bytes),
                milliseconds(each.latency.median_ms) if each.latency is not None else "not measured",
                plain(each.measured_on),
                plain(each.accuracy_text),
            )
            for each in package.variants
        ],
    )
    yield ""
    yield "A latency is valid on its machine with its version only: those of different machines do not compare."
    yield ""
    notes = [*package.notes, *(f"{each.name}: {note}" for each in package.variants for note in each.notes)]
    if notes:
        yield from (f"- {plain(note)}" for note in notes)
        yield ""
    yield from _interface(package)
    yield from _license_lines(package)
    yield from _layout(package)


def _names(package: Package) -> str:
    return ", ".join(plain(variant.name) for variant in package.variants)


def _interface(package: Package) -> Iterator[str]:
    first = package.variants[0]
    yield "## Inputs and outputs"
    yield ""
    rows = [("input", each) for each in first.inputs] + [("output", each) for each in first.outputs]
    yield from _table(
        ("", "Name", "Type", "Shape"),
        [(side, plain(each.name), plain(each.dtype), _shape(each)) for side, each in rows],
    )
    yield ""


def _shape(tensor: PackagedTensor) -> str:
    if tensor.shape is None:
        return UNKNOWN
    return " x ".join(plain(str(dim)) if dim is not None else "?" for dim in tensor.shape) or "scalar"


def _license_lines(package: Package) -> Iterator[str]:
    yield "## License"
    yield ""
    if not package.licenses:
        yield "Unknown: neither the recipe nor the model's metadata state one."
    for each in package.licenses:
        files = f" ({', '.join(map(plain, each.files))})" if each.files else ""
        yield f"- {plain(each.license)}{files}, as stated by the {plain(each.basis)}"
    yield ""


def _layout(package: Package) -> Iterator[str]:
    yield "## Files"
    yield ""
    yield "- `package.json`: all of this as data, and the SHA-256 of every file"
    if package.onnxruntime_schema:
        yield f"- `manifest.json`: ONNX Runtime's model package, schema {package.onnxruntime_schema}"
    if any(variant.triton is not None for variant in package.variants):
        yield "- `models`: the models, as a repository of Triton: `tritonserver --model-repository=models`"
    yield "- `records`: measurements, accuracy checks and builds, as ndld-flow wrote them"
    yield "- `recipe.yaml`: the recipe that made it"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
