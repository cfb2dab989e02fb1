"""Packages as files: one zip with the same bytes for the same contents, and safe reading of a stranger's zip or folder.

A zip has no compression, as weights hardly compress and a compressor's result depends on its version, and no dates.
Nothing is ever unpacked here: records are read, and all files are compared with their SHA-256, in bounded memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from ndld_flow.base.errors import NewerFormatError, RequestError
from ndld_flow.base.quantities import count, size
from ndld_flow.base.text import one_paragraph, short_name
from ndld_flow.records.document import Document
from ndld_flow.records.package import Package
from ndld_flow.records.run_folder import STORED, first_problem
from ndld_flow.store.kinds import Package as PackageArtifact
from ndld_flow.store.kinds import is_reserved

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a zip can hold."""
_MOST_FILES = 10_000
_LARGEST_RECORD = 200_000_000
_LARGEST_RATIO = 20
"""Bytes of contents for each byte of the zip; packages are not compressed, and weights hardly can be."""
_SMALL = 64 * 2**20
"""Contents up to this size are accepted at any ratio."""
_PIECE = 2**20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

AnyDocument = TypeVar("AnyDocument", bound=Document)


def write_zip(files: Mapping[str, Path], target: BinaryIO) -> None:
    """Write files, by their names in the zip; `package.json` first, so that a reader finds it at once."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files, key=lambda name: (name != PackageArtifact.main, name)):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, on every system
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.file_size = files[name].stat().st_size
            with files[name].open("rb") as source, archive.open(info, "w") as written:
                while piece := source.read(_PIECE):
                    written.write(piece)


@dataclass(frozen=True)
class PackageFiles:
    """The files of a package, by their names."""

    location: str
    """The path that the user gave, for messages."""
    opened: Mapping[str, Path | zipfile.ZipInfo]
    archive: zipfile.ZipFile | None = None

    def read_record(self, kind: type[AnyDocument], name: str) -> AnyDocument:
        """Return a record. Raises RequestError for a missing, huge or invalid one."""
        if name not in self.opened:
            raise RequestError(f"{self.location}: it has no {short_name(name)}.")
        with self._open(name) as file:
            data = file.read(_LARGEST_RECORD + 1)
        if len(data) > _LARGEST_RECORD:
            raise RequestError(f"{self.location}: {short_name(name)} is larger than {size(_LARGEST_RECORD)}.")
        try:
            return kind.model_validate_json(data)
        except NewerFormatError as error:
            raise error.at(f"{self.location}: {short_name(name)}") from None
        except ValidationError as error:
            raise RequestError(f"{self.location}: {short_name(name)} cannot be read: {first_problem(error)}.") from None

    def verify(self, package: Package) -> int:
        """Compare every file with its SHA-256, and return their number.

        Raises RequestError, with the name of the file, for one that differs, is missing, or is not listed.
        """
        listed = {file.path: file for file in package.files}
        for name in sorted(self.opened.keys() - listed.keys() - {PackageArtifact.main}):
            if self.archive is not None or not is_reserved(name):
                raise RequestError(f"{self.location}: package.json does not list its file {short_name(name)}.")
        for name, file in listed.items():
            if name not in self.opened:
                raise RequestError(f"{self.location}: its file {short_name(name)} is missing.")
            if self._digest(name, file.size_bytes) != file.sha256:
                raise RequestError(
                    f"{self.location}: its file {short_name(name)} does not have the SHA-256 that package.json lists: "
                    "it was damaged or replaced. Get the package again."
                )
        return len(listed)

    def _digest(self, name: str, size_bytes: int) -> str:
        """Return the SHA-256 of a file; empty if its size differs. At most one byte more than `size_bytes` is read."""
        digest, left = hashlib.sha256(), size_bytes
        with self._open(name) as file:
            while piece := file.read(min(_PIECE, left + 1)):
                left -= len(piece)
                if left < 0:
                    return ""
                digest.update(piece)
        return digest.hexdigest() if left == 0 else ""

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        entry = self.opened[name]
        if isinstance(entry, Path):
            with entry.open("rb") as plain:
                yield plain
            return
        assert self.archive is not None
        try:
            with self.archive.open(entry) as packed:
                yield packed  # type: ignore[misc]  # it reads bytes
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise RequestError(f"{self.location}: {short_name(name)} is damaged: {one_paragraph(error)}.") from None


@contextlib.contextmanager
def open_package(path: Path) -> Iterator[PackageFiles]:
    """Yield the files of a package, a zip or a folder. Raises RequestError for anything else and unsafe contents."""
    if path.is_dir():
        yield PackageFiles(str(path), _list_folder(path))
        return
    if not path.is_file():
        raise RequestError(f"{path}: there is no such package. Give a .zip or a folder with a package.json.")
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, OSError) as error:
        raise RequestError(f"{path}: it is not a zip: {one_paragraph(error)}.") from None
    with archive:
        yield PackageFiles(str(path), _list_zip(path, archive), archive)


def _list_folder(folder: Path) -> dict[str, Path]:
    stored = folder / STORED
    if not (folder / PackageArtifact.main).is_file() and (stored / PackageArtifact.main).is_file():
        folder = stored.resolve()  # the step's folder in a run, whose artifact was not copied
    if not (folder / PackageArtifact.main).is_file():
        raise RequestError(f"{folder}: it is not a package: it has no package.json.")
    files: dict[str, Path] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise RequestError(f"{folder}: {short_name(name)} is a link or a device, which a package cannot contain.")
        if path.is_file():
            files[name] = path
        _check_count(folder, len(files))
    return files


def _list_zip(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of a zip by name. Raises RequestError for names that lead out of it, and for bombs."""
    entries = [info for info in archive.infolist() if not info.is_dir()]
    _check_count(path, len(entries))
    total = sum(info.file_size for info in entries)
    if total > max(_SMALL, _LARGEST_RATIO * path.stat().st_size):
        raise RequestError(
            f"{path}: its {size(path.stat().st_size)} claim to unpack to {size(total)}, so it is not read: packages "
            "have no compression."
        )
    files: dict[str, zipfile.ZipInfo] = {}
    folded: set[str] = set()
    for info in entries:
        trouble = _find_trouble(info)
        if not trouble and info.filename.casefold() in folded:
            trouble = "is there twice"
        if trouble:
            raise RequestError(f"{path}: its entry {short_name(info.orig_filename)} {trouble}, so it is not read.")
        folded.add(info.filename.casefold())
        files[info.filename] = info
    return files


def _find_trouble(info: zipfile.ZipInfo) -> str:
    name, kind = info.orig_filename, info.external_attr >> 16
    if name != info.filename or "\\" in name or ":" in name or PurePosixPath(name).is_absolute():
        return "is not a relative path"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "leads out of the package"
    if stat.S_IFMT(kind) not in (0, stat.S_IFREG):
        return "is a link or a device"
    if info.flag_bits & 1:
        return "is encrypted"
    return "" if info.compress_type in _METHODS else "has an unknown compression"


def _check_count(path: Path, number: int) -> None:
    if number > _MOST_FILES:
        raise RequestError(f"{path}: it has more than {count(_MOST_FILES)} files, so it is not read.")
