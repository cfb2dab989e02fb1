"""The log of a TensorRT builder: it writes lines to a file, and collects the facts that later parts need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ndld_flow.base.text import short_name, visible_name
from ndld_flow.processes.worker import ReportProgress
from ndld_flow.records.build import BuildMemory
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

_MEMORY = {
    "activation_bytes": re.compile(r"Total Activation Memory: (\d+)"),
    "weights_bytes": re.compile(r"Total Weights Memory: (\d+)"),
    "scratch_bytes": re.compile(r"(?:Total|Max) Scratch Memory: (\d+)"),
}
_LAYERS = "Layers:\n"
_MOST_CHARACTERS = {"VERBOSE": 48 * 2**20, "INFO": 56 * 2**20}
"""Maximum number of characters of a severity in the file, 64 Mi for all others: some builds log gigabytes."""
_MOST = 64 * 2**20
_MOST_KEPT = 1000
_NO_GPU = re.compile(r"catchCudaError|CUDA driver version is insufficient|CUDA initialization failure")
_CALL = re.compile(r"^(?:\[[^\]]*\]|[\w:]+:)\s*Error Code \d+: [\w ]+ \((?P<reason>.*)\)$", re.DOTALL)
_MYELIN = re.compile(r"^\[[\w.]+:\d+: \w+\] ")
_PLACE = re.compile(r"\.? In \w+ at /\S+:\d+$")


class BuildLog:
    """Log lines by severity.

    Every line is written at once, so that a crash leaves the lines before it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self._written = 0
        self._full: set[str] = set()
        self._messages: dict[str, dict[str, None]] = {"ERROR": {}, "INTERNAL_ERROR": {}, "WARNING": {}}
        self._memory = dict.fromkeys(_MEMORY, 0)
        self.layers = ""
        """The message with the compiled layers; empty if the release or the verbosity does not log it."""
        self.is_listening = True
        """False for messages that do not concern the build."""
        self.failure: OSError | None = None
        """The error of writing the file."""

    def take(self, severity: str, text: str) -> None:
        """Record a message. It never raises: TensorRT calls it from code that must not see exceptions."""
        if not self.is_listening:
            return
        self._write(severity, text)
        if severity in self._messages:
            messages = self._messages[severity]
            if len(messages) < _MOST_KEPT:
                messages.setdefault(text)
        elif text.startswith(_LAYERS):
            self.layers = text.removeprefix(_LAYERS)
        elif severity == "INFO":
            for name, pattern in _MEMORY.items():
                if match := pattern.match(text):
                    self._memory[name] = max(self._memory[name], int(match[1]))

    def _write(self, severity: str, text: str) -> None:
        if severity in self._full:
            return
        line = f"[{severity}] {text}\n"
        if self._written + len(line) > _MOST_CHARACTERS.get(severity, _MOST):
            self._full.add(severity)
            line = f"[{severity}] the log is long: further messages of this severity are omitted\n"
        try:
            self._written += self._file.write(line)
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        """Close the file. Raises OSError if a line could not be written."""
        self._file.close()
        if self.failure is not None:
            raise self.failure

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return each warning once, in order."""
        return tuple(dict.fromkeys(map(reason_of, self._messages["WARNING"])))

    @property
    def errors(self) -> tuple[str, ...]:
        """Return the reasons of errors, each once: those caused by the model or the settings, or all if there are
        none.
        """
        messages = [*self._messages["ERROR"], *self._messages["INTERNAL_ERROR"]]
        specific = [text for text in messages if not _NO_GPU.search(text)]
        return tuple(dict.fromkeys(map(reason_of, specific or messages)))

    def memory(self, build_peak_bytes: int) -> BuildMemory:
        """Return the memory that the builder reported for the engine: that of the profile that needs most."""
        return BuildMemory(build_peak_bytes=build_peak_bytes, **self._memory)


def make_monitor(trt: Bindings, report: ReportProgress) -> Bound:
    """Return an IProgressMonitor of these bindings that reports the builder's progress."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            report(0, num_steps, _phase_text(phase_name))

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:
            total = self._steps.get(phase_name, 0)
            report(min(step + 1, total), total, _phase_text(phase_name))
            return True

    return Monitor()


def reason_of(text: str) -> str:
    """Return the reason in an error of TensorRT in one line, without its place in the source."""
    line = " ".join(visible_name(part).strip() for part in text.splitlines() if part.strip())
    if match := _CALL.match(line):
        line = _MYELIN.sub("", match["reason"])
    return _PLACE.sub("", line).strip()


def join_reasons(reasons: Iterable[str], limit: int = 4) -> str:
    """Join the first reasons to one sentence, with the number of further ones."""
    listed = [reason.rstrip(". ") for reason in reasons]
    more = f"; and {len(listed) - limit} more in its log" if len(listed) > limit else ""
    return "; ".join(listed[:limit]) + more


def _phase_text(phase: str) -> str:
    """Return `building: optimizing graph [profile 1]` for `Optimizing graph [profile 1]`."""
    plain = short_name(phase, 120)  # it may contain names of nodes
    return f"building: {plain[:1].lower()}{plain[1:]}"
