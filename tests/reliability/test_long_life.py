"""Files of earlier versions are always opened; files of later versions are refused and left unchanged.

The golden stores in `tests/golden/` are never made again. `store-1` is by the version that gave stores a format,
`store-2` by the one that judged outputs by slices, keyed true values and recorded what measurements depend on.
Promised: every verb opens them; runs, tags and results in them stay as they are; a step is reused where its key is the
same still, and else done again for a reason that `plan` tells.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import records
from ndld_flow.base.errors import NewerFormatError
from ndld_flow.records import document as formats
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.document import Document, Record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.plan import Reason
from ndld_flow.store import store as store_format
from ndld_flow.store.files import unseal
from tests.support.command_line import ndld_flow
from tests.support.representatives import thorough_except
from tests.support.tally import Tally

GOLDEN = Path(__file__).parent.parent / "golden"
STORES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("store-*.tar.xz"))
PURE = ("~steps.base", "~steps.speed")
"""Without what takes seconds to measure."""

Counts = Callable[[str], Tally]
ATTACK = "stores and records of other versions"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in STORES}
    for name, folder in folders.items():
        with tarfile.open(GOLDEN / f"{name}.tar.xz") as tar:
            tar.extractall(folder, filter="data")
    return {name: folder / "golden" for name, folder in folders.items()}


@pytest.fixture
def open_copy(unpacked: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(unpacked[name], tmp_path / "golden", symlinks=True))

    return copy


def contents(folder: Path) -> dict[str, bytes]:
    """Return the user's data, without pages, which are drawn again."""
    kept = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html")
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


# --- earlier versions ---


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (name not in (STORES[0], STORES[-1]))) for name in STORES],
)
def test_every_verb_opens_a_golden_store(name: str, open_copy: Callable[[str], Path], tally: Counts) -> None:
    folder, count = open_copy(name), tally(ATTACK)
    before = contents(folder / "outputs" / "runs")
    sweeps = sorted(path.name for path in (folder / "outputs" / "sweeps").glob("*"))
    verbs: list[tuple[tuple[str, ...], str]] = [
        (("runs",), "golden/2026"),
        (("report", "shipped"), "report.html"),
        (("compare", "golden:base", "golden:speed", "--gate", "latency.min <= +100000 %"), "comparison.html"),
        (("verify",), "all artifacts match their digests"),
        (("gc", "--dry-run"), "would free"),
        (("tag", "golden", "again"), "again"),
        (("plan", "golden.yaml"), "sanitize"),
        (
            (
                "run",
                "golden.yaml",
                *PURE,
                "~steps.decide",
            ),
            "report.html",
        ),
        *(
            ((verb, f"{sweep}{point}"), ".html")
            for sweep in sweeps
            for verb, point in (("report", ""), ("report", "#best"))
        ),
    ]
    for verb, each in verbs:
        ran = ndld_flow(*verb, cwd=folder)
        assert ran.returncode == 0, (verb, ran.stderr)
        assert each in ran.stdout, (verb, ran.stdout)
        count.survived += 1
    after = contents(folder / "outputs" / "runs")
    assert {path: after.get(path) for path in before} == before
    assert not (folder / "outputs" / "store" / "damaged").exists()


@pytest.mark.representatives("store-1")
@pytest.mark.parametrize("name", STORES)
def test_a_plan_reports_why_a_golden_result_is_not_reused(name: str, open_copy: Callable[[str], Path]) -> None:
    ran = ndld_flow("plan", "golden.yaml", "--json", cwd=open_copy(name))
    reasons = {line["step"]: line["reason"] for line in json.loads(ran.stdout)}
    result = (
        Reason.REUSED,
        Reason.TOOL,
        Reason.VERSION,
        Reason.MACHINE,
        Reason.SETTINGS,
        Reason.INPUT,
        Reason.TOGETHER,
    )
    assert set(reasons.values()) <= {reason.text for reason in result}, reasons


def test_every_earlier_version_of_a_document_can_be_upgraded() -> None:
    missing = [
        (document, version)
        for document, newest in formats.VERSIONS.items()
        for version in range(1, newest)
        if (document, version) not in formats._UPGRADES
    ]
    assert not missing


def test_a_change_of_a_documents_fields_is_a_new_version() -> None:
    """Where this fails: raise the version in `records/document.py`, add the upgrade, a golden store, and the lines."""
    fields = GOLDEN / "fields.txt"
    described = "".join(f"{line}\n" for line in describe_documents())
    assert fields.read_text(encoding="utf-8") == described


