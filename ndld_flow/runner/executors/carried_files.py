"""What a task reads besides the store, put into it: for machines that see nothing else of this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.imported_modules import files_of, find_imported
from ndld_flow.inputs import Data, names_one_file, patterns_of
from ndld_flow.models.external_files import external_files
from ndld_flow.recipe.places import put_value
from ndld_flow.records.step_record import ArtifactFile, ArtifactRecord
from ndld_flow.runner.execute import Work
from ndld_flow.runner.executors.executor import Task
from ndld_flow.runner.executors.orders import TaskOrder, WorkOrder, write_order
from ndld_flow.step import DataFile, SampleData
from ndld_flow.store.digest import describe_files, describe_folder
from ndld_flow.store.files import copy_file
from ndld_flow.store.found_files import find_files
from ndld_flow.store.kinds import Artifact, Onnx
from ndld_flow.store.store import Store


def carry_files(task: Task, store: Store, *, trust: bool) -> tuple[TaskOrder, list[ArtifactRecord]]:
    """A task as an order that names nothing outside of the store, and the artifacts it names.

    Models, data files and steps' files are copied into the store where they lie outside of it. Raises RequestError for
    one that cannot be read, or is another than it was.
    """
    luggage = _Luggage(store)
    works = tuple(replace(work, artifacts=luggage.take_artifacts(work.artifacts)) for work in task.works)
    order = write_order(replace(task, works=works), store, trust=trust)
    carried = order.model_copy(
        update={
            "works": tuple(_carry_data(each, work, luggage) for each, work in zip(order.works, works, strict=True)),
            "step_files": tuple(luggage.take_file(Path(path)) for path in order.step_files),
        }
    )
    return carried, list(luggage.artifacts.values())


@dataclass
class _Luggage:
    """Collects the artifacts that a task reads, in the store."""

    store: Store
    artifacts: dict[str, ArtifactRecord] = field(default_factory=dict)
    """By digest."""

    def take_artifacts(self, artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
        return {name: self._take_artifact(artifact) for name, artifact in artifacts.items()}

    def take_file(self, path: Path) -> str:
        """Return where the file lies in the store; beside a Python file lies what it imports from its folder."""
        files = {path.name: path.absolute()}
        if path.suffix == ".py":
            files |= files_of(find_imported(path, path.read_bytes()))
        record = self._keep("file", files)
        return str(self.store.object_folder(record.digest).absolute() / path.name)

    def take_samples(self, data: Data) -> Data:
        """The same with its files in the store, each named, in folders as they lie in: their labels stay."""
        patterns = patterns_of(data)
        if not patterns:
            return data
        if isinstance(data, str) and names_one_file(data):
            return self.take_file(Path(data))
        found = find_files(patterns)
        record = self._keep("files", {name: path for file in found for name, path in file.contents.items()})
        folder = self.store.object_folder(record.digest).absolute()
        return tuple(str(folder / file.label) for file in found)

    def _take_artifact(self, artifact: Artifact) -> Artifact:
        if artifact.path.absolute().is_relative_to(self.store.root.absolute()):
            self._add(describe_folder(artifact.kind, artifact.folder, self.store.digests.digest))
            return artifact
        names = {Onnx.main: artifact.path} | {name: artifact.folder / name for name in external_files(artifact.path)}
        record = self._keep(artifact.kind, names)
        if record.digest != artifact.digest:
            raise RequestError(f"model {artifact.path}: it was changed while it was worked on. Run again.")
        return replace(artifact, path=self.store.object_folder(record.digest) / Onnx.main)

    def _keep(self, kind: str, paths: Mapping[str, Path]) -> ArtifactRecord:
        """The artifact of files by their names in it, copied where the store does not have it."""
        try:
            record = describe_files(kind, (self._describe(name, path) for name, path in paths.items()))
            if not self.store.is_intact(record):
                with self.store.building() as folder:
                    for name, path in paths.items():
                        copy_file(path, folder / "carried" / name)
                    record = self.store.keep(kind, folder / "carried")
        except FileNotFoundError as error:
            raise RequestError(f"the file {error.filename} is gone: it was there when this began.") from None
        self._add(record)
        return record

    def _describe(self, name: str, path: Path) -> ArtifactFile:
        return ArtifactFile(path=name, digest=self.store.digests.digest(path), size_bytes=path.stat().st_size)

    def _add(self, record: ArtifactRecord) -> None:
        self.artifacts[record.digest] = record


def _carry_data(order: WorkOrder, work: Work, luggage: _Luggage) -> WorkOrder:
    """The order of a step whose data files lie in the store."""
    settings: dict[str, JsonValue] = order.model_dump(mode="json")["settings"]
    for held in work.step.step.held(DataFile):
        paths = held.value if isinstance(held.value, tuple) else (held.value,)
        carried = [luggage.take_file(Path(str(path))) for path in paths]
        put_value(settings, held.place, carried if isinstance(held.value, tuple) else carried[0])
    for samples in work.step.step.held(SampleData):
        carried_data = {name: luggage.take_samples(data) for name, data in samples.value.items()}
        put_value(settings, samples.place, carried_data)
    inputs = {
        name: spec.model_copy(update={"data": luggage.take_samples(spec.data)})
        for name, spec in work.step.used_inputs(order.inputs).items()
    }
    return order.model_copy(update={"settings": settings, "inputs": inputs})
