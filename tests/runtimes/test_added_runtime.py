"""The runtime `docs/examples/onnx_reference.py`, in a package of its own: it keeps the contract, and runs in steps."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.settings import Settings, describe_settings
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile
from ndld_flow.runtimes.registry import Runtime, find_runtime
from ndld_flow.store.kinds import Onnx
from tests.support import runtime_contract as contract

DOCS = Path(__file__).parents[2] / "docs"
NAME = "onnx_reference"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """Install the file, as pip does, and return its runtime."""
    site = tmp_path / "site"
    info = site / "reference-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(DOCS / f"examples/{NAME}.py", site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reference\nVersion: 1.0\n")
    page = (DOCS / "how-to/add-runtime.md").read_text()
    [points] = re.findall(r"^```toml\n\[project\.entry-points\.(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (info / "entry_points.txt").write_text("[" + points.replace('"', ""))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))  # of measuring processes
    forget()
    yield find_runtime(NAME)
    sys.modules.pop(NAME, None)
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Let recipes and steps find the runtimes that are there now."""
    describe_settings.cache_clear()
    kinds: list[type[Settings]] = [Settings]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "runtime" in kind.model_fields:
            kind.model_rebuild(force=True)


def test_it_keeps_the_contract(installed: Runtime, tmp_path: Path) -> None:
    model = contract.write_model(tmp_path)
    artifact = Onnx(model, "source", "digest")
    request = installed.settings().model_validate({"backend": NAME}).request(artifact, lambda _: artifact)
    contract.check_description(request, model)
    contract.check_outputs(request, model)
    contract.check_refusals(request, model, tmp_path)
    contract.check_request(installed, request)
    contract.check_layers(request, model, tmp_path)
    contract.check_inside(request, model, tmp_path)


@pytest.mark.thorough
@pytest.mark.usefixtures("installed", "executed_workers")
def test_a_recipe_runs_in_it(in_folder: Path) -> None:
    model = contract.write_model(in_folder)
    quick = "runs: 1, passes: 4, duration: 0, stable: 0, warmup: 0, layer_passes: 3"
    Path("r.yaml").write_text(
        f"{{name: r, model: {model.name}, inputs: {{x: {{shape: [2, 3]}}}}, steps: {{"
        f"agree: {{step: check_accuracy, reference: source, candidate: source, runtime: {NAME}}}, "
        f"speed: {{step: profile, from: source, backend: {NAME}, {quick}}}}}, gates: [agree.max_abs <= 1e-5]}}"
    )
    done = api.run("r.yaml")
    assert done.passed
    profile = read_document(Profile, Path(done.folder, "speed", "profile.json"))
    assert (profile.backend, profile.runtime.library) == (NAME, "onnx")
    assert [layer.onnx_nodes for layer in profile.layers] == [(name,) for name in contract.NODES]
