"""`python -m tests.mutation`: plant faults in modules, run their tests, and list the faults that no test catches."""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutators import Mutant, find_sites
from tests.mutation.reach import add_probes, nearest_first, read_reached
from tests.mutation.related_tests import RelatedTests
from tests.mutation.trial import Copy, copy_project

ROOT = Path(__file__).parents[2]
_PACKAGE = "ndld_flow"
_QUICK = "not slow and not thorough and not gpu"


class Texts(NamedTuple):
    """A change by its text, which stays the same when lines are added above it."""

    module: str
    line: str
    before: str
    after: str


@dataclass(frozen=True)
class Planted:
    """A change of a module."""

    module: Path
    """Relative to the root."""
    mutant: Mutant
    source: str
    """The module's text before the change."""

    @property
    def module_name(self) -> str:
        return ".".join(self.module.with_suffix("").parts).removesuffix(".__init__")

    @property
    def place(self) -> str:
        return f"{self.module.as_posix()}:{self.mutant.line}"

    @property
    def function(self) -> str:
        """The text of the innermost function or class with the change, or of its line."""
        holders = (
            node
            for node in ast.walk(ast.parse(self.source))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and node.lineno <= self.mutant.line <= (node.end_lineno or node.lineno)
        )
        innermost = max(holders, key=lambda node: node.lineno, default=None)
        text = ast.get_source_segment(self.source, innermost) if innermost is not None else None
        return text or self.source.splitlines()[self.mutant.line - 1]

    @property
    def identity(self) -> str:
        """A digest of the module and the change, by which a record names it."""
        change = [self.module.as_posix(), self.source, self.mutant.start, self.mutant.end, self.mutant.replacement]
        return hashlib.sha256(json.dumps(change).encode()).hexdigest()

    @property
    def texts(self) -> Texts:
        """What `equivalent.toml` lists of a change."""
        before = self.source.encode()[self.mutant.start : self.mutant.end].decode()
        line = self.source.splitlines()[self.mutant.line - 1].strip()
        return Texts(self.module.as_posix(), line, " ".join(before.split()), " ".join(self.mutant.replacement.split()))


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the trials; return 1 where fewer faults are caught than required, 2 where there is nothing to change."""
    options = _parse(arguments)
    try:
        modules = find_modules(root, options.modules, options.base)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    part, parts = options.part
    planted = choose(root, modules, options.count, options.seed, read_equivalents(root))[part - 1 :: parts]
    # The copy is made at once, so that the tree may change while the trials run.
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Copy(copy_project(root, Path(folder)), options.marks, options.limit)
        trials = Trials(copy, RelatedTests(copy.root), options.tests, options.files, options.record)
        survivors = trials.run(planted)
        if survivors and not options.tests and not options.nearest:
            print(f"looking for tests that reach {len(survivors)} places", flush=True)
            survivors = trials.run_again(survivors, options.workers)
    for survivor in survivors:
        print(f"\n{survivor.place} ({survivor.mutant.kind})\n{describe(survivor)}")
    caught = len(planted) - len(survivors)
    print(f"\ncaught {caught} of {len(planted)} (seed {options.seed}, {len(modules)} modules)")
    return int(caught * 100 < options.require * len(planted))


@dataclass(frozen=True)
class Trials:
    """Trials of faults, and the tests that each is tried with."""

    copy: Copy
    related: RelatedTests
    tests: Sequence[str]
    """Files to run for every fault; empty for the nearest."""
    files: int
    """Files to run for each fault."""
    record: Path | None = None
    """JSON lines of the faults that tests caught, which are not tried again; None to keep no record."""
    _recorded: dict[str, str] = field(default_factory=dict)
    """The tests of the record, by the identity of the fault."""

    def __post_init__(self) -> None:
        if self.record is not None and self.record.exists():
            lines = map(json.loads, self.record.read_text(encoding="utf-8").splitlines())
            self._recorded.update((line["identity"], line["test"]) for line in lines)

    def run(self, planted: Sequence[Planted]) -> list[Planted]:
        """Try each fault with the tests nearest to its module; return the faults that no test caught."""
        return [
            item
            for number, item in enumerate(planted, start=1)
            if not self._is_caught(f"{number}/{len(planted)}", item, self.tests or self._nearest(item, self.files))
        ]

    def run_again(self, survivors: Sequence[Planted], workers: int) -> list[Planted]:
        """Try each fault with all tests that reach its place; return the faults that no test caught."""
        reached = self._reached(survivors, workers)
        return [
            survivor
            for number, survivor in enumerate(survivors)
            if not self._is_caught("again", survivor, reached.get(number) or self._nearest(survivor, 4 * self.files))
        ]

    def _nearest(self, planted: Planted, count: int) -> list[str]:
        return [path.as_posix() for path in self.related.rank(planted.module_name, planted.function)[:count]]

    def _is_caught(self, label: str, planted: Planted, tests: Sequence[str]) -> bool:
        if planted.identity in self._recorded:
            outcome, detail = "caught", f"{self._recorded[planted.identity]} (recorded)"
        else:
            outcome, detail = self.copy.try_change(planted.module, planted.mutant.apply(planted.source), tests)
            if outcome == "caught" and self.record is not None:
                with self.record.open("a", encoding="utf-8") as record:
                    record.write(
                        json.dumps({"identity": planted.identity, "place": planted.place, "test": detail}) + "\n"
                    )
        print(f"{label} {outcome:10} {planted.place} {planted.mutant.kind}: {detail}", flush=True)
        return outcome == "caught"

    def _reached(self, survivors: Sequence[Planted], workers: int) -> dict[int, list[str]]:
        """Return the tests that reach each survivor, by its position; those outside functions have none."""
        record = self.copy.root.parent / "reached.txt"
        record.touch()
        sources = {survivor.module: survivor.source for survivor in survivors}
        for module, source in sources.items():
            mutants = {
                number: survivor.mutant for number, survivor in enumerate(survivors) if survivor.module == module
            }
            (self.copy.root / module).write_text(add_probes(source, mutants, record), encoding="utf-8")
        try:
            self.copy.run_all(workers)
        finally:
            for module, source in sources.items():
                (self.copy.root / module).write_text(source, encoding="utf-8")
        ranks = {survivor.module: self.related.rank(survivor.module_name) for survivor in survivors}
        tests = read_reached(record)
        return {
            number: nearest_first(tests[number], ranks[survivor.module])
            for number, survivor in enumerate(survivors)
            if number in tests
        }


def read_equivalents(root: Path) -> set[Texts]:
    """Return the listed changes that no test can catch."""
    path = root / "tests/mutation/equivalent.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"] if path.exists() else []
    return {Texts(*(entry[name] for name in Texts._fields)) for entry in entries}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules or packages, dotted or as paths [changed since --base]")
    parser.add_argument("--seed", type=int, default=7, help="which faults are chosen [%(default)s]")
    parser.add_argument("--count", type=int, default=100, help="faults to plant [%(default)s]")
    parser.add_argument("--part", type=_part, default=(1, 1), help="of these, the second eighth: 2/8 [all]")
    parser.add_argument("--record", type=Path, help="keep the caught faults in this file, and do not try them again")
    parser.add_argument("--base", default="main", help="branch to compare with, for changed modules [%(default)s]")
    parser.add_argument("--files", type=int, default=8, help="test files to run for each fault [%(default)s]")
    parser.add_argument("--tests", nargs="+", default=[], help="these test files instead of the nearest")
    parser.add_argument("--nearest", action="store_true", help="do not look for other tests that reach a survivor")
    parser.add_argument("--workers", type=int, default=2, help="processes to look for these [%(default)s]")
    parser.add_argument("--limit", type=float, default=60, help="CPU seconds for the tests of a fault [%(default)s]")
    parser.add_argument("--marks", default=_QUICK, help="tests to run, as pytest's -m [%(default)s]")
    parser.add_argument("--require", type=float, default=0, help="percentage that must be caught, else exit 1")
    return parser.parse_args(arguments)


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise ValueError(text)
    return int(part), int(parts)


def find_modules(root: Path, named: Sequence[str], base: str) -> list[Path]:
    """Return the modules to change, relative to the root: those named, or those that differ from a branch.

    Raises ValueError where a name is no module or package, and where no module differs.
    """
    if not named:
        commands = (["diff", "--name-only", "--diff-filter=d", "--merge-base", base], ["ls-files", "--others"])
        listed = sorted({name for command in commands for name in _list_by_git(root, command)})
        if not listed:
            raise ValueError(f"no module of {_PACKAGE} differs from {base}: name modules, or `{_PACKAGE}` for all")
        return [Path(name) for name in listed]
    return sorted({path.relative_to(root) for name in named for path in _expand(root, name)})


def _list_by_git(root: Path, command: Sequence[str]) -> list[str]:
    result = subprocess.run(
        ["git", *command, "--", f"{_PACKAGE}/*.py"], cwd=root, check=False, capture_output=True, text=True
    )
    if result.returncode:
        raise ValueError(f"git {command[0]}: {result.stderr.strip()}")
    return result.stdout.split()


def _expand(root: Path, name: str) -> Iterable[Path]:
    path = root / (name if "/" in name or name.endswith(".py") else name.replace(".", "/"))
    if path.is_dir():
        return path.rglob("*.py")
    file = path if path.suffix == ".py" else path.with_suffix(".py")
    if not file.is_file():
        raise ValueError(f"{name} is no module or package of this checkout")
    return [file]


def choose(
    root: Path, modules: Sequence[Path], count: int, seed: int, equivalents: Collection[Texts] = ()
) -> list[Planted]:
    """Choose places at random, in each module about as many as its size is of the whole, and one change of each.

    A change that is listed as equivalent is replaced by one drawn after the others, so that listing it changes no other
    choice. Fewer than `count` where the modules have fewer places.
    """
    random_numbers = random.Random(seed)
    texts = {module: (root / module).read_text(encoding="utf-8") for module in modules}
    sites = {module: find_sites(text) for module, text in texts.items()}
    planted: list[Planted] = []
    while len(planted) < count and any(sites.values()):
        (module,) = random_numbers.choices(modules, [len(texts[module]) if sites[module] else 0 for module in modules])
        site = sites[module].pop(random_numbers.randrange(len(sites[module])))
        each = Planted(module, random_numbers.choice(site), texts[module])
        if each.texts not in equivalents:
            planted.append(each)
    return planted


def describe(planted: Planted) -> str:
    """Return the change as a unified diff."""
    before, after = planted.source.splitlines(), planted.mutant.apply(planted.source).splitlines()
    name = planted.module.as_posix()
    return "\n".join(difflib.unified_diff(before, after, name, name, n=1, lineterm=""))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the tests and the copy go, too
    sys.exit(main())
