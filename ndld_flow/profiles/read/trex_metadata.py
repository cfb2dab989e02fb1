"""Reader for TREx's metadata: the sections of trtexec's log as JSON, and CUDA's description of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.profiles.read.json_values import objects_in, plain_json, text_of, whole_of
from ndld_flow.profiles.read.text_files import read_whole
from ndld_flow.profiles.read.tolerant_json import parse_tolerantly
from ndld_flow.profiles.read.trtexec_log import SECTIONS, TrtexecLog, take_inference_shape


@dataclass(frozen=True)
class DeviceMetadata:
    """The device as CUDA describes it."""

    name: str
    cuda: str
    """Version of CUDA's driver interface, `11.6`; empty if not recorded."""


def take_metadata(log: TrtexecLog, path: Path) -> None:
    """Add the sections of `*.build.metadata.json` or `*.profile.metadata.json` to a log.

    Raises RequestError when the file cannot be read, ValueError when it is empty.
    """
    document = parse_tolerantly(read_whole(path)).value
    for name in SECTIONS:
        section = document.get(name) if isinstance(document, dict) else None
        if isinstance(section, dict):
            log.sections.setdefault(name, {}).update(_plain(section))
    take_inference_shape(log, log.text("inference_options", "Input inference shape"))


def read_device(path: Path) -> DeviceMetadata:
    """Read `*.engine.metadata.json`. Raises RequestError when it cannot be read, ValueError when it is empty."""
    document = parse_tolerantly(read_whole(path)).value
    first = next(objects_in(document if isinstance(document, list) else [document]), {})
    version = first.get("CUDA_VERSION")
    parts = [str(part) for part in map(whole_of, version if isinstance(version, list) else []) if part is not None]
    return DeviceMetadata(text_of(first.get("Name")), ".".join(parts[:2]))


def _plain(section: Mapping[str, object]) -> dict[str, JsonValue]:
    return {text_of(str(key)): plain_json(value) for key, value in list(section.items())[:200]}
