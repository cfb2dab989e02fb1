"""Write `ndld_flow/runtimes/tensorrt/release_names.json` from the names that the releases have.

Run in the repository: `python -m tests.support.tensorrt_standin.write_release_names`
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parents[3] / "ndld_flow/runtimes/tensorrt/release_names.json"
_NAMES = Path(__file__).parents[2] / "golden/tensorrt-api.json.xz"


def read_names() -> dict[str, Any]:
    """Return the classes of each release of TensorRT with their attributes, as they were read off the packages."""
    document: dict[str, Any] = json.loads(lzma.decompress(_NAMES.read_bytes()))
    return document


def shipped_form(source: Mapping[str, Any]) -> dict[str, Any]:
    """Class -> span of releases -> the names that these releases have, and no others."""
    releases = source["releases"]
    return {
        "releases": {
            "tensorrt": [release for release in releases if not _is_rtx(release)],
            "tensorrt_rtx": [release.removeprefix("rtx-") for release in releases if _is_rtx(release)],
        },
        "classes": {owner: _names_by_span(entry, releases) for owner, entry in source["classes"].items()},
    }


def _names_by_span(entry: Mapping[str, Any], releases: Sequence[str]) -> dict[str, list[str]]:
    by_span: dict[str, list[str]] = defaultdict(list)
    for name, having in entry["attributes"].items():
        by_span[_span(entry["versions"] if having == "all" else having, releases)].append(name)
    return dict(by_span)


def _span(having: Iterable[str], releases: Sequence[str]) -> str:
    """Runs of releases that follow each other: `10.8.0.43-10.16.1.11 rtx-1.7.1.116`."""
    plain = [release for release in releases if not _is_rtx(release)]
    positions = sorted(plain.index(release) for release in having if not _is_rtx(release))
    runs = [[at for _, at in run] for _, run in groupby(enumerate(positions), lambda pair: pair[1] - pair[0])]
    spans = [plain[run[0]] if len(run) == 1 else f"{plain[run[0]]}-{plain[run[-1]]}" for run in runs]
    return " ".join([*spans, *filter(_is_rtx, having)])


def _is_rtx(release: str) -> bool:
    return release.startswith("rtx-")


def _text(document: Mapping[str, Any]) -> str:
    """A line for each class, so that a new release shows as a readable change."""
    lines = [f"{json.dumps(owner)}: {json.dumps(names)}" for owner, names in sorted(document["classes"].items())]
    return f'{{"releases": {json.dumps(document["releases"])},\n"classes": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    SHIPPED.write_text(_text(shipped_form(read_names())))
