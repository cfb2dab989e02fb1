"""External data that is missing, short or forbidden, and any other reason why a model cannot be loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.records.inspection import Finding


class ExternalData(Check):
    """Missing, short or forbidden external data, and any other reason why the model cannot be loaded."""

    order = 10
    severity = "error"

    def find(self, subject: Subject) -> Iterator[Finding]:
        if subject.load_error:
            check = self.name if "external data" in subject.load_error else "load"
            yield Finding(severity=self.severity, check=check, message=subject.load_error)
