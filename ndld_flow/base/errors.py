"""What can go wrong, as one tree. Each error ends the program with its own exit code.

::

    NdldFlowError
    ├── RequestError        2   the request is wrong
    │   ├── RecipeError         the recipe, with every problem located
    │   ├── ModelError          a model is missing, broken or not ONNX
    │   ├── SourceError         a model could not be fetched, or its digest differs
    │   ├── BackendError        a library, execution provider or device is missing
    │   ├── NewerFormatError    a document or a store was written by a later version
    │   └── OutputsError        the outputs folder cannot be written, or the disk is full
    └── KilledError         5   a process that did the work was killed: by a signal, or for want of memory

A check, gate or step that fails is no error: it is a result, and exit code 1 (`records/outcome.py` has all codes).
A message is one short paragraph: what, where, what to do. Anything else that is raised is a bug (exit code 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow import __version__
from ndld_flow.base.plain_text import short_name, shortened, visible_text

NOT_UTF8 = "a name is not UTF-8, which records and pages cannot hold; rename the file or folder"
MAX_MESSAGE = 50_000
"""Characters of a message. Only a recipe with many mistakes comes near."""
MAX_TOLD = 50
"""Mistakes of a recipe that its message tells."""


class NdldFlowError(Exception):
    """An error a person can understand and act on."""

    exit_code = 3

    @classmethod
    def with_text(cls, text: str) -> NdldFlowError:
        """Return an error of this class that has nothing but a text, whatever its constructor asks for."""
        error = cls.__new__(cls)
        Exception.__init__(error, text)
        return error

    def __str__(self) -> str:
        # What is told came from recipes and models: it may be anything, and as long as they like.
        return shortened(visible_text(super().__str__()), MAX_MESSAGE)


class RequestError(NdldFlowError):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class ModelError(RequestError):
    """A model is missing, truncated, not ONNX, or refused by the ONNX checker."""


class SourceError(RequestError):
    """A model could not be fetched, or what was fetched is not what was promised."""


class BackendError(RequestError):
    """A library, execution provider or device that was asked for is not there."""


class KilledError(NdldFlowError):
    """A process that did the work was killed: by the kernel for its memory, by a crash in native code, by a person."""

    exit_code = 5


class NewerFormatError(RequestError):
    """A file that a later version of ndld_flow wrote. It is left as it is."""

    def __init__(self, where: str, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            f"{where} was made by a newer ndld-flow: it has format version {found}, and {__version__} reads up to "
            f"{known}. Upgrade: pip install -U ndld-flow."
        )

    def at(self, where: object) -> NewerFormatError:
        """The same of a file that is named."""
        return NewerFormatError(str(where), self.found, self.known)


class OutputsError(RequestError):
    """The outputs folder cannot be written."""


def require_utf8(path: str | Path) -> None:
    """Raise RequestError for a path, below the current directory or absolute, that records and pages cannot hold."""
    try:
        str(Path(path).absolute()).encode()
    except UnicodeEncodeError:
        raise RequestError(f"{path}: {NOT_UTF8} (in {Path(path).absolute().parent}).") from None


@dataclass(frozen=True)
class Problem:
    """One mistake in a recipe, with the place where it stands."""

    where: str
    """`file:line` or `override "a=b"`."""
    path: str
    """Dotted path in the recipe, such as `steps.half.keep_io`; empty for the whole."""
    what: str
    hint: str = ""

    def __str__(self) -> str:
        where, path = short_name(self.where, 300), short_name(self.path, 200)
        what, hint = short_name(self.what, 500), short_name(self.hint, 500)
        head = f"{where}: {path}: {what}" if path else f"{where}: {what}"
        return f"{head}\n    {hint}" if hint else head


class RecipeError(RequestError):
    """A recipe with mistakes. All of them are told at once."""

    problems: tuple[Problem, ...] = ()

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        told = [str(problem) for problem in self.problems[:MAX_TOLD]]
        more = len(self.problems) - len(told)
        super().__init__("\n".join([*told, *([f"... and {more:,} more"] if more else [])]))
