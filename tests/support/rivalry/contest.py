"""Run contenders, each in an environment of its own, and keep what they deliver."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from tests.benchmarks.rivals.protocol import ROOT, Delivery
from tests.support.rivalry.judging import Judged, judge
from tests.support.rivalry.subjects import Subject

_ERROR = re.compile(r"[\w.]*(Error|Exception|Failure)\b")
RIVALS = ROOT / "tests/benchmarks/rivals"


@dataclass(frozen=True)
class Terms:
    """The terms that all contenders share."""

    bound: float = 0.99
    threads: int = 1
    limit_s: int = 2_400
    """Seconds after which a contender has failed."""


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
    def whole_s(self) -> float:
        """Return its wall time, with that of the measurements that the judge did for it."""
        return self.wall_s + sum(delivery.measuring_s for delivery in self.deliveries)

    @classmethod
    def read(cls, line: str) -> Outcome:
        """Return an outcome that was written as a line of JSON."""
        values = json.loads(line)
        deliveries = tuple(Delivery(**each) for each in values.pop("deliveries"))
        return cls(deliveries=deliveries, judged=tuple(Judged(**each) for each in values.pop("judged")), **values)

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


def environment(packages: Sequence[str], folder: Path) -> Path:
    """Return the Python of an environment with these packages: this one if it has them, or one made by `venv`."""
    if all(_has(requirement) for requirement in packages):
        return Path(sys.executable)
    own = folder / hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    python = own / "bin/python"
    if not (own / "complete").exists():
        venv.create(own, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        (own / "complete").touch()
    return python


def _has(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False


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
            }
        )
    )
    wall_s, cpu_s, failed = _run([str(python), "-m", f"tests.benchmarks.rivals.{name}", str(request)], folder, terms)
    delivered = folder / "deliveries.json"
    if failed or not delivered.exists():
        return Outcome(subject.name, name, wall_s, cpu_s, failed or "it delivered nothing")
    deliveries = tuple(Delivery(**values) for values in json.loads(delivered.read_text()))
    judged = tuple(judge(subject.model, delivery, subject.unseen, terms.threads) for delivery in deliveries)
    return Outcome(subject.name, name, wall_s, cpu_s, "", deliveries, judged)


def _run(command: list[str], folder: Path, terms: Terms) -> tuple[float, float, str]:
    """Run a command within the limit; return its wall time, its CPU time, and why it failed."""
    log = folder / "log.txt"
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, env=_quiet(terms), start_new_session=True
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
    """Return the variables of a contender: no telemetry, and as many threads as all have."""
    return {**os.environ, "OLIVE_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": str(terms.threads)}
