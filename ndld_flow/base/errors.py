"""The tree of errors. Each ends the program with its own exit code.

::

    NdldFlowError
    ├── RequestError        2   the request cannot be carried out
    │   ├── RecipeError         the recipe, with every problem located
    │   ├── ModelError          a model is missing, broken or not ONNX
    │   │   └── MissingDataError    weights of a model were removed, or are in a file that is missing or too short
    │   ├── SourceError         a model could not be fetched, or its digest differs
    │   ├── UnknownNameError    a model, recipe or run has nothing of a name; the nearest known name is a field
    │   ├── BackendError        a library, execution provider or device is missing
    │   ├── FormatError         a document or a store is of another version
    │   └── OutputsError        the outputs folder cannot be written, or the disk is full
    │       └── PageError       a page cannot be written
    └── KilledError         5   a worker process was killed by a signal, or ran out of memory

A check, gate or step that fails is a result, not an error; the exit code is 1 (all codes: `records/outcomes.py`).
A message is one short paragraph: what, where, what to do. Every other exception is a bug (exit code 3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ndld_flow.base.text import find_nearest, short_name, shortened, suggest, visible_text

NOT_UTF8 = "a name is not UTF-8, which records and pages cannot contain; rename the file or folder"
MAX_MESSAGE = 50_000
"""Maximum length of a message in characters. Only recipes with many problems come close."""
MAX_PROBLEMS = 50
"""Maximum number of problems of a recipe that its message lists."""


class NdldFlowError(Exception):
    """An error that a person can understand and act on."""

    exit_code = 3

    def __init__(self, message: str, *, step: str = "") -> None:
        super().__init__(message)
        self.step = step
        """Name of the step that failed; names of steps that were measured in turns are joined by `and`."""

    def with_text(self, text: str, step: str = "") -> Self:
        """Return this error with another text, without calling its constructor."""
        error = type(self).__new__(type(self))
        vars(error).update(vars(self))
        error.args, error.step = (text,), step
        return error

    @property
    def message(self) -> str:
        """Return the text without the name of the step."""
        # The text quotes recipes and models, which may be untrusted: it may contain any character and be of any length.
        return shortened(visible_text(super().__str__()), MAX_MESSAGE)

    def __str__(self) -> str:
        return f"step {self.step}: {self.message}" if self.step else self.message


def is_interruption(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error: Python 3.11 reports it as a `RuntimeError` during class creation."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, RuntimeError) and isinstance(error.__cause__, KeyboardInterrupt)
    )


class RequestError(NdldFlowError):
    """The request cannot be carried out as it is."""

    exit_code = 2


class ModelError(RequestError):
    """A model is missing, truncated, not ONNX, or rejected by the ONNX checker."""


class MissingDataError(ModelError):
    """Weights of a model were removed, or are in a file that is missing or too short."""

    reason = ""
    """The reason in a few words, such as `model.data is missing`."""


class SourceError(RequestError):
    """A model could not be fetched, or its digest differs from the expected one."""


class UnknownNameError(RequestError):
    """A model, recipe or run has nothing of a name; the message ends with the nearest known name, or lists them."""

    name = nearest = ""
    """`nearest` is the known name that is spelt almost like `name`; empty if there is none."""

    def __init__(self, what: str, name: str = "", known: Iterable[str] = (), none: str = "") -> None:
        self.name, known = name, [*filter(None, known)]
        self.nearest = find_nearest(name, known)
        hint = suggest(name, known) or none
        super().__init__(f"{what}; {hint}" if hint else what)


class BackendError(RequestError):
    """A library, execution provider or device that the recipe requires is missing."""


class KilledError(NdldFlowError):
    """A worker process was killed: by the kernel for its memory, by a crash in native code, or by a person."""

    exit_code = 5


class FormatError(RequestError):
    """A file is of another version of ndld_flow. It is left unchanged."""

    @classmethod
    def of(cls, name: str, found: int, known: int) -> FormatError:
        """Return the error for a named thing with a format other than the known one."""
        return cls(
            f"{name} is of another version of ndld-flow: its format is {found}, and this one reads {known}. Use the "
            "version that wrote it, or move it away and compute it again."
        )


class OutputsError(RequestError):
    """The outputs folder cannot be written."""


class PageError(OutputsError):
    """A page cannot be written; the cause is the system's error."""


@contextlib.contextmanager
def explaining_file(path: str | Path, what: str = "it") -> Iterator[None]:
    """Turn errors while writing a file that the user named into an OutputsError; `what` is the name of its contents."""
    try:
        yield
    except OSError as error:
        raise OutputsError(f"{path}: {what} cannot be written ({error.strerror}). Choose another path.") from None


@contextlib.contextmanager
def naming_step(step: str) -> Iterator[None]:
    """Set the step of errors in the block that have none."""
    try:
        yield
    except NdldFlowError as error:
        error.step = error.step or step
        raise


def check_known(
    names: Iterable[str], known: Collection[str], before: str, after: str = "", none: str = "it has none"
) -> None:
    """Raise `UnknownNameError` for a name that is unknown; `none` says that none is known.

    `before` and `after` are the sentence around the name.
    """
    for name in names:
        if name not in known:
            raise UnknownNameError(f"{before} {short_name(name)!r}{after}", name, known, none)


def require_utf8(path: str | Path) -> None:
    """Raise RequestError for a path that is not UTF-8, which records and pages cannot contain."""
    try:
        str(Path(path).absolute()).encode()
    except UnicodeEncodeError:
        raise RequestError(f"{path}: {NOT_UTF8} (in {Path(path).absolute().parent}).") from None


@dataclass(frozen=True)
class Problem:
    """One problem of a recipe, with its location."""

    where: str
    """`file:line` or `override "a=b"`."""
    path: str
    """Dotted path in the recipe, such as `steps.half.keep_io`; empty for the whole."""
    what: str
    hint: str = ""

    @property
    def line(self) -> int:
        """The line in the file; for a problem of an override, larger than any line."""
        line = self.where.rpartition(":")[2]
        return int(line) if line.isdigit() else 10**9

    def __str__(self) -> str:
        where, path = short_name(self.where, 300), short_name(self.path, 200)
        what, hint = short_name(self.what, 500), short_name(self.hint, 500)
        head = f"{where}: {path}: {what}" if path else f"{where}: {what}"
        return f"{head}\n    {hint}" if hint else head


class RecipeError(RequestError):
    """A recipe has problems. The message lists all of them."""

    problems: tuple[Problem, ...] = ()

    def __init__(self, problems: Sequence[Problem], *, step: str = "") -> None:
        self.problems = tuple(problems)
        listed = [str(problem) for problem in self.problems[:MAX_PROBLEMS]]
        more = len(self.problems) - len(listed)
        super().__init__("\n".join([*listed, *([f"... and {more:,} more"] if more else [])]), step=step)
