"""Our own records with hostile contents: a store and run folders from an untrusted source."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.store.files import seal
from tests.golden.make_store import ARCHIVE
from tests.reliability import hostile_trees
from tests.reliability.guarded import attempt
from tests.support.tally import Tally

Counts = Callable[[str], Tally]
ATTACK = "records with hostile contents"
RECORDS = ("runs/golden/2*/run.json", "runs/golden/2*/*/*.json", "store/records/*/*.json", "store/objects/*/*/*.json",
           "sweeps/*/2*/sweep.json", "sweeps/*/2*/points/*/run.json", "noise/*.json")  # fmt: skip


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return folder / "golden"


@pytest.fixture
def place(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for untrusted files; matplotlib draws nothing, and a write elsewhere fails the test."""
    folder = Path(shutil.copytree(golden, tmp_path / "golden", symlinks=True))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ndld_flow.runner.run_folder._write_picture", lambda *_: None)
    return folder


VERBS: tuple[Callable[[], object], ...] = (
    lambda: api.report("golden"),
    lambda: api.compare(["golden:base", "golden:speed"], to="compared"),
    lambda: api.report("golden-sweep"),
    api.runs,
    lambda: api.gc(keep=0, dry_run=True),
    lambda: api.plan("golden.yaml"),
    api.verify,
    lambda: api.gc(keep=0),
)


def attack(folder: Path, verbs: tuple[Callable[[], object], ...], count: Tally, text: str) -> None:
    for verb in verbs:
        attempt(verb, folder.parent, count, text)


def changed(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes of a changed record, with a new seal if it had one: a seal protects from nobody."""
    tree = json.loads(data)
    is_sealed = isinstance(tree, dict) and tree.pop("seal", None)
    written = hostile_trees.write(hostile_trees.change(tree, rng), rng)
    with contextlib.suppress(UnicodeDecodeError):
        text = written.decode()
        return seal(text).encode() if is_sealed and text.startswith("{") and len(text) > len("{}") else written
    return written


def attack_at_random(folder: Path, rounds: range, count: Tally) -> None:
    """A changed record at a time, looked at by a verb or two; what it was is put back."""
    files = sorted(path for pattern in RECORDS for path in (folder / "outputs").glob(pattern))
    for seed in rounds:
        rng = random.Random(seed)
        path = rng.choice(files)
        before = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(changed(before, rng))
        attack(folder, tuple(rng.sample(VERBS[:6], 2)), count, f"seed {seed}: {path}")
        path.write_bytes(before)


def test_changed_records_are_read_or_refused(place: Path, tally: Counts) -> None:
    attack_at_random(place, range(12), tally(ATTACK))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 400, 100))
def test_many_changed_records_are_read_or_refused(start: int, place: Path, tally: Counts) -> None:
    attack_at_random(place, range(1000 + start, 1100 + start), tally(ATTACK))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", ".", "a\0b"])
def test_a_path_in_a_record_stays_inside_the_outputs(name: str, tally: Counts) -> None:
    with pytest.raises(ValidationError) as caught:
        ArtifactFile(path=name, digest="ab" * 32, size_bytes=1)
    assert [error["loc"] for error in caught.value.errors()] == [("path",)]
    tally(ATTACK).refused += 1


@pytest.mark.parametrize("digest", ["../x", "/etc", "..", "", "a/b", "a\n", "a" * 200])
def test_a_digest_in_a_record_stays_inside_the_store(digest: str, tally: Counts) -> None:
    with pytest.raises(ValueError, match="digest"):
        ArtifactRecord(kind="onnx", digest=digest, files=())
    tally(ATTACK).refused += 1


def test_deletion_does_not_follow_links_out_of_the_outputs(place: Path, tally: Counts) -> None:
    """Everything that `gc` and `verify` walk through has a link to what a user has elsewhere."""
    mine = place.parent / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (mine / "run.json").write_text("{}")
    outputs, count = place / "outputs", tally(ATTACK)
    for name in ("store/objects/ab/abcd", "store/records/ab/x.json", "store/damaged/x", "store/building/x",
                 "store/externals/x", "runs/golden/20200101T000000Z-aaaaaa", "runs/other", "sweeps/other", "tags/mine",
                 "runs/golden/latest-not"):  # fmt: skip
        link = outputs / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(mine, target_is_directory=True)
    (run,) = (folder for folder in (outputs / "runs/golden").glob("2026*") if folder.is_dir())
    (run / "inner").symlink_to(mine, target_is_directory=True)
    attack(place, (*VERBS, lambda: api.untag("mine")), count, "links")
    assert sorted(path.name for path in mine.iterdir()) == ["run.json", "thesis.txt"]
    assert (mine / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("kind", ["pipe", "device", "password file", "gigabyte"])
def test_records_that_are_not_regular_files_are_refused(kind: str, place: Path, tally: Counts) -> None:
    count = tally(ATTACK)
    for pattern in RECORDS:
        path = min((place / "outputs").glob(pattern))
        kept = path.rename(path.with_name("kept"))
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "gigabyte":
            path.touch()
            os.truncate(path, 2**30)
        else:
            path.symlink_to("/dev/zero" if kind == "device" else "/etc/passwd")
        attack(place, VERBS[:6] if "run" in pattern else VERBS[3:6], count, f"{path} is a {kind}")
        path.unlink()
        kept.rename(path)
    pages = [page.read_text("utf-8") for page in place.rglob("*.html")]
    assert not any("root:x:" in page for page in pages)
