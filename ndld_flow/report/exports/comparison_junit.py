"""Write a comparison as JUnit XML, which CI systems show with their tests.

A profile is a test suite, and each gate and candidate a test case. A comparison without gates has one test case per
candidate: the verdict of the deciding metric, which also decides the exit code. Failed gates and regressions are
failures. Inconclusive and incomparable are `error`, so that undecided results do not look like passed or skipped tests.
With `when_undecided: pass` inconclusive is `skipped`, and with `fail` a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from ndld_flow.base.text import short_name
from ndld_flow.records.comparison import Comparison, ProfileComparison

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow, not even as references."""
_ELEMENTS = {"failed": "failure", "regressed": "failure", "incomparable": "error"}
"""Outcome or verdict -> element of the test case; none if it passed."""
_UNDECIDED = {"inconclusive": "error", "pass": "skipped", "fail": "failure"}
"""`when_undecided` -> element of inconclusive results."""
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


@dataclass(frozen=True)
class _Case:
    name: str
    candidate: int
    outcome: str
    why: str


def comparison_junit(comparison: Comparison) -> str:
    """Return JUnit XML of a comparison's gates, or of its verdicts if it has no gates."""
    root = Xml.Element("testsuites", name="ndld-flow compare")
    for compared in comparison.profiles:
        suite = Xml.SubElement(root, "testsuite", name=_text(compared.name))
        for case in _cases(comparison, compared):
            _add(suite, comparison, compared, case)
        _count(suite)
    _count(root)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _cases(comparison: Comparison, compared: ProfileComparison) -> Iterator[_Case]:
    if comparison.gates:
        for gate in comparison.gates:
            if gate.name == compared.name:
                yield _Case(gate.gate, gate.candidate, gate.outcome, gate.why)
        return
    for verdict in compared.deciding:
        yield _Case(verdict.metric, verdict.candidate, verdict.verdict, verdict.why)


def _add(suite: Xml.Element, comparison: Comparison, compared: ProfileComparison, case: _Case) -> None:
    subjects = [comparison.subjects[place].label for place in compared.subjects]
    against = f"{subjects[case.candidate]} against {subjects[0]}"
    element = Xml.SubElement(
        suite, "testcase", name=_text(f"{case.name} ({against})"), classname=_text(compared.name), time="0"
    )
    undecided = case.outcome == "inconclusive"
    kind = _UNDECIDED[comparison.when_undecided] if undecided else _ELEMENTS.get(case.outcome)
    if kind is None:
        Xml.SubElement(element, "system-out").text = _text(f"{case.outcome}: {case.why}", 2_000)
        return
    message = _text(f"{case.outcome}: {case.why}", 2_000)
    child = Xml.SubElement(element, kind, message=message)
    if kind != "skipped":
        child.set("type", case.outcome)
        child.text = message


def _count(element: Xml.Element) -> None:
    element.set("tests", str(len(list(element.iter("testcase")))))
    for name, tag in _COUNTS.items():
        element.set(name, str(len(list(element.iter(tag)))))


def _text(text: str, limit: int = 300) -> str:
    """Return one line without characters that XML does not allow."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", short_name(text, limit))
