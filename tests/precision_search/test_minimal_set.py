"""The search for a minimal set of nodes to keep: planted sets, minimality, and bounds on attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ndld_flow.precision_search.minimal_set import (
    Budget,
    Candidate,
    Kept,
    Outcome,
    find_minimal_set,
    needed_pieces,
)
from tests.support.search_oracles import Planted, find, line

SIZE = 40


def some(of: st.SearchStrategy[int]) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(of, min_size=1, max_size=5)


places = st.integers(0, SIZE - 1)
severities = st.dictionaries(places, st.floats(0, 2), max_size=SIZE)
kinds = st.lists(st.sampled_from("ABCDE"), min_size=1, max_size=7)


def is_minimal(kept: Kept, oracle: Planted) -> bool:
    return oracle.passes(kept) and not any(oracle.passes(kept - {item}) for item in kept)


def attempts_at_most(needed: int, candidates: int) -> int:
    """Return the documented bound."""
    halvings = math.ceil(math.log2(max(candidates, 2)))
    return 6 + halvings + 4 * needed * (halvings + 1) + needed * (needed + 1)


def test_a_passing_model_needs_one_attempt() -> None:
    outcome, result = find(line(9), Planted([]))
    assert outcome.kept == frozenset()
    assert outcome.outcome.passed
    assert outcome.minimal
    assert [attempt.phase for attempt in result] == ["whole"]


def test_sufficient_suspects_are_only_removed_one_by_one() -> None:
    oracle = Planted([frozenset({7, 9})])
    outcome, result = find(line(50, severity={7: 5.0, 9: 2.0, 12: 1.5, 20: 0.5}), oracle)
    assert outcome.kept == {7, 9}
    assert [attempt.phase for attempt in result] == ["whole", "suspects", "shrink", "shrink", "shrink"]
    assert result[1].kept == {7, 9, 12}, "those of a severity of 1 and more"
    assert result[2].description == "without node_12", "the least suspect first"


def test_unneeded_suspects_are_removed() -> None:
    oracle = Planted([frozenset({3})])
    outcome, result = find(line(50, severity=dict.fromkeys(range(6), 2.0)), oracle)
    assert outcome.kept == {3}
    assert outcome.minimal
    assert {attempt.phase for attempt in result[2:]} == {"shrink"}


def test_insufficient_suspects_are_extended_by_the_next_most_severe() -> None:
    outcome, result = find(line(50, severity={7: 5.0, 9: 0.9, 12: 0.8, 20: 0.7}), Planted([frozenset({7, 9, 12})]))
    assert outcome.kept == {7, 9, 12}
    assert [len(attempt.kept) for attempt in result[:4]] == [0, 1, 2, 4]


def test_without_suspects_it_goes_from_operators_to_regions_to_nodes() -> None:
    oracle = Planted([frozenset({42})])
    outcome, result = find(line(240, "ABCDEF"), oracle)
    assert outcome.kept == {42}
    assert list(dict.fromkeys(attempt.phase for attempt in result)) == ["whole", "op_types", "regions", "nodes"]
    assert len(result) <= attempts_at_most(1, 240)


@settings(max_examples=25, deadline=None)
@given(needed=st.lists(some(places), min_size=1, max_size=3), severity=severities, kinds=kinds)
def test_any_planted_set_is_reduced_to_a_minimal_one(
    needed: list[frozenset[int]], severity: dict[int, float], kinds: list[str]
) -> None:
    oracle = Planted(needed)
    outcome, result = find(line(SIZE, kinds, severity), oracle)
    assert outcome.outcome.passed
    assert is_minimal(outcome.kept, oracle)
    assert outcome.minimal
    assert not outcome.spent
    assert set(outcome.without) == outcome.kept
    assert len(oracle.asked) == len(set(oracle.asked)) == len(result), "nothing is tried twice"
    assert [attempt.number for attempt in result] == list(range(1, len(result) + 1))


@settings(max_examples=25, deadline=None)
@given(planted=some(places), kinds=kinds, size=st.integers(SIZE, 400))
def test_attempts_without_help_are_bounded_as_documented(planted: frozenset[int], kinds: list[str], size: int) -> None:
    _, result = find(line(size, kinds), Planted([planted]))
    assert len(result) <= attempts_at_most(len(planted), size)


@settings(max_examples=25, deadline=None)
@given(
    needed=st.lists(some(places), min_size=1, max_size=3),
    harmful=st.lists(st.frozensets(places, min_size=2, max_size=3), max_size=3),
    severity=severities,
    kinds=kinds,
    attempts=st.integers(1, 60),
)
def test_the_result_was_tried_and_is_the_best_attempt(
    needed: list[frozenset[int]],
    harmful: list[frozenset[int]],
    severity: dict[int, float],
    kinds: list[str],
    attempts: int,
) -> None:
    """Also where keeping more can be worse, and where the budget ends first."""
    oracle = Planted(needed, harmful)
    outcome, result = find(line(SIZE, kinds, severity), oracle, Budget(attempts))
    assert len(result) <= attempts
    assert outcome.kept in oracle.asked
    assert outcome.outcome == oracle(outcome.kept)
    passed = [attempt.kept for attempt in result if attempt.outcome.passed]
    assert outcome.outcome.passed == bool(passed)
    assert not passed or len(outcome.kept) == min(map(len, passed))
    if outcome.outcome.passed and not outcome.spent:
        assert is_minimal(outcome.kept, oracle)


def test_when_nothing_passes_the_smallest_best_set_is_delivered() -> None:
    def oracle(kept: Kept) -> Outcome:
        return Outcome(False, -10.0 + 5.0 * (3 in kept) + 1.0 * (30 in kept))

    minimal_set = find_minimal_set(line(SIZE, "ABC"), oracle, Budget(500))
    assert minimal_set.kept == {3, 30}
    assert minimal_set.outcome == Outcome(False, -4.0)
    assert not minimal_set.spent


def test_a_passing_attempt_found_while_reducing_is_followed() -> None:
    """Everything is no better than one node, for another spoils it; a set without that one passes."""

    def oracle(kept: Kept) -> Outcome:
        if {0, 7} <= kept and 39 not in kept:
            return Outcome(True, 1.0)
        return Outcome(False, -0.5 if 0 in kept else -1.0)

    minimal_set = find_minimal_set(line(SIZE), oracle, Budget(500))
    assert minimal_set.kept == {0, 7}
    assert minimal_set.outcome.passed


def test_nothing_is_kept_when_keeping_has_no_effect() -> None:
    minimal_set = find_minimal_set(line(SIZE), lambda kept: Outcome(False, -5.0), Budget(500))
    assert minimal_set.kept == frozenset()
    assert len(minimal_set.attempts) == 2


def test_a_time_limit_ends_the_search_with_the_best_set_so_far() -> None:
    oracle = Planted([frozenset({0, 4})])
    budget = Budget(500, lambda: len(oracle.asked) >= 4)
    outcome, result = find(line(64, "ABCD"), oracle, budget)
    assert outcome.spent
    assert not outcome.minimal
    assert len(result) == 4
    assert outcome.outcome.passed
    assert len(outcome.kept) < 64


def test_a_model_that_cannot_run_is_worse_than_any_other() -> None:
    def oracle(kept: Kept) -> Outcome:
        return Outcome(False, float("-inf")) if 5 in kept else Outcome(False, -3.0)

    assert find_minimal_set([Candidate(5, "A"), Candidate(6, "A")], oracle, Budget(50)).kept == frozenset()


@settings(max_examples=25, deadline=None)
@given(needed=some(places), order=st.permutations(range(SIZE)))
def test_halving_finds_exactly_the_needed_nodes(needed: frozenset[int], order: Sequence[int]) -> None:
    asked = []

    def reaches(kept: Kept, what: str) -> bool:
        asked.append(what)
        return needed <= kept

    pieces = [(str(i), frozenset({i})) for i in order]
    assert frozenset(int(name) for name, _ in needed_pieces(pieces, reaches)) == needed
    assert len(asked) <= len(needed) * (6 + 1) + 1, "log2(40) is less than 6"
