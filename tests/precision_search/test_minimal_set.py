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
    return oracle.passes(kept) and not any(oracle.passes(kept - {each}) for each in kept)


def attempts_at_most(needed: int, candidates: int) -> int:
    """Return the documented bound."""
    halvings = math.ceil(math.log2(max(candidates, 2)))
    return 6 + halvings + 4 * needed * (halvings + 1) + needed * (needed + 1)


def test_a_passing_model_needs_one_attempt() -> None:
    found, told = find(line(9), Planted([]))
    assert found.kept == frozenset()
    assert found.outcome.passed
    assert found.minimal
    assert [attempt.phase for attempt in told] == ["whole"]


def test_sufficient_suspects_are_only_removed_one_by_one() -> None:
    oracle = Planted([frozenset({7, 9})])
    found, told = find(line(50, severity={7: 5.0, 9: 2.0, 12: 1.5, 20: 0.5}), oracle)
    assert found.kept == {7, 9}
    assert [attempt.phase for attempt in told] == ["whole", "suspects", "shrink", "shrink", "shrink"]
    assert told[1].kept == {7, 9, 12}, "those of a severity of 1 and more"
    assert told[2].description == "without node_12", "the least suspect first"


def test_unneeded_suspects_are_removed() -> None:
    oracle = Planted([frozenset({3})])
    found, told = find(line(50, severity=dict.fromkeys(range(6), 2.0)), oracle)
    assert found.kept == {3}
    assert found.minimal
    assert {attempt.phase for attempt in told[2:]} == {"shrink"}


def test_insufficient_suspects_are_extended_by_the_next_most_severe() -> None:
    found, told = find(line(50, severity={7: 5.0, 9: 0.9, 12: 0.8, 20: 0.7}), Planted([frozenset({7, 9, 12})]))
    assert found.kept == {7, 9, 12}
    assert [len(attempt.kept) for attempt in told[:4]] == [0, 1, 2, 4]


def test_without_suspects_it_goes_from_operators_to_regions_to_nodes() -> None:
    oracle = Planted([frozenset({42})])
    found, told = find(line(240, "ABCDEF"), oracle)
    assert found.kept == {42}
    assert list(dict.fromkeys(attempt.phase for attempt in told)) == ["whole", "op_types", "regions", "nodes"]
    assert len(told) <= attempts_at_most(1, 240)


@settings(max_examples=25, deadline=None)
@given(needed=st.lists(some(places), min_size=1, max_size=3), severity=severities, kinds=kinds)
def test_any_planted_set_is_reduced_to_a_minimal_one(
    needed: list[frozenset[int]], severity: dict[int, float], kinds: list[str]
) -> None:
    oracle = Planted(needed)
    found, told = find(line(SIZE, kinds, severity), oracle)
    assert found.outcome.passed
    assert is_minimal(found.kept, oracle)
    assert found.minimal
    assert not found.spent
    assert set(found.without) == found.kept
    assert len(oracle.asked) == len(set(oracle.asked)) == len(told), "nothing is tried twice"
    assert [attempt.number for attempt in told] == list(range(1, len(told) + 1))


@settings(max_examples=25, deadline=None)
@given(planted=some(places), kinds=kinds, size=st.integers(SIZE, 400))
def test_attempts_without_help_are_bounded_as_documented(planted: frozenset[int], kinds: list[str], size: int) -> None:
    _, told = find(line(size, kinds), Planted([planted]))
    assert len(told) <= attempts_at_most(len(planted), size)


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
    found, told = find(line(SIZE, kinds, severity), oracle, Budget(attempts))
    assert len(told) <= attempts
    assert found.kept in oracle.asked
    assert found.outcome == oracle(found.kept)
    passed = [attempt.kept for attempt in told if attempt.outcome.passed]
    assert found.outcome.passed == bool(passed)
    assert not passed or len(found.kept) == min(map(len, passed))
    if found.outcome.passed and not found.spent:
        assert is_minimal(found.kept, oracle)


def test_when_nothing_passes_the_smallest_best_set_is_delivered() -> None:
    def oracle(kept: Kept) -> Outcome:
        return Outcome(False, -10.0 + 5.0 * (3 in kept) + 1.0 * (30 in kept))

    found = find_minimal_set(line(SIZE, "ABC"), oracle, Budget(500))
    assert found.kept == {3, 30}
    assert found.outcome == Outcome(False, -4.0)
    assert not found.spent


def test_a_passing_attempt_found_while_reducing_is_followed() -> None:
    """Everything is no better than one node, for another spoils it; a set without that one passes."""

    def oracle(kept: Kept) -> Outcome:
        if {0, 7} <= kept and 39 not in kept:
            return Outcome(True, 1.0)
        return Outcome(False, -0.5 if 0 in kept else -1.0)

    found = find_minimal_set(line(SIZE), oracle, Budget(500))
    assert found.kept == {0, 7}
    assert found.outcome.passed


def test_nothing_is_kept_when_keeping_has_no_effect() -> None:
    found = find_minimal_set(line(SIZE), lambda kept: Outcome(False, -5.0), Budget(500))
    assert found.kept == frozenset()
    assert len(found.attempts) == 2


def test_a_time_limit_ends_the_search_with_the_best_set_so_far() -> None:
    oracle = Planted([frozenset({0, 4})])
    budget = Budget(500, lambda: len(oracle.asked) >= 4)
    found, told = find(line(64, "ABCD"), oracle, budget)
    assert found.spent
    assert not found.minimal
    assert len(told) == 4
    assert found.outcome.passed
    assert len(found.kept) < 64


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
