"""The mutation script plants one fault at a time, in a copy, and names the faults that no test catches."""

from __future__ import annotations

import contextlib
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.__main__ import ROOT, Planted, Texts, choose, find_modules, main, read_equivalents
from tests.mutation.mutators import find_sites
from tests.mutation.reach import add_probes, read_reached
from tests.mutation.related_tests import RelatedTests
from tests.mutation.trial import Copy, copy_project

MODULE = """def is_far(value: float) -> bool:
    return value >= 10


def first_far(values: list[float]) -> float | None:
    for value in values:
        if not is_far(value):
            continue
        return value
    return None
"""
TESTS = """from far.distance import first_far, is_far


def test_far() -> None:
    assert is_far(11) and not is_far(9)


def test_first() -> None:
    assert first_far([1, 20, 30]) == 20
"""


def changes(source: str) -> set[tuple[str, str]]:
    """Each change as its kind and the changed source."""
    return {(mutant.kind, mutant.apply(source)) for site in find_sites(source) for mutant in site}


@pytest.mark.parametrize(
    ("source", "kind", "changed"),
    [
        ("a < b", "comparison", "a <= b"),
        ("a < b <= c", "comparison", "a < b < c"),
        ("a in b", "comparison", "a not in b"),
        ("x = a and b or c", "and/or", "x = (a or b) or c"),
        ("x = a and b and c", "operand removed", "x = (a and c)"),
        ("x = a or b", "operand removed", "x = (b)"),
        ("x = not (a or b)", "not removed", "x = (a or b)"),
        ("x = 3", "constant", "x = (3 + 1)"),
        ("x = 0.5", "constant", "x = (0.5 - 1)"),
        ("x = True", "constant", "x = False"),
        ("write(path, 0o600)", "constant", "write(path, 0o666)"),
        ("x = min(a)", "function swapped", "x = max(a)"),
        ("if guard:\n    raise Error", "guard removed", "if False:\n    raise Error"),
        ("if guard:\n    raise Error", "guard removed", "if True:\n    raise Error"),
        ("x = [a for a in b if a.c]", "filter removed", "x = [a for a in b if True]"),
        ("for a in b:\n    continue", "continue to break", "for a in b:\n    break"),
        ("for a in b:\n    break", "break to continue", "for a in b:\n    continue"),
        ("a.release()\nb = 'é'\nc()", "call removed", "a.release()\nb = 'é'\npass"),
        ("with lock:\n    a = b", "with removed", 'with __import__("contextlib").nullcontext():\n    a = b'),
        ("def f():\n    return a, b", "return swapped", "def f():\n    return (b, a)"),
        ("def f():\n    return a if b else c", "return swapped", "def f():\n    return c if b else a"),
        ("x = [a, b]", "element removed", "x = [b]"),
    ],
)
def test_faults(source: str, kind: str, changed: str) -> None:
    assert (kind, changed) in changes(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""',
        "x: Literal[1, 2] = y",
        "x = Literal[1]",
        "@dataclass(frozen=True)\nclass A:\n    b: int",
        "if TYPE_CHECKING:\n    x = 1",
        "__all__ = [a, b]",
        "class A:\n    def f(self, a: bool = True) -> int: ...",
        "class A(B, frozen=True):\n    b: int",
        "x = f(timeout=5)",
        "time.sleep(0.5)",
        "self.log.info(a)",
        'x = f"{a + 1} {b < c}"',
        "match x:\n    case 1:\n        y = z",
    ],
)
def test_places_where_a_fault_has_no_effect_are_left_out(source: str) -> None:
    assert changes(source) == set()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package with tests, tracked by git."""
    root = tmp_path / "project"
    for name, text in {
        "far/__init__.py": "",
        "far/distance.py": MODULE,
        "far/cli.py": "from far.distance import first_far\n",
        "tests/__init__.py": "",
        "tests/distance/test_limits.py": TESTS,
        "tests/other/test_cli.py": "import far.cli\n\n\ndef test_nothing() -> None: ...\n",
        "tests/other/test_nothing.py": "def test_nothing() -> None: ...\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=root, check=True)
    return root


def test_the_nearest_tests_come_first(project: Path) -> None:
    names = [path.name for path in RelatedTests(project).rank("far.distance")]
    assert names == ["test_limits.py", "test_cli.py", "test_nothing.py"]
    assert RelatedTests(project).rank("far.cli")[0].name == "test_cli.py"


def test_tests_with_words_of_the_changed_function_come_between_the_nearest(project: Path) -> None:
    for name, text in (("test_rare.py", '"layers.csv"'), ("test_common.py", "first_far")):
        (project / "tests/other" / name).write_text(f"def test_it() -> None:\n    {text}\n")
    names = [path.name for path in RelatedTests(project).rank("far.distance", 'write("layers.csv", first_far)')]
    assert names[:2] == ["test_limits.py", "test_rare.py"]
    assert sorted(names) == sorted({*names})
    planted = next(item for item in choose(project, [Path("far/distance.py")], 9, 1) if item.mutant.line == 7)
    assert planted.function.startswith("def first_far")


@pytest.mark.thorough
def test_a_fault_is_caught_or_survives(project: Path, tmp_path: Path) -> None:
    copy = Copy(copy_project(project, tmp_path / "copy"), "not slow", 60)
    module, tests = Path("far/distance.py"), ["tests/distance/test_limits.py"]
    assert copy.try_change(module, MODULE.replace("continue", "break"), tests) == (
        "caught",
        "tests/distance/test_limits.py::test_first",
    )
    assert copy.try_change(module, MODULE.replace(">=", ">"), tests) == ("survived", "")
    assert copy.try_change(module, "syntax error", tests)[0] == "caught"
    assert (copy.root / module).read_text() == (project / module).read_text() == MODULE


@pytest.mark.slow
def test_a_test_without_end_catches_a_fault(project: Path, tmp_path: Path) -> None:
    copy = Copy(copy_project(project, tmp_path / "copy"), "not slow", 3)
    hangs = MODULE.replace("    return value >= 10", "    while True:\n        pass")
    outcome, detail = copy.try_change(Path("far/distance.py"), hangs, ["tests/distance/test_limits.py"])
    assert (outcome, detail) == ("caught", "tests/distance/test_limits.py::test_far has no end")
    copy = Copy(copy_project(project, tmp_path / "endless"), "not slow", 3)
    (copy.root / "tests/distance/test_limits.py").write_text("def test_far():\n    while True:\n        pass\n")
    outcome, _ = copy.try_change(Path("far/distance.py"), MODULE, ["tests/distance/test_limits.py"])
    assert outcome == "survived"  # it has no end either way


@pytest.mark.thorough
def test_tests_that_fail_by_themselves_catch_nothing(project: Path, tmp_path: Path) -> None:
    test = project / "tests/distance/test_limits.py"
    test.write_text(TESTS + "\n\ndef test_broken() -> None:\n    assert False\n")
    copy = Copy(copy_project(project, tmp_path / "copy"), "not slow", 60)
    tests = [str(test.relative_to(project))]
    assert copy.try_change(Path("far/distance.py"), MODULE.replace(">=", ">"), tests) == ("survived", "")
    test.write_text("import nowhere\n")
    copy = Copy(copy_project(project, tmp_path / "broken"), "not slow", 60)
    outcome, detail = copy.try_change(Path("far/distance.py"), MODULE.replace("continue", "break"), tests)
    assert outcome == "unfinished" and "collected" in detail


@pytest.mark.slow
def test_recorded_faults_are_not_tried_again_until_their_module_changes(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["far.distance", "--nearest", "--record", str(tmp_path / "caught.jsonl")]
    main(arguments, project)
    first = capsys.readouterr().out
    assert "caught " in first
    assert "(recorded)" not in first
    main(arguments, project)
    second = capsys.readouterr().out
    assert second.count(" (recorded)\n") == first.count(" caught ") == second.count(" caught ")
    assert second.splitlines()[-1] == first.splitlines()[-1]
    (project / "far/distance.py").write_text(MODULE.replace("10", "9"))
    main(arguments, project)
    assert "(recorded)" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_prints_its_score_and_the_survivors(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = len(find_sites(MODULE))
    assert main(["far.distance", "--seed", "1", "--require", "100"], project) == 1
    text = capsys.readouterr().out
    assert f"of {sites} (seed 1, 1 modules)" in text
    survivors = text.partition("\n\n")[2]
    assert "far/distance.py:2 (" in survivors
    assert "-    return value >= 10" in survivors
    assert main(["far/distance.py", "--seed", "1", "--count", "1"], project) == 0


def test_chosen_faults_depend_on_the_seed_alone(project: Path) -> None:
    modules = find_modules(project, ["far"], "main")
    assert choose(project, modules, 5, 3) == choose(project, modules, 5, 3) != choose(project, modules, 5, 4)
    assert len(choose(project, modules, 1000, 3)) == len(find_sites(MODULE))


def test_names_of_no_module_are_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["far.distant"], project) == 2
    assert capsys.readouterr().err.startswith("far.distant ")


def test_modules_that_differ_from_the_main_branch_are_changed_by_default(project: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=project, check=True)

    package = project / "ndld_flow"
    package.mkdir()
    for name in ("changed.py", "kept.py", "removed.py"):
        (package / name).write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"git diff: .*main"):
        find_modules(project, [], "main")
    git("add", ".")
    git("commit", "-qm", "All")
    with pytest.raises(ValueError, match="no module of ndld_flow"):
        find_modules(project, [], "main")
    git("checkout", "-qb", "branch")
    (package / "changed.py").write_text("x = 2\n")
    (package / "removed.py").unlink()
    git("commit", "-qam", "Change")
    (package / "new.py").write_text("x = 3\n")
    assert [path.name for path in find_modules(project, [], "main")] == ["changed.py", "new.py"]


PROBED = """\"\"\"Docstring.\"\"\"
from __future__ import annotations

