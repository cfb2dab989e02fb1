"""A toy step that does what worker processes must outlive, and tasks made of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from ndld_flow.execution.execute import Work
from ndld_flow.execution.executor import Task
from ndld_flow.execution.keys import describe_key
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import find_model
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.store import Store
from tests.support.recipes import load_recipe
from tests.support.toys import make_toy

DEED = '''
"""Does what it is told, good or bad."""

from pathlib import Path
import os
import signal
import subprocess
import sys
import time

from ndld_flow.store.kinds import Onnx
from ndld_flow.base.errors import ModelError
from ndld_flow.step import Context, Result, Step

_SLEEP = "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)"


class DeedError(ModelError):
    """An error of the step's own."""


class Deed(Step[Onnx, Onnx]):
    """Do something."""

    act: str = "nothing"
    """What to do."""
    word: str = ""
    """What to say."""
    seconds: float = 0.0
    """How long to work."""
    measures: str = ""
    """The device to hold."""

    @property
    def device(self):
        return self.measures

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        with open(".log/deeds.log", "a") as log:
            log.write(f"{context.name} {os.getpid()}\\n")
        context.progress(1, 2, f"about to do {self.act}")
        summary = self.word
        if self.act == "segfault":
            os.write(2, b"oh no\\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.act == "abort":
            os.write(2, b"oh no\\n")
            os.abort()
        elif self.act == "killed":
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does
        elif self.act == "die once":
            if not Path("died").exists():
                Path("died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        elif self.act == "bug":
            raise ValueError(f"a bug about {self.word}")
        elif self.act == "exit":
            sys.exit(self.word)
        elif self.act == "refuse":
            raise DeedError(f"{self.word} in {out / 'model.onnx'}")
        elif self.act == "print":
            print(self.word, flush=True)
            os.write(1, b"{}\\n")
            subprocess.run([sys.executable, "-c", "print('a child prints')"], check=True)
            summary = repr(sys.stdin.read())
        elif self.act == "spawn":
            for number, session in enumerate((False, True)):
                child = subprocess.Popen([sys.executable, "-c", _SLEEP, self.word], stdout=subprocess.PIPE,
                                         start_new_session=session)
                child.stdout.readline()
        elif self.act == "shout":
            summary = self.word * 5_000_000
        elif self.act == "pid":
            summary = str(os.getpid())
        context.log.info("%s", summary)
        time.sleep(self.seconds)
        (out / Onnx.main).write_bytes(source.path.read_bytes())
        return Result(summary or "did it")
'''

RECIPE = "name: toy\nmodel: model.onnx\nsteps_from: [steps/deed.py]\nsteps:\n"


class Deeds:
    """A folder with a model and the toy step; tasks of it are computed against a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toy = make_toy(folder)
        (folder / "steps").mkdir(exist_ok=True)
        (folder / "steps" / "deed.py").write_text(DEED)
        (folder / ".log").mkdir(exist_ok=True)  # hidden folders are in no key
        self.store = Store(folder / "outputs" / "store")
        self.told: list[tuple[str, int, int, str]] = []

    def task(
        self,
        settings: str = "",
        *,
        timeout_s: float | None = None,
        name: str = "one",
        hears: Callable[[int, int, str], None] | None = None,
    ) -> Task:
        """A task of one step with these settings, such as `act: bug, word: x`; `hears` its progress, else `told`."""
        self.toy.recipe.write_text(f"{RECIPE}  {name}: {{step: deed, {settings}}}\n")
        recipe = load_recipe(self.toy.recipe, trust=True)
        source = self._model(name)
        parts = describe_key(recipe.steps[0], {"from": source.digest}, {}, self.store)

        def progress(done: int, total: int, what: str) -> None:
            self.told.append((name, done, total, what))

        work = Work(recipe.steps[0], parts, {"from": source}, {}, hears or progress, recipe.name)
        return Task((work,), timeout_s=timeout_s)

    def _model(self, name: str) -> Onnx:
        """Tasks of different names read different models, so that they are different tasks with the same settings."""
        path = self.folder / "models" / name / "model.onnx"
        if not path.exists():
            model = onnx.load(self.folder / "model.onnx")
            model.doc_string = name
            path.parent.mkdir(parents=True, exist_ok=True)
            onnx.save(model, path)
        return find_model(ModelSource(source=str(path)), self.store, lambda _: None).artifact

    @property
    def done(self) -> list[tuple[str, int]]:
        """Step and process, for each time that one began."""
        path = self.folder / ".log" / "deeds.log"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(name, int(pid)) for name, pid in lines]


def processes_with(word: str) -> list[int]:
    """Processes that live, but for this one, and have a word in their command or their environment."""
    return [pid for pid in _pids() if pid != os.getpid() and word.encode() in _told(pid)]


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _told(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""  # it has ended; of one that nobody has buried yet, nothing is told


def wait_until(holds: Callable[[], object], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)
