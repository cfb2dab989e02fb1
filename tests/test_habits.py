"""The files around the code: workflows, hooks and recipes of commands name what exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commit_subject import check
from tests.support.message_files import UNUSED_MESSAGES
from tests.support.representatives import UNKNOWN_CASES

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _name_of(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement, maxsplit=1)[0]


FROM_A_RUNNER = {"python", "python3"}
"""Programs that a new environment does not have to install."""
OF_EXTRAS = {
    _name_of(requirement)
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items()
    for requirement in requirements
    if extra not in ("dev", "test")
}
"""Packages of extras, which the environment of the tests may lack; their programs have their names."""


def programs_of(line: str) -> list[str]:
    """Return the programs that a line of shell starts."""
    return [part.split()[0] for part in re.split(r"\s*&&\s*", line.strip())]


def exists(program: str) -> bool:
    if "/" in program and not program.startswith(".venv/"):
        return (ROOT / program).is_file()
    name = Path(program).name
    return name in {*FROM_A_RUNNER, *OF_EXTRAS, "pip"} or (PROGRAMS / name).exists()


def check_command(line: str) -> None:
    for program in programs_of(line):
        assert exists(program), f"{line}: there is no program {program}"
    for mark in re.findall(r"pytest.* -m (\w+)", line):
        assert any(declared.startswith(f"{mark}:") for declared in PROJECT["tool"]["pytest"]["ini_options"]["markers"])
    for path in re.findall(r"\btests/[\w/.]+", line):
        assert (ROOT / path).exists(), line
    for module in re.findall(r"python -m ([\w.]+)", line):
        done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_workflows_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["name"] == path.stem
    assert workflow[True], "`on` is YAML 1.1's true"
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] and job["steps"][0]["uses"].startswith("actions/checkout@")
        choices = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            for line in expanded(step.get("run", ""), choices):
                check_command(line)


def expanded(text: str, choices: dict[str, list[str]]) -> list[str]:
    """Return the lines of a step, with each value of a matrix."""
    lines = text.splitlines()
    for name, values in choices.items():
        pattern = "${{ matrix." + name + " }}"
        lines = [line.replace(pattern, value) for line in lines for value in (values if pattern in line else [""])]
    return lines


def test_the_tests_run_on_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    pythons = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
    assert all(isinstance(version, str) for version in pythons), "3.10 without quotes is 3.1"


def test_hooks_exist_and_match_files() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks: list[dict[str, Any]] = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {hook["id"] for hook in hooks} >= {"ruff-check", "ruff-format", "lint-imports", "mypy"}
    for hook in hooks:
        assert hook["language"] == "system"
        check_command(hook["entry"])
        assert re.search(hook.get("files", ""), "ndld_flow/api.py")


def test_commands_of_the_justfile_exist() -> None:
    text = (ROOT / "justfile").read_text()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    recipes = set(re.findall(r"^(\w+)[\w *]*:$", text, re.MULTILINE))
    assert recipes >= {"setup", "check", "test", "docs", "thorough", "slow", "mutate", "fix"}
    for line in lines:
        if not line.startswith("@"):
            named = line.replace("{{bin}}", ".venv/bin").replace("{{python}}", "python")
            check_command(re.sub(r"\{\{\w+\}\}", "", named))


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_forms_are_valid(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    fields = form["body"]
    assert all(field["type"] in ("textarea", "input", "dropdown", "checkboxes", "markdown") for field in fields)
    names = [field["id"] for field in fields if field["type"] != "markdown"]
    assert len(names) == len(set(names))
    assert all(field["attributes"]["label"] for field in fields if field["type"] != "markdown")


def test_the_changelog_begins_with_unreleased_changes() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Add a step\n", ""),
        ("Add a step\n\nBecause.\n# Please enter the commit message\n", ""),
        ("# a comment\n\nx", "is empty"),
        ("A" * 72, ""),
        ("A" * 73, "has 73 characters"),
        ("Add a step.", "full stop"),
        ("Add a step\nand another", "the second line is not empty"),
    ],
)
def test_subjects_of_commits_are_short_and_imperative(message: str, fault: str) -> None:
    found = check(message)
    assert fault in found if fault else not found


def test_the_hook_for_subjects_ends_with_an_error(tmp_path: Path) -> None:
    script = ROOT / "tests/support/commit_subject.py"
    for message, code in (("Add a step", 0), ("Add a step.", 1)):
        (tmp_path / "message").write_text(message)
        done = subprocess.run([sys.executable, script, tmp_path / "message"], capture_output=True, check=False)
        assert done.returncode == code


def test_representatives_are_cases_of_their_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[UNKNOWN_CASES] == []  # where all tests were collected


def test_each_stored_message_is_checked_by_a_test(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[UNUSED_MESSAGES] == []  # `pytest --update-messages` removes them
