"""What a builder says while it builds: written to a file line by line, and what later parts ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ndld_flow.base.text import short_name, visible_name
from ndld_flow.processes.worker import ReportProgress
from ndld_flow.records.build import BuildMemory
from ndld_flow.runtimes.tensorrt.untyped import Bindings, Bound

_MEMORY = {
    "activation_bytes": re.compile(r"Total Activation Memory: (\d+)"),
    "weights_bytes": re.compile(r"Total Weights Memory: (\d+)"),
    "scratch_bytes": re.compile(r"(?:Total|Max) Scratch Memory: (\d+)"),
}
_LAYERS = "Layers:\n"
_MOST_CHARACTERS = {"VERBOSE": 48 * 2**20, "INFO": 56 * 2**20}
"""A severity is written up to this length of the file, all others up to 64 Mi: some builds say gigabytes."""
_MOST = 64 * 2**20
_MOST_KEPT = 1000
_NO_GPU = re.compile(r"catchCudaError|CUDA driver version is insufficient|CUDA initialization failure")
_CALL = re.compile(r"^(?:\[[^\]]*\]|[\w:]+:)\s*Error Code \d+: [\w ]+ \((?P<reason>.*)\)$", re.DOTALL)
_MYELIN = re.compile(r"^\[[\w.]+:\d+: \w+\] ")
_PLACE = re.compile(r"\.? In \w+ at /\S+:\d+$")


class BuildLog:
    """Lines by severity. Every line is in the file as soon as it is said: a crash leaves what came before it."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self._written = 0
        self._full: set[str] = set()
        self._said: dict[str, dict[str, None]] = {"ERROR": {}, "INTERNAL_ERROR": {}, "WARNING": {}}
        self._memory = dict.fromkeys(_MEMORY, 0)
        self.layers = ""
        """The message of compiled layers; empty where the release or the verbosity does not tell them."""
        self.is_listening = True
        """Off: what is said is not about the build."""
        self.failure: OSError | None = None
        """Why the file could not be written."""

    def take(self, severity: str, text: str) -> None:
        """Keep what was said. Never raises: TensorRT calls it from code that no exception may pass."""
        if not self.is_listening:
            return
        self._write(severity, text)
        if severity in self._said:
            said = self._said[severity]
            if len(said) < _MOST_KEPT:
                said.setdefault(text)
        elif text.startswith(_LAYERS):
            self.layers = text.removeprefix(_LAYERS)
        elif severity == "INFO":
            self._read_memory(text)

    def _write(self, severity: str, text: str) -> None:
        if severity in self._full:
            return
        line = f"[{severity}] {text}\n"
        if self._written + len(line) > _MOST_CHARACTERS.get(severity, _MOST):
            self._full.add(severity)
            line = f"[{severity}] the log is long: no more of this severity is kept\n"
        try:
            self._written += self._file.write(line)
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        """Raises OSError when something could not be written."""
        self._file.close()
        if self.failure is not None:
            raise self.failure

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each once, in order."""
        return tuple(dict.fromkeys(map(reason_of, self._said["WARNING"])))

    @property
    def errors(self) -> tuple[str, ...]:
        """Reasons in plain words, each once: those that the model or the settings caused, or else all there are."""
        said = [*self._said["ERROR"], *self._said["INTERNAL_ERROR"]]
        telling = [text for text in said if not _NO_GPU.search(text)]
        return tuple(dict.fromkeys(map(reason_of, telling or said)))

    def memory(self, build_peak_bytes: int) -> BuildMemory:
        """What the builder said the engine needs: that of the profile which needs most."""
        return BuildMemory(build_peak_bytes=build_peak_bytes, **self._memory)

    def _read_memory(self, text: str) -> None:
        for name, pattern in _MEMORY.items():
            if found := pattern.match(text):
                self._memory[name] = max(self._memory[name], int(found[1]))


def make_logger(trt: Bindings, log: BuildLog) -> Bound:
    """An ILogger of these bindings that keeps every line in `log`."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Bound, message: str) -> None:
            log.take(severity.name, message)

    return Logger()


def make_monitor(trt: Bindings, tell: ReportProgress) -> Bound:
    """An IProgressMonitor of these bindings that tells people where the builder is."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            tell(0, num_steps, _spoken(phase_name))

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            total = self._steps.get(phase_name, 0)
            tell(min(step + 1, total), total, _spoken(phase_name))
            return True

    return Monitor()


def reason_of(text: str) -> str:
    """The reason in an error of TensorRT's, without the place in its source: one line."""
    line = " ".join(visible_name(part).strip() for part in text.splitlines() if part.strip())
    if found := _CALL.match(line):
        line = _MYELIN.sub("", found["reason"])
    return _PLACE.sub("", line).strip()


def join_reasons(reasons: Iterable[str], limit: int = 4) -> str:
    """The first ones as one sentence; how many more there are."""
    listed = [reason.rstrip(". ") for reason in reasons]
    more = f"; and {len(listed) - limit} more in its log" if len(listed) > limit else ""
    return "; ".join(listed[:limit]) + more


def _spoken(phase: str) -> str:
    """`Optimizing graph [profile 1]` -> `building: optimizing graph [profile 1]`."""
    plain = short_name(phase, 120)  # names of nodes may be in it
    return f"building: {plain[:1].lower()}{plain[1:]}"
