"""Apply all engine rules to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ndld_flow.profiles.diagnose import rules_builds, rules_engines
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.lints import LINTS

Rule = Callable[[EngineSubject], Iterator[Insight]]

ENGINE_RULES: tuple[Rule, ...] = (
    rules_engines.outputs_are_made_up,
    rules_engines.weights_are_missing,
    rules_engines.constraints_ignored,
    rules_engines.asked_but_not_given,
    rules_engines.weights_beyond_half,
    rules_builds.layers_unknown,
    rules_engines.single_precision_only,
    rules_engines.single_precision_among_half,
    rules_engines.reformats_at_the_ends,
    rules_engines.reformats_inside,
    rules_engines.shapes_between_host_and_device,
    rules_builds.opt_at_one_end,
    rules_builds.memory_for_the_largest,
    rules_builds.costs_of_compatibility,
    rules_builds.timing_cache,
    *LINTS,
)
"""Rules in order of severity: those that make an engine unusable or wrong first."""


def insights_of_engine(subject: EngineSubject) -> tuple[Insight, ...]:
    """Return the findings on an engine, in the order of the rules."""
    return tuple(insight for rule in ENGINE_RULES for insight in rule(subject))
