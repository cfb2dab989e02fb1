"""The node: our process on a target. It answers questions, stores files, and computes tasks in a worker process.

It ends, with all that it has started, when its standard input closes, or nothing has arrived for `SILENCE_S`: the
connection may have died without a sign.
"""

from __future__ import annotations

import json
import os
import platform
import select
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.base.errors import BackendError, NdldFlowError
from ndld_flow.execution.executor import match_records
from ndld_flow.execution.keys import describe_libraries, describe_machine_of
from ndld_flow.execution.messages import Alive, Done, describe_error, move_order
from ndld_flow.execution.ssh import messages
from ndld_flow.execution.workers import Worker
from ndld_flow.processes.lines import Line, Output
from ndld_flow.processes.worker import ORPHANED, claim_input, run_under_watchdog
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.step_types import StepTypes
from ndld_flow.runs.disk import explaining_disk
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.store import Store

SILENCE_S = 120.0
"""Seconds without a byte after which the sender counts as lost; it sends at least one message in `ALIVE_EVERY_S`."""


class _Input:
    """Standard input: lines, and the bytes of files between them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def read_line(self) -> bytes:
        """Return the next line without its end. Raises EOFError."""
        while b"\n" not in self._buffer:
            self._buffer += self._receive(messages.CHUNK_BYTES)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def read(self, at_most: int) -> bytes:
        """Return some bytes. Raises EOFError."""
        if not self._buffer:
            return self._receive(at_most)
        chunk, self._buffer = self._buffer[:at_most], self._buffer[at_most:]
        return chunk

    def _receive(self, at_most: int) -> bytes:
        ready = select.select([self._descriptor], [], [], SILENCE_S)[0]
        chunk = os.read(self._descriptor, at_most) if ready else b""
        if not chunk:
            raise EOFError
        return chunk


@dataclass
class Node:
    """Answers the questions of one sender."""

    store: Store
    output: Output
    _worker: Worker = field(default_factory=Worker)
    """It computes in a thread of its own."""
    _trouble: str = ""
    """Why the last file could not be written."""

    def serve(self, source: _Input) -> None:
        """Answer questions until the input ends."""
        self.output.send(messages.Ready(name=platform.node(), store=str(self.store.root)))
        while True:
            try:
                question = messages.QUESTION.validate_json(source.read_line())
                if isinstance(question, messages.Send):
                    self._receive(question, source)
                else:
                    self._answer(question)
            except EOFError:
                return

    def _receive(self, question: messages.Send, source: _Input) -> None:
        try:
            chunks = messages.read_chunks(source.read, question.size_bytes)
            messages.Incoming(self.store).write(question.digest, question.offset, chunks)
        except OSError as error:
            self._trouble = f"{self.store.root}: a file cannot be written: {error.strerror}"

    def _answer(self, question: messages.Question) -> None:
        if isinstance(question, messages.Compute):
            threading.Thread(target=self._compute, args=(question,), daemon=True).start()
            return
        if isinstance(question, Alive | messages.Send):
            return
        try:
            if isinstance(question, messages.Fetch):
                self._send_file(question)
                return
            with explaining_disk("", self.store.root):
                self.output.send(self._reply(question))
        except NdldFlowError as error:
            self.output.send(describe_error(error))

    def _reply(
        self, question: messages.Describe | messages.Examine | messages.Lack | messages.Keep | messages.Find
    ) -> Line:
        if isinstance(question, messages.Describe):
            return _describe_step(question)
        if isinstance(question, messages.Examine):
            from ndld_flow.execution.doctor import examine

            return messages.Examined(checks=tuple(examine(self.store.root.parent)))
        if isinstance(question, messages.Lack):
            missing = [artifact for artifact in question.artifacts if not self.store.is_intact(artifact)]
            incoming, space = messages.Incoming(self.store), os.statvfs(self.store.root)
            return messages.Lacking(
                artifacts=tuple(artifact.digest for artifact in missing),
                files={file.digest: incoming.size(file.digest) for artifact in missing for file in artifact.files},
                free_bytes=space.f_bavail * space.f_frsize,
            )
        if isinstance(question, messages.Keep):
            trouble, self._trouble = self._trouble, ""
            if trouble:
                raise BackendError(trouble)
            return messages.Kept(kept=messages.Incoming(self.store).keep(question.artifact))
        records = match_records([self.store.read_record(key) for key in question.keys], self.store)
        return messages.Found(records=tuple(records or ()))

    def _send_file(self, question: messages.Fetch) -> None:
        path = self.store.object_folder(question.artifact) / question.path
        try:
            with path.open("rb") as file:
                size = max(0, os.fstat(file.fileno()).st_size - question.offset)
                file.seek(question.offset)
                self.output.send(messages.Sent(size_bytes=size), messages.read_chunks(file.read, size))
        except OSError as error:
            raise BackendError(f"{path}: it cannot be read: {error.strerror}") from None

    def _compute(self, question: messages.Compute) -> None:
        """Compute a task in the worker, and pass its messages on."""
        try:
            order = move_order(question.order, self.store)
            with self.store.locks.working():
                end = self._worker.compute(order, self.store, self.output.send)
                if isinstance(end, Done):
                    self.store.locks.use([record.key for record in end.records])
        except Exception as error:  # the sender waits for an end
            end = describe_error(error)
        self.output.send(end)


def _describe_step(question: messages.Describe) -> messages.Described:
    step_type = StepTypes().find(question.step)
    if step_type is None:
        lack = f"there is no step type {question.step!r}: install the package that defines it in its environment"
        return messages.Described(libraries={}, machine="", lacks=(lack,))
    settings = step_type.cls.model_validate_json(json.dumps(question.settings))
    step, foresight = RecipeStep("NAME", step_type, settings, {}), settings.foresee()
    return messages.Described(
        libraries=describe_libraries(step, question.modules),
        machine=describe_machine_of(step),
        notes=foresight.notes,
        problems=foresight.problems,
        lacks=foresight.lacks,
    )


def main() -> None:
    """Serve one sender; the argument is the target's folder."""
    run_under_watchdog()
    output = Output()
    outputs = Outputs(Path(sys.argv[1]))
    outputs.prepare()
    outputs.store.sweep_building()
    messages.Incoming(outputs.store).forget_old()
    Node(outputs.store, output).serve(_Input(claim_input()))
    os._exit(ORPHANED)


if __name__ == "__main__":
    main()
