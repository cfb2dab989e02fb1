"""Exports of three engines of one ResNet that trtexec wrote on an A100.

They are from NVIDIA's TREx examples (Apache-2.0): `fp32`, `fp16` and `qat`, each with its graph, build, layer times and
times of passes.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tarfile
import tempfile
from pathlib import Path

_ARCHIVE = Path(__file__).parent.parent / "golden" / "trtexec-resnet-a100.tar.xz"


@functools.cache
def a100_exports() -> Path:
    """Unpack the exports once for this process and return their folder, with one folder for each precision."""
    folder = tempfile.mkdtemp(prefix="ndld_flow-a100-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder, "trtexec-resnet-a100")
