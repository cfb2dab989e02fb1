"""Tasks for Ray: as plans make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.records.key_parts import ArtifactFile
from ndld_flow.store.digest import describe_files
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.store import Store
from tests.support.worker_toys import Deeds


def make_task(deeds: Deeds, settings: str = "", *, timeout_s: float | None = None, name: str = "one") -> Task:
    """A task of one step, whose model has its own digest."""
    task = deeds.task(settings, timeout_s=timeout_s, name=name)
    return replace(task, works=tuple(replace(work, **_real(work, deeds.store)) for work in task.works))


def _real(work: Work, store: Store) -> dict[str, Any]:
    path = work.source.path.absolute()
    file = ArtifactFile(path=Onnx.main, digest=store.digests.digest(path), size_bytes=path.stat().st_size)
    source = Onnx(path, "source", describe_files("onnx", [file]).digest)
    reads = {**work.parts.reads, "from": source.digest}
    return {"artifacts": {"from": source}, "parts": work.parts.model_copy(update={"reads": reads})}
