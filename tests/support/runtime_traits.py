"""Facts of a runtime, for profiles that tests write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ndld_flow.records.document import upgrade


def with_traits(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a profile with the facts of its runtime, as records of version 3 are upgraded."""
    providers = list(fields.get("providers", ()))
    upgraded = upgrade("profile", {**fields, "providers": providers, "format_version": 3})
    assert isinstance(upgraded, dict)
    return {"runtime": upgraded["runtime"], **fields}
