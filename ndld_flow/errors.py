"""What can go wrong, as one tree. Each error ends the program with its own exit code.

::

    NdldFlowError
    └── RequestError        2   the request is wrong
        ├── RecipeError         the recipe, with every problem located
        ├── ModelError          a model is missing, broken or not ONNX
        ├── SourceError         a model could not be fetched, or its digest differs
        ├── BackendError        a library, execution provider or device is missing
        └── OutputsError        the outputs folder cannot be written, or the disk is full

A check, gate or step that says no is no error: it is a result, and exit code 1.
A message is one short paragraph: what, where, what to do. Anything else that is raised is a bug (exit code 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class NdldFlowError(Exception):
    """An error a person can understand and act on."""

    exit_code = 3


class RequestError(NdldFlowError):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class ModelError(RequestError):
    """A model is missing, truncated, not ONNX, or refused by the ONNX checker."""


class SourceError(RequestError):
    """A model could not be fetched, or what was fetched is not what was promised."""


class BackendError(RequestError):
    """A library, execution provider or device that was asked for is not there."""


class OutputsError(RequestError):
    """The outputs folder cannot be written."""


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
        head = f"{self.where}: {self.path}: {self.what}" if self.path else f"{self.where}: {self.what}"
        return f"{head}\n    {self.hint}" if self.hint else head


class RecipeError(RequestError):
    """A recipe with mistakes. All of them are told at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
