"""Environments with the packages of rivals, and of what prepares subjects."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def environment(packages: Sequence[str], folder: Path) -> Path:
    """Return the Python of an environment with these packages: this one if it has them, or one made by `venv`."""
    if all(_has(requirement) for requirement in packages):
        return Path(sys.executable)
    own = folder / hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    python = own / "bin/python"
    if not (own / "complete").exists():
        venv.create(own, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        (own / "complete").touch()
    return python


def _has(requirement: str) -> bool:
    name, _, version = requirement.partition("==")
    try:
        return metadata.version(name) == version
    except metadata.PackageNotFoundError:
        return False
