"""Domains of operators that the model does not import."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.graph.lint.check import Check, Subject
from ndld_flow.models.files import DEFAULT_DOMAIN, assumed_version
from ndld_flow.records.inspection import Finding


class MissingImport(Check):
    """Domains whose operators the model uses without an import of a version."""

    order = 45

    def find(self, subject: Subject) -> Iterator[Finding]:
        imported = {entry.domain or DEFAULT_DOMAIN for entry in subject.proto.opset_import}
        nodes = (node for graph in subject.graphs() for node in graph.node)
        used = dict.fromkeys(node.domain or DEFAULT_DOMAIN for node in nodes)
        for domain in used.keys() - imported:
            version = assumed_version(domain, bool(imported), subject.proto.ir_version)
            yield self.finding(
                f"the operators of {domain!r} are used, but no version of them is imported; steps import version "
                f"{version}, and `set_opset` of `edit` another one",
                severity="warning" if imported else "error",
            )
