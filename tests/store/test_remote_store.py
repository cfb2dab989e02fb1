"""A remote store: artifacts are complete or missing, and never trusted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ndld_flow.base.errors import BackendError
from ndld_flow.records.key_parts import ArtifactFile, KeyParts
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store import remote_store
from ndld_flow.store.digest import digest_json
from ndld_flow.store.hidden_credentials import Credentials
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.remote_stores import pull

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(params=["file", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder, a place that shows files while they are written, and one that does not."""
    if request.param == "file":
        yield (tmp_path / "remote").as_uri()
        return
    from fsspec.implementations.memory import MemoryFileSystem

    if request.param == "bucket":
        monkeypatch.setattr(remote_store, "_SHOWS_WHOLE_FILES", {"memory"})
    yield f"memory://{tmp_path.name}"
    MemoryFileSystem.store.clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


def make_record(store: Store, word: str, content: bytes = b"", began: datetime = BEGAN) -> StepRecord:
    """A record in a store, and its artifact of two files."""
    with store.building() as folder:
        (folder / "out" / "sub").mkdir(parents=True)
        (folder / "out" / "model.onnx").write_bytes(content or word.encode())
        (folder / "out" / "sub" / "data.bin").write_bytes(b"more of " + word.encode())
        artifact = store.keep("onnx", folder / "out")
    parts = KeyParts(step="stamp", version="1", settings={"word": word}, inputs={}, reads={}, libraries={}, machine="")
    record = StepRecord(
        key=digest_json(parts.model_dump(mode="json")),
        parts=parts,
        parents={},
        artifact=artifact,
        passed=True,
        summary=word,
        metrics={},
        started_at=began,
        ended_at=began,
        wall_s=1.0,
    )
    store.write_record(record)
    return record


def files_at(url: str) -> dict[str, bytes]:
    """Path below the URL -> contents."""
    from fsspec.core import url_to_fs

    system, root = url_to_fs(url)
    return {path.removeprefix(f"{root}/"): system.cat_file(path) for path in system.find(root)}


def write_at(url: str, path: str, content: bytes) -> None:
    from fsspec.core import url_to_fs

    system, root = url_to_fs(url)
    system.makedirs(f"{root}/{path}".rpartition("/")[0], exist_ok=True)
    system.pipe_file(f"{root}/{path}", content)


def test_pushed_artifacts_can_be_pulled_elsewhere(url: str, store: Store, other: Store) -> None:
    record = make_record(store, "a")
    RemoteStore(url).push([record], store)
    assert pull(RemoteStore(url), [record.key], other) == [record]
    assert other.read_record(record.key) == record
    assert other.is_intact(record.artifact)
    assert not [path for path in files_at(url) if "/." in path]


def test_a_missing_record_is_none(url: str, store: Store) -> None:
    assert pull(RemoteStore(url), ["ab" * 32], store) is None
    assert not store.record_path("ab" * 32).exists()


def test_a_folder_of_a_store_is_a_remote_store(store: Store, other: Store) -> None:
    record = make_record(store, "a")
    assert pull(RemoteStore(store.root.as_uri()), [record.key], other) == [record]


def test_the_first_record_wins(url: str, store: Store, other: Store) -> None:
    first = make_record(store, "a")
    second = make_record(other, "a", b"another build", BEGAN + timedelta(hours=1))
    assert first.key == second.key
    RemoteStore(url).push([first], store)
    RemoteStore(url).push([second], other)
    assert RemoteStore(url).find([first.key]) == [first]


def test_records_of_one_session_are_found_together(url: str, store: Store, other: Store) -> None:
    session = [make_record(store, word) for word in "ab"]
    later = [make_record(other, word, began=BEGAN + timedelta(hours=1)) for word in "ab"]
    RemoteStore(url).push(session[:1], store)
    RemoteStore(url).push(later[1:], other)
    keys = [record.key for record in session]
    assert RemoteStore(url).find(keys) is None  # each from another session
    RemoteStore(url).push(session, store)
    assert RemoteStore(url).find(keys) == session


@pytest.mark.representatives("file-b", "memory-", "bucket-abc")
@pytest.mark.parametrize("damage", [b"", b"b", b"abc"])
def test_a_damaged_object_is_refused_and_rewritten(url: str, store: Store, other: Store, damage: bytes) -> None:
    record = make_record(store, "a")
    remote = RemoteStore(url)
    remote.push([record], store)
    path = next(path for path in files_at(url) if path.endswith("model.onnx"))
    write_at(url, path, damage)
    puller = RemoteStore(url)
    assert pull(puller, [record.key], other) is None
    assert not other.record_path(record.key).exists()
    assert not other.object_folder(record.artifact.digest).exists()
    puller.push([record], store)  # whoever found it computes it again
    assert files_at(url)[path] == b"a"
    assert pull(puller, [record.key], other) == [record]


