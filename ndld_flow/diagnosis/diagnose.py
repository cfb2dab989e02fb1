"""All rules, applied to one profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ndld_flow.diagnosis.insight import Insight
from ndld_flow.diagnosis.subject import Subject
from ndld_flow.records.profile import Profile

Rule = Callable[[Subject], Iterator[Insight]]

RULES: tuple[Rule, ...] = ()


def diagnose(profile: Profile) -> tuple[Insight, ...]:
    """What the profile shows, what may save most first."""
    subject = Subject(profile)
    found = [insight for rule in RULES for insight in rule(subject)]
    return tuple(sorted(found, key=lambda insight: -insight.score))
