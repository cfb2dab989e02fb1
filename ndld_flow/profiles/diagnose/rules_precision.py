"""What a precision search, and the comparisons of the models made with it, leave open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ndld_flow.base.quantities import number, share
from ndld_flow.profiles.diagnose.insight import Insight
from ndld_flow.profiles.diagnose.subject import one_line
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.precision_search import PrecisionSearch

_COSTLY = 0.1
"""Of the time of all layers: less than this is hardly worth a second look."""
_USED_BY = {"fp16": "`convert_fp16`", "bf16": "`constrain_precision`", "int8": "`quantize`"}


@dataclass(frozen=True)
class SearchSubject:
    """A search, and what its run made of it."""

    step: str
    search: PrecisionSearch
    users: tuple[str, ...]
    """Steps that used what was found."""
    checks: tuple[tuple[str, Accuracy], ...]
    """(step, comparison) of the models that they made."""
    kept_part: float | None
    """Share of the time of all layers that those of the kept nodes take; None where it was not measured."""


def bound_not_met(subject: SearchSubject) -> Iterator[Insight]:
    """The budget ended, or nothing helps."""
    if subject.search.passed:
        return
    told = ", ".join(f"{one_line(name)} {number(value)}" for name, value in subject.search.metrics_found.items())
    trials = len(subject.search.trials)
    yield Insight(
        0.0,
        f"No set of nodes meets the bound of {one_line(subject.step)}",
        f"The best of {trials} trial{'s' if trials != 1 else ''} came to {told or 'nothing: no trial ran'}.",
        "Give it more `trials` and `time`, allow more nodes by `op_types`, or ask whether the bound is needed.",
    )


def found_on_one_sample(subject: SearchSubject) -> Iterator[Insight]:
    """Other inputs may overflow elsewhere."""
    if subject.search.sample_count != 1 or not subject.search.passed:
        return
    yield Insight(
        0.0,
        f"What {one_line(subject.step)} found was seen on one sample",
        "Values that overflow on other inputs were not there to be seen.",
        "Give `data` and `samples` that are like what the model will meet.",
    )


def hardly_anything_left(subject: SearchSubject) -> Iterator[Insight]:
    """A set that meets the bound by keeping nearly all of the model."""
    search = subject.search
    if not search.passed or len(search.kept) <= search.candidate_count / 2:
        return
    yield Insight(
        0.0,
        f"Most of the model stays in {one_line(search.kept_precision)}",
        f"{len(search.kept)} of {search.candidate_count} nodes are kept: little is left to be {search.precision}.",
        "Search on `data` like what the model will meet, for noise may be harder than it; ask whether the bound is "
        "needed, or give it more `trials` and `time`.",
    )


def not_used(subject: SearchSubject) -> Iterator[Insight]:
    """A search that no step reads."""
    if subject.users or not subject.search.kept:
        return
    yield Insight(
        0.0,
        f"No step of this run uses what {one_line(subject.step)} found",
        f"{len(subject.search.kept)} nodes would have to stay in {one_line(subject.search.kept_precision)}.",
        f"Write `found_by: {one_line(subject.step)}` in {_USED_BY[subject.search.precision]}.",
    )


def not_checked(subject: SearchSubject) -> Iterator[Insight]:
    """A model was made with it that nothing was compared with."""
    if not subject.users or subject.checks:
        return
    made = one_line(subject.users[0])
    yield Insight(
        0.0,
        f"{made} was not compared with its reference",
        "The search ran on samples of its own; the model that was made of it was not looked at.",
        f"Add `check_accuracy` with `candidate: {made}`, on other samples than the search had.",
    )


def checked_natively_on_cpu(subject: SearchSubject) -> Iterator[Insight]:
    """ONNX Runtime computes fp16 in fp32 on a CPU: values that overflow in between do not there."""
    if subject.search.precision == "int8":
        return
    for step, check in subject.checks:
        if check.arithmetic == "native" and check.provider_candidate.startswith("CPU"):
            yield Insight(
                0.0,
                f"{one_line(step)} did not test {subject.search.precision}",
                "It compared with native arithmetic on a CPU, where ONNX Runtime computes all of it in fp32.",
                f"Leave `arithmetic: native` out of {one_line(step)}, or run it where the model will run.",
            )


def kept_nodes_are_slow(subject: SearchSubject) -> Iterator[Insight]:
    """What is kept takes much of the time."""
    part = subject.kept_part
    if part is None or part < _COSTLY:
        return
    yield Insight(
        min(1.0, part / 2),
        f"The layers of the kept nodes take {share(part)} of all layers' time",
        f"{len(subject.search.kept)} nodes stay in {one_line(subject.search.kept_precision)}. "
        "At half the bytes and twice the rate they might take half of that.",
        "Try `precision: bf16`, whose range is that of fp32, or a bound that needs fewer of them.",
    )


Rule = Callable[[SearchSubject], Iterator[Insight]]

SEARCH_RULES: tuple[Rule, ...] = (
    bound_not_met,
    hardly_anything_left,
    checked_natively_on_cpu,
    kept_nodes_are_slow,
    not_used,
    not_checked,
    found_on_one_sample,
)
"""What makes a result useless first."""


def insights_of_search(subject: SearchSubject) -> tuple[Insight, ...]:
    """What a search leaves open, in the order of the rules."""
    return tuple(insight for rule in SEARCH_RULES for insight in rule(subject))