def test_a_record_whose_artifact_cannot_be_rebuilt_is_replaced(url: str, store: Store, other: Store) -> None:
    record = make_record(store, "a")
    RemoteStore(url).push([record], store)
    write_at(url, next(path for path in files_at(url) if path.endswith("model.onnx")), b"b")
    puller = RemoteStore(url)
    assert pull(puller, [record.key], other) is None
    again = make_record(other, "a", b"another build", BEGAN + timedelta(hours=1))
    puller.push([again], other)
    assert RemoteStore(url).find([record.key]) == [again]


def test_a_missing_object_is_refused(url: str, store: Store, other: Store) -> None:
    from fsspec.core import url_to_fs

    record = make_record(store, "a")
    RemoteStore(url).push([record], store)
    system, root = url_to_fs(url)
    system.rm_file(f"{root}/{next(path for path in files_at(url) if path.endswith('data.bin'))}")
    assert pull(RemoteStore(url), [record.key], other) is None


@pytest.mark.parametrize(
    "change",
    [
        {"key": "ab" * 32},
        {"parts": {"settings": {"word": "other"}}},
        {"artifact": {"digest": "ab" * 32}},
    ],
)
def test_a_record_that_does_not_belong_to_its_key_is_none(url: str, store: Store, change: dict[str, Any]) -> None:
    record = make_record(store, "a")
    values = record.model_dump(mode="json")
    for name, inner in change.items():
        values[name] = {**values[name], **inner} if isinstance(inner, dict) else inner
    write_at(url, f"records/{record.key[:2]}/{record.key}.json", json.dumps(values).encode())
    assert RemoteStore(url).find([record.key]) is None


def test_a_torn_record_is_none(url: str, store: Store) -> None:
    record = make_record(store, "a")
    write_at(url, f"records/{record.key[:2]}/{record.key}.json", record.to_json().encode()[:40])
    assert RemoteStore(url).find([record.key]) is None


@pytest.mark.parametrize(
    "name", ["../out.txt", "/etc/out.txt", "sub/../../out.txt", "C:out.txt", "a\\b.txt", ".", "a\0b"]
)
def test_no_record_can_have_a_name_outside_of_its_folder(name: str) -> None:
    with pytest.raises(ValidationError):
        ArtifactFile(path=name, digest="ab" * 32, size_bytes=1)


def test_a_writer_that_dies_leaves_nothing_visible(
    url: str, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "memory" in remote_store._SHOWS_WHOLE_FILES:
        pytest.skip("such a place keeps nothing of a writer that dies")
    record = make_record(store, "a")
    remote = RemoteStore(url)
    system = remote._place[0]

    def put_half(path: str, place: str) -> None:
        system.pipe_file(place, Path(path).read_bytes()[:1])
        raise OSError("the cable was pulled")

    monkeypatch.setattr(system, "put_file", put_half)
    with pytest.raises(BackendError, match="the cable was pulled"):
        remote.push([record], store)
    monkeypatch.undo()
    assert files_at(url) == {}
    assert pull(RemoteStore(url), [record.key], other) is None


def test_concurrent_pushes_leave_one_valid_record(url: str, tmp_path: Path, other: Store) -> None:
    stores = [Store(tmp_path / f"here-{number}") for number in range(6)]
    records = [make_record(store, "a", began=BEGAN + timedelta(hours=hour)) for hour, store in enumerate(stores)]
    pushing = [
        threading.Thread(target=RemoteStore(url).push, args=([record], store))
        for record, store in zip(records, stores, strict=True)
    ]
    for thread in pushing:
        thread.start()
    for thread in pushing:
        thread.join()
    pulled = pull(RemoteStore(url), [records[0].key], other)
    assert pulled is not None and pulled[0] in records
    assert not [path for path in files_at(url) if "/." in path]


def test_an_unwritable_location_is_reported(tmp_path: Path, store: Store, check_message: CheckMessage) -> None:
    (tmp_path / "remote").write_text("a file where a folder should be")
    with pytest.raises(BackendError) as caught:
        RemoteStore((tmp_path / "remote").as_uri()).push([make_record(store, "a")], store)
    check_message(caught.value)


def test_an_unknown_protocol_is_reported(store: Store, check_message: CheckMessage) -> None:
    with pytest.raises(BackendError) as caught:
        RemoteStore("nope://x").find(["ab" * 32])
    check_message(caught.value)


def test_credentials_are_not_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = RemoteStore("nope://joe:pa%2Fssword@host/store?token=abcdef")
    with pytest.raises(BackendError) as caught:
        remote.find(["ab" * 32])
    text = f"{caught.value} {remote} {caught.value.__cause__}"
    assert "pa%2Fssword" not in text and "pa/ssword" not in text and "abcdef" not in text
    assert "host/store" in text
    assert Credentials(remote.url).hide("joe's pa/ssword") == "joe's ***"


@given(st.from_regex(r"[!-9;<=>A-~]{4,20}", fullmatch=True), st.from_regex(r"[a-z0-9.]{1,10}", fullmatch=True))
def test_passwords_are_removed_from_urls(password: str, host: str) -> None:
    url = f"s3://someone:{password}@{host}/store"
    hidden = Credentials(url).hide(f"{url} said no to {password}")
    assert password not in hidden.replace("***", "")
    assert hidden.endswith("***")
