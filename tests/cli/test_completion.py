"""Completion in a real bash, with the script that click prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ndld_flow.cli.verbs import list_verbs


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("com", ["compare", "comment"]),
        pytest.param("plan --dig", ["--digest"], marks=pytest.mark.thorough),
    ],
)
def test_bash_completes(words: str, expected: list[str], tmp_path: Path) -> None:
    typed = ["ndld-flow", *words.split()]
    program = (
        'eval "$(_NDLD_FLOW_COMPLETE=bash_source ndld-flow)" || exit 1\n'
        f"COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; _ndld_flow_completion ndld-flow\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")


def test_completion_describes_verbs_as_the_help_does() -> None:
    environment = {**os.environ, "_NDLD_FLOW_COMPLETE": "zsh_complete", "COMP_WORDS": "ndld-flow ", "COMP_CWORD": "1"}
    program = Path(sys.executable).with_name("ndld-flow")
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()  # three lines for each word: its type, the word, its description
    described = dict(zip(answers[1::3], answers[2::3], strict=True))
    assert {verb: described[verb] for verb in list_verbs()} == list_verbs()
