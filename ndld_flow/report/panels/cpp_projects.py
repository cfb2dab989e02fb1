"""C++ projects that steps exported, and the commands that build them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import quote

from ndld_flow.base.text import short_name, visible_text
from ndld_flow.records.run_folder import RunDocuments
from ndld_flow.report.panel import Panel

_KIND = "cpp_project"


@dataclass(frozen=True)
class CppProjectView:
    """A project."""

    step: str
    summary: str
    readme: str
    """Link, relative to the report."""
    commands: str
    """Lines of a shell, to be run in the folder of the run."""


def collect_projects(documents: RunDocuments) -> tuple[CppProjectView, ...]:
    """Return the C++ projects of a run; none if it has no folder."""
    if documents.folder is None:
        return ()
    return tuple(
        CppProjectView(
            step=short_name(name),
            summary=short_name(record.summary, 300),
            readme=f"./{quote(name)}/README.md",
            commands=_commands(name, "model/model.engine" in {file.path for file in record.artifact.files}),
        )
        for name, record in documents.run.records.items()
        if record.artifact.kind == _KIND and "/" not in name and name not in (".", "..")
    )


def _commands(step: str, is_engine: bool) -> str:
    root = "TENSORRT_ROOT" if is_engine else "ONNXRUNTIME_ROOT"
    lines = (
        f"cmake -S {shlex.quote(visible_text(step))} -B build -D{root}=/opt/{root.partition('_')[0].lower()}",
        "cmake --build build --parallel",
        "build/run_model --describe",
    )
    return "\n".join(lines)


PANEL = Panel("C++", collect_projects, after="layers")
