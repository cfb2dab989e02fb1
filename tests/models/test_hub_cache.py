"""Models in the cache of Hugging Face, whose files are links, and attacks with such links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from ndld_flow import api
from ndld_flow.base.errors import ModelError, RequestError, SourceError
from ndld_flow.graph.inspect_model import Query, inspect_model
from ndld_flow.models import external_files
from ndld_flow.models.files import load_model
from ndld_flow.recipe import sources
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.store.files import copy_open_file
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn

REPOSITORY = "models--someone--detector"
DATA = "model.onnx_data"


def make_cache(hub: Path, inside: str = "") -> Path:
    """Write a model as `huggingface_hub` keeps it: links in a snapshot, each to a blob by its digest."""
    blobs, snapshot = hub / REPOSITORY / "blobs", hub / REPOSITORY / "snapshots" / "0a1b2c" / inside
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    model = onnx.load(make_cnn(hub / "whole.onnx"))
    onnx.save(model, blobs / "m", save_as_external_data=True, location=DATA, size_threshold=0)
    (blobs / DATA).rename(blobs / "d")
    for name, blob in (("model.onnx", "m"), (DATA, "d")):
        (snapshot / name).symlink_to(os.path.relpath(blobs / blob, snapshot))
    return snapshot / "model.onnx"


def find(path: Path, folder: Path, messages: list[str] | None = None) -> FoundModel:
    messages = messages if messages is not None else []
    return find_model(ModelSource(source=str(path)), Store(folder / "store"), messages.append)


@pytest.mark.parametrize("inside", ["", "onnx", "onnx/fp16"])
def test_a_model_in_the_cache_is_copied_once_into_the_store(tmp_path: Path, inside: str) -> None:
    path, messages = make_cache(tmp_path / "hub", inside), list[str]()
    model = find(path, tmp_path, messages)
    assert model.artifact.path.is_relative_to(tmp_path / "store")
    assert sorted(file.path for file in model.record.files) == ["model.onnx", DATA]
    for name in ("model.onnx", DATA):
        stored = model.artifact.folder / name
        assert not stored.is_symlink()
        assert stored.read_bytes() == (path.parent / name).read_bytes()
    onnx.checker.check_model(model.artifact.path, full_check=True)
    assert find(path, tmp_path, messages) == model
    assert len(messages) == 1
    assert "cache of Hugging Face" in messages[0]


def test_a_copy_that_was_damaged_or_removed_is_copied_again(tmp_path: Path) -> None:
    path = make_cache(tmp_path / "hub")
    model = find(path, tmp_path)
    shutil.rmtree(model.artifact.folder)
    assert find(path, tmp_path).artifact.path.is_file()


def test_steps_and_verbs_read_it(tmp_path: Path) -> None:
    path = make_cache(tmp_path / "hub")
    run = api.run({"name": "hub", "model": str(path), "steps": {"sanitize": {}}}, outputs=tmp_path / "outputs")
    assert run.passed
    [weight] = inspect_model(path, Query(tensor="w_0")).tensors or ()
    assert weight.file == DATA
    assert weight.numbers is not None
    assert [file.location for file in (inspect_model(path, Query()).summary or pytest.fail()).files] == [DATA]
    small = load_model(path).graph.initializers["w_1"].const_value
    assert small is not None
    assert small.numpy().shape == (8,)
    assert api.diff(path, tmp_path / "hub" / "whole.onnx").weights.counts.keys() == {"changed", "storage"}


def test_a_link_that_changes_is_another_model(tmp_path: Path) -> None:
    path = make_cache(tmp_path / "hub")
    first = find(path, tmp_path)
    blob = tmp_path / "hub" / REPOSITORY / "blobs" / "other"
    blob.write_bytes(bytes(reversed((path.parent / DATA).read_bytes())))
    (path.parent / DATA).unlink()
    (path.parent / DATA).symlink_to(f"../../blobs/{blob.name}")
    assert find(path, tmp_path).record.digest != first.record.digest


# Attacks: SECRET is a file of the user that a stranger's folder must not read.


def secret_of(folder: Path) -> Path:
    """A file outside of the cache, with enough bytes for every weight."""
    secret = folder / "secret"
    secret.write_bytes(b"PIN 1234" * 100_000)
    return secret


def relink(link: Path, target: str | Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def to_a_secret(path: Path, secret: Path) -> None:
    relink(path.parent / DATA, secret)


def through_a_blob(path: Path, secret: Path) -> None:
    relink(path.parents[2] / "blobs" / "d", secret)


def through_another_link(path: Path, secret: Path) -> None:
    relink(path.parent / "second", "../../blobs/d")
    relink(path.parent / DATA, "second")
    relink(path.parents[2] / "blobs" / "d", secret)


def by_parents(path: Path, secret: Path) -> None:
    relink(path.parent / DATA, f"../../blobs/../../../{secret.name}")


def by_a_folder_of_blobs(path: Path, secret: Path) -> None:
    blobs = path.parents[2] / "blobs"
    shutil.copy(path, path.parent / "copy")
    relink(path, path.parent / "copy")
    shutil.rmtree(blobs)
    blobs.symlink_to(secret.parent)
    relink(path.parent / DATA, f"../../blobs/{secret.name}")


def deeper_than_blobs(path: Path, secret: Path) -> None:
    inner = path.parents[2] / "blobs" / "inner"
    inner.symlink_to(secret.parent)
    relink(path.parent / DATA, f"../../blobs/inner/{secret.name}")


def by_a_hard_link(path: Path, secret: Path) -> None:
    blob = path.parents[2] / "blobs" / "d"
    blob.unlink()
    os.link(secret, blob)


def in_another_repository(path: Path, secret: Path) -> None:
    other = path.parents[3] / "models--other--one" / "blobs"
    other.mkdir(parents=True)
    shutil.copy(secret, other / "d")
    relink(path.parent / DATA, "../../../models--other--one/blobs/d")


def in_another_folder_of_the_repository(path: Path, secret: Path) -> None:
    other = path.parents[1] / "another"
    other.mkdir()
    shutil.copy(secret, other / "d")
    relink(path.parent / DATA, "../another/d")


def through_a_linked_folder(path: Path, secret: Path) -> None:
    """The last link leads to the blob, by way of a folder that others may change."""
    repository, elsewhere = path.parents[2], secret.parent / "elsewhere"
    (elsewhere / "x" / "y" / "z").mkdir(parents=True)
    (elsewhere / "blobs").mkdir()
    (elsewhere / "blobs" / "d").symlink_to(repository / "blobs" / "d")
    (elsewhere / "x" / "y" / "z" / DATA).symlink_to("../../../blobs/d")
    (path.parent / "sub").symlink_to(elsewhere / "x" / "y" / "z")
    proto = onnx.load(path, load_external_data=False)
    for initializer in proto.graph.initializer:
        initializer.external_data[0].value = f"sub/{DATA}"
    path.unlink()
    onnx.save(proto, path)


def to_a_pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path.parents[2] / "blobs" / "pipe")
    relink(path.parent / DATA, "../../blobs/pipe")


def to_a_folder(path: Path, secret: Path) -> None:
    (path.parents[2] / "blobs" / "folder").mkdir()
    relink(path.parent / DATA, "../../blobs/folder")


ATTACKS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "to a secret": (to_a_secret, "link out of"),
    "through a blob": (through_a_blob, "link out of"),
    "through another link": (through_another_link, "link out of"),
    "by parents": (by_parents, "link out of"),
    "by a folder of blobs": (by_a_folder_of_blobs, "link out of"),
    "deeper than blobs": (deeper_than_blobs, "link out of"),
    "by a hard link": (by_a_hard_link, "several hard links"),
    "in another repository": (in_another_repository, "link out of"),
    "in another folder": (in_another_folder_of_the_repository, "link out of"),
    "through a linked folder": (through_a_linked_folder, "link out of"),
    "to a pipe": (to_a_pipe, "not a regular file"),
    "to a folder": (to_a_folder, "not a regular file"),
}


@pytest.mark.representatives("to a secret", "to a folder", "through a linked folder")
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_other_link_is_refused(tmp_path: Path, attack: str) -> None:
    path, secret = make_cache(tmp_path / "hub"), secret_of(tmp_path)
    change, message = ATTACKS[attack]
    change(path, secret)
    for read in (load_model, lambda path: inspect_model(path, Query()), lambda path: find(path, tmp_path)):
        with pytest.raises(ModelError, match=message):
            read(path)


@pytest.mark.parametrize("name", ["someone--detector", "datasets--a--b"])
def test_a_folder_of_another_name_is_no_cache(tmp_path: Path, name: str, check_message: CheckMessage) -> None:
    make_cache(tmp_path / "hub")
    (tmp_path / "hub" / REPOSITORY).rename(tmp_path / "hub" / name)
    with pytest.raises(ModelError) as caught:
        find(tmp_path / "hub" / name / "snapshots" / "0a1b2c" / "model.onnx", tmp_path)
    check_message(caught.value)


def test_a_chain_of_links_inside_the_cache_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    """Its links could lead elsewhere a moment later."""
    path = make_cache(tmp_path / "hub")
    (path.parent / "second").symlink_to("../../blobs/d")
    relink(path.parents[2] / "blobs" / "chain", "d")
    relink(path.parent / DATA, "../../blobs/chain")
    with pytest.raises(ModelError) as caught:
        load_model(path)
    check_message(caught.value)


def hard_link(path: Path, secret: Path) -> None:
    path.unlink()
    os.link(secret, path)


@pytest.mark.parametrize("swap", [relink, hard_link])
def test_a_blob_that_is_swapped_after_the_check_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path, Path], None], check_message: CheckMessage
) -> None:
    path, secret = make_cache(tmp_path / "hub"), secret_of(tmp_path)
    opened = external_files.DataFile.open

    def swap_and_open(file: external_files.DataFile) -> object:
        swap(file.path, secret)
        return opened(file)

    monkeypatch.setattr(external_files.DataFile, "open", swap_and_open)
    with pytest.raises(ModelError) as caught:
        find(path, tmp_path)
    check_message(caught.value)
    assert not any(b"PIN" in path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())


def test_contents_that_change_after_the_digest_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    path, copy = make_cache(tmp_path / "hub"), copy_open_file

    def change(source: object, target: Path) -> None:
        blob = path.parents[2] / "blobs" / "d"
        blob.write_bytes(bytes(reversed(blob.read_bytes())))
        with blob.open("rb") as file:
            copy(file, target)

    monkeypatch.setattr(sources, "copy_open_file", change)
    with pytest.raises(SourceError) as caught:
        find(path, tmp_path)
    check_message(caught.value)


def test_a_missing_blob_is_named(tmp_path: Path, check_message: CheckMessage) -> None:
    path = make_cache(tmp_path / "hub")
    (path.parents[2] / "blobs" / "d").unlink()
    with pytest.raises(RequestError) as caught:
        find(path, tmp_path)
    check_message(caught.value)
