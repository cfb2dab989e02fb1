"""Run everything that only a GPU can show, and write `gpu.md` and `gpu.json` into a folder, within 8 minutes.

Usage: python -m tests.gpu OUT

What a library or the GPU lacks is skipped with the reason, and so is what the time does not suffice for. No setting of
the GPU is changed: those before and after are compared. The exit code is 1 if a test failed or a setting differs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.machine.gpu_state import visible_gpus
from ndld_flow.machine.host import describe_machine
from ndld_flow.machine.versions import find_version

LIMIT_S, ONE_TEST_S = 480, 100
"""The whole, and the longest test, which may begin at the last moment at which one does."""
LIBRARIES = ("ndld-flow", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx", "nvidia-ml-py")


@dataclass
class Test:
    """One test: `passed`, `failed` or `skipped`."""

    name: str
    outcome: str
    seconds: float
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """A plugin of pytest that keeps what came out, and begins no test after `begin_until` by the monotonic clock."""

    def __init__(self, begin_until: float) -> None:
        self.begin_until = begin_until
        self.tests: dict[str, Test] = {}

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self.begin_until:
            pytest.skip("the time was over")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of a test's setup, call and teardown."""
        test = self.tests.setdefault(report.nodeid, Test(report.nodeid.partition("::")[2], "passed", 0.0))
        test.seconds = round(test.seconds + report.duration, 2)
        test.figures |= dict(report.user_properties)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            test.outcome, test.reason = "failed", " ".join(str(crash.message if crash else report.longrepr).split())
        elif report.skipped and test.outcome == "passed":
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            test.outcome, test.reason = "skipped", text.removeprefix("Skipped: ")


def write_markdown(result: dict[str, Any], tests: list[Test]) -> Iterator[str]:
    """Yield the lines of the page."""
    if all(test.outcome == "skipped" for test in tests):
        yield "Nothing ran on a GPU: every test was skipped, for the reason beside it."
        yield ""
    gpus = ", ".join(result["machine"]["gpus"]) or "no NVIDIA GPU"
    counts = [f"{sum(test.outcome == text for test in tests)} {text}" for text in ("passed", "failed", "skipped")]
    yield f"{result['date']}: {gpus}, driver {result['machine']['driver'] or 'none'}; {', '.join(counts)}"
    yield f"in {result['seconds']:.0f} s; settings of the GPU: {result['settings']}."
    yield "Versions: " + ", ".join(f"{name} {number}" for name, number in result["versions"].items()) + "."
    yield from ("", "| test | result | seconds | figures or reason |", "|---|---|---|---|")
    for test in tests:
        figures = ", ".join(f"{name}: {value}" for name, value in test.figures.items())
        text = (test.reason or figures).replace("|", "\\|")
        yield f"| {test.name} | {test.outcome} | {test.seconds:.1f} | {text} |"


def main(folder: Path, *arguments: str) -> int:
    """Run the tests and write the files; `arguments` go to pytest."""
    started, before = time.monotonic(), visible_gpus()
    recorder = Recorder(started + LIMIT_S - ONE_TEST_S)
    options = ["-n", "0", "-m", "gpu", f"--timeout={ONE_TEST_S}", *(arguments or [str(Path(__file__).parent)])]
    code = pytest.main(options, plugins=[recorder])
    tests = list(recorder.tests.values())
    after = visible_gpus()
    result = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_machine().model_dump(mode="json"),
        "gpus": [asdict(gpu) for gpu in after],
        "settings": ("unchanged" if before == after else "CHANGED") if after else "none were read",
        "versions": {name: found for name in LIBRARIES if (found := find_version(name))},
        "seconds": round(time.monotonic() - started, 1),
        "tests": [asdict(test) for test in tests],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    page = [*write_markdown(result, tests)]
    (folder / "gpu.md").write_text("".join(f"{line}\n" for line in page), encoding="utf-8")
    print(*page[: page.index("| test | result | seconds | figures or reason |")], sep="\n")
    return int(code != 0 or before != after)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
