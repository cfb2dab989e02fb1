"""Completion in a real bash with the script that the program prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a run of another."""
    folder = tmp_path_factory.mktemp("completion")
    make_cnn(folder / "model.onnx")
    (folder / "my.yaml").write_text("model: model.onnx\ninputs: {x: {}}\nsteps: {speed: {step: profile}, lint: {}}\n")
    (folder / "outputs/runs/detector/20261122T101010Z-abcdef").mkdir(parents=True)
    (folder / "outputs/tags").mkdir()
    (folder / "outputs/tags/shipped").touch()
    return folder


def complete(folder: Path, *words: str) -> list[str]:
    """Return the words that bash offers for the last of `words`."""
    script = ndld_flow("completion", "bash", cwd=folder).stdout
    asked = " ".join(f"'{word}'" for word in ("ndld-flow", *words))
    call = f"COMP_WORDS=({asked}); COMP_CWORD={len(words)}; _ndld_flow_completion ndld-flow"
    program = f'{script}\n{call}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bash = ["bash", "--norc", "-c", program]
    done = subprocess.run(
        bash, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["com"], ["compare ", "comment ", "completion "], marks=pytest.mark.thorough),
        pytest.param(["steps", "convert"], ["convert_fp16 "], marks=pytest.mark.thorough),
        pytest.param(["schema", "--verb", "p"], ["plan ", "profile "], marks=pytest.mark.thorough),
        pytest.param(["init", "--pl"], ["--plugin "], marks=pytest.mark.thorough),
        (["run", "my.yaml", "steps.speed.warmup"], ["steps.speed.warmup=", "steps.speed.warmup_passes="]),
        pytest.param(["run", "my.yaml", "inputs."], ["inputs.x.data=", "inputs.x.shape="], marks=pytest.mark.thorough),
        pytest.param(["plan", "my.yaml", "~"], ["~steps.lint ", "~steps.speed "], marks=pytest.mark.thorough),
        pytest.param(["tag", "det"], ["detector "], marks=pytest.mark.thorough),
        pytest.param(["compare", "20"], ["20261122T101010Z-abcdef "], marks=pytest.mark.thorough),
        (["report", "ship"], ["shipped "]),
        (["run", "nowhere.yaml", "steps."], []),
    ],
)
def test_bash_completes(words: list[str], expected: list[str], folder: Path) -> None:
    assert complete(folder, *words) == expected


def test_a_broken_recipe_completes_nothing_and_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("steps: [1, {")
    assert complete(tmp_path, "run", "my.yaml", "steps.") == []


def test_the_script_is_installed_where_the_shell_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    done = ndld_flow("completion", "--install", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ndld-flow" in (tmp_path / ".config/fish/completions/ndld-flow.fish").read_text()


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ndld-flow compa", ["compare"]),
        ("ndld-flow run my.yaml steps.speed.warmup", ["steps.speed.warmup=", "steps.speed.warmup_passes="]),
        ("ndld-flow report ship", ["shipped"]),
        ("ndld-flow run ./m", ["./model.onnx", "./my.yaml"]),
    ],
)
def test_fish_completes(line: str, expected: list[str], folder: Path, tmp_path: Path) -> None:
    script = ndld_flow("completion", "fish", cwd=folder).stdout
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
    fish = ["fish", "--no-config", "-c", f"{script}\ncomplete -C '{line}'"]
    done = subprocess.run(fish, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert [offered.split("\t")[0] for offered in done.stdout.splitlines()] == expected


def test_the_startup_file_of_zsh_is_changed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    startup = tmp_path / ".zshrc"
    startup.write_text("alias ll='ls -l'")
    for _ in range(2):
        assert ndld_flow("completion", "zsh", "--install", cwd=tmp_path).returncode == 0
    own, added = startup.read_text().splitlines()
    assert own == "alias ll='ls -l'"
    assert added.startswith("fpath+=(~/.zfunc); autoload -Uz compinit && compinit")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_finds_the_installed_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ndld_flow("completion", "zsh", "--install", cwd=tmp_path)
    environment = {**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    zsh = ["zsh", "-i", "-c", "print $_comps[ndld-flow]"]
    done = subprocess.run(zsh, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "_ndld-flow"


def test_an_unknown_shell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    done = ndld_flow("completion", cwd=tmp_path)
    assert done.returncode == 2
    assert "bash, zsh, fish" in done.stderr
