"""Devices of measuring steps, which one step of all users of a machine holds at a time.

A GPU is known by its UUID, and each CPU by its number, so that measurements on overlapping sets of CPUs exclude each
other and those on disjoint sets do not. Steps queue in folders that all users of the machine share, then in the store:
containers see neither each other's /run/lock nor /tmp, so those of one host exclude each other only if they share the
store, or a folder that NDLD_FLOW_DEVICE_LOCKS names."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import short_name
from ndld_flow.machine.check import Check
from ndld_flow.processes.watchdog import is_one_process
from ndld_flow.runner.device_queue import DeviceQueue, describe_process, describe_queue, read_timeout
from ndld_flow.runner.events import WAITS
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import make_folder
from ndld_flow.store.locks import Locks
from ndld_flow.store.store import Store
from ndld_flow.store.tickets import OwnTicket, Ticket, TicketFolders, TicketNote

FOLDER_VARIABLE = "NDLD_FLOW_DEVICE_LOCKS"
"""The environment variable that names another folder for the queue that all users share."""
_SHARED_FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - used only if it is sticky and owned by root
_STICKY_FOR_ALL = 0o1777
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SUSPENDED_S = 30.0


@dataclass(frozen=True)
class Claim:
    """A step that needs a device."""

    who: str
    """`step speed of ppocr-det`."""
    report: Callable[[str], None]
    """Called with the reason for waiting: at once, when it changes, and every 5 minutes."""


@dataclass
class DeviceHold:
    """A device that a step holds, with everything that may have let others measure at the same time."""

    device: str
    _faults: dict[str, None] = field(default_factory=dict)
    _held: list[tuple[TicketFolders, OwnTicket, DeviceQueue]] = field(default_factory=list)
    _observed: tuple[float, float] = (0.0, 0.0)
    """Time and CPU time of the last observation."""

    @property
    def faults(self) -> tuple[str, ...]:
        """Return the reasons why others may have measured at the same time, so far."""
        return tuple(self._faults)

    def fail(self, fault: str) -> None:
        """Add a reason."""
        self._faults[fault] = None

    def add(self, folders: TicketFolders, own: OwnTicket, queue: DeviceQueue) -> None:
        """Add a ticket that holds the device."""
        self._held.append((folders, own, queue))
        self.observe()

    def observe(self) -> None:
        """Look for others that hold the device too, about once a second during a measurement."""
        before, self._observed = self._observed, (time.monotonic(), time.process_time())
        gap_s = self._observed[0] - before[0]
        if before[0] and gap_s > _SUSPENDED_S and self._observed[1] - before[1] < gap_s / 100:
            self.fail(f"its process was suspended for {seconds(gap_s)}, in which others may have measured")
        for folders, own, queue in self._held:
            tickets = folders.find()
            if not any(ticket.path == own.path for ticket in tickets):
                self.fail(f"{own.path} was removed while it measured, so others may have measured at the same time")
            for other in tickets:
                if other.path != own.path and other.holds and other.needs(own.note.devices):
                    self.fail(_describe_overlap(other, queue.reason(other)))


def _describe_overlap(other: Ticket, reason: str) -> str:
    text = f"{describe_process(other)} held {short_name(other.note.shown)} at the same time"
    return f"{text}; {reason}" if reason else text


@contextlib.contextmanager
def holding(device: str, store: Store, claim: Claim) -> Iterator[DeviceHold]:
    """Hold a device, such as `cpu` or `gpu-0`, when its turn comes; that of a killed process comes to an end at once.

    A folder may not support locks, or not be writable, and others may not leave: the step then measures all the same,
    and the yielded value has the reasons. Raises RequestError for an invalid timeout.
    """
    hold = DeviceHold(device)
    with contextlib.ExitStack() as held:
        if device:
            timeout_s = read_timeout()
            start_s = time.monotonic()
            for folders in _find_queues(store, hold):
                left_s = None if timeout_s is None else max(timeout_s - (time.monotonic() - start_s), 0.0)
                held.enter_context(_queueing(folders, hold, claim, left_s))
        yield hold


@contextlib.contextmanager
def _queueing(folders: TicketFolders, hold: DeviceHold, claim: Claim, timeout_s: float | None) -> Iterator[None]:
    if sys.platform == "win32":
        wait = partial(claim.report, f"{WAITS}the {hold.device}, held by another measurement")
        with Locks(folders.folders[0]).hold(f"ndld_flow-{_file_name(hold.device)}", wait):
            yield
        return
    note = TicketNote(
        devices=name_devices(hold.device),
        shown=_describe_device(hold.device),
        who=claim.who,
        run_pid=os.getpid() if is_one_process() else os.getppid(),
    )
    with contextlib.ExitStack() as stack:
        try:
            own = stack.enter_context(folders.ticket(note))
            queue = DeviceQueue(folders, own, claim.report)
            queue.wait(timeout_s)
        except OSError as error:
            stack.close()
            hold.fail(f"there is no queue in {' or '.join(map(str, folders.folders))}: {error}")
        else:
            hold.add(folders, own, queue)
        yield


def _find_queues(store: Store, hold: DeviceHold) -> Iterator[TicketFolders]:
    """Yield the folders of the queues, in the order in which all processes join them."""
    shared, machine = find_shared_folders(), name_machine()
    if not shared:
        hold.fail(
            "this machine has no folder for the queue that is shared by all its users: set "
            f"{FOLDER_VARIABLE} to a folder that all users can write"
        )
    yield TicketFolders(shared or [Path(tempfile.gettempdir())], machine)
    make_folder(store.locks.folder)
    yield TicketFolders([store.locks.folder], machine)


def describe_queues() -> Check:
    """Return who holds and who waits for the devices of this machine."""
    name, shared = "device queue", find_shared_folders()
    if not shared:
        advice = f"set {FOLDER_VARIABLE} to a folder that all users can write"
        return Check(name=name, state="absent", found="no folder that is shared by all users", advice=advice)
    tickets = TicketFolders(shared, name_machine()).find() if sys.platform != "win32" else []
    return Check(name=name, state="ok", found=describe_queue(tickets) or f"nothing measures (tickets in {shared[0]})")


def find_shared_folders() -> list[Path]:
    """Return the folders of the queue that all users of this machine share; they create tickets in the first one that
    can be written.

    By default sticky folders owned by root: nobody can replace another user's files in them.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    return [Path(named)] if named else [folder for folder in _SHARED_FOLDERS if _is_sticky(folder)]


