"""The message for a bug: two lines, and a file to send."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback

from ndld_flow.base.text import visible_text
from ndld_flow.machine.versions import read_version
from ndld_flow.store.hidden_credentials import hide_credentials

LIBRARIES = ("ndld-flow", "onnx", "onnx-ir", "onnxruntime", "numpy", "protobuf", "pydantic", "hydra-core", "click")


def write_bug(error: BaseException) -> str:
    """Write versions and the traceback to a file; return the message that names it."""
    text = "\n".join(
        [
            f"command: {sys.argv}",
            f"python: {sys.version}",
            f"platform: {platform.platform()}",
            *(f"{library}: {read_version(library)}" for library in LIBRARIES),
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    from ndld_flow.runner.executors.workers import WorkerBugError

    is_complete = isinstance(error, WorkerBugError)  # it has the name of the worker's exception
    shown = str(error) if is_complete else f"{type(error).__name__}: {error}"
    return (
        f"bug: {hide_credentials(visible_text(shown))}\n"
        f"This is a bug in ndld_flow or in a step. {_keep(hide_credentials(text))} Finished work is kept."
    )


def _keep(text: str) -> str:
    """Write versions and traceback to a file; return a sentence with its path."""
    try:
        # The folder is shared: mkstemp creates a private file under a name that nobody can have taken for a link.
        descriptor, path = tempfile.mkstemp(prefix=f"ndld-flow-bug-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        return f"No details could be written ({error.strerror}); `ndld-flow --debug ...` shows the traceback."
    return f"Versions and traceback are in {path}; please send it with the recipe."
