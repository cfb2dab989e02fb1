"""The boundary of the Python API: arguments are checked by their types, and errors of the system become NdldFlowErrors.

An error that neither the arguments nor the system explain is a bug, and passes. `VerbOutput` is the type of what a verb
prints.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints

from ndld_flow.base.errors import NOT_UTF8, OutputsError, RequestError
from ndld_flow.base.lazy_names import names_for_checkers
from ndld_flow.base.text import short_name

DEFAULT_OUTPUTS = "outputs"
Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class VerbOutput(Generic[Value]):
    """The JSON that a verb prints: `OUTPUT` in its file, whose annotation has the type of the value."""

    module: str
    """The name of the verb's module, in which its annotation is read."""
    summary: str
    version: int | None = 1
    """None for a document, which has a version of its own."""
    is_lines: bool = False
    """True if each line is a value; otherwise there is one value."""
    leaves_out_null: bool = False
    """True if fields without a value are left out."""


def public(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """Return a function that raises RequestError for arguments of other types, and OutputsError for a failing disk."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise RequestError(f"{function.__name__}: {error}.") from None
        for name, value in arguments.items():
            if value is not signature.parameters[name].default:
                _check(function, name, value)
        try:
            return function(*args, **kwargs)
        except (OSError, UnicodeEncodeError) as error:
            message = explain_system_error(error)
            if not message:
                raise
            raise OutputsError(message) from error

    return call


def explain_system_error(error: Exception) -> str:
    """Return a message if the disk, the current directory or a file name caused the error, else an empty text."""
    if isinstance(error, OSError):
        try:
            Path.cwd()
        except OSError:
            return "the current directory was deleted. Change to one that exists, and run again."
        from ndld_flow.runs.disk import explain_disk

        return explain_disk(error, Path())  # from a function that writes files that the user names, or tags
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return f"{NOT_UTF8}: {error.object}"
    return ""


def _check(function: Callable[..., object], name: str, value: object) -> None:
    """Raise RequestError for an argument of another type than its annotation, and for a path with a null character."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    annotation = function.__annotations__[name]
    called = f"{function.__name__}: {name}"
    adapter = TypeAdapter[object](_read_annotation(function, annotation), config=ConfigDict(strict=True))
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        problems, wrong = error.errors(), error.errors()[0]["input"]
        wanted = " or ".join(dict.fromkeys(problem["msg"].removeprefix("Input should be ") for problem in problems))
        if any(problem["type"] == "sequence_str" for problem in problems):
            wanted = f"a {annotation}"
        raise RequestError(
            f"{called} must be {wanted}, not {short_name(repr(wrong), 80)} ({type(wrong).__name__})."
        ) from None
    if "Path" in str(annotation):
        for path in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if path == "":
                raise RequestError(f"{called} is empty; the current directory is `.`.")
            if "\0" in str(path):
                raise RequestError(f"{called}: {short_name(repr(path), 80)} holds a null character, which no path may.")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _check_fields(called, value)


def _read_annotation(function: Callable[..., object], annotation: Any) -> Any:  # noqa: ANN401 - any type
    """Return the type that an annotation names, with the names that its module imports for checkers of types only."""
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules[function.__module__]
    unknown = set(re.findall(r"\w+", annotation)) - vars(module).keys()
    homes = names_for_checkers(module.__name__) if unknown - vars(builtins).keys() else {}
    names = {name: getattr(importlib.import_module(homes[name]), name) for name in unknown & homes.keys()}
    # `get_type_hints` would evaluate all annotations, also those behind aliases, whose names only other modules import.
    return eval(annotation, vars(module), names)  # noqa: S307 - our own code


def _check_fields(name: str, value: object) -> None:
    """Raise RequestError for a field of another type than its annotation. Defaults are not checked again."""
    given = [each for each in dataclasses.fields(value) if getattr(value, each.name) != each.default]  # type: ignore[arg-type]
    if not given:
        return
    from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

    hints = get_type_hints(type(value), include_extras=True)
    for field in given:
        hint = hints[field.name]
        is_model = isinstance(hint, type) and issubclass(hint, BaseModel)  # it has a configuration of its own
        adapter = TypeAdapter[object](hint, config=None if is_model else ConfigDict(strict=True))
        try:
            adapter.validate_python(getattr(value, field.name))
        except ValidationError as error:
            problem = error.errors()[0]
            raise RequestError(
                f"{name}.{field.name}: {problem['msg']}, not {short_name(repr(problem['input']), 80)}."
            ) from None
