"""What all records share: frozen, strict, versioned JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A typed piece of what was done or measured. Unknown keys are refused; field names carry units."""

    # JSON has no NaN: as a text it is read back, as the default `null` it would be refused.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Indented JSON, with a final newline, that `model_validate_json` reads back to an equal record."""
        return self.model_dump_json(indent=1) + "\n"
