"""Concurrent load in the record of a measuring step: the steps that ran meanwhile, with durations."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from ndld_flow.execution import devices
from ndld_flow.execution.devices import LoadMonitor, announce
from ndld_flow.execution.workers import Workers
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.store.store import Store
from tests.support.recipes import load_recipe
from tests.support.toys import make_toy
from tests.support.worker_toys import Deeds, wait_until


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def steps(in_folder: Path) -> tuple[RecipeStep, ...]:
    return load_recipe(make_toy(in_folder).recipe, trust=True).steps


@contextmanager
def announcing(steps: Sequence[RecipeStep], recipe: str, store: Store) -> Iterator[Path]:
    """The folder of steps at work."""
    with store.building() as folder:
        announce(steps, recipe, folder)
        yield folder


@pytest.fixture
def own(store: Store, steps: tuple[RecipeStep, ...]) -> Iterator[Path]:
    with announcing(steps[:1], "toy", store) as folder:
        yield folder


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_OBSERVE_EVERY_S", 0.02)


def announced(store: Store) -> list[Path]:
    return list((store.root / "building").glob("*/at-work.json"))


def test_a_step_alone_reports_no_load(store: Store, own: Path) -> None:
    assert LoadMonitor(store, own).end() == ()


def test_a_step_that_ran_before_or_after_is_recorded(store: Store, own: Path, steps: tuple[RecipeStep, ...]) -> None:
    with announcing(steps[1:], "other", store):
        lookout = LoadMonitor(store, own)
    (note,) = lookout.end()
    assert f"`aside` of other (pid {os.getpid()})" in note
    lookout = LoadMonitor(store, own)
    with announcing(steps[1:2], "", store):
        (note,) = lookout.end()
    assert f"stamp `second` (pid {os.getpid()})," in note
    assert len(announced(store)) == 1
    assert len(list((store.root / "locks").glob("building-*"))) == 1


def test_a_killed_step_no_longer_counts(store: Store, own: Path) -> None:
    shutil.copytree(own, own.with_name("killed"))
    assert len(announced(store)) == 2
    (note,) = LoadMonitor(store, own.with_name("other")).end()
    assert f"`first` of toy (pid {os.getpid()})" in note


@pytest.mark.usefixtures("often")
def test_a_step_that_ran_meanwhile_is_recorded_once(store: Store, own: Path, steps: tuple[RecipeStep, ...]) -> None:
    lookout = LoadMonitor(store, own)
    for _ in range(2):
        with announcing(steps[1:2], "other", store):
            wait_until(lambda: len(lookout._observed) > 0)
            time.sleep(0.6)
    (note,) = lookout.end()
    assert re.match(rf"stamp `second` of other \(pid {os.getpid()}\), .*\d+ s ", note), "one second or more"


def test_long_lists_are_shortened(store: Store, own: Path, steps: tuple[RecipeStep, ...]) -> None:
    with ExitStack() as stack:
        for number in range(23):
            stack.enter_context(announcing(steps[1:2], f"other{number}", store))
        note = LoadMonitor(store, own).end()
    assert len(note) == 21
    assert note[-1] == "and 3 more"


def test_announcements_of_other_machines_and_incomplete_ones_do_not_count(
    store: Store, own: Path, steps: tuple[RecipeStep, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setattr("platform.node", lambda: "elsewhere")
            stack.enter_context(announcing(steps[1:2], "other", store))
        folder = stack.enter_context(announcing(steps[1:2], "other", store))
        (folder / "at-work.json").write_text('{"host": ')
        assert LoadMonitor(store, own).end() == ()


def test_names_of_other_processes_are_escaped(store: Store, own: Path, steps: tuple[RecipeStep, ...]) -> None:
    with announcing(steps[1:2], "\x1b[2Jboo", store):
        (note,) = LoadMonitor(store, own).end()
    assert "\x1b" not in note


@pytest.fixture
def deeds(in_folder: Path) -> Deeds:
    return Deeds(in_folder)


@pytest.mark.thorough
def test_a_record_names_what_ran_during_its_measurement(deeds: Deeds) -> None:
    with closing(Workers(2, trust=True)) as workers:
        other = workers.submit(deeds.task("seconds: 600", name="busy"), deeds.store)
        wait_until(lambda: deeds.done)
        busy = deeds.done[0][1]
        (record,) = workers.submit(deeds.task("measures: scales", name="speed"), deeds.store).result()
        assert len(record.concurrent) == 1
        assert f"`busy` of toy (pid {busy})" in record.concurrent[0]
        assert not other.done()
    assert announced(deeds.store) == []
    with closing(Workers(1, trust=True)) as workers:
        (record,) = workers.submit(deeds.task("measures: scales", name="again"), deeds.store).result()
        assert record.concurrent == ()


@pytest.mark.thorough
def test_a_step_that_does_not_measure_observes_no_process(deeds: Deeds, steps: tuple[RecipeStep, ...]) -> None:
    with closing(Workers(1, trust=True)) as workers, announcing(steps[:1], "other", deeds.store):
        (record,) = workers.submit(deeds.task(name="plain"), deeds.store).result()
        assert record.concurrent == ()


def test_no_thread_is_left_behind(store: Store, own: Path) -> None:
    before = threading.active_count()
    lookout = LoadMonitor(store, own)
    assert threading.active_count() == before + 1
    lookout.end()
    assert threading.active_count() == before
