"""The data that the page's scripts read: columns, each text once, compressed."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TypeAlias

from ndld_flow.report.collect_findings import FindingRow, FindingsView
from ndld_flow.report.collect_layers import LayersView
from ndld_flow.report.collect_profiles import ProfileView

# What json.dumps takes.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | dict[str, Json] | None"


class Texts:
    """A table of texts: layers of many profiles share their names, types and shapes."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def places(self, texts: Iterable[str]) -> list[int]:
        """Positions of texts in the table, new ones added."""
        known = self._places
        return [known.setdefault(text, len(known)) for text in texts]

    def as_list(self) -> list[str]:
        return list(self._places)


def page_payload(profiles: Sequence[ProfileView], layers: Sequence[LayersView], findings: FindingsView | None) -> str:
    """JSON, gzip, base64: letters that can close no tag. Equal data give equal bytes."""
    texts = Texts()
    data: dict[str, Json] = {
        "profiles": [_profile(profile) for profile in profiles if profile.latency],
        "layers": [_layers(view, texts) for view in layers],
        "findings": _findings(findings, texts) if findings else None,
    }
    data["texts"] = texts.as_list()
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, compresslevel=6, mtime=0)).decode()


def _profile(profile: ProfileView) -> dict[str, Json]:
    assert profile.latency is not None
    numbers = profile.latency.model_dump()
    return {
        "step": profile.step,
        "label": profile.label,
        "runs": [[_rounded(sample) for sample in run] for run in profile.runs],
        "latency": {name: _rounded(value) for name, value in numbers.items()},
        "quartiles_ms": [_rounded(value) for value in profile.quartiles_ms],
    }


def _layers(view: LayersView, texts: Texts) -> dict[str, Json]:
    columns: dict[str, Json] = {
        name: list(map(_rounded, map(attrgetter(name), view.rows)))
        for name in ("index", "share", "median_ms", "min_ms", "max_ms", "depth")
    }
    columns |= {
        name: texts.places(map(attrgetter(name), view.rows))
        for name in ("name", "type", "dims", "provider", "precision", "inputs", "outputs")
    }
    columns["onnx_nodes"] = [texts.places(row.onnx_nodes) for row in view.rows]
    return {"step": view.step, "label": view.label, "sum_ms": view.sum_ms, "columns": columns}


def _findings(view: FindingsView, texts: Texts) -> dict[str, Json]:
    return {field.name: texts.places(map(attrgetter(field.name), view.rows)) for field in fields(FindingRow)}


def _rounded(value: float) -> float:
    """Five digits that matter: finer than any clock here. A record may hold NaN, JSON may not: 0 stands for it."""
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else 0.0
