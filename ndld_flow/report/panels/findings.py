"""Findings of lint steps, the worst first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ndld_flow.base.text import short_name, visible_name, visible_text
from ndld_flow.records.inspection import Findings
from ndld_flow.report.panel import Panel

_ORDER = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class FindingRow:
    """One finding."""

    step: str
    severity: str
    check: str
    node: str
    op_type: str
    message: str


@dataclass(frozen=True)
class FindingsView:
    """Findings of all lint steps of a run."""

    rows: tuple[FindingRow, ...]
    counts: dict[str, int]
    """Severity -> number of findings; severities without findings are left out."""
    checks_run: tuple[str, ...]
    checks_skipped: tuple[tuple[str, str], ...]
    """(check, reason)"""


def collect_findings(documents: Mapping[str, Findings]) -> FindingsView | None:
    """Return all findings; None if nothing was linted."""
    if not documents:
        return None
    rows = [
        FindingRow(
            step=visible_name(step),
            severity=finding.severity,
            check=visible_name(finding.check),
            node=visible_name(finding.node),
            op_type=visible_name(finding.op_type),
            message=visible_text(finding.message),
        )
        for step, document in documents.items()
        for finding in document.findings
    ]
    rows.sort(key=lambda row: _ORDER[row.severity])
    run = dict.fromkeys(check for document in documents.values() for check in document.checks_run)
    skipped = {check: reason for document in documents.values() for check, reason in document.checks_skipped.items()}
    return FindingsView(
        rows=tuple(rows),
        counts={s: n for s in _ORDER if (n := sum(row.severity == s for row in rows))},
        checks_run=tuple(map(short_name, run)),
        checks_skipped=tuple((short_name(a), short_name(b)) for a, b in skipped.items()),
    )


def rows_of(view: FindingsView) -> tuple[FindingRow, ...]:
    """Return the rows of the script's table."""
    return view.rows


PANEL = Panel("Findings", lambda documents: collect_findings(documents.of(Findings)), after="steps", data=rows_of)
