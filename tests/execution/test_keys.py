"""Keys hold everything a result depends on, and a plan explains a new key by the most telling part that changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from ndld_flow.execution.keys import HIDDEN_VALUES, join_keys, make_key
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.runner.plan import Reason, _explain
from tests.support.run_fixtures import StepSketch, step_record

PARTS: dict[str, Any] = {
    "step": "profile",
    "version": "1",
    "settings": {"passes": 200, "threads": 1},
    "inputs": {"x": {"shape": [1, 3], "data": "random"}},
    "reads": {"from": "aa" * 32, "data": "bb" * 32},
    "libraries": {"onnxruntime": "1.22", "numpy": "2.0"},
    "machine": "Linux x86_64, CPU A x 2, no GPU; governor: performance; boost: on",
}
CHANGES: Mapping[str, tuple[object, Reason, str]] = {
    "step": ("lint", Reason.NEW, ""),
    "version": ("2", Reason.VERSION, "1 -> 2"),
    "settings": ({"passes": 100, "threads": 1}, Reason.SETTINGS, "passes 200 -> 100"),
    "inputs": (
        {"x": {"shape": [1, 4], "data": "random"}},
        Reason.SETTINGS,
        "inputs.x.shape [1, 3] -> [1, 4]",
    ),
    "reads": ({"from": "aa" * 32, "data": "cc" * 32}, Reason.INPUT, "data"),
    "libraries": ({"onnxruntime": "1.23", "numpy": "2.0"}, Reason.TOOL, "onnxruntime 1.22 -> 1.23"),
    "machine": (
        "Linux x86_64, CPU A x 2, no GPU; governor: powersave; boost: on",
        Reason.MACHINE,
        "governor performance -> powersave",
    ),
}
"""Part of a key -> another value, and the reason that a plan gives; the most telling part first."""


def parts_of(**changed: object) -> KeyParts:
    return KeyParts.model_validate(PARTS | changed)


def explain(parts: KeyParts, **changed: Any) -> tuple[Reason, str]:
    """Return the reason for new parts where the step ran with others before."""
    record = step_record(StepSketch("speed", "profile"))
    before = parts_of(**changed)
    return _explain(parts, record.model_copy(update={"parts": before, "key": make_key(before)}))


@pytest.mark.parametrize("part", CHANGES)
def test_each_part_changes_the_key_and_is_the_reason(part: str) -> None:
    value, reason, detail = CHANGES[part]
    changed = parts_of(**{part: value})
    assert make_key(changed) != make_key(parts_of())
    assert make_key(changed) == make_key(parts_of(**{part: value}))
    assert explain(changed) == (reason, detail)


def test_of_several_changes_the_most_telling_is_the_reason() -> None:
    names = list(CHANGES)
    for position, part in enumerate(names):
        changed = parts_of(**{name: CHANGES[name][0] for name in names[position:]})
        assert explain(changed)[0] is CHANGES[part][1]


def test_hidden_values_are_explained_as_settings() -> None:
    hidden = {"from": "aa" * 32, "data": "bb" * 32, HIDDEN_VALUES: "dd" * 32}
    assert explain(parts_of(reads=hidden)) == (Reason.SETTINGS, HIDDEN_VALUES)
    assert explain(parts_of(reads={**hidden, "data": "cc" * 32}), reads=hidden) == (Reason.INPUT, "data")


def test_a_step_that_never_ran_is_new() -> None:
    assert _explain(parts_of(), None) == (Reason.NEW, "")


def test_a_missing_result_without_a_change_was_removed() -> None:
    assert explain(parts_of())[0] == Reason.DAMAGED
    assert explain(parts_of(together=("", "ee" * 32)))[0] == Reason.TOGETHER


def test_three_differences_are_shown_and_the_rest_counted() -> None:
    many = {f"setting_{number}": number for number in range(4)}
    _, detail = explain(parts_of(settings={}), settings=many)
    assert re.findall(r"setting_\d", detail) == ["setting_0", "setting_1", "setting_2"] and detail.endswith(" 1 more")
    _, detail = explain(parts_of(settings={}), settings={name: many[name] for name in list(many)[:3]})
    assert detail.endswith("setting_2 2 -> nothing")


def test_long_values_are_cut_at_forty_characters() -> None:
    for length, shown in ((40, "a" * 40), (41, "a" * 37 + "...")):
        _, detail = explain(parts_of(settings={"text": "a" * length}), settings={"text": "b"})
        assert detail == f"text b -> {shown}"


def test_settings_in_lists_of_mappings_are_named_by_their_index() -> None:
    def operations(select: str) -> dict[str, object]:
        return {"operations": [{"cut": {"after": "a"}}, {"rename": {"select": select}}], "shape": [1, 2]}

    _, detail = explain(parts_of(settings=operations("new")), settings=operations("old"))
    assert detail == "operations.1.rename.select old -> new"


def test_the_order_of_settings_does_not_change_a_key() -> None:
    assert make_key(parts_of(settings={"a": 1, "b": 2})) == make_key(parts_of(settings={"b": 2, "a": 1}))


def test_interleaved_steps_depend_on_each_other_and_their_order() -> None:
    plain, other = parts_of(), parts_of(settings={"passes": 50})
    assert join_keys([plain]) == [plain]
    first, second = join_keys([plain, other])
    assert (first.together, second.together) == (("", make_key(other)), (make_key(plain), ""))
    keys = {make_key(parts) for parts in (plain, other, first, second)}
    assert len(keys) == 4
    changed, _ = join_keys([plain, parts_of(settings={"passes": 51})])
    assert make_key(changed) not in keys
    twins = [make_key(parts) for parts in join_keys([plain, plain, plain])]
    assert len(set(twins)) == 3
