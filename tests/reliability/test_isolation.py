"""A step that crashes its process crashes nothing else: the tool reports it, keeps results, and continues."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import KilledError
from tests.support.command_line import ndld_flow
from tests.support.tally import Tally
from tests.support.worker_toys import RECIPE, Deeds

pytestmark = pytest.mark.usefixtures("isolated_steps")
STEPS = "  first: {step: deed, word: first}\n  second: {step: deed, act: %s, word: x}\n"


def write_recipe(deeds: Deeds, act: str) -> Path:
    deeds.toy.recipe.write_text(RECIPE + STEPS % act)
    return deeds.toy.recipe


def test_a_crash_in_native_code_is_the_steps_failure(in_folder: Path, tally: Callable[[str], Tally]) -> None:
    count = tally("native crash of a step")
    deeds = Deeds(in_folder)
    for act, died in (("segfault", "was killed by SIGSEGV"), ("abort", "was killed by SIGABRT")):
        ended = ndld_flow("run", str(write_recipe(deeds, act)), "--trust", cwd=in_folder)
        assert ended.returncode == 5
        assert f"process that computed it {died}" in ended.stderr
        assert ended.stderr.count("\n") == 1
        assert "Traceback" not in ended.stdout + ended.stderr
        count.refused += 1
    assert [name for name, _ in deeds.done] == ["first", "second", "second"]
    again = ndld_flow("run", str(write_recipe(deeds, "nothing")), "--trust", cwd=in_folder)
    assert again.returncode == 0
    assert "first: reused" in again.stdout


@pytest.mark.thorough
def test_a_lack_of_memory_kills_the_worker(in_folder: Path, tally: Callable[[str], Tally]) -> None:
    """The kernel kills who takes too much, and the tool itself takes little."""
    count = tally("step killed for want of memory")
    deeds = Deeds(in_folder)
    with pytest.raises(KilledError, match=f"{signal.SIGKILL.name}.*may have run out"):
        api.run(write_recipe(deeds, "killed"), trust=True)
    count.refused += 1


@pytest.mark.thorough
def test_a_bug_of_a_step_is_reported_with_its_location(in_folder: Path) -> None:
    deeds = Deeds(in_folder)
    ended = ndld_flow("run", str(write_recipe(deeds, "bug")), "--trust", cwd=in_folder)
    assert ended.returncode == 3
    assert ended.stderr.startswith("bug: ValueError: a bug about x\n")
    log = Path(ended.stderr.partition("traceback are in ")[2].partition("; please")[0])
    assert "deed.py" in log.read_text()
    log.unlink()


def test_steps_of_a_run_share_one_worker_and_reused_steps_need_none(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds = Deeds(in_folder)
    recipe = write_recipe(deeds, "nothing")
    assert api.run(recipe, trust=True).passed
    assert len({pid for _, pid in deeds.done}) == 1

    def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("ndld_flow.execution.workers.start_process", refuse)
    assert api.run(recipe, trust=True).passed
