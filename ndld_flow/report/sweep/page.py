"""All data of a sweep's page, typed, before a single tag is written."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.plain_text import short_name
from ndld_flow.records.sweep import SweepPoint, SweepRecord
from ndld_flow.report.json_values import packed


@dataclass(frozen=True)
class SweepPage:
    """The page of one sweep."""

    title: str
    points: tuple[SweepPoint, ...]
    payload: str

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of the sections this page has, in order."""
        return (("points", "Points"),)


def collect_page(record: SweepRecord) -> SweepPage:
    """Turn a record into page data."""
    return SweepPage(short_name(record.recipe_name), record.points, packed({}))
