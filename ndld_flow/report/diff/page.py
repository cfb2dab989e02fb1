"""Typed data of a diff's page."""

from __future__ import annotations

from dataclasses import dataclass

from ndld_flow.base.text import short_name
from ndld_flow.records.model_diff import ModelDiff
from ndld_flow.report.diff.collect_diff import DiffView, collect_diff
from ndld_flow.report.diff.payload import diff_payload
from ndld_flow.report.json_values import packed
from ndld_flow.report.page_data import DiffPagePayload
from ndld_flow.report.texts import Texts


@dataclass(frozen=True)
class DiffPage:
    """The page of one diff."""

    before: str
    after: str
    view: DiffView
    payload: str

    @property
    def sections(self) -> tuple[tuple[str, str], ...]:
        """(anchor, title) of sections; a page with one table has none."""
        return ()


def collect_page(diff: ModelDiff, names: tuple[str, str]) -> DiffPage:
    """Convert a record to page data."""
    view, texts = collect_diff(diff), Texts()
    data: DiffPagePayload = {"diffs": [diff_payload(view, texts)], "texts": texts.as_list()}
    before, after = map(short_name, names)
    return DiffPage(before, after, view, packed(data))
