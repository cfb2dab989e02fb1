"""`bisect` over releases of ONNX Runtime: a planted change of outputs or latency is located between environments."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base import user_folders
from ndld_flow.base.errors import BackendError
from ndld_flow.records.bisection import Bisection
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.document import read_document
from ndld_flow.runner.bisect.options import BisectOptions
from ndld_flow.runtimes.pip_environment import list_releases
from tests.support.environments import write_environment, write_wheel
from tests.support.models import make_cnn
from tests.support.samples import fetch_sample

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="the folders that are made here are Linux's"),
    pytest.mark.usefixtures("executed_workers"),
]

SHORT = {"runs": 1, "passes": 2, "duration": 0, "warmup": 0, "warmup_passes": 1, "stable": 0, "layer_passes": 1}
OUTPUTS = {
    "step": "check_accuracy",
    "reference": "source",
    "candidate": "source",
    "samples": 1,
    "reference_environment": "now",
    "environment": "next",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_folders, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def recipe(tmp_path: Path, now: object, steps: dict[str, dict[str, Any]]) -> dict[str, Any]:
    model = make_cnn(tmp_path / "model.onnx")
    return {"name": "upgrade", "model": str(model), "environments": {"now": now, "next": now}, "steps": steps}


def verdicts(found: Bisection) -> dict[str, str]:
    return {Path(tried.value).name: tried.verdict for tried in found.tried}


@pytest.mark.thorough
def test_a_planted_wrong_output_is_located_between_environments(tmp_path: Path) -> None:
    folders = [
        write_environment(tmp_path / f"1.9{minor}.0", f"1.9{minor}.0", add=0.5 * (minor >= 3)) for minor in range(5)
    ]
    options = BisectOptions(values=tuple(map(str, folders)))
    wanted = recipe(tmp_path, str(folders[0]), {"outputs": OUTPUTS})
    found = api.bisect(wanted, "environments.next", options=options, trust=True)
    (change,) = found.changes
    assert (Path(change.before).name, Path(change.after).name) == ("1.92.0", "1.93.0")
    assert verdicts(found) == {"1.90.0": "good", "1.92.0": "good", "1.93.0": "bad", "1.94.0": "bad"}
    assert found.failures == ("check of step outputs",)


@pytest.mark.slow
def test_a_planted_slowdown_is_located_between_environments(tmp_path: Path) -> None:
    folders = [
        write_environment(tmp_path / f"1.9{minor}.0", f"1.9{minor}.0", repeat=20 if minor >= 2 else 1)
        for minor in range(4)
    ]
    steps = {name: {"step": "profile", "from": "source", "environment": name, **SHORT} for name in ("now", "next")}
    gates = ["latency.median <= +100 %"]
    decide = {
        "step": "compare_profiles",
        "base": "now",
        "from": "next",
        "gates": gates,
        "allow": ["versions"],
        "budget": "5 s",
    }
    options = BisectOptions(values=tuple(map(str, folders)))
    found = api.bisect(
        recipe(tmp_path, str(folders[0]), {**steps, "decide": decide}),
        "environments.next",
        options=options,
        trust=True,
    )
    (change,) = found.changes
    assert (Path(change.before).name, Path(change.after).name) == ("1.91.0", "1.92.0")
    assert found.tried[-1].metrics["decide.latency.median.ratio"].value > 2


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with a page of its own, which is the only place where pip finds packages."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    return tmp_path / "simple" / "onnxruntime"


def publish(index: Path, *yanked: str) -> None:
    """Write the page of the index."""
    index.parent.mkdir(exist_ok=True)
    names = sorted(wheel.name for wheel in index.glob("*.whl"))
    withdrawn = {name: ' data-yanked="broken"' for name in names if name.split("-")[1] in yanked}
    links = [f'<a href="{name}"{withdrawn.get(name, "")}>{name}</a>' for name in names]
    (index / "index.html").write_text(f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>")


def require_nothing(wheel: Path) -> None:
    """Make a wheel require a package that is on no index."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data + b"Requires-Dist: on-no-index\n" if name.endswith("METADATA") else data)


@pytest.mark.slow
def test_releases_of_an_index_are_searched_and_those_that_cannot_be_installed_skipped(
    index: Path, tmp_path: Path
) -> None:
    index.parent.mkdir()
    for release in ("1.90.0", "1.91.0", "1.92.0rc1", "1.92.0", "1.93.0", "1.94.0", "1.95.0", "1.96.0"):
        write_wheel(index, release, add=0.5 * (release >= "1.94.0"))
    other = index / "onnxruntime-1.92.5-cp27-cp27m-win32.whl"
    other.write_bytes(b"")
    require_nothing(index / "onnxruntime-1.93.0-py3-none-any.whl")
    publish(index, "1.94.0")
    assert list_releases("onnxruntime") == ["1.90.0", "1.91.0", "1.92.0", "1.93.0", "1.95.0", "1.96.0"]

    wanted = recipe(tmp_path, {"onnxruntime": "1.90.0"}, {"outputs": OUTPUTS})
    options = BisectOptions(good="1.91.0", bad="1.96.0")
    found = api.bisect(wanted, "environments.next.onnxruntime", options=options, trust=True)
    (change,) = found.changes
    assert (change.before, change.after, change.undecided) == ("1.92.0", "1.95.0", ("1.93.0",))
    why = {tried.value: tried.why for tried in found.tried}
    assert "cannot install onnxruntime==1.93.0" in why["1.93.0"]
    assert found.exit_code == 4

    with pytest.raises(BackendError, match=r"1\.93\.0 is an end of the search, and cannot run"):
        options = BisectOptions(good="1.91.0", bad="1.93.0")
        api.bisect(wanted, "environments.next.onnxruntime", options=options, trust=True)


@pytest.mark.slow
def test_three_real_releases_of_onnx_runtime(tmp_path: Path) -> None:
    """ONNX Runtime fuses this model in another way since a release between 1.24.4 and 1.27.0."""
    model = fetch_sample("rec")
    steps: dict[str, Any] = {
        name: {"step": "profile", "from": "source", "environment": name, **SHORT} for name in ("now", "next")
    }
    steps["latency"] = {
        "step": "compare_profiles",
        "base": "now",
        "from": "next",
        "allow": ["versions"],
        "rounds": 0,
    }
    wanted = {
        "name": "upgrade",
        "model": str(model),
        "inputs": {"x": {"shape": [1, 3, 48, 160]}},
        "environments": {"now": {"onnxruntime": "1.24.4"}, "next": {"onnxruntime": "1.24.4"}},
        "steps": {**steps, "outputs": OUTPUTS},
    }
    options = BisectOptions(values=("1.24.4", "1.27.0", "1.31.1"), gates=("latency.graph.differences <= 0",))
    found = api.bisect(wanted, "environments.next.onnxruntime", options=options, trust=True)
    (change,) = found.changes
    assert (change.before, change.after) == ("1.24.4", "1.27.0")
    assert found.exit_code == 0
    last = found.tried[-1]
    comparison = read_document(Comparison, Path(last.report).with_name("latency") / "comparison.json")
    graphs = comparison.profiles[0].graphs
    assert graphs is not None
    assert graphs.before.nodes_by_type != graphs.after.nodes_by_type
    assert any("onnxruntime 1.31.1" in note for note in graphs.notes)
    page = Path(last.report).read_text(encoding="utf-8")
    assert "Optimized graphs" in page
