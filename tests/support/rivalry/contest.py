"""Run contenders, each in an environment of its own, and keep what they deliver."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.benchmarks.rivals.protocol import ROOT, Delivery
from tests.support.rivalry.environments import environment
from tests.support.rivalry.judging import Clock, Judged, judge
from tests.support.rivalry.subjects import Subject

_ERROR = re.compile(r"[\w.]*(Error|Exception|Failure)\b")
RIVALS = ROOT / "tests/benchmarks/rivals"


@dataclass(frozen=True)
class Terms:
    """The terms that all contenders share."""

    bound: float = 0.99
    threads: int = 1
    loaded: bool = False
    """Two busy loops run while a contender works."""
    budget: str = ""
    """The time for everything, of contenders that take one; by default their own."""
    limit_s: int = 2_400
    """Seconds after which a contender has failed."""

    @property
    def clock(self) -> Clock:
        """Return the clock that decides: threads that wait for work by spinning use CPU time."""
        return "cpu" if self.threads == 1 else "wall"

    @property
    def name(self) -> str:
        """Return what tells the results of these terms from those of others."""
        loaded, budget = "-loaded" if self.loaded else "", f"-{self.budget.replace(' ', '')}" if self.budget else ""
        return f"{self.threads}-threads{loaded}{budget}"


@dataclass(frozen=True)
class Outcome:
    """A contender's delivery for a subject."""

    subject: str
    contender: str
    wall_s: float
    cpu_s: float
    """Seconds of all its processes together."""
    failed: str = ""
    deliveries: tuple[Delivery, ...] = ()
    judged: tuple[Judged, ...] = ()
    """The agreement of each delivery on unseen samples."""
    finished: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))

    @property
    def budget_s(self) -> float | None:
        """Return the time that its tool promised."""
        return next((delivery.budget_s for delivery in self.deliveries), None)

    @property
    def command_s(self) -> float:
        """Return the time of its tool's command, or of the contender."""
        return next((delivery.command_s for delivery in self.deliveries if delivery.command_s is not None), self.wall_s)

    @property
    def ending(self) -> str:
        """Return the tool's word for what it found."""
        return next((delivery.ending for delivery in self.deliveries), "")

    @classmethod
    def read(cls, line: str) -> Outcome:
        """Return an outcome that was written as a line of JSON."""
        values = json.loads(line)
        deliveries = tuple(Delivery(**item) for item in values.pop("deliveries"))
        return cls(deliveries=deliveries, judged=tuple(Judged(**item) for item in values.pop("judged")), **values)

    def write(self) -> str:
        """Return the line of JSON."""
        return json.dumps(asdict(self))

    def right(self, bound: float) -> list[Delivery]:
        """Return the deliveries that hold the bound."""
        pairs = zip(self.deliveries, self.judged, strict=True)
        return [delivery for delivery, found in pairs if found.holds(bound)]


def contenders() -> list[str]:
    """Return the names of all files of rivals."""
    return sorted(path.stem for path in RIVALS.glob("*.py") if path.stem not in ("__init__", "protocol"))


def run_contender(name: str, subject: Subject, folder: Path, environments: Path, terms: Terms) -> Outcome:
    """Run a contender on a subject in an empty folder, and judge what it delivers on unseen samples."""
    packages: Sequence[str] = importlib.import_module(f"tests.benchmarks.rivals.{name}").PACKAGES
    try:
        python = environment(packages, environments)
    except subprocess.CalledProcessError as error:
        return Outcome(subject.name, name, 0.0, 0.0, f"not installed: {error}")
    folder.mkdir(parents=True)
    request = folder / "request.json"
    request.write_text(
        json.dumps(
            {
                "model": str(subject.model),
                "calibration": str(subject.calibration),
                "bound": terms.bound,
                "threads": terms.threads,
                "folder": str(folder),
                "is_transformer": subject.is_transformer,
                "budget": terms.budget,
            }
        )
    )
    with _busy_loops(2 if terms.loaded else 0):
        command = [str(python), "-m", f"tests.benchmarks.rivals.{name}", str(request)]
        wall_s, cpu_s, failed = _run(command, folder, terms)
    delivered = folder / "deliveries.json"
    if failed or not delivered.exists():
        return Outcome(subject.name, name, wall_s, cpu_s, failed or "it delivered nothing")
    deliveries = tuple(Delivery(**values) for values in json.loads(delivered.read_text()))
    judged = tuple(judge(subject.model, delivery, subject.unseen, terms.threads) for delivery in deliveries)
    return Outcome(subject.name, name, wall_s, cpu_s, "", deliveries, judged)


@contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    """Run so many processes that do nothing as fast as they can."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _run(command: list[str], folder: Path, terms: Terms) -> tuple[float, float, str]:
    """Run a command within the limit; return its wall time, its CPU time, and why it failed."""
    log = folder / "log.txt"
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=_quiet(terms), start_new_session=True
        )
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        wall_s = time.perf_counter() - started
        if pid:
            break
        if wall_s > terms.limit_s:
            os.killpg(process.pid, signal.SIGKILL)
            os.wait4(process.pid, 0)
            return wall_s, wall_s, f"more than {terms.limit_s} s"
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        reason = find_error(log.read_text(errors="replace")) or f"exit code {process.returncode}"
        return wall_s, used.ru_utime + used.ru_stime, reason
    return wall_s, used.ru_utime + used.ru_stime, ""


def find_error(log: str) -> str:
    """Return the last error of a log, rather than that of a process that only passes it on."""
    errors = [line for line in log.splitlines() if _ERROR.match(line) and "CalledProcessError" not in line]
    return errors[-1][:200] if errors else ""


def _quiet(terms: Terms) -> dict[str, str]:
    """Return the variables of a contender, which runs in its own folder, as some write files into the current one: no
    telemetry, and as many threads as all have.
    """
    own = {"PYTHONPATH": str(ROOT), "OLIVE_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": str(terms.threads)}
    return {**os.environ, **own}
