"""Transfer of tasks and results between the driver's store and Ray's nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.imported_modules import files_of, find_imported
from ndld_flow.inputs import Data, names_one_file, patterns_of
from ndld_flow.models.external_files import external_files
from ndld_flow.recipe.places import put_value
from ndld_flow.records.run_record import ArtifactFile, ArtifactRecord, StepRecord
from ndld_flow.runner.execute import Work
from ndld_flow.runner.executors.executor import Task, find_records
from ndld_flow.runner.executors.messages import TaskOrder, WorkOrder, write_order
from ndld_flow.runner.executors.ray.messages import Mirror, NodeOrder, NodeQuestion
from ndld_flow.runner.keys import make_key
from ndld_flow.step import DataFile, SampleData
from ndld_flow.store.digest import describe_files, describe_folder
from ndld_flow.store.files import copy_file
from ndld_flow.store.found_files import find_files
from ndld_flow.store.kinds import Artifact, Onnx
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store


def transfer_files(task: Task, store: Store, *, trust: bool) -> tuple[TaskOrder, list[ArtifactRecord]]:
    """Return a task as an order that refers only to files in the store, and the artifacts to which it refers.

    Models, data files and steps' files outside of the store are copied into it. Raises RequestError for one that cannot
    be read, or has changed.
    """
    collector = _Collector(store)
    works = tuple(replace(work, artifacts=collector.collect_artifacts(work.artifacts)) for work in task.works)
    order = write_order(replace(task, works=works), store, trust=trust)
    transferred = order.model_copy(
        update={
            "works": tuple(
                _transfer_data(each, work, collector) for each, work in zip(order.works, works, strict=True)
            ),
            "step_files": tuple(collector.collect_file(Path(path)) for path in order.step_files),
        }
    )
    return transferred, list(collector.artifacts.values())


@dataclass
class _Collector:
    """Collects the artifacts that a task reads, in the store."""

    store: Store
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict)
    """By digest."""

    def collect_artifacts(self, artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
        return {name: self._collect_artifact(artifact) for name, artifact in artifacts.items()}

    def collect_file(self, path: Path) -> str:
        """Return the path of a file in the store; a Python file is stored with the modules that it imports."""
        files = {path.name: path.absolute()}
        if path.suffix == ".py":
            files |= files_of(find_imported(path, path.read_bytes()))
        record = self._keep("file", files)
        return str(self.store.object_folder(record.digest).absolute() / path.name)

    def collect_samples(self, data: Data) -> Data:
        """Return the same data with all files in the store, in folders that keep their labels."""
        patterns = patterns_of(data)
        if not patterns:
            return data
        if isinstance(data, str) and names_one_file(data):
            return self.collect_file(Path(data))
        files = find_files(patterns)
        record = self._keep("files", {name: path for file in files for name, path in file.contents.items()})
        folder = self.store.object_folder(record.digest).absolute()
        return tuple(str(folder / file.label) for file in files)

    def _collect_artifact(self, artifact: Artifact) -> Artifact:
        if artifact.path.absolute().is_relative_to(self.store.root.absolute()):
            self._add(describe_folder(artifact.kind, artifact.folder, self.store.digests.digest))
            return artifact
        names = {Onnx.main: artifact.path} | {name: artifact.folder / name for name in external_files(artifact.path)}
        record = self._keep(artifact.kind, names)
        if record.digest != artifact.digest:
            raise RequestError(f"model {artifact.path}: it changed during the run. Run again.")
        return replace(artifact, path=self.store.object_folder(record.digest) / Onnx.main)

    def _keep(self, kind: str, paths: Mapping[str, Path]) -> ArtifactRecord:
        """Store files as an artifact, given their names in it, unless the store has it."""
        try:
            record = describe_files(kind, (self._describe(name, path) for name, path in paths.items()))
            if not self.store.is_intact(record):
                with self.store.building() as folder:
                    for name, path in paths.items():
                        copy_file(path, folder / "carried" / name)
                    record = self.store.keep(kind, folder / "carried")
        except FileNotFoundError as error:
            raise RequestError(f"the file {error.filename} no longer exists: it did when the sweep started.") from None
        self._add(record)
        return record

    def _describe(self, name: str, path: Path) -> ArtifactFile:
        return ArtifactFile(path=name, digest=self.store.digests.digest(path), size_bytes=path.stat().st_size)

    def _add(self, record: ArtifactRecord) -> None:
        self.artifacts[record.digest] = record


def _transfer_data(order: WorkOrder, work: Work, collector: _Collector) -> WorkOrder:
    """Return the order of a step with its data files in the store."""
    settings: dict[str, JsonValue] = order.model_dump(mode="json")["settings"]
    for held in work.step.step.held(DataFile):
        paths = held.value if isinstance(held.value, tuple) else (held.value,)
        transferred = [collector.collect_file(Path(str(path))) for path in paths]
        put_value(settings, held.place, transferred if isinstance(held.value, tuple) else transferred[0])
    for samples in work.step.step.held(SampleData):
        transferred_data = {name: collector.collect_samples(data) for name, data in samples.value.items()}
        put_value(settings, samples.place, transferred_data)
    inputs = {}
    for name, spec in work.step.used_inputs(order.inputs).items():
        tokenizer = None if spec.tokenizer is None else collector.collect_file(Path(spec.tokenizer))
        changed = {"data": collector.collect_samples(spec.data), "tokenizer": tokenizer}
        inputs[name] = spec.model_copy(update=changed)
    return order.model_copy(update={"settings": settings, "inputs": inputs})


SEEN_WITHIN_S = 90.0
"""Network file systems may take a minute until one machine sees what another has written."""


class Transport(Protocol):
    """Transfers tasks and results between the driver's store and the nodes."""

    def ask(self, store: Store) -> NodeQuestion:
        """Return the request for the description of a node."""

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        """Return the order for a node. The node can read the task's inputs afterwards."""

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        """Return the records of a task that a node has finished, whether its message arrived or not."""

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        """Copy a node's results into the driver's store; return False if they did not arrive completely."""

    def resend(self, digests: Sequence[str]) -> None:
        """Send artifacts that a node could not read again with the next order."""

    def close(self) -> None:
        """Release all locks."""


