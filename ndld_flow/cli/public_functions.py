"""The boundary of the Python API: arguments are checked by their types, and errors of the system become NdldFlowErrors.

An error that neither the arguments nor the system explain is a bug, and passes.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from ndld_flow.base.errors import NOT_UTF8, OutputsError, RequestError
from ndld_flow.base.lazy_pattern import lazy_pattern
from ndld_flow.base.text import short_name

DEFAULT_OUTPUTS = "outputs"
Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


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
            _check(f"{function.__name__}: {name}", signature.parameters[name].annotation, value)
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


def _is_path(value: object) -> bool:
    return isinstance(value, os.PathLike) and isinstance(os.fspath(value), str)


def _holds_only(value: object, is_item: Callable[[object], bool]) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping) and all(map(is_item, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_CHECKS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "None": (lambda value: value is None, ""),
    "str": (_is_text, "text"),
    "Path": (_is_path, "a path"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "AnyRecipe": (
        lambda value: _is_text(value) or _is_path(value) or isinstance(value, Mapping),
        "the path of a recipe, or a mapping",
    ),
    "Listener": (callable, "a function of one event"),
    "AskShape": (callable, "a function"),
    "Callable": (callable, "a function"),
    "Sequence[str]": (lambda value: isinstance(value, Sequence) and _holds_only(value, _is_text), "a list of texts"),
    "Sequence[str | Path]": (
        lambda value: isinstance(value, Sequence) and _holds_only(value, lambda item: _is_text(item) or _is_path(item)),
        "a list of paths",
    ),
    "Sequence[RunSummary]": (
        lambda value: _holds_only(value, lambda item: type(item).__name__ == "RunSummary"),
        "a list of `api.runs`",
    ),
    "Collection[Part]": (lambda value: _holds_only(value, _is_text), "a collection of texts"),
}
"""Alternative of an annotation -> a test of a value, and a description. Others are names of classes."""
_ALTERNATIVE = lazy_pattern(r"\s*\|\s*(?![^\[]*\])")


def _check(name: str, annotation: str, value: object) -> None:
    """Raise RequestError for an argument of another type than its annotation, and for a path with a null character."""
    alternatives = _ALTERNATIVE.split(annotation)
    if not any(_fits(alternative, value) for alternative in alternatives):
        wanted = " or ".join(
            dict.fromkeys(filter(None, (_CHECKS.get(_key(each), (None, f"a {each}"))[1] for each in alternatives)))
        )
        raise RequestError(f"{name} must be {wanted}, not {short_name(repr(value), 80)} ({type(value).__name__}).")
    if "Path" in annotation:
        for path in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if path == "":
                raise RequestError(f"{name} is empty; the current directory is `.`.")
            if "\0" in str(path):
                raise RequestError(f"{name}: {short_name(repr(path), 80)} holds a null character, which no path may.")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _check_fields(name, value)


def _key(alternative: str) -> str:
    return "Callable" if alternative.startswith("Callable[") else alternative


def _fits(alternative: str, value: object) -> bool:
    check = _CHECKS.get(_key(alternative))
    if check is not None:
        return check[0](value)
    return alternative in {cls.__name__ for cls in type(value).__mro__}


def _check_fields(name: str, value: object) -> None:
    """Raise RequestError for a field of another type than its annotation. Defaults are not checked again."""
    given = [each for each in dataclasses.fields(value) if getattr(value, each.name) != each.default]  # type: ignore[arg-type]
    if not given:
        return
    from typing import get_type_hints

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
