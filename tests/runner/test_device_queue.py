"""The queue for a device: order, deaths, and users who want others never to measure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.runner import devices
from ndld_flow.runner.device_queue import TIMEOUT_VARIABLE
from ndld_flow.runner.devices import FOLDER_VARIABLE, Claim, describe_queues, holding
from ndld_flow.store.store import Store
from ndld_flow.store.tickets import TicketFolders, TicketNote

as_others = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to be somebody else")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike those of the tests."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class Story:
    """What the processes of a scenario reported."""

    def __init__(self, scenario: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.support.device_users", scenario, str(folder)]
        root = Path(__file__).parent.parent.parent
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        story = json.loads(done.stdout)
        self.events: list[dict[str, Any]] = story["events"]
        self.tickets: int = story["tickets"]

    def of(self, who: str, event: str) -> dict[str, Any]:
        return next(each for each in self.events if (each["who"], each["event"]) == (who, event))

    def intervals(self) -> list[tuple[float, float, str]]:
        """When each process held the device."""
        begins = {each["who"]: each["at"] for each in self.events if each["event"] == "begin"}
        ends = {each["who"]: each["at"] for each in self.events if each["event"] in ("end", "killed")}
        return sorted((begin, ends[who], who) for who, begin in begins.items())


@as_others
def test_processes_of_three_users_measure_one_at_a_time_in_order(open_folder: Path) -> None:
    story = Story("order", open_folder)
    held = story.intervals()
    assert [who for _, _, who in held] == [f"p{number}" for number in range(8)]
    assert all(before[1] <= after[0] for before, after in pairwise(held))
    assert all(each["faults"] == [] for each in story.events if each["event"] == "end")
    last = story.of("p7", "waits")["text"]
    assert "held by p" in last
    assert last.startswith("waits for scales, held by ")
    assert "; place " in last
    assert story.tickets == 0


@as_others
@pytest.mark.thorough
def test_killed_processes_free_their_place_at_once(open_folder: Path) -> None:
    story = Story("kills", open_folder)
    held = story.intervals()
    assert all(before[1] <= after[0] for before, after in pairwise(held))
    killed = {each["who"] for each in story.events if each["event"] == "killed"}
    ended = {each["who"] for each in story.events if each["event"] == "end"}
    assert killed
    assert killed | ended == {f"p{number}" for number in range(12)}
    assert all(after[0] - before[1] < 10 for before, after in pairwise(held))  # a place that expires takes longer


@pytest.mark.thorough
@as_others
def test_a_crowd_of_false_tickets_is_passed_over_without_a_trace(open_folder: Path) -> None:
    story = Story("crowd", open_folder)
    assert story.of("victim", "end")["faults"] == []


@as_others
@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        ("idle", "it used no CPU time for"),
        pytest.param("busy", "delayed this step for", marks=pytest.mark.thorough),
    ],
)
def test_a_device_that_is_held_for_ever_is_measured_with_a_record_of_that(
    open_folder: Path, scenario: str, reason: str
) -> None:
    story = Story(scenario, open_folder)
    faults = story.of("victim", "end")["faults"]
    assert faults
    assert all("(user 65530, pid " in fault and reason in fault and "\x1b" not in fault for fault in faults)


@as_others
def test_a_suspended_measurement_is_passed_over_and_both_record_it(open_folder: Path) -> None:
    story = Story("stopped", open_folder)
    assert "it used no CPU time for" in story.of("second", "end")["faults"][0]
    assert story.of("first", "end")["faults"][0].startswith("its process was suspended for ")


@as_others
def test_a_ticket_belongs_to_its_owner_alone_and_dies_with_it(open_folder: Path) -> None:
    story = Story("meddle", open_folder)
    assert story.of("hostile", "refused")["count"] == 5
    assert story.of("second", "end")["faults"] == []
    assert story.of("second", "begin")["at"] - story.of("first", "killed")["at"] < 1


@as_others
def test_a_process_that_does_not_wait_is_recorded_on_both_sides(open_folder: Path) -> None:
    story = Story("impatient", open_folder)
    for one, other in (("first", "second"), ("second", "first")):
        (fault,) = story.of(one, "end")["faults"]
        assert fault.startswith(f"{other} (user ")
        assert fault.endswith("held scales at the same time")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.mark.skipif(os.name != "posix", reason="files of POSIX")
@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "folder", "empty", "garbage", "large", "closed"])
def test_foreign_files_in_place_of_tickets_are_harmless(shared: Path, tmp_path: Path, kind: str) -> None:
    place, target = shared / f"ndld_flow-ticket-{devices.name_machine()}-00-{kind}", tmp_path / "target"
    if kind == "link":
        target.write_text("precious")
    if "link" in kind:
        place.symlink_to(target)
    elif kind in ("pipe", "folder"):
        os.mkfifo(place) if kind == "pipe" else place.mkdir()
    else:
        place.write_bytes(b"" if kind == "empty" else b"[1" * (10 if kind == "garbage" else 1_000_000))
        place.chmod(0o000 if kind == "closed" else 0o444)
    reported: list[str] = []
    with holding("scales", Store(tmp_path / "store"), Claim("step a", reported.append)) as hold:
        assert (hold.faults, reported) == ((), [])
    assert (target.read_text() == "precious") if kind == "link" else not target.exists()


def test_a_removed_ticket_is_recorded(shared: Path, tmp_path: Path) -> None:
    with holding("scales", Store(tmp_path / "store"), Claim("step a", print)) as hold:
        for ticket in shared.iterdir():
            ticket.unlink()
        hold.observe()
        assert [fault for fault in hold.faults if "was removed while it measured" in fault]


@as_others
def test_a_full_folder_leaves_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    missing, other = tmp_path / "missing", tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(devices, "find_shared_folders", lambda: [missing, other])
    with holding("scales", Store(tmp_path / "store"), Claim("step a", print)) as hold:
        assert hold.faults == ()
        assert len(list(other.iterdir())) == 1


def test_tickets_of_earlier_starts_of_the_machine_are_removed(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = shared / "ndld_flow-ticket-0123456789abcdef-00000000000000000001-0123456789ab"
    forgotten.write_text("{}")
    note = TicketNote(devices=("gpu-9",), shown="gpu 9", who="step speed", run_pid=1)
    with TicketFolders([shared], "another").ticket(note) as own:
        api.gc(outputs=tmp_path / "outputs")
        assert forgotten.exists(), "it may be that of another host"
        monkeypatch.setattr("ndld_flow.store.tickets._FORGOTTEN_AFTER_S", 0.0)
        api.gc(outputs=tmp_path / "outputs", dry_run=True)
        assert forgotten.exists()
        api.gc(outputs=tmp_path / "outputs")
        assert not forgotten.exists()
        assert own.path.exists(), "its process lives"


def test_an_invalid_timeout_is_refused(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TIMEOUT_VARIABLE, "soon")
    with (
        pytest.raises(RequestError, match="NDLD_FLOW_QUEUE_TIMEOUT: 'soon' is not a quantity such as `200 ms`"),
        holding("scales", Store(tmp_path / "store"), Claim("step a", print)),
    ):
        pass


def test_doctor_shows_who_holds_a_device(shared: Path, tmp_path: Path) -> None:
    assert describe_queues().found == f"nothing measures (tickets in {shared})"
    with holding("scales", Store(tmp_path / "store"), Claim("step speed of toy", print)):
        found = describe_queues().found
    assert found.startswith("scales held by step speed of toy (user ")
    assert f"pid {os.getpid()}) since " in found
