"""The search of `bisect`: ends, skips, several changes, and how many judgements it takes."""

from __future__ import annotations

import random

import pytest

from ndld_flow.runner.bisect.search import Judgement, find_changes, find_first_bad, judge_all, runs_left


def search(verdicts: str, every: bool = False) -> tuple[list[int], list[tuple[int, int, tuple[int, ...]]]]:
    """Return the positions in the order in which they were judged, and the changes; `g`, `b`, and `-` for a skip."""
    judged: list[int] = []

    def judge(place: int) -> Judgement:
        judged.append(place)
        known: dict[str, Judgement] = {"g": "good", "b": "bad"}
        return known.get(verdicts[place])

    known = (judge_all if every else find_first_bad)(len(verdicts), judge)
    return judged, [(change.before, change.after, change.undecided) for change in find_changes(known)]


@pytest.mark.parametrize(
    ("verdicts", "changes"),
    [
        ("gb", [(0, 1, ())]),
        ("ggb", [(1, 2, ())]),
        ("gbb", [(0, 1, ())]),
        ("gggggbbb", [(4, 5, ())]),
        ("g-b", [(0, 2, (1,))]),
        ("g---b", [(0, 4, (1, 2, 3))]),
        ("gg--bb", [(1, 4, (2, 3))]),
        ("g-g-bbb", [(2, 4, (3,))]),
        ("gg-gb-b", [(3, 4, ())]),
        ("g" + "-" * 20 + "gb", [(21, 22, ())]),
    ],
)
def test_the_first_bad_one_or_all_candidates_are_found(verdicts: str, changes: list[object]) -> None:
    assert search(verdicts)[1] == changes


def test_ends_are_not_judged_again_and_a_skip_leads_to_its_neighbour() -> None:
    judged, changes = search("gggg-bbbb")
    assert judged == [4, 3, 5]
    assert changes == [(3, 5, (4,))]
    assert search("gb")[0] == []


def test_every_value_shows_several_changes() -> None:
    judged, changes = search("gbggb", every=True)
    assert judged == [1, 2, 3]
    assert changes == [(0, 1, ()), (1, 2, ()), (3, 4, ())]


def test_random_histories_with_skips_never_name_a_wrong_release() -> None:
    generator = random.Random(22)
    for _ in range(2000):
        count = generator.randint(2, 40)
        first_bad = generator.randint(1, count - 1)
        truth = "g" * first_bad + "b" * (count - first_bad)
        shown = "".join(
            "-" if 0 < place < count - 1 and generator.random() < 0.3 else word for place, word in enumerate(truth)
        )
        judged, changes = search(shown)
        ((before, after, undecided),) = changes
        assert before < first_bad <= after
        assert undecided == tuple(range(before + 1, after))
        assert all(shown[place] == "-" for place in undecided)
        assert len(set(judged)) == len(judged)


def test_the_number_of_runs_is_announced() -> None:
    generator = random.Random(1)
    assert [runs_left(count) for count in (2, 3, 4, 5, 6, 9, 10)] == [0, 1, 2, 2, 3, 3, 4]
    for _ in range(500):
        count = generator.randint(2, 60)
        first_bad = generator.randint(1, count - 1)
        judged, _ = search("g" * first_bad + "b" * (count - first_bad))
        assert len(judged) <= runs_left(count)
