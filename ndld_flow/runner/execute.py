"""Do one step's work: build aside, check, put into the store, write its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ndld_flow.artifacts.kinds import Artifact, Onnx
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.graph_change import GraphChange
from ndld_flow.records.step_record import KeyParts, StepRecord
from ndld_flow.runner.keys import make_key
from ndld_flow.runner.surroundings import step_logger, working_step
from ndld_flow.step import Context, Result


@dataclass(frozen=True)
class Work:
    """A step with all it needs."""

    step: RecipeStep
    parts: KeyParts
    artifacts: Mapping[str, Artifact]
    """What is read (`from`, `reference`, ...) -> the artifact."""
    inputs: Mapping[str, InputSpec]
    progress: Callable[[int, int, str], None]


def execute_step(work: Work, store: Store) -> StepRecord:
    """Run a step and keep what it made.

    Raises what the step raises, and OutputsError when the disk is full or may not be written.
    """
    started_at, start = datetime.now(UTC), time.perf_counter()
    with store.building() as folder:
        out, scratch = folder / "out", folder / "scratch"
        out.mkdir()
        scratch.mkdir()
        with working_step(work.step, store, folder) as lines:
            result = _run(work, out, scratch)
            change = result.change or _describe_change(work, out)
            artifact = store.keep(work.step.type.cls.kinds()[1].kind, out)
            record = StepRecord(
                key=make_key(work.parts),
                parts=work.parts,
                parents=dict(work.step.reads),
                artifact=artifact,
                passed=result.passed,
                summary=result.summary,
                metrics=dict(result.metrics),
                change=change,
                log="\n".join(lines),
                started_at=started_at,
                wall_s=time.perf_counter() - start,
            )
            store.write_record(record)
    return record


def _describe_change(work: Work, out: Path) -> GraphChange | None:
    """What a step that changes a model did to it, where the step does not tell by itself."""
    cls = work.step.type.cls
    if cls.kinds() != (Onnx, Onnx):
        return None
    from ndld_flow.backends.models.files import describe_change

    return describe_change(work.artifacts[cls.read_key].path, out / Onnx.main)


def _run(work: Work, out: Path, scratch: Path) -> Result:
    cls = work.step.type.cls
    context = Context(
        name=work.step.name,
        inputs=work.inputs,
        artifacts=work.artifacts,
        scratch=scratch,
        log=step_logger(work.step.name),
        progress=work.progress,
    )
    result = work.step.step.run(work.artifacts[cls.read_key], out, context)
    main = cls.kinds()[1].main
    if not (out / main).is_file():
        raise RequestError(
            f"step {work.step.name}: `{work.step.type.name}` ({work.step.type.origin}) says it makes "
            f"{cls.kinds()[1].kind} but wrote no {main}. Write it to `out / {main!r}`."
        )
    return result
