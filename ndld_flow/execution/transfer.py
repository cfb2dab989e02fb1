"""Tasks for machines that do not see this one's files: everything that they read becomes an artifact in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.places import put_value
from ndld_flow.base.text import short_name
from ndld_flow.base.user_code import UserCode, find_code, list_files
from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.execution.messages import TaskOrder, WorkOrder, write_order
from ndld_flow.inputs import Data, names_one_file, patterns_of
from ndld_flow.models.external_files import external_files
from ndld_flow.recipe.recipe import name_files
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.step import DataFile, SampleData
from ndld_flow.store.digest import describe_files, describe_folder
from ndld_flow.store.files import copy_file
from ndld_flow.store.found_files import find_files
from ndld_flow.store.kinds import Artifact, Onnx
from ndld_flow.store.store import Store


@dataclass(frozen=True)
class Transfer:
    """A task as an order that refers only to files in the store."""

    order: TaskOrder
    artifacts: Sequence[ArtifactRecord]
    """All artifacts to which the order refers."""
    originals: Mapping[str, str]
    """Path of a copy in the store -> the path that the user wrote."""

    def restore_names(self, text: str, store: str) -> str:
        """Return a message with the user's own paths instead of those in the copy of the store at `store`."""
        for copied, original in self.originals.items():
            text = text.replace(store + copied.removeprefix(self.order.store), original)
        return text


def transfer_files(task: Task, store: Store, *, trust: bool) -> Transfer:
    """Return a task as an order that refers only to files in the store.

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
            "step_files": tuple(collector.collect_code(find_code(Path(path))) for path in order.step_files),
        }
    )
    return Transfer(transferred, list(collector.artifacts.values()), collector.originals)


@dataclass
class _Collector:
    """Collects the artifacts that a task reads, in the store."""

    store: Store
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict)
    """By digest."""
    originals: dict[str, str] = field(default_factory=dict)

    def collect_artifacts(self, artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
        return {name: self._collect_artifact(artifact) for name, artifact in artifacts.items()}

    def collect_file(self, path: Path, beside: Mapping[str, Path] = {}) -> str:
        """Return the path of a file in the store, kept with further files next to it."""
        record = self._keep("file", {**beside, path.name: path.absolute()})
        copied = str(self.store.object_folder(record.digest).absolute() / path.name)
        self.originals[copied] = str(path)
        return copied

    def collect_code(self, code: UserCode) -> str:
        """Return the path of a user's Python file in the store, with its folder and the modules from elsewhere."""
        files = list_files(code.path)
        for name, module in code.elsewhere.items():
            place = name.replace(".", "/")
            files[f"{place}/__init__.py" if module.name == "__init__.py" else f"{place}{module.suffix}"] = module
        return self.collect_file(code.path, files)

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
        self.originals |= {str(folder / name): str(path) for file in files for name, path in file.contents.items()}
        return tuple(str(folder / file.label) for file in files)

    def _collect_artifact(self, artifact: Artifact) -> Artifact:
        if artifact.path.absolute().is_relative_to(self.store.root.absolute()):
            self._add(describe_folder(artifact.kind, artifact.folder, self.store.digests.digest))
            return artifact
        names = {Onnx.main: artifact.path} | {
            PurePosixPath(name).as_posix(): artifact.folder / name for name in external_files(artifact.path)
        }
        record = self._keep(artifact.kind, names)
        if record.digest != artifact.digest:
            raise RequestError(f"model {artifact.path}: it changed during the run. Run again.")
        return replace(artifact, path=self.store.object_folder(record.digest) / Onnx.main)

    def _keep(self, kind: str, paths: Mapping[str, Path]) -> ArtifactRecord:
        """Store files as an artifact, given their names in it, unless the store has it."""
        try:
            record = describe_files(
                kind,
                (
                    ArtifactFile(path=name, digest=self.store.digests.digest(path), size_bytes=path.stat().st_size)
                    for name, path in paths.items()
                ),
            )
            if not self.store.is_intact(record):
                with self.store.building() as folder:
                    for name, path in paths.items():
                        copy_file(path, folder / "carried" / name)
                    record = self.store.keep(kind, folder / "carried")
        except ValueError:
            names = ", ".join(map(short_name, list(paths)[:3]))
            raise RequestError(
                f"the files {names} cannot be sent: a name has a backslash or a drive, is too long, or is that of a "
                "folder of another. Rename them."
            ) from None
        except FileNotFoundError as error:
            raise RequestError(f"the file {error.filename} no longer exists: it did when the run started.") from None
        self._add(record)
        return record

    def _add(self, record: ArtifactRecord) -> None:
        self.artifacts[record.digest] = record


def _transfer_data(order: WorkOrder, work: Work, collector: _Collector) -> WorkOrder:
    """Return the order of a step with its data files in the store."""
    settings: dict[str, JsonValue] = order.model_dump(mode="json")["settings"]
    codes = work.step.code()
    for held in work.step.step.held(DataFile):
        transferred = [
            collector.collect_code(codes[name]) if name in codes else collector.collect_file(Path(path))
            for name, path in name_files(held).items()
        ]
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


def move_order(line: str, store: Store) -> TaskOrder:
    """Return the order of a line with the paths in its own store replaced by those in another one."""
    order = TaskOrder.from_line(line)
    return TaskOrder.from_line(json.dumps(_replace_start(json.loads(line), order.store, str(store.root))))


def _replace_start(value: JsonValue, old: str, new: str) -> JsonValue:
    if isinstance(value, dict):
        return {name: _replace_start(inner, old, new) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replace_start(inner, old, new) for inner in value]
    if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
        return new + value[len(old) :]
    return value
