"""The executor for many machines: Ray places tasks on its nodes, which compute them against the same store.

The store is a folder that all nodes see under one path, with locks that hold across machines; or each node has a store
of its own, and a remote store transfers inputs and results. Ray only receives "compute this key": a lost answer, or a
task that runs twice, harms nothing, because every attempt looks into the store first.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ndld_flow.base.errors import BackendError, KilledError
from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import shortened, visible_name
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.sweep_section import Needs
from ndld_flow.records.step_record import StepRecord
from ndld_flow.runner.events import Listener
from ndld_flow.runner.executors.executor import StepTimeoutError, Task
from ndld_flow.runner.executors.messages import Logged, Progressed, Waits
from ndld_flow.runner.executors.ray.cluster import (
    Demand,
    Node,
    RayCluster,
    Said,
    explain_lack,
    find_nodes,
    make_demand,
    make_options,
    only_machine,
    read_nodes,
)
from ndld_flow.runner.executors.ray.messages import Alive, Died, Lacks, Last, Stopped, read_word
from ndld_flow.runner.executors.ray.transport import SharedFolder, ThroughRemote, Way
from ndld_flow.runner.executors.workers import Ear, Hearing, read_answer
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store

SILENCE_S = 60.0
"""A node that works says something every few seconds; one that says nothing for so long is lost."""


class LostError(BackendError):
    """Nobody knows what became of a task; to be tried again."""


class LostWorkerError(LostError):
    """The process that worked on it was killed there."""


class NotBegunError(LostError):
    """It was lost before any node said that it works on it: Ray gave it to one that was going away."""


class LacksError(LostError):
    """Its node could not read artifacts whole: those with these digests."""

    def __init__(self, digests: Sequence[str]) -> None:
        self.digests = digests
        super().__init__("what it reads did not reach its node whole")


@dataclass
class Watch:
    """Listens to one task."""

    task: Task
    ear: Ear
    heard: float | None = None
    """When its node said something last (monotonic seconds); None while it is queued."""

    def hear(self, said: Said) -> Sequence[StepRecord] | None:
        """The task's records; None while it is not done.

        Raises the error it ended with; StepTimeoutError; BackendError when the node cannot do such tasks at all;
        LostError when it, or the process that worked, is gone.
        """
        if said.kind == "refused":
            raise BackendError(f"Ray's node cannot work: {shortened(visible_name(said.text), 300)}.")
        if said.kind != "said":
            lost = NotBegunError if self.heard is None else LostError
            raise lost(said.text or "it ended without an answer")
        self.heard = time.monotonic()
        word = read_word(said.text)
        if isinstance(word, Progressed):
            self.ear.progress(word.place, word.done, word.total, word.what)
        elif isinstance(word, Logged):
            self.ear.logged(word.place, word.text)
        elif isinstance(word, Waits):
            self.ear.waits(word.name)
        elif not isinstance(word, Alive):
            return self._conclude(word)
        return None

    def _conclude(self, last: Last) -> Sequence[StepRecord]:
        if isinstance(last, Died):
            lost = LostWorkerError if last.killed else LostError
            raise lost(f"the process that worked on it {last.text}")
        if isinstance(last, Lacks):
            raise LacksError(last.digests)
        if isinstance(last, Stopped):
            raise StepTimeoutError(
                f"{name_steps(self.task)}: it took longer than {seconds(self.task.timeout_s or 0)} and was stopped. "
                "Allow it more by `timeout`."
            )
        return read_answer(last)

    def check(self) -> None:
        """Raises LostError when the node has been silent for long."""
        if self.heard is not None and time.monotonic() - self.heard > SILENCE_S:
            raise LostError(f"its node has said nothing for {SILENCE_S:g} s")


def name_steps(task: Task) -> str:
    return f"step {' and '.join(work.step.name for work in task.works)}"


ATTEMPTS = 3
"""How often a task is begun whose worker, node or answer is lost."""
PLACINGS = 10
"""How often it is given to Ray without that anybody begins."""
LOOK_EVERY_S = 5.0
"""How often to look into the store for what a node has finished without being heard."""
NODES_TIMEOUT_S = 120.0
RETURN_WITHIN_S = 60.0
"""A kind of node that was there may take so long to come back before it is missed."""


class OnRay:
    """Computes tasks on the nodes of a Ray cluster."""

    slots = 32
    """Ray queues what its nodes have no room for."""

    def __init__(
        self,
        address: str,
        needs: Mapping[str, Needs],
        listener: Listener,
        *,
        trust: bool = False,
        remote_store: RemoteStore | None = None,
    ) -> None:
        """Connect to a cluster.

        `address`: `auto`, `HOST:PORT`, or `local`, which starts a Ray of its own on this machine. `needs`: step -> what
        it needs of a node. `trust`: whether steps from files, and code that settings name, may run there.
        `remote_store`: what carries artifacts where nodes do not see the store's folder.
        Raises BackendError where Ray is missing, or does not answer.
        """
        self._address, self._needs, self._listener, self._trust = address, needs, listener, trust
        self._way: Way = SharedFolder() if remote_store is None else ThroughRemote(remote_store)
        self._cluster = RayCluster(address)
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._connecting = threading.Lock()
        self._telling = threading.Lock()
        self._placed: set[Demand] = set()

    def machine_for(self, step: RecipeStep, store: Store) -> str:
        """The fingerprint of the machines that would compute a step, for its key.

        Raises BackendError when no node fits its needs, or nodes of several kinds do, or they do not see the store.
        """
        return only_machine(self._find_fitting(make_demand([step], self._needs), store), step)

    def submit(self, task: Task, store: Store) -> Future[Sequence[StepRecord]]:
        self._way.ask(store)  # its lease belongs to the thread that closes it
        future: Future[Sequence[StepRecord]] = Future()
        # A daemon: a driver that ends without closing must not wait.
        self._threads.append(threading.Thread(target=self._do, args=(task, store, future), daemon=True))
        self._threads[-1].start()
        return future

    def close(self) -> None:
        self._closing.set()
        self._cluster.close()
        for thread in self._threads:
            thread.join()
        self._way.close()

    def _do(self, task: Task, store: Store, future: Future[Sequence[StepRecord]]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._see_through(task, store))
        except BaseException as error:
            future.set_exception(error)

    def _see_through(self, task: Task, store: Store) -> Sequence[StepRecord]:
        """A task's records, by whichever of its attempts gets there."""
        before = self._way.find(task, store) if task.fresh else None
        losses: list[LostError] = []
        while not _is_hopeless(losses):
            try:
                return self._attempt(task, store, before)
            except LostError as lost:
                losses.append(lost)
            found = self._find_new(task, store, before)
            if found is not None:
                return found
            self._prepare_again(losses[-1])
        kind = KilledError if isinstance(losses[-1], LostWorkerError) else BackendError
        raise kind(f"{name_steps(task)}: Ray lost it {len(losses)} times; the last time: {losses[-1]}.")

    def _prepare_again(self, lost: LostError) -> None:
        if isinstance(lost, LacksError):
            self._way.distrust(lost.digests)
        elif isinstance(lost, NotBegunError):
            self._closing.wait(1.0)  # until Ray knows of it too

    def _attempt(self, task: Task, store: Store, before: Sequence[StepRecord] | None) -> Sequence[StepRecord]:
        demand = make_demand([work.step for work in task.works], self._needs)
        fitting = self._find_fitting(demand, store)
        _refuse_other_machine(task, fitting)
        order = self._way.write_order(task, store, trust=self._trust).to_line()
        with self._connected().talk("compute", order, make_options(demand, fitting)) as talk:
            watch = Watch(task, Hearing(task, self._listener, self._telling))
            look_at = time.monotonic() + LOOK_EVERY_S
            while True:
                said = talk.hear(1.0)
                records = watch.hear(said) if said is not None else None
                if records is not None:
                    return self._receive(records, store)
                watch.check()
                if time.monotonic() > look_at:
                    found = self._find_new(task, store, before)
                    if found is not None:
                        return found
                    if watch.heard is None and not find_nodes(demand, self._look(store)):
                        raise NotBegunError("the only node that could do it is gone")
                    look_at = time.monotonic() + LOOK_EVERY_S

    def _receive(self, records: Sequence[StepRecord], store: Store) -> Sequence[StepRecord]:
        if not self._way.receive(records, store):
            raise LostError("what it made did not arrive whole")
        return records

    def _find_new(self, task: Task, store: Store, before: Sequence[StepRecord] | None) -> Sequence[StepRecord] | None:
        """Records that were not there before."""
        found = self._way.find(task, store)
        return found if found != before else None

    def _find_fitting(self, demand: Demand, store: Store) -> list[Node]:
        """The nodes that Ray may give such tasks to; those that were there before are waited for."""
        patience_s = RETURN_WITHIN_S if demand in self._placed else 0.0
        deadline = time.monotonic() + patience_s
        while not (fitting := find_nodes(demand, nodes := self._look(store))):
            if time.monotonic() > deadline:
                raise explain_lack(demand, nodes, self._address)
            self._closing.wait(1.0)
        self._placed.add(demand)
        return fitting

    def _look(self, store: Store) -> list[Node]:
        question = self._way.ask(store).to_line()
        with self._connected().talk("look", question) as talk:
            answer = talk.hear(NODES_TIMEOUT_S)
        if answer is None or answer.kind != "ended":
            raise NotBegunError("Ray does not say which nodes it has")
        return read_nodes(json.loads(answer.text))

    def _connected(self) -> RayCluster:
        """The cluster; connected anew where the connection was lost."""
        with self._connecting:
            if self._closing.is_set():
                raise BackendError("the sweep ended before this was done.")
            if self._cluster.gone:
                self._cluster.close()
                self._cluster = RayCluster(self._address)
            return self._cluster


def _is_hopeless(losses: Sequence[LostError]) -> bool:
    begun = sum(not isinstance(lost, NotBegunError) for lost in losses)
    return begun >= ATTEMPTS or len(losses) - begun >= PLACINGS


def _refuse_other_machine(task: Task, fitting: Sequence[Node]) -> None:
    planned = next((work.parts.machine for work in task.works if work.parts.machine), "")
    if planned and planned != (there := only_machine(fitting, task.works[0].step)):
        raise BackendError(
            f"{name_steps(task)}: it was planned for {planned}, but Ray would do it on {there}. Name the kind of node "
            "by `needs: {STEP: {device: NAME}}`, or run again."
        )
