"""`python -m tests.mutation`: plant faults in modules, run their tests, and list the faults that no test catches."""

from __future__ import annotations

import argparse
import difflib
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutators import Mutant, find_sites
from tests.mutation.related_tests import RelatedTests
from tests.mutation.trial import Copy, copy_project

ROOT = Path(__file__).parents[2]
_PACKAGE = "ndld_flow"
_QUICK = "not slow and not thorough and not browser and not gpu"


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


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run the trials; return 1 where fewer faults are caught than required, 2 where there is nothing to change."""
    options = _parse(arguments)
    try:
        modules = find_modules(root, options.modules, options.base)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    planted = choose(root, modules, options.count, options.seed)
    survivors: list[Planted] = []
    # The copy is made at once, so that the tree may change while the trials run.
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Copy(copy_project(root, Path(folder)), options.marks, options.limit)
        related = RelatedTests(copy.root)
        for number, each in enumerate(planted, start=1):
            tests = options.tests or related.rank(each.module_name)[: options.files]
            outcome, detail = copy.try_change(each.module, each.mutant.apply(each.source), tests)
            print(f"{number}/{len(planted)} {outcome:10} {each.place} {each.mutant.kind}: {detail}", flush=True)
            if outcome != "caught":
                survivors.append(each)
    for each in survivors:
        print(f"\n{each.place} ({each.mutant.kind})\n{describe(each)}")
    caught = len(planted) - len(survivors)
    print(f"\ncaught {caught} of {len(planted)} (seed {options.seed}, {len(modules)} modules)")
    return int(caught * 100 < options.require * len(planted))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="modules or packages, dotted or as paths [changed since --base]")
    parser.add_argument("--seed", type=int, default=7, help="which faults are chosen [%(default)s]")
    parser.add_argument("--count", type=int, default=100, help="faults to plant [%(default)s]")
    parser.add_argument("--base", default="main", help="branch to compare with, for changed modules [%(default)s]")
    parser.add_argument("--files", type=int, default=6, help="test files to run for each fault [%(default)s]")
    parser.add_argument("--tests", nargs="+", type=Path, default=[], help="these test files instead of the nearest")
    parser.add_argument("--limit", type=float, default=30, help="CPU seconds for the tests of a fault [%(default)s]")
    parser.add_argument("--marks", default=_QUICK, help="tests to run, as pytest's -m [%(default)s]")
    parser.add_argument("--require", type=float, default=0, help="percentage that must be caught, else exit 1")
    return parser.parse_args(arguments)


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


def choose(root: Path, modules: Sequence[Path], count: int, seed: int) -> list[Planted]:
    """Choose places at random, in each module about as many as its size is of the whole, and one change of each.

    Fewer than `count` where the modules have fewer places.
    """
    random_numbers = random.Random(seed)
    texts = {module: (root / module).read_text(encoding="utf-8") for module in modules}
    wanted = Counter(random_numbers.choices(modules, [1 + len(text) for text in texts.values()], k=count))
    planted = []
    for module in sorted(wanted):
        sites = find_sites(texts[module])
        chosen = random_numbers.sample(sites, min(wanted[module], len(sites)))
        planted += [Planted(module, random_numbers.choice(site), texts[module]) for site in chosen]
    random_numbers.shuffle(planted)
    return planted


def describe(planted: Planted) -> str:
    """Return the change as a unified diff."""
    before, after = planted.source.splitlines(), planted.mutant.apply(planted.source).splitlines()
    name = planted.module.as_posix()
    return "\n".join(difflib.unified_diff(before, after, name, name, n=1, lineterm=""))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the tests and the copy go, too
    sys.exit(main())
