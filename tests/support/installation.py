"""Installations of the built wheel in virtual environments of their own, as a user has them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.requirements import Requirement

from ndld_flow.processes.worker import IN_PROCESS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel and what it requires."""

    folder: Path
    wheel: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a shell in which it is activated."""
        kept = {name: value for name, value in os.environ.items() if name not in (IN_PROCESS, "PYTHONPATH")}
        return {**kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run `ndld-flow` with these arguments."""
        command = [str(self.folder / "bin/ndld-flow"), *arguments]
        return subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True, check=False)

    def python(self, code: str, cwd: Path) -> str:
        """Return what Python code prints."""
        command = [str(self.folder / "bin/python"), "-c", code]
        return subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the files of each distribution, by its name, without bytecode.

        How much bytecode there is depends on the installer, and on what was imported before.
        """
        code = (
            "import importlib.metadata as m, json\n"
            "sizes = {d.name: sum(f.locate().stat().st_size for f in d.files if f.suffix != '.pyc' and "
            "f.locate().exists()) for d in m.distributions()}\nprint(json.dumps(sizes))"
        )
        sizes: dict[str, int] = json.loads(self.python(code, self.folder))
        return {name: size for name, size in sizes.items() if name not in ("pip", "setuptools")}


def build_distributions(folder: Path) -> Path:
    """Build the wheel and the sdist into a folder, once for all workers of a test run; return it."""
    with FileLock(f"{folder}.lock"):
        if not list(folder.glob("*.whl")):
            build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
            subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


def install_wheel_beside(folder: Path, wheel: Path) -> Installation:
    """Install the wheel, once for all workers of a test run, with links to what it requires, and to nothing else.

    What is here was installed for the tests; to install it again took half a minute of CPU.
    """
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet"]
            subprocess.run([*pip, "--disable-pip-version-check", "--no-deps", str(wheel)], check=True)
            (site,) = folder.glob("lib/python*/site-packages")
            for file in {file for name in _required("ndld-flow") for file in _entries(name)}:
                (site / file.name).symlink_to(file)
    return Installation(folder, wheel)


def _required(package: str) -> set[str]:
    """Return the names of all distributions that one requires without extras."""
    names: set[str] = set()
    waiting = [package]
    while waiting:
        for text in importlib.metadata.requires(waiting.pop()) or ():
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name not in names:
                names.add(requirement.name)
                waiting.append(requirement.name)
    return names


def _entries(name: str) -> set[Path]:
    """Return the files and folders in `site-packages` that a distribution has."""
    found = importlib.metadata.distribution(name)
    tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    return {Path(str(found.locate_file(top))) for top in tops}


def install_wheel(folder: Path, wheel: Path, python: str = sys.executable) -> Installation:
    """Install the wheel, once for all workers of a test run, with what it requires from the package index."""
    done = folder / "installed"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([python, "-m", "venv", str(folder)], check=True, capture_output=True)
            # Most of what is installed is never imported: compiling it took half of the time.
            options = ("--quiet", "--disable-pip-version-check", "--no-compile")
            command = [str(folder / "bin/pip"), "install", *options, str(wheel)]
            installed = subprocess.run(command, capture_output=True, text=True, check=False)
            assert installed.returncode == 0, installed.stderr
            done.touch()
    return Installation(folder, wheel)


def find_python(version: str) -> str:
    """Return the path of an interpreter of a version such as `3.12`; skips the test where there is none."""
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for candidate in filter(None, candidates):
        # pyenv's shims exist for versions that are not selected, too.
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and re.fullmatch(re.escape(version), asked.stdout.strip()):
            return candidate
    pytest.skip(f"there is no Python {version}")
