"""Rules on precision searches and on the comparisons of their models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ndld_flow.base.quantities import counted, number, share
from ndld_flow.base.text import one_line
from ndld_flow.profiles.diagnose.subject import Insight, rules_in
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.precision_search import PrecisionSearch

_COSTLY = 0.1
"""Minimum share of the time of all layers."""
_USED_BY = {"fp16": "`convert_fp16`", "bf16": "`constrain_precision`", "int8": "`quantize`"}


@dataclass(frozen=True)
class SearchSubject:
    """A search, and its use in the run."""

    step: str
    search: PrecisionSearch
    users: tuple[str, ...]
    """Steps that used the result."""
    checks: tuple[tuple[str, Accuracy], ...]
    """(step, comparison) of the models that those steps produced, or of models that derive from them."""
    kept_part: float | None
    """Share of the kept nodes' layers in the time of all layers; None if not measured."""


def bound_not_met(subject: SearchSubject) -> Iterator[Insight]:
    """Report a bound that no trial met."""
    if subject.search.passed:
        return
    reached = ", ".join(f"{one_line(name)} {number(value)}" for name, value in subject.search.metrics_found.items())
    trials = len(subject.search.trials)
    yield Insight(
        f"No set of nodes meets the bound of {one_line(subject.step)}",
        f"The best of {counted(trials, 'trial')} reached {reached or 'nothing: no trial ran'}.",
        "Raise `trials` and `time`, allow more nodes with `op_types`, or relax the bound.",
    )


def little_left(subject: SearchSubject) -> Iterator[Insight]:
    """Report a result that keeps nearly the whole model at higher precision."""
    search = subject.search
    if not search.passed or len(search.kept) <= search.candidate_count / 2:
        return
    yield Insight(
        f"Most of the model stays in {one_line(search.kept_precision)}",
        f"{len(search.kept)} of {search.candidate_count} nodes are kept: little of the model is in {search.precision}.",
        "Search on realistic `data`, as noise may be harder; relax the bound if it is stricter than "
        "needed, or raise `trials` and `time`.",
    )


def checked_natively_on_cpu(subject: SearchSubject) -> Iterator[Insight]:
    """Report a check with native arithmetic on a CPU, where ONNX Runtime computes fp16 in fp32 and overflows are
    hidden.
    """
    if subject.search.precision == "int8":
        return
    for step, check in subject.checks:
        if check.arithmetic == "native" and check.provider_candidate.startswith("CPU"):
            yield Insight(
                f"{one_line(step)} did not test {subject.search.precision}",
                "It used native arithmetic on a CPU, where ONNX Runtime computes everything in fp32.",
                f"Remove `arithmetic: native` from {one_line(step)}, or run it on the target device.",
            )


def kept_nodes_are_slow(subject: SearchSubject) -> Iterator[Insight]:
    """Report kept nodes whose layers take much of the time."""
    part = subject.kept_part
    if part is None or part < _COSTLY:
        return
    yield Insight(
        f"The layers of the kept nodes take {share(part)} of all layers' time",
        f"{len(subject.search.kept)} nodes stay in {one_line(subject.search.kept_precision)}. "
        "At half the bytes and twice the rate they might take half of this time.",
        "Try `precision: bf16`, which has the range of fp32, or a bound that needs fewer kept nodes.",
        score=min(1.0, part / 2),
    )


def not_used(subject: SearchSubject) -> Iterator[Insight]:
    """Report a search that no step reads."""
    if subject.users or not subject.search.kept:
        return
    yield Insight(
        f"No step of this run uses the result of {one_line(subject.step)}",
        f"{len(subject.search.kept)} nodes have to stay in {one_line(subject.search.kept_precision)}.",
        f"Write `found_by: {one_line(subject.step)}` in {_USED_BY[subject.search.precision]}.",
    )


def not_checked(subject: SearchSubject) -> Iterator[Insight]:
    """Report a model that uses the result if neither it nor a model made from it was compared with its reference."""
    if not subject.users or subject.checks:
        return
    user = one_line(subject.users[0])
    yield Insight(
        f"{user} was not compared with its reference",
        "The search ran on its own samples; the resulting model was not checked.",
        f"Add `check_accuracy` with `candidate: {user}`, on other samples than those of the search.",
    )


def found_on_one_sample(subject: SearchSubject) -> Iterator[Insight]:
    """Report a search on a single sample; other inputs may overflow elsewhere."""
    if subject.search.sample_count != 1 or not subject.search.passed:
        return
    yield Insight(
        f"The result of {one_line(subject.step)} rests on one sample",
        "Overflows on other inputs could not be detected.",
        "Set `data` and `samples` to realistic inputs.",
    )


SEARCH_RULES = rules_in(sys.modules[__name__])


def insights_of_search(subject: SearchSubject) -> tuple[Insight, ...]:
    """Return the findings on a search, in the order of the rules: those that are severe first."""
    return tuple(replace(insight, name=rule.__name__) for rule in SEARCH_RULES for insight in rule(subject))
