"""Outputs with a long history: one real run, and copies of it that lie in the past, each with results of its own."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ndld_flow.execution.keys import make_key
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD, read_run_record
from ndld_flow.records.run_record import RunRecord, RunStep, StepRecord
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.digest import describe_folder
from ndld_flow.store.files import seal
from ndld_flow.store.store import Store

AN_HOUR = timedelta(hours=1)


def lengthen_history(outputs: Outputs, recipe: str, numbers: range, remade: Collection[str]) -> None:
    """Copy a recipe's newest run into the past, once for each number, an hour each.

    The steps `remade` have a record, a key, an artifact and a lock of their own in each: `verify` finds all well.
    """
    newest = outputs.latest(recipe)
    assert newest is not None
    run = read_run_record(newest)
    for number in numbers:
        started_at = run.started_at - number * AN_HOUR
        steps = tuple(_remake(step, number, outputs.store) if step.name in remade else step for step in run.steps)
        identifier = _identifier(started_at, number)
        copy = run.model_copy(
            update={"id": identifier, "started_at": started_at, "steps": steps, "identity": f"{number:064x}"}
        )
        _write_folder(copy, newest, remade, outputs)


def lengthen_quickly(outputs: Outputs, recipe: str, numbers: range, measured: str) -> None:
    """Copy a recipe's newest run into the past, once for each number, an hour each, in less than a millisecond.

    The step `measured` has another latency, key and artifact in each. Artifacts are links with invented digests, so
    that `verify` finds damage: this is for the time of verbs that read records.
    """
    newest = outputs.latest(recipe)
    assert newest is not None
    tree = json.loads((newest / RUN_RECORD).read_text())
    step = next(step["record"] for step in tree["steps"] if step["name"] == measured)
    started_at, latency = datetime.fromisoformat(tree["started_at"]), step["metrics"]["latency.median"]
    links = {path: path.relative_to(newest) for path in newest.rglob("*") if path.name != RUN_RECORD}
    stored = outputs.store.object_folder(step["artifact"]["digest"])
    value, rng = latency["value"], random.Random(7)
    for number in numbers:
        then = started_at - number * AN_HOUR
        tree |= {"id": _identifier(then, number), "started_at": then.isoformat(), "identity": f"{number:064x}"}
        digest = f"{number * 2654435761 % 2**32:08x}{number:056x}"
        step |= {"key": digest[::-1], "started_at": then.isoformat()}
        step["artifact"]["digest"], latency["value"] = digest, value * rng.gauss(1.0, 0.01)
        folder = newest.parent / tree["id"]
        folder.mkdir()
        for path, relative in links.items():
            if path.is_dir() and not path.is_symlink():
                (folder / relative).mkdir()
            else:
                os.link(path, folder / relative, follow_symlinks=False)
        (folder / RUN_RECORD).write_text(json.dumps(tree, indent=1))
        _link_stored(outputs.store, step, stored)
    names = sorted(f"{recipe}/{path.name}" for path in newest.parent.glob("[0-9]*"))
    outputs.history.path.write_text("\n".join(names))


def _link_stored(store: Store, record: dict[str, Any], stored: Path) -> None:
    path, target = store.record_path(record["key"]), store.object_folder(record["artifact"]["digest"])
    for parent in (path.parent, target):
        parent.mkdir(parents=True, exist_ok=True)
    path.write_text(seal(json.dumps(record)))
    for file in stored.iterdir():
        os.link(file, target / file.name)


def lengthen_sweeps(outputs: Outputs, recipe: str, numbers: range) -> None:
    """Copy a recipe's newest sweep into the past, once for each number, an hour each; points share their results."""
    newest = outputs.latest_sweep(recipe)
    assert newest is not None
    record = json.loads((newest / SWEEP_RECORD).read_text())
    for number in numbers:
        started_at = datetime.fromisoformat(record["started_at"]) - number * AN_HOUR
        copy = record | {"id": _identifier(started_at, number), "started_at": started_at.isoformat()}
        folder = newest.parent / str(copy["id"])
        shutil.copytree(newest, folder, copy_function=os.link, symlinks=True)
        _replace(folder / SWEEP_RECORD, json.dumps(copy))


def _identifier(started_at: datetime, number: int) -> str:
    return f"{started_at:%Y%m%dT%H%M%SZ}-{number:06x}"


def _remake(step: RunStep, number: int, store: Store) -> RunStep:
    """Copy the step as if another release of a library had run it, with an equivalent result in other bytes."""
    record = step.record
    assert record is not None
    aside = store.root / "building" / "history"
    shutil.copytree(store.object_folder(record.artifact.digest), aside)
    main = aside / record.artifact.files[0].path
    main.chmod(0o644)
    with main.open("a") as file:
        file.write(f"{number:b}".replace("0", " ").replace("1", "\t"))
    artifact = describe_folder(record.artifact.kind, aside)
    target = store.object_folder(artifact.digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside.rename(target)
    parts = record.parts.model_copy(update={"libraries": {**record.parts.libraries, "history": str(number)}})
    remade = record.model_copy(update={"key": make_key(parts), "parts": parts, "artifact": artifact})
    _write_record(remade, store)
    return step.model_copy(update={"record": remade})


def _write_record(record: StepRecord, store: Store) -> None:
    path = store.record_path(record.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(seal(record.to_json()))
    (store.root / "locks" / f"{record.key}.lock").touch()


def _write_folder(run: RunRecord, newest: Path, remade: Collection[str], outputs: Outputs) -> None:
    folder = newest.parent / run.id
    shutil.copytree(newest, folder, copy_function=os.link, symlinks=True)  # nobody writes into a run's folder
    _replace(folder / RUN_RECORD, run.to_json())
    for step in run.steps:
        if step.name in remade and step.record is not None:
            for file in step.record.artifact.files:
                kept = outputs.store.object_folder(step.record.artifact.digest) / file.path
                (folder / step.name / file.path).unlink()
                shutil.copyfile(kept, folder / step.name / file.path)


def _replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)
