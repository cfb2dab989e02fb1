"""Documents: typed, versioned JSON. Their base class, and reading their files.

A document is one class in a file of this folder, which names its kind, its version and its file. A document of another
version is rejected with its version number and left as it is: it is neither treated as damaged nor overwritten. To
change a document, even by one field, raise its `format_version`."""

import contextlib
import errno
import importlib
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic_core import from_json

from ndld_flow.base.errors import FormatError

Tree: TypeAlias = dict[str, Any]
"""A document as plain JSON."""

PLAIN_VERSIONS: Mapping[str, int] = {"run": 8, "step": 4, "sweep": 6}
"""Document that `read_tree` reads -> its version. Lists and plans read these without importing their classes."""


_LAST_VERSION = 9_999
"""Maximum version number: a larger number means damage."""


_LONGEST_PATH = 1_000
_LONGEST_NAME_BYTES = 255


def is_inner_path(name: str) -> bool:
    """Return whether a relative path, with forward slashes, names a file inside its folder on every system."""
    parts = name.split("/")
    return not (
        not {"", ".."}.isdisjoint(parts)
        or parts[-1] == "."
        or any(character in name for character in "\\\0")
        or PureWindowsPath(name).drive
        or len(name) > _LONGEST_PATH
        or any(len(part.encode("utf-8", "surrogatepass")) > _LONGEST_NAME_BYTES for part in parts)
    )


def _refuse_way_out(name: str) -> str:
    if not is_inner_path(name) or "." in name.split("/"):  # one name for each file
        raise ValueError("not a path inside a folder")
    return name


InnerPath = Annotated[str, AfterValidator(_refuse_way_out)]
"""The path of a file relative to a folder, with forward slashes, that does not lead out of it on any system."""

Digest = Annotated[str, StringConstraints(pattern=r"\A[0-9a-f]{64}\z")]
"""A blake3 digest in hex: it identifies contents, and names files and folders of a store."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A number of bytes or of anything else: JavaScript represents it exactly, and sums and quotients have no error."""

Seconds = Annotated[float, Field(ge=0, le=1e10)]
"""A duration; `ge` refuses NaN too."""

_YEARS = range(1970, 9999)  # conversion to another time zone must not leave the calendar


def _refuse_odd_time(time: datetime) -> datetime:
    if time.year not in _YEARS:
        raise ValueError("not a plausible time")
    return time


Time = Annotated[AwareDatetime, AfterValidator(_refuse_odd_time)]
"""A time with its zone."""


class Record(BaseModel):
    """A typed part of a document. Unknown keys are rejected; field names contain units."""

    # JSON has no NaN: a string can be read back, while the default `null` would be rejected.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Return indented JSON, with a final newline, that `model_validate_json` reads back to an equal record."""
        return self.model_dump_json(indent=1) + "\n"

    def __copy__(self) -> Self:
        """Return a copy of the fields: `model_copy` changes some, and a cached property would keep the old values."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class StrictRecord(Record):
    """A record that machines and caches of other people send, whose values are not converted: `"5"` is no number."""

    model_config = ConfigDict(strict=True)


class Document(Record):
    """A record that is written to a file. Its class names its kind, the version of its format and its file."""

    document: str
    format_version: int
    file_name: ClassVar[str] = ""
    """Name of the file in the folder of the step that writes it; empty for a document that no step writes."""

    @field_validator("format_version")
    @classmethod
    def _is_known(cls, version: int) -> int:
        _refuse_other_version(cls.kind_name(), version, cls.known_version())
        return version

    @classmethod
    def kind_name(cls) -> str:
        """Return the name of the kind, as it is in files."""
        name: str = cls.model_fields["document"].default
        return name

    @classmethod
    def known_version(cls) -> int:
        """Return the version of the format that is written, and the only one that is read."""
        version: int = cls.model_fields["format_version"].default
        return version

    def write(self, folder: Path) -> None:
        """Write the document into the folder of a step's artifact."""
        (folder / self.file_name).write_text(self.to_json(), encoding="utf-8")

    def usable(self) -> Self:
        """Return the document without values that cannot be, such as negative times, with which reports would fail.

        Raises ValueError or ArithmeticError if nothing can be shown of it.
        """
        return self


def find_documents() -> list[type[Document]]:
    """Return the classes of all documents in the order of their names: each is found in a file of this folder.

    It imports all of these files, so that plans and reused runs never call it.
    """
    import pkgutil

    folder = importlib.import_module("ndld_flow.records")
    names = [f"{folder.__name__}.{found.name}" for found in pkgutil.iter_modules(folder.__path__)]
    modules = map(importlib.import_module, names)
    members = {member for module in modules for member in vars(module).values() if isinstance(member, type)}
    documents = [member for member in members if issubclass(member, Document) and member is not Document]
    return sorted(documents, key=lambda document: document.__name__)


def _refuse_other_version(document: str, version: int, known: int) -> None:
    """Raise FormatError for a document of another version, ValueError for a number that is no version.

    FormatError is no ValueError, so that it takes precedence over pydantic's other errors.
    """
    if not 0 < version <= _LAST_VERSION:
        raise ValueError("not the version of a format")
    if version != known:
        raise FormatError.of(f"this `{document}`", version, known)


MAX_BYTES = 500_000_000
"""Size limit of a document; a profile of 5,000 layers has 5 MB."""

AnyDocument = TypeVar("AnyDocument", bound=Document)


def read_document(kind: type[AnyDocument], path: Path) -> AnyDocument:
    """Read a document.

    Raises OSError and ValidationError for an unreadable or invalid one, and FormatError for one of another version.
    """
    with naming_file(path):
        return kind.model_validate_json(read_bounded(path))


@contextlib.contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add the path of a file to a FormatError of the block."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
"""Errors that reading a damaged record as plain values raises."""


def read_tree(path: Path) -> Any:  # noqa: ANN401 - it may be anything
    """Return a document as plain values; only its version is checked.

    Raises OSError, FormatError, and one of `DAMAGE` for invalid or too deep JSON.
    """
    tree = from_json(read_bounded(path))
    document, version = tree.get("document"), tree.get("format_version")
    if document in PLAIN_VERSIONS and isinstance(version, int):
        with naming_file(path):
            _refuse_other_version(document, version, PLAIN_VERSIONS[document])
    return tree


def read_bounded(path: Path) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for a pipe or a device, which may have no end."""
    size_bytes = stat_file(path).st_size
    if size_bytes > MAX_BYTES:
        raise OSError(errno.EFBIG, f"{size_bytes:,} bytes exceed the limit of {MAX_BYTES:,}", str(path))
    return path.read_bytes()


def stat_file(path: Path) -> os.stat_result:
    """Return the status of a regular file. Raises OSError, also for a pipe or a device, which may block."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
    return status
