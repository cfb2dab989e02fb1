"""Everything needed to repeat a run and to verify that it is the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml
from pydantic import JsonValue

from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.run_record import RunRecord
from ndld_flow.report.measured import Fact
from ndld_flow.report.panel import Panel


@dataclass(frozen=True)
class RepeatView:
    """The commands and files that repeat a run."""

    run: RunRecord
    command: str
    """Two shell lines: change to the run's directory and start it."""
    recipe: str
    """Resolved recipe as YAML."""
    source: tuple[Fact, ...]


def collect_repeat(run: RunRecord) -> RepeatView:
    """Return command, recipe and source."""
    return RepeatView(
        run=run,
        command=command_lines(run.directory, run.command),
        recipe=recipe_text(run.recipe),
        source=(
            Fact("location", short_name(run.source.location)),
            Fact("read from", short_name(run.source.path)),
            Fact("digest", run.source.artifact.digest),
            *(
                Fact(f"model {short_name(name)}", f"{short_name(model.location)}, {model.artifact.digest}")
                for name, model in run.models.items()
            ),
        ),
    )


def command_lines(directory: str, command: Sequence[str]) -> str:
    """Return two shell lines: change to a directory, and run."""
    return visible_text(f"cd {shlex.quote(directory)}\n{shlex.join(command)}")


def recipe_text(recipe: Mapping[str, JsonValue]) -> str:
    """Return a resolved recipe as YAML, with innermost mappings on one line."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumped: str = yaml.dump(
        recipe, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
    )
    return visible_text(dumped).rstrip()


PANEL = Panel("Repeat", lambda documents: collect_repeat(documents.run), after="layers", closed=True)
