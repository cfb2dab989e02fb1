"""Fixtures that all tests share."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from ndld_flow.base import users
from ndld_flow.base.errors import SourceError
from ndld_flow.execution.devices import FOLDER_VARIABLE
from ndld_flow.graph.lint.check import Subject
from ndld_flow.machine.host import deciding_variables
from ndld_flow.processes import launch
from ndld_flow.processes.worker import IN_PROCESS
from ndld_flow.runs.cache_settings import CACHE_VARIABLE
from ndld_flow.runtimes import environments
from tests.support.copied_environments import Copies, make_environment
from tests.support.forked_workers import Servers
from tests.support.message_files import MessageFiles, pytest_addoption
from tests.support.representatives import UNKNOWN_CASES, mark_cases
from tests.support.samples import fetch_sample
from tests.support.sleeping_threads import let_threads_sleep
from tests.support.started_processes import POOLS, ending_processes
from tests.support.tally import Tally, format_tallies

__all__ = ["pytest_addoption"]
_start_worker, _run_python = launch._start, Subject.run_python

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from ndld_flow.measure.process_runs import MeasuringPlan


def pytest_configure(config: pytest.Config) -> None:
    """Set what this process and the hundreds that it starts have in common.

    Compiled modules are kept, also where the environment says no, as images of containers do: each process would
    compile all of the package again. Each worker has locks of devices of its own: what tests measure does not decide
    anything, and nobody has to wait for it.
    """
    config.pluginmanager.register(MessageFiles(config))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in deciding_variables():  # the keys of measurements hold them; tests set those that they are about
        del os.environ[name]
    # The terminal of whoever runs the tests decides nothing. Readline, which pytest imports, sets two of these in C's
    # environment only, which processes inherit.
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        os.environ.pop(name, None)
        os.unsetenv(name)
    sys.dont_write_bytecode = False
    # How long an example takes says more of the machine than of the code.
    # 20 examples, as most tests ask for that have a number of their own: each push draws others.
    settings.register_profile(
        "any_machine", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any_machine")
    # A worker costs each of thousands of runs half a second and its imports; `isolated_steps` is for those it is about.
    os.environ[IN_PROCESS] = "1"
    # Settings of whoever runs the tests decide nothing.
    os.environ.pop(CACHE_VARIABLE, None)
    os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "ndld_flow-tests-no-settings")  # noqa: PTH118
    locks = tempfile.mkdtemp(prefix="ndld_flow-tests-")
    os.environ[FOLDER_VARIABLE] = locks
    atexit.register(shutil.rmtree, locks, ignore_errors=True)
    # What tests install is none of the user's.
    mock.patch.object(users, "cache_folder", lambda: Path(locks) / "cache").start()


def pytest_collection(session: pytest.Session) -> None:
    """Import all test modules, where each worker begins with another part of them.

    In a new clone, workers would compile the same modules at the same time; now each reads what others have compiled.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if _takes_all(session.config) and worker:
        tests = Path(__file__).parent
        paths = sorted(tests.rglob("test_*.py"))
        first = len(paths) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for path in paths[first:] + paths[:first]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it reports the reason
                importlib.import_module(".".join(path.relative_to(tests.parent).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests that need a cluster and the longest to the front, and give the slow ones an hour.

    Workers take tests from each other's ends: one cluster is enough, and nobody waits for one long test in the end.
    Those of the whole product, which are in no room, install it and run what is shipped.
    """
    items.sort(
        key=lambda item: (
            "cluster" not in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"),
            item.path.parent != Path(__file__).parent,
        )
    )
    unknown = mark_cases(items)
    config.stash[UNKNOWN_CASES] = unknown if _takes_all(config) else []
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


def _takes_all(config: pytest.Config) -> bool:
    return config.args_source is config.ArgsSource.TESTPATHS


def pytest_collectstart() -> None:
    """Collect no garbage until all tests are collected: visiting what stays took a tenth of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage less often: the modules and tests stay, and visiting them took a tenth of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Leave no process of one test to the next."""
    with ending_processes():
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how the attacks went, where some were made."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    ended = [report for report in reports if getattr(report, "when", "") == "teardown"]
    lines = list(format_tallies(item for report in ended for item in report.user_properties))
    if lines:
        terminalreporter.section("attacks")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Tally]]:
    """`tally("kill -9 of a run")`: counts of one kind of attack, printed when all tests are done."""
    tallies: list[Tally] = []

    def begin(attack: str) -> Tally:
        tallies.append(Tally(attack))
        return tallies[-1]

    yield begin
    request.node.user_properties += [tally.as_property() for tally in tallies]


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """Restore Ctrl-C, which shells let programs in the background ignore: the processes of tests would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def sleeping_threads() -> None:
    """Let threads of ONNX Runtime sleep instead of busy-waiting, also in the processes that are forked."""
    let_threads_sleep()


@pytest.fixture(scope="session", autouse=True)
def short_rounds() -> Iterator[None]:
    """Measure rounds of pairs with the fewest cycles and short turns: more take most of a round's time and decide
    nothing here.
    """
    from ndld_flow.measure import pair_rounds

    with pytest.MonkeyPatch.context() as patch:
        for name, ms in (("_CYCLES_MS", 0.0), ("_WARM_MS", 1.0), ("_TURN_MS", 2.0)):
            patch.setattr(pair_rounds, name, ms)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_measurements() -> Iterator[Callable[[pytest.MonkeyPatch], None]]:
    """Let a process run warm up and measure for milliseconds, and let no noise ask for more runs than the settings do.

    Recipes of tests that say nothing of it measured for ten seconds. Return a function that undoes it.
    """
    from ndld_flow.measure import process_runs, profiler
    from ndld_flow.measure.process_runs import go_on

    plan = process_runs.ProcessRuns.plan

    def shorten(runs: process_runs.ProcessRuns) -> MeasuringPlan:
        whole = runs.tally.plan
        return replace(whole, duration_ms=min(whole.duration_ms, 10.0), warmup_ms=min(whole.warmup_ms, 2.0))

    def undo(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(process_runs.ProcessRuns, "plan", plan)
        patch.setattr(profiler, "go_on", go_on)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_runs.ProcessRuns, "plan", property(shorten))
        patch.setattr(
            profiler,
            "go_on",
            lambda tallies: go_on(tallies) and any(len(tally.medians_ms) < tally.least for tally in tallies),
        )
        yield undo


@pytest.fixture
def whole_measurements(
    short_measurements: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process runs measure for as long as the settings say, until they are stable or the budget is used."""
    short_measurements(monkeypatch)


@pytest.fixture
def fewest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons and `noise` measure as few rounds as they may: these show that it works, and decide nothing."""
    from ndld_flow.compare import measure_model
    from ndld_flow.measure import pair_rounds
    from ndld_flow.records.measurement import FEWEST_ROUNDS

    fewest = pair_rounds.RoundLimits(FEWEST_ROUNDS, 1e-9)
    monkeypatch.setattr(pair_rounds, "RoundLimits", lambda *_: fewest)
    monkeypatch.setattr(measure_model, "PAIRS", 2)
    monkeypatch.setattr(measure_model, "ROUNDS", FEWEST_ROUNDS)


@pytest.fixture(scope="session", autouse=True)
def few_faults() -> Iterator[None]:
    """Plant 2 faults where a check chooses how many: 20 take twice the time of the check itself."""
    from ndld_flow.accuracy.power import measure_power

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure_power, "MOST_FAULTS", 2)
        yield


@pytest.fixture(scope="session", autouse=True)
def coarse_pictures() -> Iterator[None]:
    """Draw images with few pixels: no test looks at them, and each run and comparison writes some."""
    from ndld_flow.report.exports import pictures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "DPI", 50)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_pictures_of_sweeps() -> Iterator[None]:
    """Leave out what sweeps draw for others to embed: that takes half of a toy sweep's time."""
    from ndld_flow.sweep import run_sweep

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_sweep, "write_sweep_exports", lambda record, folder: [])
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced_files() -> Iterator[None]:
    """Leave out `fsync`, which waits for the disk a dozen times in each run: no test takes the power away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Fork worker processes from a server that has imported their libraries: hundreds of tests measure something."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-workers-") as folder, pytest.MonkeyPatch.context() as patch:
        servers = Servers(Path(folder))
        POOLS.append(servers.pids)
        patch.setattr(launch, "_start", servers.start)
        patch.setattr(Subject, "run_python", lambda *arguments: servers.run_python(*arguments))  # noqa: PLW0108
        yield
        POOLS.remove(servers.pids)
        servers.end()


@pytest.fixture(scope="session", autouse=True)
def copied_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy private environments, where a run makes one."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    with pytest.MonkeyPatch.context() as patch:
        if os.name == "posix":
            patch.setattr(environments, "_make_environment", Copies(shared / "environment-with-pip"))
        yield


@pytest.fixture
def made_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private environments are made by `python -m venv`, as they are for users."""
    monkeypatch.setattr(environments, "_make_environment", make_environment)


