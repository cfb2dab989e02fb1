"""A point of a sweep as a command, in Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import JsonValue

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "nan", "inf"}


def point_overrides(changes: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Overrides that give a recipe a point's values: `steps.speed.threads=2`."""
    return tuple(f"{key}={_write_value(value)}" for key, value in changes.items())


def _write_value(value: JsonValue) -> str:
    """A value in Hydra's override grammar."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_write_value(key)}:{_write_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write_value, value)) + "]"
    if isinstance(value, str):
        return _write_text(value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _write_text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Hydra's grammar: a backslash counts only in front of the quote that it hides.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
