"""The report of a run: collect typed page data from records, then render one file.

Imports records only, so a report can be drawn again on a laptop that has none of the heavy libraries.
"""

from __future__ import annotations

from ndld_flow.report.draw import draw_report
from ndld_flow.report.verdict import summarize_run

__all__ = ["draw_report", "summarize_run"]