@pytest.fixture
def executed_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start worker processes by running Python, as they are for users."""
    monkeypatch.setattr(launch, "_start", _start_worker)
    monkeypatch.setattr(Subject, "run_python", _run_python)


@pytest.fixture(scope="session")
def sample_model() -> Callable[[str], Path]:
    """`sample_model("det")`: the path of a real model with trained weights; skips where none can be fetched."""

    def fetch(name: str) -> Path:
        try:
            return fetch_sample(name)
        except SourceError as error:
            pytest.skip(f"the sample model cannot be fetched: {error}")

    return fetch


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def isolated_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are computed in a worker process, as they are for users."""
    monkeypatch.delenv(IN_PROCESS)


@pytest.fixture
def pictures_of_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps write what they draw for others to embed, as they do for users."""
    from ndld_flow.report.exports.spreadsheets import write_sweep_exports
    from ndld_flow.sweep import run_sweep

    monkeypatch.setattr(run_sweep, "write_sweep_exports", write_sweep_exports)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Start a real Chromium for all tests of this process; skip where there is none."""
    from tests.support.report_browser import chromium  # playwright is for those who drive a browser

    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def browser(chromium: Browser) -> Iterator[Browser]:
    """Lend the browser to a module, and close what its tests opened."""
    yield chromium
    for context in chromium.contexts:
        context.close()
