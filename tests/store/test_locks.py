"""Leases: other processes see them while their holders are alive, and none starts while they are counted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ndld_flow.store.locks import Locks


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path / "locks")


def test_a_lease_is_seen_by_others_until_it_ends(locks: Locks) -> None:
    with locks.lease("run", "first"), locks.lease("run", "second"), locks.lease("sweep", "third"):
        assert locks.leased("run") == {"first", "second"}
        assert locks.is_leased("run", "first")
        assert not locks.is_leased("run", "third")
    assert locks.leased("run") == set()
    assert not locks.is_leased("run", "first")
    assert [path.name for path in locks.folder.glob("*.lock") if "leases" not in path.name] == []


def test_a_lease_that_ends_leaves_those_of_others(locks: Locks) -> None:
    with locks.lease("run", "long"):
        with locks.lease("run", "short"):
            locks.use(["both"])
        locks.use(["later"])
        assert locks.leased("run") == {"long"}
        with locks.used() as used:
            assert used == {"both", "later"}


def test_no_lease_begins_while_leases_are_counted(locks: Locks) -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        with locks.lease("run", "late"):
            begun.set()
            over.wait(60)

    worker = threading.Thread(target=work)
    with locks.leases("run") as alive:
        worker.start()
        assert alive == set()
        assert not begun.wait(0.3)
    assert begun.wait(60)
    assert locks.leased("run") == {"late"}
    over.set()
    worker.join(60)


def test_no_lease_is_listed_while_lists_are_read(locks: Locks) -> None:
    listed = threading.Event()

    def use() -> None:
        locks.use(["new"])
        listed.set()

    with locks.working():
        locks.use(["old"])
        worker = threading.Thread(target=use)
        with locks.used() as used:
            worker.start()
            assert not listed.wait(0.3)
            assert used == {"old"}
        assert listed.wait(60)
        with locks.used() as used:
            assert used == {"old", "new"}
        worker.join(60)


def test_lists_are_kept_during_a_collection(locks: Locks) -> None:
    with locks.collecting("gc"):
        with locks.working():
            locks.use(["kept"])
        with locks.used() as used:
            assert used == {"kept"}
        locks.sweep_lists()
        with locks.used() as used:
            assert used == {"kept"}
    locks.sweep_lists()
    with locks.used() as used:
        assert used == set()


def test_the_list_of_a_living_holder_is_not_removed(locks: Locks) -> None:
    with locks.working():
        locks.use(["kept"])
        locks.sweep_lists()
        with locks.collecting("gc"), locks.used() as used:
            assert used == {"kept"}


def test_unheld_locks_are_removed_and_held_ones_are_not(locks: Locks) -> None:
    with locks.hold("gone"):
        pass
    with locks.hold("held"):
        locks.remove_unheld()
        assert locks.is_held("held")
        assert [path.name for path in locks.folder.glob("*.lock")] == ["held.lock"]
    assert not locks.is_held("held")


def test_waiting_is_reported_only_when_another_holds_the_lock(locks: Locks) -> None:
    waits: list[str] = []
    with locks.hold("key", lambda _: waits.append("first")):
        assert waits == []
        released = threading.Event()

        def note_second(_: str) -> None:
            waits.append("second")
            released.set()

        def wait() -> None:
            with locks.hold("key", note_second):
                waits.append("taken")

        worker = threading.Thread(target=wait)
        worker.start()
        assert released.wait(60)
        assert waits == ["second"]
    worker.join(60)
    assert waits == ["second", "taken"]
