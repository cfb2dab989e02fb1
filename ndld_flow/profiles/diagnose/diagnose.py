"""Diagnose profiles and engines: apply all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ndld_flow.profiles.diagnose import (
    rules_engines,
    rules_fusion,
    rules_launches,
    rules_measurement,
    rules_overheads,
    rules_placement,
    rules_roofline,
)
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
    rules_roofline.one_layer,
    rules_roofline.one_type,
    rules_launches.many_tiny_layers,
    rules_launches.time_outside_layers,
    rules_launches.layers_explain_little,
    rules_launches.bound_by_enqueue,
    rules_overheads.transfers,
    rules_placement.cpu_fallback,
    rules_placement.single_precision_left,
    rules_placement.half_precision_on_cpu,
    rules_placement.single_precision_on_gpu,
    rules_roofline.far_from_roof,
    rules_roofline.padded_channels,
    rules_roofline.elementwise_chains,
    rules_fusion.shapes_at_run_time,
    rules_fusion.normalization_not_folded,
    rules_fusion.factor_not_folded,
    rules_fusion.activation_not_fused,
    rules_fusion.hard_swish_in_parts,
    rules_measurement.more_threads_than_cpus,
    rules_measurement.larger_batches_pay,
    rules_measurement.times_of_the_host,
    rules_measurement.profiler_overhead,
    rules_measurement.busy_machine,
    rules_measurement.clocks_not_fixed,
    rules_measurement.memory_beyond_weights,
    rules_measurement.variation,
    rules_measurement.runs_disagree,
    rules_measurement.drift,
    rules_measurement.outliers,
    rules_measurement.cold_start,
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
    rules_engines.layers_unknown,
    rules_engines.single_precision_only,
    rules_engines.single_precision_among_half,
    rules_engines.reformats_at_the_ends,
    rules_engines.reformats_inside,
    rules_engines.shapes_between_host_and_device,
    rules_engines.opt_at_one_end,
    rules_engines.memory_for_the_largest,
    rules_engines.costs_of_compatibility,
    rules_engines.timing_cache,
    *LINTS,
)
"""Rules in order of severity: those that make an engine unusable or wrong first."""


def insights_of_engine(subject: EngineSubject) -> tuple[Insight, ...]:
    """Return the findings on an engine, in the order of the rules."""
    return tuple(insight for rule in ENGINE_RULES for insight in rule(subject))
