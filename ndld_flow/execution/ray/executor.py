"""The executor for many machines: Ray places tasks on its nodes, which compute them against the same store.

The store is a folder that all nodes see under one path, with locks that work across machines. Ray only receives
"compute this key": a lost answer, or a task that runs twice, does no harm, because every attempt looks into the store
first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from uuid import uuid4

from pydantic import ValidationError

from ndld_flow.base.errors import BackendError, KilledError, NdldFlowError, naming_step
from ndld_flow.base.text import short_name, shortened, visible_name
from ndld_flow.execution.daemon_threads import DaemonThreads
from ndld_flow.execution.executor import Task, are_results_of, find_records
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.messages import NO_ANSWER, Alive, Died, End, News, Report, transfer_files
from ndld_flow.execution.ray.cluster import (
    Demand,
    Node,
    RayCluster,
    explain_no_node,
    find_nodes,
    make_demand,
    make_options,
    only_machine,
    read_nodes,
)
from ndld_flow.execution.ray.messages import BridgeMessage, NodeOrder, NodeQuestion, read_node_message
from ndld_flow.execution.workers import TaskListener, read_end
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.targets import Needs
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.store import Store

SILENCE_S = 60.0
"""Seconds of silence after which a node counts as lost: while it works, it sends a message every few seconds."""


class LostError(BackendError):
    """The result of a task is unknown; it is tried again."""


class LostWorkerError(LostError):
    """The process that computed it was killed on its node."""


class NotStartedError(LostError):
    """It was lost before a node started it: Ray gave it to a node that was shutting down."""


@dataclass
class TaskMonitor:
    """Follows one task by the messages, and the silence, of its node."""

    task: Task
    report: Report
    last_message_s: float | None = None
    """Time of its node's last message (monotonic seconds); None while it is queued."""

    def handle(self, line: BridgeMessage) -> Sequence[StepRecord] | None:
        """Handle a message; return the task's records, or None while it is running.

        Raises the error that ended it; StepTimeoutError; BackendError if the node cannot compute such tasks at all;
        LostError if the node or the worker process has stopped.
        """
        if line.kind == "refused":
            raise BackendError(f"Ray's node cannot work: {shortened(visible_name(line.text), 300)}.")
        if line.kind != "message":
            lost = NotStartedError if self.last_message_s is None else LostError
            raise lost(short_name(line.text, 500) or "it ended without an answer")
        self.last_message_s = time.monotonic()
        try:
            message = read_node_message(line.text)
        except NdldFlowError:
            raise
        except Exception:  # pydantic passes on whatever a validator raises
            raise self._refuse(NO_ANSWER) from None
        if isinstance(message, News):
            self.report(message)
        elif not isinstance(message, Alive):
            return self._conclude(message)
        return None

    def _refuse(self, why: str) -> BackendError:
        return BackendError(f"Ray's node: {why}. Nothing of it was kept; check that machine.", step=self.task.name)

    def _conclude(self, final: End) -> Sequence[StepRecord]:
        if isinstance(final, Died):
            lost = LostWorkerError if final.killed else LostError
            raise lost(f"the process that computed it {short_name(final.text, 500)}")
        records = read_end(final, self.task)
        if not are_results_of(self.task, records):
            raise self._refuse("it returned results of other steps than it was asked for")
        return records

    def check(self) -> None:
        """Raise LostError when the node has been silent for too long."""
        if self.last_message_s is not None and time.monotonic() - self.last_message_s > SILENCE_S:
            raise LostError(f"its node has sent no message for {SILENCE_S:g} s")


SEEN_WITHIN_S = 90.0
"""Network file systems may take a minute until one machine sees what another has written."""
MAX_ATTEMPTS = 3
"""Maximum number of attempts of a task whose worker, node or answer is lost."""
MAX_PLACEMENTS = 10
"""Maximum number of submissions to Ray that no node starts."""
LOOK_EVERY_S = 5.0
"""Seconds between looks into the store for results whose message was lost."""
NODES_TIMEOUT_S = 120.0
RETURN_WITHIN_S = 60.0
"""Seconds to wait for the return of a kind of node that existed before."""


