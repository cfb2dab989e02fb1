"""Print what a sweep costs besides its steps: own time of each of 100 points that share a prefix, by part.

Usage: python tests/benchmarks/bench_sweep_own.py [--points 100] [--measured] [--profile FILE]

The steps are toys: two that all points share, one of each point's own, and with --measured one that measures in turns.
What they take themselves is taken off, so that what is left is the tool: composing and checking
points, keys and decisions, the store, folders and reports. Parts are timed by wrapping the functions that do them: a
part does not count what another part does inside it. `other` is what is left.
On a busy machine, or a slow disk, the processor's time tells more than the wall's. The second run of the same sweep,
which finds everything, is printed too.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import importlib
import pstats
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ndld_flow import api
from ndld_flow.records.run_folder import read_sweep_record
from tests.support.models import make_cnn
from tests.support.sweep_toys import DYE, GAUGE

RECIPE = """
name: own
model: model.onnx
steps_from: [steps/dye.py, steps/gauge.py]
steps:
  base: {{step: dye, colour: white}}
  prime: {{step: dye, colour: grey}}
  tint: {{step: dye}}
{measure}
sweep:
  over:
    tint.weight: {{from: 1, to: {points}}}
  minimize: {goal}
"""
MEASURE = "  speed: {step: gauge}"

PARTS = {
    "composing and checking points": ("ndld_flow.recipe.points:Sweep.point", "ndld_flow.recipe.load:load_sweep"),
    "keys and decisions": ("ndld_flow.runner.plan:Planner.decide", "ndld_flow.runner.plan:Planner.describe"),
    "store: artifacts": ("ndld_flow.store.store:Store.keep", "ndld_flow.store.store:Store.is_intact"),
    "store: records": ("ndld_flow.store.store:Store.write_record", "ndld_flow.store.store:Store.read_record"),
    "store: locks and folders": ("ndld_flow.store.locks:Locks.hold", "ndld_flow.store.store:Store.building"),
    "graph changes": ("ndld_flow.execution.execute:_describe_change",),
    "point reports": ("ndld_flow.sweep.run_sweep:draw_documents",),
    "point folders": ("ndld_flow.sweep.run_sweep:write_point",),
    "sweep report": ("ndld_flow.sweep.run_sweep:draw_sweep",),
    "sweep record": ("ndld_flow.sweep.run_sweep:describe_sweep",),
}


@dataclass
class Spent:
    """Seconds on the clock on the wall, and of the processor."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    @classmethod
    def now(cls) -> Spent:
        return cls(time.perf_counter(), time.process_time())

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


class Clock:
    """What is spent by part; while an inner part runs, the outer one stands still."""

    def __init__(self) -> None:
        self.spent: dict[str, Spent] = defaultdict(Spent)
        self._open: list[str] = []
        self._since = Spent.now()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = Spent.now()
        if self._open:
            self.spent[self._open[-1]] += now - self._since
        self._since = now


def wrap(place: str, part: str, clock: Clock) -> None:
    """Count what a function takes. Of a context manager, what entering and leaving it takes."""
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = name.split(".")
    for item in classes:
        owner = getattr(owner, item)
    timed: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(timed)
    def counted(*args: Any, **options: Any) -> Any:
        with clock.part(part):
            result = timed(*args, **options)
        return _counting(result, part, clock) if isinstance(result, contextlib._GeneratorContextManager) else result

    setattr(owner, name, counted)


@contextlib.contextmanager
def _counting(manager: contextlib.AbstractContextManager[Any], part: str, clock: Clock) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        with clock.part(part):
            value = stack.enter_context(manager)
        yield value
        with clock.part(part):
            stack.close()


def write_recipe(folder: Path, points: int, measured: bool) -> Path:
    make_cnn(folder / "model.onnx")
    (folder / "steps").mkdir()
    (folder / "steps" / "dye.py").write_text(DYE)
    (folder / "steps" / "gauge.py").write_text(GAUGE)
    goal = "speed.ms" if measured else "tint.weight"
    recipe = folder / "own.yaml"
    recipe.write_text(RECIPE.format(measure=MEASURE if measured else "", goal=goal, points=points))
    return recipe


def run_once(recipe: Path, clock: Clock) -> None:
    """Run the sweep and print what each part takes a point."""
    clock.spent.clear()
    start = Spent.now()
    finished = api.sweep(recipe, outputs=recipe.parent / "outputs", trust=True)
    whole = Spent.now() - start
    record = read_sweep_record(Path(finished.folder))
    own = whole - clock.spent.pop("steps", Spent())
    print(f"{len(record.points)} points, {record.steps_done} steps, {whole.wall_s:.2f} s")
    parts = {**clock.spent, "other": own - sum(clock.spent.values(), Spent())}
    print(f"  {'milliseconds a point':<32}     wall  processor")
    for part, spent in [("own", own), *sorted(parts.items(), key=lambda pair: -pair[1].wall_s)]:
        wall_ms, cpu_ms = (1e3 * item / len(record.points) for item in (spent.wall_s, spent.cpu_s))
        print(f"  {part:<32} {wall_ms:8.2f} {cpu_ms:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--measured", action="store_true")
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    clock = Clock()
    for part, places in PARTS.items():
        for place in places:
            wrap(place, part, clock)
    wrap("ndld_flow.step:Step.run_together", "steps", clock)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        recipe = write_recipe(Path(folder), options.points, options.measured)
        api.sweep(write_recipe(Path(folder), 2, options.measured), outputs=Path(folder) / "warm", trust=True)
        recipe = write_recipe(Path(folder), options.points, options.measured)
        with contextlib.ExitStack() as stack:
            if options.profile is not None:
                profiler = stack.enter_context(cProfile.Profile())
                stack.callback(lambda: pstats.Stats(profiler).dump_stats(options.profile))
            print("everything to do: ", end="")
            run_once(recipe, clock)
        print("everything there:  ", end="")
        run_once(recipe, clock)


if __name__ == "__main__":
    main()
