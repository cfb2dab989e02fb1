"""The queue for the devices of a machine: first come, first served, across all users, and nobody blocks it for ever.

A process waits for the tickets that hold one of its devices, and for the earlier ones that need one. A process that
neither uses CPU time nor leaves, because it is stopped or pretends to measure, is passed over after some minutes; the
processes of one user delay those of others for at most two hours in all. Whoever passes over a process that holds a
device records that in its result, as does that process when it goes on, because both may have measured at once.

A process that no longer waits for others first marks its own ticket as holding and then looks for others that do, so
that of two processes at least one sees the other."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, parse_duration_ms, seconds
from ndld_flow.base.text import short_name
from ndld_flow.processes.cpu_time import read_cpu_time
from ndld_flow.runner.disk import name_user
from ndld_flow.runner.events import WAITS
from ndld_flow.store.tickets import OwnTicket, Ticket, TicketFolders

TIMEOUT_VARIABLE = "NDLD_FLOW_QUEUE_TIMEOUT"
"""The environment variable with the longest wait for a device, such as `30 min`; `0` for none."""
_LONGEST_FOR_A_USER_S = 7200.0
_IDLE_FOR_S = 300.0
_IDLE_CPU_S = 0.02
"""A process that measures looks for others once a second, which alone takes more in `_IDLE_FOR_S`."""
_LOOK_AT_CPU_EVERY_S = 20.0
_STALLED_FOR_S = 30.0
_MOMENT_S = 2.0
_POLL_EVERY_S = 0.1
_MOST_SHOWN = 10
_LONGEST_LOOK_S = 5.0
"""A process that was suspended while it waited did not wait for anybody in that time."""
_REMIND_EVERY_S = 300.0
"""Seconds between repeated reports: CI systems end a job that prints nothing for 10 minutes."""


def read_timeout() -> float | None:
    """Return the longest wait for a device in seconds; None if none is set. Raises RequestError."""
    text = os.environ.get(TIMEOUT_VARIABLE, "").strip()
    if not text:
        return None
    try:
        return parse_duration_ms(text) / 1e3
    except ValueError as error:
        raise RequestError(f"{TIMEOUT_VARIABLE}: {error}.") from None


def describe_process(ticket: Ticket) -> str:
    """Return `step speed of ppocr-det (user ann, pid 123)`."""
    pid = f"pid {ticket.pid}" if ticket.pid else "in another container"
    return f"{short_name(ticket.note.who)} (user {name_user(ticket.uid)}, {pid})"


def find_root(ticket: Ticket, tickets: Sequence[Ticket]) -> Ticket | None:
    """Return the ticket that keeps this one waiting in the end; None if nothing does.

    It holds a device, or it could take its devices and has not yet.
    """
    current, root = ticket, None
    while True:
        blockers = _find_blockers(current, tickets)
        if not blockers:
            return root
        root = next((each for each in blockers if each.holds), blockers[0])
        if root.holds:
            return root
        current = root  # it is earlier than the last, so this ends


def _find_blockers(ticket: Ticket, tickets: Sequence[Ticket]) -> list[Ticket]:
    return [
        other
        for other in tickets
        if other.path != ticket.path
        and other.needs(ticket.note.devices)
        and (other.holds or (not ticket.holds and other.rank < ticket.rank))
    ]


@dataclass
class _Activity:
    """The CPU time of a process that holds a device, as far as it was observed."""

    cpu_s: float | None
    since_s: float
    looked_s: float


@dataclass
class _Patience:
    """The time for which this process has waited for others, and the tickets that it no longer waits for."""

    passed: dict[str, str] = field(default_factory=dict)
    """Name of a ticket -> the reason why it is passed over."""
    _for_user_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _stalled_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _activities: dict[str, _Activity] = field(default_factory=dict)

    def is_passed(self, ticket: Ticket) -> bool:
        """Return whether a ticket is passed over."""
        if ticket.path.name in self.passed:
            return True
        if self._for_user_s[ticket.uid] >= _LONGEST_FOR_A_USER_S and ticket.uid != _own_uid():
            user = name_user(ticket.uid)
            reason = f"processes of user {user} delayed this step for {seconds(_LONGEST_FOR_A_USER_S)}"
            self.passed[ticket.path.name] = reason
            return True
        return not ticket.holds and self._stalled_s[ticket.uid] >= _STALLED_FOR_S

    def spend(self, root: Ticket, waited_s: float) -> None:
        """Count the time since the last look as spent on the ticket that was in the way."""
        self._for_user_s[root.uid] += waited_s
        if not root.holds:
            self._stalled_s[root.uid] += waited_s

    def has_just_begun(self, root: Ticket) -> bool:
        """Return whether the tickets of a user have only been in the way for a moment without holding a device."""
        return self._stalled_s[root.uid] < _MOMENT_S

    def watch(self, holders: Sequence[Ticket]) -> None:
        """Look at the CPU time of the processes that hold a device, now and then."""
        now_s = time.monotonic()
        for ticket in holders:
            name = ticket.path.name
            known = self._activities.get(name)
            if not ticket.pid or (known is not None and now_s - known.looked_s < _LOOK_AT_CPU_EVERY_S):
                continue
            cpu_s = read_cpu_time(ticket.pid)
            if known is None or cpu_s is None or known.cpu_s is None or abs(cpu_s - known.cpu_s) > _IDLE_CPU_S:
                self._activities[name] = _Activity(cpu_s, now_s, now_s)
            else:
                known.looked_s = now_s
                if now_s - known.since_s >= _IDLE_FOR_S:
                    idle_s = seconds(now_s - known.since_s)
                    self.passed[name] = f"it used no CPU time for {idle_s}, so it does not measure"


class DeviceQueue:
    """The wait of one ticket."""

    def __init__(self, folders: TicketFolders, own: OwnTicket, report: Callable[[str], None]) -> None:
        """`report` is called with the reason for waiting: at once, when it changes, and every 5 minutes."""
        self._folders, self._own, self._report = folders, own, report
        self._patience = _Patience()
        self._began_s = self._looked_s = time.monotonic()
        self._reported: tuple[Path, bool, int] | None = None
        self._reported_s = 0.0

    def wait(self, timeout_s: float | None) -> None:
        """Wait for the turn of the ticket, at most as long as `timeout_s`, and hold its devices."""
        while True:
            mine, others = self._look()
            root = find_root(mine, others)
            if root is None:
                self._own.hold()
                mine, others = self._look()
                holders = [other for other in others if other.holds and other.needs(self._own.note.devices)]
                if not holders:
                    return
                self._own.wait()
                time.sleep(random.uniform(0, _POLL_EVERY_S))  # noqa: S311 - two processes step back from each other
                continue
            now_s = time.monotonic()
            if timeout_s is not None and now_s - self._began_s >= timeout_s:
                self._own.hold()
                return
            self._patience.spend(root, min(now_s - self._looked_s, _LONGEST_LOOK_S))
            self._patience.watch([other for other in others if other.holds])
            self._looked_s = now_s
            self._report_wait(mine, root, others)
            time.sleep(_POLL_EVERY_S)

    def reason(self, ticket: Ticket) -> str:
        """Return why a ticket was passed over; empty if it was not."""
        return self._patience.passed.get(ticket.path.name, "")

    def _look(self) -> tuple[Ticket, list[Ticket]]:
        """Return the own ticket, and those of others that are not passed over. Raises OSError without an own one."""
        tickets = self._folders.find()
        mine = next((ticket for ticket in tickets if ticket.path == self._own.path), None)
        if mine is None:
            raise FileNotFoundError(f"{self._own.path} was removed")
        return mine, [each for each in tickets if each is not mine and not self._patience.is_passed(each)]

    def _report_wait(self, mine: Ticket, root: Ticket, others: Sequence[Ticket]) -> None:
        """Report a new holder or place at once. A ticket that could take its devices needs a moment to do so."""
        if not root.holds and self._patience.has_just_begun(root):
            return
        waiting = [each for each in others if not each.holds and each.needs(mine.note.devices)]
        ahead = sum(each.rank < mine.rank for each in waiting)
        state, now_s = (root.path, root.holds, ahead), time.monotonic()
        if state == self._reported and now_s - self._reported_s < _REMIND_EVERY_S:
            return
        self._reported, self._reported_s = state, now_s
        place = f"; place {ahead + 1} of {len(waiting) + 1} in the queue" if waiting else ""
        waited_s = now_s - self._began_s
        so_far = f", for {seconds(waited_s)} so far" if waited_s >= _REMIND_EVERY_S else ""
        self._report(_describe_wait(mine, root) + place + so_far)


def _describe_wait(mine: Ticket, root: Ticket) -> str:
    """Return `waits for cpu 0-1, held by step speed of ppocr-det (user ann, pid 123) since 10:42:07`.

    Steps of one run take turns, which needs no line in the log.
    """
    same_run = root.uid == mine.uid and root.note.run_pid == mine.note.run_pid
    state = f"held by {describe_process(root)}" if root.holds else f"next for {describe_process(root)}, waiting"
    start = "its turn comes after " if same_run else WAITS
    return f"{start}{short_name(root.note.shown)}, {state} since {root.since.astimezone():%H:%M:%S}"


def _own_uid() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def describe_queue(tickets: Sequence[Ticket]) -> str:
    """Return who holds which devices, and who waits, for `doctor`."""
    holders = [ticket for ticket in tickets if ticket.holds]
    waiting = [ticket for ticket in tickets if not ticket.holds]
    parts = [
        f"{short_name(each.note.shown)} held by {describe_process(each)} {_since(each)}"
        for each in holders[:_MOST_SHOWN]
    ]
    parts += [
        f"{place}. in the queue for {short_name(each.note.shown)}: {describe_process(each)} {_since(each)}"
        for place, each in enumerate(waiting[:_MOST_SHOWN], 1)
    ]
    hidden = len(tickets) - len(parts)
    return "; ".join([*parts, *([f"and {counted(hidden, 'more process')}"] if hidden else [])])


def _since(ticket: Ticket) -> str:
    lasted_s = max(time.time() - ticket.changed_ns / 1e9, 0)
    return f"since {ticket.since.astimezone():%H:%M:%S} ({seconds(lasted_s)})"
