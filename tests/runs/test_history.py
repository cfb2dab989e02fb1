"""A long history: commands on one run read no other run, and commands on all runs read each once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.runs.outputs import History, Outputs
from tests.support.long_history import lengthen_history
from tests.support.toys import make_toy

COUNTING = """
import collections, json, os, sys
from pathlib import Path
from ndld_flow import api
from ndld_flow.store import digest

digest.SETTLED_AFTER_S = -1.0  # a young file is read again: how many are young depends on the machine's load
opened, looking = collections.Counter(), False

def hear(event, arguments):
    if looking and event == "open" and isinstance(arguments[0], str) and arguments[1] is not None:
        opened[Path(arguments[0]).name] += 1

sys.addaudithook(hear)
verbs = {
    "plan": lambda: api.plan("toy.yaml", trust=True),
    "run": lambda: api.run("toy.yaml", trust=True),
    "tag": lambda: api.tag(one, "kept"),
    "report": lambda: api.report(one),
    "runs": lambda: api.runs(),
    "verify": lambda: api.verify(),
    "gc --dry-run": lambda: api.gc(keep=3, dry_run=True),
    "gc": lambda: api.gc(keep=3),
}
opened_files = {}
for folder in sys.argv[1:]:
    os.chdir(folder)
    one = "toy/" + sorted(path.name for path in Path("outputs/runs/toy").glob("2*"))[-1]  # the newest
    counts = opened_files[Path(folder).name] = {}
    for name, verb in verbs.items():
        verb()  # imports, and notes of digests
        opened.clear()
        looking = True
        verb()
        looking = False
        counts[name] = [sum(opened.values()), opened["run.json"]]
print(json.dumps(opened_files))
"""
LENGTHS = (3, 12)


@pytest.fixture(scope="module")
def opened_files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[int]]]:
    """Length of history -> verb -> files it opened, and how often a `run.json`."""
    begun = tmp_path_factory.mktemp("history") / "begun"
    begun.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(begun)
        api.run(make_toy(begun).recipe, trust=True)
    folders = [begun.with_name(str(length)) for length in LENGTHS]
    for length, folder in zip(LENGTHS, folders, strict=True):
        shutil.copytree(begun, folder, symlinks=True)
        lengthen_history(Outputs(folder / "outputs"), "toy", range(1, length), [])
    command = [sys.executable, "-c", COUNTING, *map(str, folders)]
    ended = subprocess.run(command, cwd=begun, capture_output=True, text=True, check=True)
    return {int(length): counts for length, counts in json.loads(ended.stdout).items()}


@pytest.mark.parametrize("verb", ["plan", "run", "tag", "report"])
def test_commands_on_one_run_open_the_same_files_whatever_the_history(
    opened_files: dict[int, dict[str, list[int]]], verb: str
) -> None:
    few, many = (opened_files[length][verb] for length in LENGTHS)
    assert few == many


@pytest.mark.parametrize("verb", ["runs", "verify"])
def test_commands_on_all_runs_read_each_once(opened_files: dict[int, dict[str, list[int]]], verb: str) -> None:
    assert [opened_files[length][verb][1] for length in LENGTHS] == [*LENGTHS]


def test_gc_reads_only_the_runs_it_keeps(opened_files: dict[int, dict[str, list[int]]]) -> None:
    # The tagged one, and three more where there are: for what they need, and those for whether they came to their end.
    assert [opened_files[length]["gc"][1] for length in LENGTHS] == [1 + 2 * 2, 1 + 3 * 2]
    # A dry run has lines for what they need.
    assert [opened_files[length]["gc --dry-run"][1] for length in LENGTHS] == [2, 3]


def test_copies_in_a_long_history_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    api.run(make_toy(tmp_path).recipe, trust=True)
    begun = api.verify()
    lengthen_history(Outputs(Path("outputs")), "toy", range(1, 12), ["second"])
    lengthened = api.verify()
    assert begun.all_well and lengthened.all_well
    assert lengthened.object_count == begun.object_count + 11
    assert len(api.runs()) == 12
    assert len(api.gc(keep=2).runs) == 10
    assert api.verify().all_well


def test_runs_are_in_recorded_order_and_else_by_time(tmp_path: Path) -> None:
    history = History(tmp_path / "order.txt")
    assert history.read().place("toy/20260101T000000Z-aaaaaa") == 0
    noted = ["toy/20260102T000000Z-aaaaaa", "toy/20300101T000000Z-bbbbbb", "toy/20260103T000000Z-cccccc"]
    for name in noted:
        history.add(tmp_path / name)
    order = history.read()
    assert [order.place(name) for name in noted] == [1, 2, 3], "the clock was set forth, and back"
    assert order.place("toy/20260101T000000Z-dddddd") == 0, "of another machine"
    assert order.place("toy/20260102T120000Z-dddddd") == 1
    assert order.place("toy/20260104T000000Z-dddddd") == 3
    history.forget([tmp_path / noted[0]])
    assert history.read().place(noted[2]) == 2


def test_gc_keeps_the_newest_runs_when_the_order_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy = make_toy(tmp_path)
    folders = [Path(api.run(toy.recipe, [f"steps.first.word={word}"], trust=True).folder).name for word in "abc"]
    order = Path("outputs/order.txt")
    for lost in (f"\ntoy/{folders[0]}", ""):
        order.write_text(lost)
        assert list(api.gc(keep=1, dry_run=True).runs) == [f"toy/{name}" for name in folders[:2]]
        assert [run.run for run in api.runs()] == [f"toy/{name}" for name in reversed(folders)]
