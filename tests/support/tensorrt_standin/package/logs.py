"""Loggers, and how the library writes to them."""

from __future__ import annotations

import sys
from typing import Any

from .bindings import Interface, Setting, require_initialized
from .enums import make_enum

_Severity = make_enum("Severity", (), fixed=("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"))


class ILogger(Interface):
    """The base class of users' loggers."""

    Severity = _Severity
    INTERNAL_ERROR = _Severity.INTERNAL_ERROR
    ERROR = _Severity.ERROR
    WARNING = _Severity.WARNING
    INFO = _Severity.INFO
    VERBOSE = _Severity.VERBOSE

    def log(self, severity: Any, msg: str) -> None:
        """Called with each message."""


class Logger(ILogger):
    """Writes to standard error."""

    min_severity = Setting(_Severity, _Severity.WARNING)

    def __init__(self, min_severity: Any = _Severity.WARNING) -> None:
        super().__init__()
        self._min_severity = min_severity

    def log(self, severity: Any, msg: str) -> None:
        if severity <= self._min_severity:
            print(f"[TRT] [{severity.name[0]}] {msg}", file=sys.stderr)


class Log:
    """The log of the library."""

    def __init__(self, logger: Any) -> None:
        self.logger = require_initialized(logger, "ILogger")

    def error(self, what: str, code: int = 4, kind: str = "API Usage Error") -> None:
        head, _, rest = what.partition(": ")
        self.say("ERROR", f"{head}: Error Code {code}: {kind} ({rest})")

    def say(self, severity: str, message: str) -> None:
        self.logger.log(getattr(_Severity, severity), message)


LAST: list[Log] = []
"""The logger that was given last; parts without one of their own use it."""


def open_log(logger: Any) -> Log:
    """Use a logger from now on."""
    log = Log(logger)
    LAST[:] = [log]
    return log