def _is_sticky(folder: Path) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == 0 and status.st_mode & _STICKY_FOR_ALL == _STICKY_FOR_ALL


def name_machine() -> str:
    """Return a name that all containers of a host share, unlike their host names."""
    try:
        return digest_json(_BOOT_ID.read_text(encoding="ascii").strip())[:16]
    except OSError:
        return _file_name(platform.node())


def name_devices(device: str) -> tuple[str, ...]:
    """Return the names of all devices that a step needs at once."""
    if device == "cpu":
        return tuple(f"cpu-{cpu}" for cpu in _own_cpus())
    number = re.fullmatch(r"gpu-(\d+)", device)
    return (_name_gpu(int(number[1])) if number else device,)


def _own_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _name_gpu(number: int) -> str:
    """Return the UUID of a GPU, as other processes may number GPUs differently; its number if it has no UUID."""
    from ndld_flow.measure.gpu_clocks import name_for_nvml

    name = name_for_nvml(number)
    cards = (path.read_text(errors="replace") for path in sorted(_NVIDIA_GPUS.glob("*/information")))
    matches = [re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", card, re.MULTILINE) for card in cards]
    ids = [match[1] if match else "" for match in matches]
    if name.isdecimal():
        return (ids[int(name)] if int(name) < len(ids) else "") or f"gpu-{name}"
    return next((uuid for uuid in ids if uuid.startswith(name)), name)


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


def _describe_device(device: str) -> str:
    """Return `cpu 0-3,8` or `gpu 0`."""
    if device != "cpu":
        return re.sub(r"^gpu-(\d+)$", r"gpu \1", device)
    ranges: list[list[int]] = []
    for cpu in _own_cpus():
        if ranges and ranges[-1][-1] == cpu - 1:
            ranges[-1].append(cpu)
        else:
            ranges.append([cpu])
    return "cpu " + ",".join(f"{some[0]}-{some[-1]}" if len(some) > 1 else f"{some[0]}" for some in ranges)
