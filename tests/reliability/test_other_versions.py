"""Records and stores of another version are refused by name and left unchanged, and never read wrongly.

`tests/golden/store.tar.xz` is a store of the present formats. A test changes the version of what it attacks.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.document import Document, Record, find_documents, read_tree
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.records.run_record import RunRecord
from ndld_flow.runs.outputs import Outputs
from ndld_flow.store.files import seal
from tests.golden.make_store import ARCHIVE
from tests.support.command_line import ndld_flow
from tests.support.representatives import thorough_except
from tests.support.tally import Tally

Counts = Callable[[str], Tally]
ATTACK = "stores and records of other versions"
FIELDS = Path(__file__).parents[1] / "golden/fields.txt"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return folder / "golden"


@pytest.fixture
def golden(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(unpacked, tmp_path / "golden", symlinks=True))
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def of_version(path: Path, version: int) -> bytes:
    """Let a record be of another version, with a field that this one does not know."""
    tree = json.loads(path.read_bytes())
    is_sealed = tree.pop("seal", "")
    assert tree["format_version"] != version
    tree |= {"format_version": version, "unknown": {"answer": 42}}
    text = json.dumps(tree, indent=1)
    path.chmod(0o644)
    path.write_text(seal(text) if is_sealed else text, encoding="utf-8")
    return path.read_bytes()


# --- the version of a document ---


def test_a_change_of_a_documents_fields_is_a_new_version() -> None:
    """Where this fails: raise the version of the class, write the lines, and make the golden store anew."""
    described = "".join(f"{line}\n" for line in describe_documents())
    assert FIELDS.read_text(encoding="utf-8") == described


def describe_documents() -> Iterator[str]:
    """Yield every document with its version, and the fields of the records in it."""
    for kind in find_documents():
        kind.model_rebuild()
        yield f"{kind.kind_name()} {kind.known_version()}"
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


@pytest.mark.parametrize("version", ["0", "-1", "1e9", "100000000000000000000", '"one"', "null", "[1]", "1.5", "{}"])
@pytest.mark.parametrize("kind", [Accuracy, RunRecord])
def test_an_invalid_version_is_damage(kind: type[Document], version: str, tally: Counts) -> None:
    with pytest.raises(ValueError, match="format_version"):
        kind.model_validate_json(f'{{"format_version": {version}, "steps": [1, {{"record": 3}}]}}')
    tally(ATTACK).refused += 1


@pytest.mark.parametrize("text", ["[]", "null", "3", '"format_version"', '{"steps": [{"record": null}]}'])
def test_documents_that_are_no_objects_are_damage(text: str, tally: Counts) -> None:
    with pytest.raises(ValueError, match="RunRecord"):
        RunRecord.model_validate_json(text)
    tally(ATTACK).refused += 1


@pytest.mark.parametrize("version", [1, Accuracy.known_version() - 1, Accuracy.known_version() + 1])
@pytest.mark.parametrize("rest", ["", ', "outputs": {}', ', "x": "\\ud800"'])
def test_a_document_of_another_version_is_not_read_whatever_it_holds(rest: str, version: int, tally: Counts) -> None:
    with pytest.raises((api.FormatError, ValueError)) as refused:
        Accuracy.model_validate_json(f'{{"format_version": {version}{rest}}}')
    assert isinstance(refused.value, api.FormatError) or "ud800" in rest
    tally(ATTACK).refused += 1


def test_plain_values_of_another_version_are_not_read(tmp_path: Path) -> None:
    for version in (RunRecord.known_version() - 1, RunRecord.known_version() + 1):
        (tmp_path / "run.json").write_text(json.dumps({"document": "run", "format_version": version}))
        with pytest.raises(api.FormatError, match=str(tmp_path / "run.json")):
            read_tree(tmp_path / "run.json")


# --- records in an outputs folder ---


OTHERS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "step record": (
        "outputs/store/records/*/*.json",
        # Without what takes seconds to measure.
        (("run", "golden.yaml", "~steps.base", "~steps.speed", "~steps.decide"), ("plan", "golden.yaml")),
    ),
    "run": ("outputs/runs/golden/2*/run.json", (("report", "golden"), ("compare", "golden"), ("gc",))),
    "sweep": ("outputs/sweeps/golden-sweep/2*/sweep.json", (("report", "golden-sweep"), ("gc",))),
    "point": ("outputs/sweeps/golden-sweep/2*/points/0001/run.json", (("report", "golden-sweep#1"), ("gc",))),
    "noise": ("outputs/noise/*.json", (("compare", "golden:base", "golden:speed"), ("noise", "model.onnx"))),
    "profile": ("outputs/store/objects/*/*/profile.json", (("compare", "{path}", "golden:base"), ("report", "{path}"))),
}


@pytest.mark.parametrize("version", [1, pytest.param(99, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("what", thorough_except(OTHERS, "run", "point", "noise", "profile"))
def test_records_of_another_version_are_refused_and_kept(what: str, version: int, golden: Path, tally: Counts) -> None:
    pattern, verbs = OTHERS[what]
    if what == "step record":  # keys change with the versions of steps: add records under those of today
        assert ndld_flow(*verbs[0], cwd=golden).returncode == 0
    others = {path: of_version(path, version) for path in golden.glob(pattern)}
    assert others
    for verb in verbs:
        ran = ndld_flow(*(word.replace("{path}", str(next(iter(others)))) for word in verb), cwd=golden)
        assert ran.returncode == 2, (verb, ran.stdout, ran.stderr)
        assert any(str(path.relative_to(golden)) in ran.stderr for path in others), ran.stderr
        assert f"its format is {version}," in ran.stderr
        assert "Traceback" not in ran.stderr
        assert {path: path.read_bytes() for path in others} == others
        tally(ATTACK).refused += 1


def test_a_document_of_another_version_in_a_run_is_named_and_the_others_are_drawn(golden: Path) -> None:
    (path,) = golden.glob("outputs/runs/golden/2*/agree/accuracy.json")
    other = of_version(path, 1)
    documents = read_run(path.parent.parent)
    assert (set(documents.of(Profile)), documents.of(Accuracy), len(documents.unreadable)) == ({"base", "speed"}, {}, 1)
    assert "its format is 1," in Path(api.report("golden")).read_text("utf-8")
    assert path.read_bytes() == other


@pytest.mark.parametrize("version", [1, 99])
def test_runs_and_sweeps_of_another_version_are_listed_with_the_reason(version: int, golden: Path) -> None:
    for path in golden.glob("outputs/*/*/2*/*.json"):
        if path.name in ("run.json", "sweep.json"):
            of_version(path, version)
    listed = api.runs()
    assert {item.kind for item in listed} == {"run", "sweep"}
    for each in listed:
        assert f"{each.kind}.json: " in each.damage
        assert f" {version}," in each.damage
        assert (each.user, each.metrics, each.passed) == ("", {}, False)
    history = api.history("golden")
    assert (history.run_count, len(history.unreadable)) == (0, 1)


def test_verify_names_records_of_another_version_and_checks_the_rest(golden: Path, tally: Counts) -> None:
    assert api.verify().all_well
    others = sorted([*golden.glob("outputs/store/records/*/*.json")][:2])
    others += golden.glob("outputs/runs/golden/2*/run.json")
    before = {path: of_version(path, version) for path, version in zip(others, (1, 99, 99), strict=True)}
    found = api.verify()
    assert found.other_versions == tuple(str(path.relative_to(golden)) for path in others)
    assert (found.is_damaged, found.all_well) == (False, False)
    ran = ndld_flow("verify", cwd=golden)
    assert ran.returncode == 2
    assert all(path in ran.stdout for path in found.other_versions)
    (damaged, *_) = (path for path in sorted(golden.glob("outputs/store/records/*/*.json")) if path not in others)
    damaged.write_text("{")
    ran = ndld_flow("verify", "--json", cwd=golden)
    verified = json.loads(ran.stdout)
    assert (ran.returncode, verified["damaged_records"]) == (1, [damaged.stem])
    assert verified["other_versions"] == list(found.other_versions)
    assert {path: path.read_bytes() for path in others} == before
    tally(ATTACK).refused += 1


# --- the format of a store ---


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("verb", [("run", "golden.yaml"), ("plan", "golden.yaml"), ("verify",), ("gc",)])
def test_a_store_of_another_format_is_refused(verb: tuple[str, ...], version: int, golden: Path, tally: Counts) -> None:
    (golden / "outputs/store/FORMAT").write_text(f"{version}\nA store of ndld-flow, format {version} (x).\n")
    before = contents(golden / "outputs")
    ran = ndld_flow(*verb, cwd=golden)
    assert (ran.returncode, contents(golden / "outputs")) == (2, before), ran.stderr
    assert "outputs/store" in ran.stderr
    assert f"its format is {version}," in ran.stderr
    tally(ATTACK).refused += 1


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
