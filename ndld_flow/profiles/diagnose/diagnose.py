"""Diagnose profiles and engines: apply all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ndld_flow.profiles.diagnose import rules_engines, rules_overheads, rules_placement, rules_roofline
from ndld_flow.profiles.diagnose import rules_engines as rules_builds
from ndld_flow.profiles.diagnose import rules_fusion as rules_leftovers
from ndld_flow.profiles.diagnose import rules_launches as rules_dispatch
from ndld_flow.profiles.diagnose import rules_measurement as rules_conditions
from ndld_flow.profiles.diagnose import rules_measurement as rules_steadiness
from ndld_flow.profiles.diagnose import rules_overheads as rules_transfers
from ndld_flow.profiles.diagnose import rules_roofline as rules_concentration
from ndld_flow.profiles.diagnose.engine_subject import EngineSubject
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.lints import LINTS
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Profile

Rule = Callable[[Subject], Iterator[Insight]]

RULES: tuple[Rule, ...] = (
    rules_overheads.reformats,
    rules_overheads.casts,
    rules_overheads.copies,
    rules_overheads.control_flow_on_gpu,
    rules_concentration.one_layer,
    rules_concentration.one_type,
    rules_dispatch.many_tiny_layers,
    rules_dispatch.time_outside_layers,
    rules_dispatch.layers_explain_little,
    rules_dispatch.bound_by_enqueue,
    rules_transfers.transfers,
    rules_placement.cpu_fallback,
    rules_placement.single_precision_left,
    rules_placement.half_precision_on_cpu,
    rules_placement.single_precision_on_gpu,
    rules_roofline.far_from_roof,
    rules_roofline.padded_channels,
    rules_roofline.elementwise_chains,
    rules_leftovers.shapes_at_run_time,
    rules_leftovers.normalization_not_folded,
    rules_leftovers.factor_not_folded,
    rules_leftovers.activation_not_fused,
    rules_leftovers.hard_swish_in_parts,
    rules_conditions.more_threads_than_cpus,
    rules_conditions.larger_batches_pay,
    rules_conditions.times_of_the_host,
    rules_conditions.profiler_overhead,
    rules_conditions.busy_machine,
    rules_conditions.clocks_not_fixed,
    rules_conditions.memory_beyond_weights,
    rules_steadiness.variation,
    rules_steadiness.runs_disagree,
    rules_steadiness.drift,
    rules_steadiness.outliers,
    rules_steadiness.cold_start,
    *LINTS,
)
"""Rules that may save time first; equal scores keep this order."""


def diagnose(profile: Profile) -> tuple[Insight, ...]:
    """Return the findings on a profile, those that may save most first."""
    return insights_of(Subject(profile))


def insights_of(subject: Subject) -> tuple[Insight, ...]:
    """Return the result of `diagnose` for a subject that already exists."""
    found = [replace(insight, score=min(1.0, insight.score)) for rule in RULES for insight in rule(subject)]
    return tuple(sorted(found, key=lambda insight: -insight.score))


EngineRule = Callable[[EngineSubject], Iterator[Insight]]

ENGINE_RULES: tuple[EngineRule, ...] = (
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
