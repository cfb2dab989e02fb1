"""The git commit of a working tree, as git reports it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TIMEOUT_S = 5.0
_HARMLESS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
"""The configuration of a stranger's repository may name programs."""


def read_commit(folder: Path) -> str:
    """Return the commit that is checked out in a folder's working tree.

    Empty without git, outside a working tree, in one of another user (which git refuses), and if git does not answer.
    """
    git = shutil.which("git")
    if git is None or not Path(git).is_absolute():  # a relative one could be a file of the project
        return ""
    command = [git, *_HARMLESS, "rev-parse", "--verify", "--quiet", "HEAD"]
    # In a hook of git, GIT_DIR names a repository for every folder.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment | {"GIT_CONFIG_NOSYSTEM": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    commit = done.stdout.decode("ascii", "replace").strip()
    return commit if done.returncode == 0 and _COMMIT.fullmatch(commit) else ""
