"""Many engines built in one process: starting one for each would take most of the time.

`python -m tests.support.engine_builds FOLDER` builds the engine of each folder below, as the building
process does, and writes an answer into each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.building import BuildAnswer, BuildRequest
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.tensorrt.library import Library
from ndld_flow.store.kinds import Engine
from tests.support.models_run import Given, specs


@dataclass(frozen=True)
class Asked:
    """An engine to build; settings as a recipe writes them."""

    model: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Given = field(default_factory=dict)

    def request(self, folder: Path, caches: Path | None = None) -> BuildRequest:
        """In a folder that is made."""
        for name in ("out", "scratch"):
            (folder / name).mkdir(parents=True)
        return BuildRequest(
            model=self.model,
            label="a model",
            digest="digest",
            inputs=specs(self.inputs),
            settings=BuildSettings.model_validate_json(json.dumps(self.settings)),
            out=folder / "out",
            caches=caches or folder / "caches",
            scratch=folder / "scratch",
        )


@dataclass(frozen=True)
class Came:
    """The result of a build: an engine or an error."""

    folder: Path
    answer: BuildAnswer

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def build(self) -> Build:
        assert not self.answer.error, self.answer.message
        return read_document(Build, self.out / Build.file_name)

    @property
    def engine(self) -> bytes:
        return (self.out / Engine.main).read_bytes()

    @property
    def log(self) -> str:
        return (self.out / Engine.log).read_text()

    @property
    def error(self) -> str:
        assert self.answer.error, "it was built"
        assert "\n" not in self.answer.message
        return self.answer.message


def build_all(
    asked: Mapping[str, Asked], library: Library, folder: Path, environment: Mapping[str, str] | None = None
) -> dict[str, Came]:
    """Build everything with one library, in one process; builds share their caches."""
    library_scratch = folder / "library"
    library_scratch.mkdir(parents=True)
    for name, item in asked.items():
        item.request(folder / "builds" / name, folder / "caches").write(folder / "builds" / name)
    surroundings = {**os.environ, **library.environment(library_scratch), **(environment or {})}
    command = [sys.executable, "-m", __name__, str(folder / "builds")]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: _came(folder / "builds" / name) for name in asked}


def _came(folder: Path) -> Came:
    answer = BuildAnswer.read(folder)
    assert answer is not None
    return Came(folder, answer)


def main(folder: Path) -> None:
    from ndld_flow.base.errors import RequestError
    from ndld_flow.engines.engine_building import build

    warnings.simplefilter("ignore")
    for each in sorted(folder.iterdir()):
        try:
            build(BuildRequest.read(each), lambda *_: None)
            answer = BuildAnswer()
        except RequestError as error:
            answer = BuildAnswer(type(error).__name__, str(error))
        answer.write(each)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
