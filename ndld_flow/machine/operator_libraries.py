"""The libraries of custom operators that ONNX Runtime loads wherever a step examines a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import one_paragraph

_LIBRARIES: ContextVar[tuple[str, ...]] = ContextVar("operator_libraries", default=())


@contextmanager
def using_libraries(paths: Sequence[str]) -> Iterator[None]:
    """Load these libraries, by absolute paths, in every session that only examines a model, within the block.

    Checks of a result and shape inference are far below the step that has the setting.
    """
    token = _LIBRARIES.set(tuple(paths))
    try:
        yield
    finally:
        _LIBRARIES.reset(token)


def libraries_in_use() -> tuple[str, ...]:
    """Return the paths of the libraries to load."""
    return _LIBRARIES.get()


def register_libraries(options: Any) -> None:  # noqa: ANN401 - ONNX Runtime's SessionOptions, which has no types
    """Add the libraries in use to a session's options. Raises `BackendError` for one that does not load."""
    for path in _LIBRARIES.get():
        try:
            options.register_custom_ops_library(path)
        except Exception as error:  # ONNX Runtime raises its own classes
            raise BackendError(f"`custom_ops`: ONNX Runtime does not load {path}: {one_paragraph(error)}") from None