class OnRay:
    """Computes tasks on the nodes of a Ray cluster."""

    slots = 32
    """Ray queues tasks for which its nodes have no room."""

    def __init__(self, address: str, needs: Mapping[str, Needs], listener: Listener, *, trust: bool = False) -> None:
        """Connect to a cluster.

        `address`: `auto`, `HOST:PORT`, or `local`, which starts a cluster on this machine. `needs`: step -> the
        resources that it needs. `trust`: whether steps from files, and code that settings name, may run there.
        Raises BackendError if Ray is missing, or does not answer.
        """
        self._address, self._needs, self._listener, self._trust = address, needs, listener, trust
        self._witnesses: dict[Store, NodeQuestion] = {}
        self._leases = contextlib.ExitStack()
        self._cluster = RayCluster(address)
        self._threads = DaemonThreads(2 * self.slots)
        self._closing = threading.Event()
        self._connecting = threading.Lock()
        self._listener_lock = threading.Lock()
        self._placed: set[Demand] = set()

    def machine_for(self, step: RecipeStep, store: Store) -> str:
        """Return the fingerprint of the machines that would compute a step, for its key.

        Raises BackendError if no node fits its needs, or nodes of several kinds do, or they do not see the store.
        """
        with naming_step(step.name):
            return only_machine(self._find_fitting(make_demand([step], self._needs), store), step)

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        self._ask(store)  # its lease belongs to the thread that closes it
        return self._threads.submit(lambda: self._run_task(task, store))

    def close(self) -> None:
        self._closing.set()
        self._cluster.close()
        self._threads.join()
        self._leases.close()

    def _run_task(self, task: Task, store: Store) -> Sequence[StepRecord]:
        """Return a task's records from the first attempt that succeeds."""
        with naming_step(task.name):
            return self._try_repeatedly(task, store)

    def _try_repeatedly(self, task: Task, store: Store) -> Sequence[StepRecord]:
        before = find_records(task.works, store) if task.fresh else None
        losses: list[LostError] = []
        while not _must_give_up(losses):
            try:
                return self._attempt(task, store, before)
            except LostError as lost:
                losses.append(lost)
            records = _find_new(task, store, before)
            if records is not None:
                return records
            if isinstance(losses[-1], NotStartedError):
                self._closing.wait(1.0)  # until Ray has noticed it too
        kind = KilledError if isinstance(losses[-1], LostWorkerError) else BackendError
        raise kind(f"Ray lost it {len(losses)} times; the last time: {losses[-1]}.", step=task.name)

    def _attempt(self, task: Task, store: Store, before: Sequence[StepRecord] | None) -> Sequence[StepRecord]:
        demand = make_demand([work.step for work in task.works], self._needs)
        fitting = self._find_fitting(demand, store)
        _refuse_other_machine(task, fitting)
        transferred = transfer_files(task, store, trust=self._trust).order
        order = NodeOrder(task=transferred.to_line(), witness=self._ask(store).witness).to_line()
        with self._connected().converse("compute", order, make_options(demand, fitting)) as conversation:
            monitor = TaskMonitor(task, TaskListener(task, self._listener, self._listener_lock))
            look_at = time.monotonic() + LOOK_EVERY_S
            while True:
                line = conversation.receive(1.0)
                records = monitor.handle(line) if line is not None else None
                if records is not None:
                    if not have_arrived(records, store):
                        raise LostError("its results did not arrive completely")
                    return records
                monitor.check()
                if time.monotonic() > look_at:
                    stored = _find_new(task, store, before)
                    if stored is not None:
                        return stored
                    if monitor.last_message_s is None and not find_nodes(demand, self._look(store)):
                        raise NotStartedError("the only node that could compute it has stopped")
                    look_at = time.monotonic() + LOOK_EVERY_S

    def _find_fitting(self, demand: Demand, store: Store) -> list[Node]:
        """Return the nodes that may compute such tasks; wait for nodes that existed before."""
        patience_s = RETURN_WITHIN_S if demand in self._placed else 0.0
        deadline = time.monotonic() + patience_s
        while not (fitting := find_nodes(demand, nodes := self._look(store))):
            if time.monotonic() > deadline:
                raise explain_no_node(demand, nodes, self._address)
            self._closing.wait(1.0)
        self._placed.add(demand)
        return fitting

    def _look(self, store: Store) -> list[Node]:
        question = self._ask(store).to_line()
        with self._connected().converse("look", question) as conversation:
            answer = conversation.receive(NODES_TIMEOUT_S)
        if answer is None or answer.kind != "ended":
            raise NotStartedError("Ray does not list its nodes")
        try:
            return read_nodes(answer.text)
        except ValidationError:
            raise BackendError(f"Ray at {visible_name(self._address)}: {NO_ANSWER}.") from None

    def _ask(self, store: Store) -> NodeQuestion:
        """Return the request for the description of a node, with a lock that the node must find held."""
        if store not in self._witnesses:
            name = uuid4().hex[:12]
            self._leases.enter_context(store.locks.lease("ray", name))
            self._witnesses[store] = NodeQuestion(store=str(store.root.absolute()), witness=f"ray-{name}")
        return self._witnesses[store]

    def _connected(self) -> RayCluster:
        """Return the cluster, reconnected if the connection was lost."""
        with self._connecting:
            if self._closing.is_set():
                raise BackendError("the run ended before this step finished.")
            if self._cluster.disconnected:
                self._cluster.close()
                self._cluster = RayCluster(self._address)
            return self._cluster


def _find_new(task: Task, store: Store, before: Sequence[StepRecord] | None) -> Sequence[StepRecord] | None:
    """Return records that the store did not have before."""
    records = find_records(task.works, store)
    return records if records != before else None


def have_arrived(records: Sequence[StepRecord], store: Store) -> bool:
    """Wait until a node's results are in the store; return False if they did not arrive completely."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not all(store.is_intact(record.artifact) for record in records):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _must_give_up(losses: Sequence[LostError]) -> bool:
    started = sum(not isinstance(lost, NotStartedError) for lost in losses)
    return started >= MAX_ATTEMPTS or len(losses) - started >= MAX_PLACEMENTS


def _refuse_other_machine(task: Task, fitting: Sequence[Node]) -> None:
    planned = next((work.parts.machine for work in task.works if work.parts.machine), "")
    if planned and planned != (there := only_machine(fitting, task.works[0].step)):
        raise BackendError(
            f"it was planned for {planned}, but Ray would compute it on {there}. Name the kind of node with "
            "`needs: {STEP: {device: NAME}}`, or run again.",
            step=task.name,
        )
