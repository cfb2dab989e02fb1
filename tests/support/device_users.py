"""Users of one machine that measure on one device, as forked processes with user ids of their own.

Run it as a program (`python -m tests.support.device_users SCENARIO FOLDER`), as root: a program that forks must not
have threads. It prints what happened as JSON."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ndld_flow.runner import device_queue, devices
from ndld_flow.runner.devices import Claim, holding
from ndld_flow.store.store import Store
from ndld_flow.store.tickets import OwnTicket, TicketFolders, TicketNote

USERS = (65531, 65532, 65533)
HOSTILE = 65530
DEVICE = "scales"


@dataclass
class Machine:
    """The folder of a scenario: what all users share, a home for each, and what their processes report."""

    folder: Path
    pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        os.umask(0)
        (self.folder / "shared").mkdir()
        (self.folder / "shared").chmod(0o1777)
        os.environ[devices.FOLDER_VARIABLE] = str(self.folder / "shared")
        for user in (*USERS, HOSTILE):
            (self.folder / str(user)).mkdir(0o700)
            os.chown(self.folder / str(user), user, user)
        with holding("balance", Store(self.folder / "store"), Claim("imports", print)) as hold:
            for ticket in hold._held[0][0].find():  # what is imported later may be closed to others
                device_queue.describe_process(ticket)
        self._events = os.open(self.folder / "events", os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "events").read_text().splitlines()]

    def of(self, who: str, event: str) -> dict[str, Any] | None:
        return next((each for each in self.events() if (each["who"], each["event"]) == (who, event)), None)

    def await_event(self, who: str, *events: str, within_s: float = 30) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            for event in events:
                found = self.of(who, event)
                if found:
                    return found
            time.sleep(0.01)
        raise TimeoutError(f"{who}: no {events} in {self.events()}")

    def report(self, who: str, event: str, **facts: object) -> None:
        line = json.dumps({"who": who, "event": event, "at": time.monotonic(), **facts})
        os.write(self._events, f"{line}\n".encode())

    def run_as(self, user: int, who: str, work: Callable[[], None]) -> int:
        """Start a process of a user; return its pid."""
        pid = os.fork()
        if pid:
            self.pids[who] = pid
            return pid
        code = 1
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o077)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)

    def measure(self, user: int, who: str, hold_s: float, *, busy: bool = False) -> int:
        def work() -> None:
            claim = Claim(who, lambda text: self.report(who, "waits", text=text))
            with holding(DEVICE, Store(self.folder / str(user)), claim) as hold:
                self.report(who, "begin")
                end = time.monotonic() + hold_s
                while time.monotonic() < end:
                    hold.observe()
                    if not busy:
                        time.sleep(0.05)
                hold.observe()
                self.report(who, "end", faults=hold.faults)

        return self.run_as(user, who, work)

    def kill(self, who: str) -> None:
        os.kill(self.pids[who], signal.SIGKILL)
        os.waitpid(self.pids.pop(who), 0)
        self.report(who, "killed")

    def await_all(self) -> None:
        for who, pid in self.pids.items():
            _, status = os.waitpid(pid, 0)
            self.report(who, "exit", status=status)

    def tickets(self) -> list[Path]:
        return list((self.folder / "shared").glob("ndld_flow-ticket-*"))


def order(machine: Machine) -> None:
    """Eight processes of three users arrive one after another."""
    for number in range(8):
        who = f"p{number}"
        machine.measure(USERS[number % 3], who, 0.3)
        machine.await_event(who, "waits", "begin")
    machine.await_all()


def kills(machine: Machine, rounds: int = 12) -> None:
    """Processes of three users arrive and are killed at random moments."""
    rng = random.Random(7)
    for number in range(rounds):
        who = f"p{number}"
        machine.measure(USERS[number % 3], who, rng.uniform(0, 0.3))
        time.sleep(rng.uniform(0, 0.15))
        if rng.random() < 0.5:
            victim = rng.choice(list(machine.pids))
            with contextlib.suppress(ProcessLookupError):
                machine.kill(victim)
    machine.await_all()


@contextlib.contextmanager
def false_tickets(machine: Machine, count: int, *, holds: bool) -> Iterator[list[OwnTicket]]:
    folders = TicketFolders([machine.folder / "shared"], devices.name_machine())
    note = TicketNote(devices=(DEVICE,), shown="scales \x1b[2J", who="pretends \x1b[2J", run_pid=1)
    with contextlib.ExitStack() as stack:
        owned = [stack.enter_context(folders.ticket(note)) for _ in range(count)]
        for ticket in owned:
            if holds:
                ticket.hold()
        yield owned


def attack(machine: Machine, work: Callable[[], object]) -> None:
    """Let the hostile user work, and report when the attack has begun."""

    def whole() -> None:
        work()
        machine.report("hostile", "ready")
        time.sleep(3600)

    machine.run_as(HOSTILE, "hostile", whole)
    machine.await_event("hostile", "ready")


def crowd(machine: Machine) -> None:
    """A hostile user queues 200 times and never measures."""
    device_queue._STALLED_FOR_S = 0.5
    stack = contextlib.ExitStack()
    attack(machine, lambda: stack.enter_context(false_tickets(machine, 200, holds=False)))
    machine.measure(USERS[0], "victim", 0.1)
    machine.await_event("victim", "end")
    machine.kill("hostile")


def idle(machine: Machine) -> None:
    """A hostile user holds the device and does nothing."""
    device_queue._IDLE_FOR_S, device_queue._LOOK_AT_CPU_EVERY_S = 1.0, 0.1
    stack = contextlib.ExitStack()
    attack(machine, lambda: stack.enter_context(false_tickets(machine, 3, holds=True)))
    machine.measure(USERS[0], "victim", 0.1)
    machine.await_event("victim", "end")
    machine.kill("hostile")


def busy(machine: Machine) -> None:
    """A hostile user holds the device, and computes something."""
    device_queue._LONGEST_FOR_A_USER_S = 1.0
    machine.measure(HOSTILE, "hostile", 3600, busy=True)
    machine.await_event("hostile", "begin")
    machine.measure(USERS[0], "victim", 0.1)
    machine.await_event("victim", "end")
    machine.kill("hostile")


def stopped(machine: Machine) -> None:
    """A user presses Ctrl-Z during a measurement, and continues it later."""
    device_queue._IDLE_FOR_S, device_queue._LOOK_AT_CPU_EVERY_S, devices._SUSPENDED_S = 1.0, 0.1, 0.5
    machine.measure(USERS[0], "first", 1.0)
    machine.await_event("first", "begin")
    os.kill(machine.pids["first"], signal.SIGSTOP)
    machine.measure(USERS[1], "second", 0.1)
    machine.await_event("second", "end")
    os.kill(machine.pids["first"], signal.SIGCONT)
    machine.await_all()


def meddle(machine: Machine) -> None:
    """A hostile user locks, and tries to change, the ticket of another one who is then killed."""
    machine.measure(USERS[0], "first", 3600)
    machine.await_event("first", "begin")
    ticket = machine.tickets()[0]
    refused = []

    def work() -> None:
        descriptor = os.open(ticket, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        threading.Thread(target=fcntl.lockf, args=(descriptor, fcntl.LOCK_SH), daemon=True).start()  # once it is free
        for deed in (
            lambda: os.open(ticket, os.O_WRONLY),
            ticket.unlink,
            lambda: ticket.rename(ticket.with_name("x")),
            lambda: ticket.chmod(0o777),
            lambda: os.utime(ticket, (0, 0)),
        ):
            try:
                deed()
            except OSError as error:
                refused.append(error.errno)
        machine.report("hostile", "refused", count=len(refused))

    attack(machine, work)
    machine.measure(USERS[1], "second", 0.1)
    machine.await_event("second", "waits")
    machine.kill("first")
    machine.await_event("second", "end", within_s=20)  # sooner than a stalled user is passed over
    machine.kill("hostile")


def impatient(machine: Machine) -> None:
    """A process does not wait, and the one that measures notices."""
    machine.measure(USERS[0], "first", 1.0)
    machine.await_event("first", "begin")
    os.environ[device_queue.TIMEOUT_VARIABLE] = "0"
    machine.measure(USERS[1], "second", 0.3)
    machine.await_all()


SCENARIOS = {each.__name__: each for each in (order, kills, crowd, idle, busy, stopped, meddle, impatient)}

if __name__ == "__main__":
    scenario, where = sys.argv[1:]
    a_machine = Machine(Path(where))
    try:
        SCENARIOS[scenario](a_machine)
    finally:
        for left in a_machine.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    print(json.dumps({"events": a_machine.events(), "tickets": len(a_machine.tickets())}))