LIMIT = 3


def outer(values, limit=4):
    if not values:
        return 0
    elif len(values) > 5:
        raise ValueError
    try:
        total = sum(value for value in values if value < LIMIT)
    except TypeError:
        total = 1

    class Inner:
        size = 7

    return total + Inner.size
"""


def test_places_report_the_tests_that_reach_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "reached.txt"
    record.touch()
    mutants = {site[0].apply(PROBED).splitlines()[site[0].line - 1].strip(): site[0] for site in find_sites(PROBED)}
    texts = dict(enumerate(mutants))
    probed = add_probes(PROBED, dict(enumerate(mutants.values())), record)
    module: dict[str, Any] = {}
    exec(compile(probed, "probed.py", "exec"), module)  # noqa: S102

    def reached(test: str, *values: object) -> set[str]:
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        with contextlib.suppress(ValueError):
            module["outer"](*values)
        return {texts[number] for number, tests in read_reached(record).items() if test.rpartition(" ")[0] in tests}

    assert record.read_text() == ""
    assert len(reached("tests/test_a.py::test[ é\n] (call)", [])) == 3
    assert "total = (1 + 1)" in reached("tests/test_a.py::test_b (call)", ["a"])
    every = reached("tests/test_a.py::test_c (call)", [1])
    assert every >= {"size = (7 + 1)", "total = sum(value for value in values if value <= LIMIT)"}
    assert not any("LIMIT = " in text or "limit=" in text for text in every)
    assert reached("tests/test_a.py::test_d (setup)", [1]) == set()
    assert {test for tests in read_reached(record).values() for test in tests} >= {"tests/test_a.py"}


def test_listed_equivalents_are_replaced_and_change_no_other_choice(project: Path) -> None:
    modules = find_modules(project, ["far"], "main")
    planted = choose(project, modules, 3, 5)
    (project / "tests/mutation").mkdir()
    listed = "".join(f"{name} = '{text}'\n" for name, text in planted[1].texts._asdict().items())
    (project / "tests/mutation/equivalent.toml").write_text(f"[[equivalent]]\n{listed}reason = 'None.'\n")
    chosen = choose(project, modules, 3, 5, read_equivalents(project))
    assert chosen[:2] == [planted[0], planted[2]]
    assert len(chosen) == 3
    assert planted[1] not in chosen


def test_listed_equivalents_are_changes_of_the_code_and_have_reasons() -> None:
    entries = tomllib.loads((ROOT / "tests/mutation/equivalent.toml").read_text())["equivalent"]
    for entry in entries:
        source = (ROOT / entry["module"]).read_text()
        mutants = [mutant for site in find_sites(source) for mutant in site]
        changes = {Planted(Path(entry["module"]), mutant, source).texts for mutant in mutants}
        assert Texts(*(entry[name] for name in Texts._fields)) in changes
        assert entry["reason"].endswith(".")
