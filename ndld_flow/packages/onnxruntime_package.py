"""ONNX Runtime's model package: `manifest.json`.

The format is that of `model_package/README.md` and `onnxruntime/core/session/model_package/README.md` in ONNX Runtime's
repository, schema 1.0, which ONNX Runtime 1.29 and later open. The format has a version, but ONNX Runtime's functions
that open a package are still experimental.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ndld_flow.records.package import PackageVariant

SCHEMA = "1.0"
MANIFEST = "manifest.json"
_DEVICES = {
    "CPUExecutionProvider": "cpu",
    "CUDAExecutionProvider": "gpu",
    "TensorrtExecutionProvider": "gpu",
    "NvTensorRTRTXExecutionProvider": "gpu",
    "DmlExecutionProvider": "gpu",
}
"""Execution providers that always compute on one type of device."""


def manifest(name: str, version: str, description: str, variants: Sequence[PackageVariant], out: Path) -> bool:
    """Write `manifest.json` for the ONNX models; return False if there are none. ONNX Runtime cannot open engines.

    ONNX Runtime selects the first variant for the execution provider that a program chooses, so the order of
    preference is kept; a variant without a known provider is never selected.
    """
    listed = {variant.name: _describe(variant) for variant in variants if variant.kind == "onnx"}
    if not listed:
        return False
    texts = {"package_name": name, "package_version": version, "description": description}
    body = {
        "schema_version": SCHEMA,
        **{key: text for key, text in texts.items() if text},
        "layout": "portable",
        "components": {name: {"component_name": name, "variants": listed}},
    }
    (out / MANIFEST).write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


def _describe(variant: PackageVariant) -> dict[str, Any]:
    place = {"ep": variant.provider} if variant.provider else {}
    if variant.provider in _DEVICES:
        place["device"] = _DEVICES[variant.provider]
    return {
        "variant_directory": variant.folder,
        **place,
        "executor_info": {"ort": {"model_file": variant.file}},
    }
