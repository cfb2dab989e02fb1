"""Everything needed to repeat a run and to verify that it is the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime

import yaml

from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.run_record import RunRecord
from ndld_flow.report.collect_profiles import machine_settings
from ndld_flow.report.panel import Panel
from ndld_flow.report.value_text import Fact, facts_of


@dataclass(frozen=True)
class StepKey:
    """Identity of a step's result."""

    name: str
    step_type: str
    version: str
    key: str
    artifact: str
    libraries: str


@dataclass(frozen=True)
class RepeatView:
    """The commands and files that repeat a run."""

    command: str
    """Two shell lines: change to the run's directory and start it."""
    recipe: str
    """Resolved recipe as YAML."""
    identity: str
    started_at: datetime
    source: tuple[Fact, ...]
    files: tuple[tuple[str, int, str], ...]
    """(path, bytes, digest) of the source's files"""
    machine: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    keys: tuple[StepKey, ...]


def collect_repeat(run: RunRecord) -> RepeatView:
    """Return command, recipe, source, machine, versions and keys."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # Innermost mappings are on one line.
    dumped: str = yaml.dump(
        run.recipe, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    return RepeatView(
        command=visible_text(f"cd {shlex.quote(run.directory)}\n{shlex.join(run.command)}"),
        recipe=visible_text(dumped).rstrip(),
        identity=run.identity,
        started_at=run.started_at,
        source=(
            Fact("location", short_name(run.source.location)),
            Fact("read from", short_name(run.source.path)),
            Fact("digest", run.source.artifact.digest),
            *(
                Fact(f"model {short_name(name)}", f"{short_name(model.location)}, {model.artifact.digest}")
                for name, model in run.models.items()
            ),
        ),
        files=tuple((short_name(file.path), file.size_bytes, file.digest) for file in run.source.artifact.files),
        machine=machine_settings(run.machine),
        versions=facts_of(dict(sorted(run.versions.items()))),
        keys=_keys(run),
    )


def _keys(run: RunRecord) -> tuple[StepKey, ...]:
    return tuple(
        StepKey(
            name=short_name(step.name),
            step_type=short_name(step.record.parts.step),
            version=short_name(step.record.parts.version),
            key=step.record.key,
            artifact=step.record.artifact.digest,
            libraries=", ".join(
                short_name(f"{name} {version}") for name, version in step.record.parts.libraries.items()
            ),
        )
        for step in run.steps
        if step.record is not None
    )


PANEL = Panel("Repeat", lambda documents: collect_repeat(documents.run), after="layers", closed=True)
