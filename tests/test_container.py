"""The Dockerfile: its steps run here as commands, and the result runs a recipe where only its folder can be written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models import make_cnn

ROOT = Path(__file__).parent.parent
IMAGE_PATHS = ("/opt/ndld-flow", "/wheels")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments."""
    text = re.sub(r"\\\n", " ", (ROOT / "docker/Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def values_of(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_the_image_is_small_and_its_user_has_no_rights() -> None:
    first, last = values_of("FROM")
    assert first.startswith("python:3.")
    assert last.endswith("-slim")
    assert [user.isdigit() and int(user) > 0 for user in values_of("USER")] == [True], (
        "the number of a user, not of root"
    )
    final = instructions()[[name for name, _ in instructions()].index("FROM", 1) :]
    assert not [rest for name, rest in final if name == "RUN" and "install" in rest], "nothing is built in the image"


def test_the_image_has_all_that_the_wheel_is_built_from() -> None:
    copied = {source for rest in values_of("COPY") if "--from" not in rest for source in rest.split()[:-1]}
    project = (ROOT / "pyproject.toml").read_text()
    needed = {"pyproject.toml", "README.md", "LICENSE", "ndld_flow", *re.findall(r'(\w+) = "ndld_flow/\1"', project)}
    assert copied == needed


def build_stage(folder: Path) -> Path:
    """Run the build stage's steps with the image's paths below a folder; return the environment that they make."""
    source = folder / "source"
    source.mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for word, rest in instructions()[1:]:
        if word == "FROM":
            break
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / (target if (ROOT / name).is_dir() else name))
        elif word == "RUN":
            line = re.sub("|".join(IMAGE_PATHS), lambda match: f"{folder}{match[0]}", rest)
            done = subprocess.run(
                ["bash", "-c", line], cwd=source, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
    return folder / "opt/ndld-flow"


def in_read_only_root(command: list[str], writable: list[Path]) -> list[str]:
    """Return a command that runs another one where only these folders can be written."""
    mounts = [f"mount --bind '{folder}' '{folder}'" for folder in writable]
    # The current directory is still that below the mount.
    enter = ["mount -o remount,ro,bind /", 'cd "$PWD"', 'exec "$@"']
    script = " && ".join(["mount --make-rprivate /", *mounts, *enter])
    return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


@pytest.mark.slow
def test_the_steps_of_the_image_work_with_a_read_only_root(tmp_path: Path) -> None:
    installed = build_stage(tmp_path)
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    if subprocess.run(in_read_only_root(["true"], [work]), check=False, capture_output=True).returncode:
        pytest.skip("this system does not allow mounts")
    make_cnn(work / "model.onnx")
    environment = {"PATH": f"{installed / 'bin'}:/usr/bin:/bin", "HOME": str(scratch), "TMPDIR": str(scratch)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            in_read_only_root(list(command), [work, scratch]),
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("touch", str(tmp_path / "elsewhere")).returncode, "the root is read-only"
    for arguments in (
        ["init", "model.onnx"],
        ["run", "model.yaml", "-o", "faster.onnx", "steps.base.budget=300ms", "steps.speed.budget=300ms"],
        ["doctor"],
    ):
        done = run("ndld-flow", *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    assert (work / "faster.onnx").is_file()
