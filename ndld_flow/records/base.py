"""The base of all records: frozen, strict, versioned JSON."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, field_validator

from ndld_flow.base.errors import NewerFormatError
from ndld_flow.records.formats import VERSIONS, upgrade

_LAST_VERSION = 9_999
"""A larger number is damage, not a version."""


def _refuse_way_out(name: str) -> str:
    path = PurePath(name)
    if not path.parts or path.anchor or ".." in path.parts or "\0" in name:
        raise ValueError("no path inside a folder")
    return name


InnerPath = Annotated[str, AfterValidator(_refuse_way_out)]
"""The path of a file relative to a folder, with forward slashes, that does not lead out of it."""

FolderName = Annotated[str, StringConstraints(pattern=r"\A[A-Za-z0-9_-]{1,128}\z")]
"""The name of a folder of the store, such as a digest."""


class Record(BaseModel):
    """A typed part of a document. Unknown keys are refused; field names contain units."""

    # JSON has no NaN: as text it can be read back, while the default `null` would be refused.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Return indented JSON, with a final newline, that `model_validate_json` reads back to an equal record."""
        return self.model_dump_json(indent=1) + "\n"


class Document(Record):
    """A record that is written to a file, with its kind and the version of its format (`records/formats.py`)."""

    document: str
    format_version: int

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **settings: Any) -> Self:  # noqa: ANN401
        """Read a document of this version or an earlier one, which is upgraded.

        Raises NewerFormatError for one of a later version, and ValidationError for an invalid one.
        """
        try:
            return super().model_validate_json(json_data, **settings)
        except _OlderFormatError:
            return cls.model_validate(upgrade(cls._document(), json.loads(json_data)), **settings)

    @field_validator("format_version")
    @classmethod
    def _is_known(cls, found: int) -> int:
        """Check the version. The errors are no ValueErrors, so that they win over pydantic's other errors."""
        known = VERSIONS[cls._document()]
        if not 0 < found <= _LAST_VERSION:
            raise ValueError("no version of a format")
        if found > known:
            raise NewerFormatError(f"a `{cls._document()}`", found, known)
        if found < known:
            raise _OlderFormatError
        return found

    @classmethod
    def _document(cls) -> str:
        name: str = cls.model_fields["document"].default
        return name


class _OlderFormatError(Exception):
    """A document is of an earlier version, or one inside it is."""
