"""Facts of a report, and settings, options and shapes as short text, in recipe syntax."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.quantities import TIMES, size
from ndld_flow.base.text import short_name

if TYPE_CHECKING:
    from ndld_flow.records.measurement import Machine
    from ndld_flow.records.profile import TensorInfo


@dataclass(frozen=True)
class Fact:
    """A name with a value, such as a setting in force; `facts` in `macros.html.j2` draws a table of them."""

    name: str
    value: str
    given: bool = True
    """False for a setting that the recipe does not set, or whose value is null or empty."""


@dataclass(frozen=True)
class Figure:
    """One figure of a page's overview; `glance` in `macros.html.j2` draws them."""

    title: str
    figure: str
    note: str
    wordy: bool = False
    tensor: str = ""
    link: str = ""
    """Link to its tensor."""


def facts_of(values: Mapping[str, str]) -> tuple[Fact, ...]:
    """Return the names and texts of a mapping, shortened."""
    return tuple(Fact(short_name(name), short_name(value)) for name, value in values.items())


def machine_settings(machine: Machine) -> tuple[Fact, ...]:
    """Return a machine's description without empty fields."""
    named = {
        "system": machine.system,
        "architecture": machine.architecture,
        "cpu": machine.cpu,
        "cpu count": str(machine.cpu_count or ""),
        "memory": size(machine.memory_bytes) if machine.memory_bytes else "",
        "gpu": ", ".join(machine.gpus),
        "driver": machine.driver,
        "python": machine.python,
    }
    return tuple(Fact(name, short_name(value)) for name, value in named.items() if value)


def settings_of(values: JsonValue, given: JsonValue = None) -> tuple[Fact, ...]:
    """Return the settings of a mapping; empty for other values."""
    if not isinstance(values, Mapping):
        return ()
    named = given if isinstance(given, Mapping) else values
    return tuple(
        Fact(short_name(name), _setting_text(value, named.get(name)), name in named and value not in (None, [], {}))
        for name, value in values.items()
        if name != "step"
    )


def _setting_text(value: JsonValue, given: JsonValue) -> str:
    """Return the value of a setting. A list of mappings, such as operations, has one line per item, without
    defaults."""
    shown = given if isinstance(given, list) else value
    if isinstance(shown, list) and any(isinstance(item, dict) for item in shown):
        texts = [(item, value_text(item)) for item in shown]
        # An operation without settings is shown without braces.
        return "\n".join(
            f"- {text[1:-1] if isinstance(item, dict) and len(item) == 1 else text}" for item, text in texts
        )
    return value_text(value)


def value_text(value: JsonValue) -> str:
    """Return a value in YAML-like flow style: `true`, `64`, `[Softmax]`, `{op_types: [Softmax]}`."""
    if isinstance(value, str):
        return short_name(" ".join(value.splitlines()), 400) or '""'
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        pairs = (f"{short_name(key)}: {value_text(inner)}" for key, inner in value.items() if inner is not None)
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value)


@lru_cache(maxsize=4096)
def shape_text(shape: tuple[int, ...]) -> str:
    """Return `1x3x320x?` with multiplication signs and `?` for dynamic dimensions; `scalar` without dimensions."""
    return TIMES.join("?" if dim < 0 else str(dim) for dim in shape) or "scalar"


def tensor_text(tensor: TensorInfo) -> str:
    """Return type and shape, `float32 1x3x320x320`."""
    return f"{short_name(tensor.dtype, 40)} {shape_text(tensor.shape)}".strip()
