"""A target: what this machine asks its node, and how often it tries again."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ndld_flow.base.errors import BackendError, KilledError, NdldFlowError
from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name
from ndld_flow.execution.events import Notice
from ndld_flow.execution.executor import Task, are_results_of
from ndld_flow.execution.keys import Site, installed_modules, make_key
from ndld_flow.execution.listener import Listener
from ndld_flow.execution.messages import (
    Died,
    End,
    Failed,
    Logged,
    News,
    Progressed,
    Refused,
    Report,
    Transfer,
    transfer_files,
)
from ndld_flow.execution.ssh import messages
from ndld_flow.execution.ssh.connection import Connection, ConnectionLostError
from ndld_flow.execution.ssh.deploy import start_node
from ndld_flow.execution.workers import read_end
from ndld_flow.machine.host import Check
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.targets import Target
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.records.run_record import StepRecord
from ndld_flow.step import Foresight
from ndld_flow.store.store import Store

T = TypeVar("T")
R = TypeVar("R", bound=messages.Reply)

MAX_LOSSES = 6
"""Number of lost connections after which one piece of work is given up."""
_MAX_TRACEBACK_LINES = 40
_MAX_ATTEMPTS = 3
"""Number of attempts to send one artifact, if it arrives damaged."""


class Host:
    """A target with its connection, which is opened when it is first needed and again when it was lost."""

    def __init__(self, name: str, target: Target, listener: Listener) -> None:
        self.name = name
        self.target = target
        self._listener = listener
        self._connection: Connection | None = None
        self._lock = threading.RLock()
        """Held while the connection is used."""
        self._closing = threading.Event()
        self._store = ""
        """Path of the node's store."""

    @property
    def label(self) -> str:
        """Return `h100 (ssh://host)`, for messages."""
        return self.target.host if self.name == self.target.host else f"{self.name} ({self.target.host})"

    def close(self) -> None:
        """End the connection, and everything that runs on the target for it. Any thread may call this."""
        self._closing.set()
        connection = self._connection
        if connection is not None:
            connection.close()  # whoever waits for an answer stops waiting
        with self._lock:
            if self._connection is not None:
                self._connection.release()
            self._connection = None

    def describe(self, step: RecipeStep) -> Site:
        """Return the circumstances of a step on the target. Raises BackendError."""
        question = messages.Describe(
            step=step.type.name, settings=step.step.model_dump(mode="json"), modules=tuple(installed_modules(step))
        )
        site = self._persist(lambda node: self._ask(node, question, messages.Described))
        groups = (
            tuple(f"on {self.name}: {text}" for text in group) for group in (site.notes, site.problems, site.lacks)
        )
        return Site(site.libraries, site.machine, Foresight(*groups))

    def examine(self) -> list[Check]:
        """Return what `doctor` finds on the target. Raises BackendError."""
        return list(self._persist(lambda node: self._ask(node, messages.Examine(), messages.Examined)).checks)

    def compute(self, task: Task, store: Store, report: Report, *, trust: bool) -> Sequence[StepRecord]:
        """Compute a task on the target and copy its results into the store.

        Raises the steps' errors; KilledError if the process that computed it was killed; StepTimeoutError;
        BackendError if the target cannot be reached any more.
        """
        transfer = transfer_files(task, store, trust=trust)
        before: list[Sequence[StepRecord]] = []
        try:
            records = self._persist(lambda node: self._attempt(node, transfer, task, before, store, report))
        except NdldFlowError as error:
            raise error.with_text(transfer.restore_names(error.message, self._store), error.step) from error
        for record in records:
            store.write_record(record)
        return records

    def _attempt(
        self,
        node: Connection,
        transfer: Transfer,
        task: Task,
        before: list[Sequence[StepRecord]],
        store: Store,
        report: Report,
    ) -> Sequence[StepRecord]:
        """Compute a task, or take the result of an earlier attempt.

        `before` collects the records of these keys that the target had at the start of each attempt.
        """
        keys = tuple(make_key(work.parts) for work in task.works)
        records: Sequence[StepRecord] = self._ask(node, messages.Find(keys=keys), messages.Found).records
        before.append(records)
        # Of a task to compute afresh, only the result of an earlier attempt counts.
        if not records or (task.fresh and records == before[0]):
            for artifact in transfer.artifacts:
                self._send_artifact(node, artifact, store, report)
            order = transfer.order.model_copy(update={"held": False})
            node.send(messages.Compute(order=order.to_line()))
            records = self._follow(node, task, report)
        if not are_results_of(task, records):
            raise node.refuse("it returned results of other steps than it was asked for")
        for record in records:
            self._fetch_artifact(node, record.artifact, store, report)
        return records

    def _follow(self, node: Connection, task: Task, report: Report) -> Sequence[StepRecord]:
        """Pass on the messages about a task until it ends."""
        while True:
            message = node.reply()
            if isinstance(message, News):
                report(message)
            elif isinstance(message, End):
                return self._conclude(message, task, report)
            else:
                raise node.refuse(f"it answered {type(message).__name__} to Compute")

    def _conclude(self, end: End, task: Task, report: Report) -> Sequence[StepRecord]:
        if isinstance(end, Died):
            kind = KilledError if end.killed else BackendError
            raise kind(
                f"the process that computed it on {self.label} {short_name(end.text, 500)}. Finished steps are kept.",
                step=task.name,
            )
        if isinstance(end, Failed):  # not a bug of this machine: it may send anything
            for line in end.traceback.splitlines()[-_MAX_TRACEBACK_LINES:]:
                report(Logged(index=0, text=line))
            what = short_name(f"{end.error}: {end.text}", 500)
            raise BackendError(f"a bug ended it on {self.label}: {what}. Its log has the traceback.", step=task.name)
        return read_end(end, task)

    def _send_artifact(self, node: Connection, artifact: ArtifactRecord, store: Store, report: Report) -> None:
        """Send what the target lacks of an artifact. Raises BackendError if its disk is full."""
        for _ in range(_MAX_ATTEMPTS):
            lacks = self._ask(node, messages.Lack(artifacts=(artifact,)), messages.Lacking)
            if not lacks.artifacts:
                return
            files = {file.digest: file for file in artifact.files}
            missing = sum(max(0, file.size_bytes - lacks.files.get(file.digest, 0)) for file in files.values())
            if missing > lacks.free_bytes:
                raise BackendError(
                    f"{self.label} has {size(lacks.free_bytes)} of free disk space, and needs "
                    f"{size(missing)} more for the inputs. Free some, or set another `folder:` of the target."
                )
            for file in files.values():
                self._send_file(node, artifact, file, lacks.files.get(file.digest, 0), store, report)
            if self._ask(node, messages.Keep(artifact=artifact), messages.Kept).kept:
                return
        raise BackendError(f"{self.label}: the inputs arrive damaged. Check its disk and its network.")

    def _send_file(
        self, node: Connection, artifact: ArtifactRecord, file: ArtifactFile, offset: int, store: Store, report: Report
    ) -> None:  # fmt: skip
        left = file.size_bytes - offset
        if left <= 0 < file.size_bytes:
            return
        what = f"sending {Path(file.path).name} to {self.name}"
        with (store.object_folder(artifact.digest) / file.path).open("rb") as contents:
            contents.seek(offset)
            chunks = _reported(messages.read_chunks(contents.read, left), offset, file.size_bytes, what, report)
            node.send(messages.Send(digest=file.digest, offset=offset, size_bytes=left), chunks)

    def _fetch_artifact(self, node: Connection, artifact: ArtifactRecord, store: Store, report: Report) -> None:
        """Copy an artifact of the target into the store. Raises BackendError if it arrives damaged."""
        incoming = messages.Incoming(store, self.name)
        free_bytes = shutil.disk_usage(store.root).free
        if artifact.size_bytes > free_bytes and not store.is_intact(artifact):
            raise BackendError(
                f"{self.label}: its results have {size(artifact.size_bytes)}, and the disk of {store.root} has "
                f"{size(free_bytes)} of free space."
            )
        for _ in range(_MAX_ATTEMPTS):
            if store.is_intact(artifact):
                return
            for file in artifact.files:
                offset = incoming.size(file.digest)
                sent = self._ask(
                    node, messages.Fetch(artifact=artifact.digest, path=file.path, offset=offset), messages.Sent
                )
                if sent.size_bytes > max(0, file.size_bytes - offset):
                    raise node.refuse("it sends more than it announced")
                what = f"fetching {Path(file.path).name} from {self.name}"
                chunks = messages.read_chunks(node.read, sent.size_bytes)
                incoming.write(file.digest, offset, _reported(chunks, offset, file.size_bytes, what, report))
            if incoming.keep(artifact):
                return
        raise BackendError(f"{self.label}: its results arrive damaged. Check its disk and its network.")

    def _ask(self, node: Connection, question: messages.Question, kind: type[R]) -> R:
        node.send(question)
        reply = node.reply()
        if isinstance(reply, Refused):
            raise BackendError(f"{self.label}: {short_name(reply.text, 500)}")
        if not isinstance(reply, kind):
            raise node.refuse(f"it answered {type(reply).__name__} to {type(question).__name__}")
        return reply

    def _persist(self, work: Callable[[Connection], T]) -> T:
        """Return what some work with the node returns; if the connection is lost, connect and begin again.

        Raises BackendError when it is lost too often, or cannot be opened at first.
        """
        losses = 0
        with self._lock:
            while True:
                try:
                    node = self._connection = self._connection or self._connect()
                    return work(node)
                except ConnectionLostError as lost:
                    if self._connection is not None:
                        self._connection.release()
                    first, self._connection = self._connection is None and not losses, None
                    losses += 1
                    if first or losses >= MAX_LOSSES or self._closing.wait(0.2):
                        times = f" {counted(losses, 'time')}" if losses > 1 else ""
                        problem = "it cannot be reached" if first else f"the connection was lost{times}"
                        raise BackendError(f"{self.label}: {problem}: {lost}.") from None
                    self._report(f"the connection to {self.label} was lost ({lost}); connecting again", warning=True)
                    self._closing.wait(min(2.0 ** (losses - 1), 16.0) - 1)

    def _connect(self) -> Connection:
        """Open a connection, create the environment if it is missing, and return when the node is ready."""
        connection = Connection(self.target, self.label)
        self._connection = connection  # so that `close` ends it
        if self._closing.is_set():
            connection.close()
        try:
            self._store = start_node(connection, self.target, self.label, self._report)
        except BaseException:
            connection.release()
            self._connection = None
            raise
        connection.stay_alive()
        return connection

    def _report(self, text: str, *, warning: bool = False) -> None:
        self._listener(Notice(text=text, warning=warning))


def _reported(chunks: Iterator[bytes], done: int, total: int, what: str, report: Report) -> Iterator[bytes]:
    """Yield the same chunks, and report the progress in megabytes."""
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        report(Progressed(index=0, done=done // 10**6, total=total // 10**6, what=what))
