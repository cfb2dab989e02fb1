"""What a person sees of a bug: two lines and a file to send."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from ndld_flow.versions import read_version

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
    path = Path(tempfile.gettempdir()) / f"ndld-flow-bug-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    path.write_text(text, encoding="utf-8")
    return (
        f"bug: {type(error).__name__}: {error}\n"
        f"This is a mistake in ndld_flow or in a step. Versions and traceback are in {path}; please send it with the "
        "recipe. What was finished is kept."
    )