def describe_documents() -> Iterator[str]:
    """Yield every document with its version, and the fields of the records in it."""
    for module in pkgutil.iter_modules(records.__path__, "ndld_flow.records."):
        importlib.import_module(module.name)
    for kind in sorted(Document.__subclasses__(), key=lambda kind: kind.__name__):
        kind.model_rebuild()
        document = kind.model_fields["document"].default
        yield f"{document} {formats.VERSIONS[document]}"
        for record in sorted(records_in(kind), key=lambda record: record.__name__):
            yield f"  {record.__name__}: {', '.join(sorted(record.model_fields))}"


def records_in(kind: type[Record]) -> set[type[Record]]:
    result, new = {kind}, [kind]
    while new:
        for inner in _inner(new.pop()):
            if inner not in result:
                result.add(inner)
                new.append(inner)
    return result


def _inner(kind: type[Record]) -> Iterator[type[Record]]:
    kind.model_rebuild()
    waiting: list[Any] = [field.annotation for field in kind.model_fields.values()]
    while waiting:
        result = waiting.pop()
        waiting += getattr(result, "__args__", ())
        if isinstance(result, type) and issubclass(result, Record):
            yield result


def test_documents_inside_a_run_are_upgraded_with_it(
    monkeypatch: pytest.MonkeyPatch, unpacked: dict[str, Path]
) -> None:
    (path,) = (unpacked["store-1"] / "outputs/runs/golden").glob("2*/run.json")
    upgrades = {("step", 1): lambda tree: tree | {"summary": f"upgraded {tree['summary']}"}}
    monkeypatch.setattr(formats, "_UPGRADES", {**formats._UPGRADES, **upgrades})
    for module in ("ndld_flow.records.document", "ndld_flow.records.document"):
        monkeypatch.setattr(f"{module}.VERSIONS", {**formats.VERSIONS, "step": 2})
    record = RunRecord.model_validate_json(path.read_bytes())
    assert all(step.record and step.record.summary.startswith("upgraded ") for step in record.steps)
    assert {step.record.format_version for step in record.steps if step.record} == {2}


@pytest.mark.parametrize("version", ["0", "-1", "1e9", "100000000000000000000", '"one"', "null", "[1]", "1.5", "{}"])
@pytest.mark.parametrize("kind", [Accuracy, RunRecord])
def test_an_invalid_version_is_damage(kind: type[Document], version: str, tally: Counts) -> None:
    with pytest.raises(ValueError, match="format_version"):
        kind.model_validate_json(f'{{"format_version": {version}, "steps": [1, {{"record": 3}}]}}')
    tally(ATTACK).refused += 1


@pytest.mark.parametrize(
    "text", ["[]", "null", "3", '"format_version"', '{"format_version": 1, "steps": [{"record": null}]}']
)
def test_documents_that_are_no_objects_are_damage(text: str, tally: Counts) -> None:
    with pytest.raises(ValueError, match="RunRecord"):
        RunRecord.model_validate_json(text)
    tally(ATTACK).refused += 1


def test_an_older_document_that_is_damaged_besides_is_refused(tally: Counts) -> None:
    for text in (
        '{"format_version": 1}',
        '{"format_version": 1, "outputs": {}}',
        '{"format_version": 1, "x": "\\ud800"}',
    ):
        with pytest.raises(ValueError, match="Accuracy"):
            Accuracy.model_validate_json(text)
        tally(ATTACK).refused += 1


# --- later versions ---


def by_a_newer_version(path: Path) -> bytes:
    """Let a file be of a later version that has added a field."""
    tree = json.loads(unseal(path.read_bytes()))
    tree |= {"format_version": 99, "came_later": {"answer": 42}}
    path.chmod(0o644)
    path.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    return path.read_bytes()


NEWER: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "step record": (
        "outputs/store/records/*/*.json",
        (("run", "golden.yaml", *PURE, "~steps.decide"), ("plan", "golden.yaml")),
    ),
    "run": ("outputs/runs/golden/2*/run.json", (("report", "golden"), ("compare", "golden"), ("gc",))),
    "sweep": ("outputs/sweeps/golden-sweep/2*/sweep.json", (("report", "golden-sweep"), ("gc",))),
    "point": ("outputs/sweeps/golden-sweep/2*/points/0001/run.json", (("report", "golden-sweep#1"), ("gc",))),
    "noise": ("outputs/noise/*.json", (("compare", "golden:base", "golden:speed"), ("noise", "model.onnx"))),
    "profile": ("outputs/store/objects/*/*/profile.json", (("compare", "{path}", "golden:base"), ("report", "{path}"))),
}