class SharedFolderTransport:
    """A folder that all nodes see under its path, with the locks in it."""

    def __init__(self) -> None:
        self._witnesses: dict[Store, str] = {}
        self._leases = contextlib.ExitStack()

    def ask(self, store: Store) -> NodeQuestion:
        if store not in self._witnesses:
            name = uuid4().hex[:12]
            self._leases.enter_context(store.locks.lease("ray", name))
            self._witnesses[store] = f"ray-{name}"
        return NodeQuestion(store=str(store.root.absolute()), witness=self._witnesses[store])

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        order, _ = transfer_files(task, store, trust=trust)
        return NodeOrder(task=order.to_line(), witness=self._witnesses[store])

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        return find_records(task.works, store)

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not all(store.is_intact(record.artifact) for record in records):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def resend(self, digests: Sequence[str]) -> None:
        """Do nothing: the nodes read the store itself."""

    def close(self) -> None:
        self._leases.close()


class RemoteTransport:
    """A store on each node; inputs and results go through a remote one."""

    def __init__(self, remote: RemoteStore) -> None:
        self._remote = remote

    def ask(self, store: Store) -> NodeQuestion:
        return NodeQuestion(store=str(store.root.absolute()))

    def write_order(self, task: Task, store: Store, *, trust: bool) -> NodeOrder:
        order, reads = transfer_files(task, store, trust=trust)
        for artifact in reads:
            self._remote.push_artifact(artifact, store)
        mirror = Mirror(url=self._remote.url, reads=tuple(reads), damaged=tuple(sorted(self._remote.damaged)))
        return NodeOrder(task=order.to_line(), mirror=mirror)

    def find(self, task: Task, store: Store) -> list[StepRecord] | None:
        return self._remote.pull([make_key(work.parts) for work in task.works], store)

    def receive(self, records: Sequence[StepRecord], store: Store) -> bool:
        if not all(self._remote.pull_artifact(record.artifact, store) for record in records):
            return False
        for record in records:
            store.write_record(record)
        return True

    def resend(self, digests: Sequence[str]) -> None:
        self._remote.damaged |= set(digests)

    def close(self) -> None:
        """Do nothing: no connection is open between calls."""