@pytest.mark.parametrize("what", thorough_except(NEWER, "run", "point", "noise", "profile"))
def test_files_of_a_newer_version_are_refused_and_kept(
    what: str, open_copy: Callable[[str], Path], tally: Counts
) -> None:
    folder, count = open_copy("store-1"), tally(ATTACK)
    pattern, verbs = NEWER[what]
    if what == "step record":  # keys change with the versions of steps: add records under those of today
        assert ndld_flow(*verbs[0], cwd=folder).returncode == 0
    newer = {path: by_a_newer_version(path) for path in folder.glob(pattern)}
    assert newer
    for verb in verbs:
        ran = ndld_flow(*(word.replace("{path}", str(next(iter(newer)))) for word in verb), cwd=folder)
        assert ran.returncode == 2, (verb, ran.stdout, ran.stderr)
        assert "was written by a newer ndld-flow" in ran.stderr
        assert "pip install -U ndld-flow" in ran.stderr
        assert any(str(path.relative_to(folder)) in ran.stderr for path in newer), ran.stderr
        assert {path: path.read_bytes() for path in newer} == newer
        count.refused += 1


def test_a_newer_document_in_a_run_is_reported_and_the_others_are_drawn(open_copy: Callable[[str], Path]) -> None:
    folder = open_copy("store-1")
    (path,) = folder.glob("outputs/runs/golden/2*/agree/accuracy.json")
    newer = by_a_newer_version(path)
    assert ndld_flow("report", "golden", cwd=folder).returncode == 0
    assert "was written by a newer ndld-flow" in (path.parent.parent / "report.html").read_text("utf-8")
    assert path.read_bytes() == newer


@pytest.mark.parametrize(
    "verb",
    [("run", "golden.yaml"), ("plan", "golden.yaml"), ("verify",), ("gc",)],
)
def test_a_store_of_a_newer_format_is_refused(
    verb: tuple[str, ...], open_copy: Callable[[str], Path], tally: Counts
) -> None:
    folder = open_copy("store-1")
    store_format._write_format(folder / "outputs" / "store", 2)
    before = contents(folder / "outputs")
    ran = ndld_flow(*verb, cwd=folder)
    assert (ran.returncode, contents(folder / "outputs")) == (2, before), ran.stderr
    assert "store was written by a newer ndld-flow: it has format version 2" in ran.stderr
    tally(ATTACK).refused += 1


# --- the format of a store ---


def test_a_store_reports_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Outputs(tmp_path)
    outputs.prepare()
    text = (tmp_path / "store" / "FORMAT").read_text("utf-8")
    assert text.startswith(f"{store_format.FORMAT}\n")
    monkeypatch.setattr(store_format, "FORMAT", store_format.FORMAT + 1)
    outputs.prepare()
    assert (tmp_path / "store" / "FORMAT").read_text("utf-8") == text


@pytest.mark.parametrize(
    "damaged", [b"", b"1", b"\xff\xfe1\0", b"2\nA store of ndld-flow, format 1 (x).\n", b"x" * 10**6]
)
def test_a_damaged_format_file_is_rewritten(damaged: bytes, tmp_path: Path, tally: Counts) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "FORMAT").write_bytes(damaged)
    outputs = Outputs(tmp_path)
    assert outputs.store
    outputs.prepare()
    assert (tmp_path / "store" / "FORMAT").read_text("utf-8").startswith("1\n")
    tally(ATTACK).survived += 1


def test_an_older_store_is_upgraded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgraded: list[str] = []
    outputs = Outputs(tmp_path)
    outputs.prepare()
    (tmp_path / "store" / "objects").mkdir()
    (tmp_path / "store" / "FORMAT").unlink()  # as of before the file existed
    monkeypatch.setattr(store_format, "FORMAT", 3)
    monkeypatch.setattr(
        store_format, "_UPGRADES", {1: lambda root: upgraded.append("2"), 2: lambda root: upgraded.append("3")}
    )
    for _ in range(2):
        assert outputs.store
        outputs.prepare()
    assert upgraded == ["2", "3"]
    monkeypatch.setattr(store_format, "FORMAT", 2)
    with pytest.raises(NewerFormatError, match="store was written by a newer ndld-flow: it has format version 3"):
        _ = outputs.store
