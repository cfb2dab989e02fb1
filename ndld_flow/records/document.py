"""Documents: typed, versioned JSON. Their base class, their formats' versions and upgrades, and reading their files.

Every version opens the documents that earlier released versions wrote. The document of a later version is rejected with
its version number and left as it is: it is neither treated as damaged nor overwritten.

To change a document, even by one field, raise its version here and add an upgrade to `_UPGRADES`. `tests/golden/` has
stores of earlier versions, and the fields of each version."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, field_validator
from pydantic_core import from_json

from ndld_flow.base.errors import NewerFormatError

if TYPE_CHECKING:
    from ndld_flow.records.layer_arithmetic import Operand

Tree: TypeAlias = dict[str, Any]
"""A document as plain JSON."""

VERSIONS: Mapping[str, int] = {
    "accepted changes": 1,
    "accuracy": 6,
    "activations": 1,
    "build": 4,
    "comparison": 3,
    "engine comparison": 2,
    "engine lock": 1,
    "export": 1,
    "findings": 1,
    "images": 1,
    "model diff": 1,
    "noise": 2,
    "optimization": 1,
    "placement": 1,
    "precision search": 1,
    "profile": 6,
    "received inputs": 1,
    "run": 5,
    "step": 3,
    "sweep": 3,
}
"""Document -> the version that is written."""


def upgrade(document: str, tree: object) -> object:
    """Return a document of an earlier version in the current format; other data is returned unchanged."""
    if not isinstance(tree, dict):
        return tree
    whole = _upgrade_inner(tree) if document == "run" else tree
    written = whole.get("format_version")
    if not isinstance(written, int):
        return whole
    for version in range(max(written, 1), VERSIONS[document]):
        whole = _UPGRADES[document, version](whole) | {"format_version": version + 1}
    return whole


def _upgrade_inner(run: Tree) -> Tree:
    """Upgrade the step documents inside a run."""
    steps = run.get("steps")
    if not isinstance(steps, list):
        return run
    return run | {
        "steps": [
            step | {"record": upgrade("step", step.get("record"))} if isinstance(step, dict) else step for step in steps
        ]
    }


def _accuracy_2(tree: Tree) -> Tree:
    """Mark the arithmetic, which was not recorded before, as unknown. Samples, layers and labelled metrics are new."""
    return tree | {"arithmetic": "untold"}


def _run_2(tree: Tree) -> Tree:
    """Add the outcome: previously, only finished runs had a record."""
    return tree | {"outcome": "passed" if tree.get("passed") else "failed"}


def _layers_2(tree: Tree) -> Tree:
    """Derive precisions again: they were the types of the first outputs, and are now the types of the computation."""
    layers = tree.get("layers")
    return tree | {"layers": list(map(_layer_2, layers))} if isinstance(layers, list) else tree


def _layer_2(layer: object) -> object:
    if not isinstance(layer, dict):
        return layer
    name, kind, role, provider, tactic = (
        str(layer.get(key, "")) for key in ("name", "type", "role", "provider", "tactic")
    )
    from ndld_flow.records.layer_arithmetic import QUANTIZING_TYPES, LayerFacts, conclude

    if kind in QUANTIZING_TYPES or (role == "cast" and kind.lower() != "cast"):
        role = "quantize"  # a separate role since then
    inputs, outputs = (_operands(layer.get(side)) for side in ("inputs", "outputs"))
    arithmetic = conclude(LayerFacts(name, kind, role, provider, tactic, "", inputs, outputs))
    concluded = {"precision": arithmetic.precision, "precision_basis": arithmetic.basis, "unit": arithmetic.unit}
    return layer | concluded | ({"role": role} if "role" in layer else {})


def _operands(tensors: object) -> list[Operand]:
    """Return the operands in an unvalidated document."""
    from ndld_flow.records.layer_arithmetic import Operand

    return [
        Operand(str(tensor.get("dtype", "")), tuple(dim for dim in tensor.get("shape", ()) if isinstance(dim, int)))
        for tensor in (tensors if isinstance(tensors, list) else [])
        if isinstance(tensor, dict) and isinstance(tensor.get("shape", ()), list | tuple)
    ]


def _profile_2(tree: Tree) -> Tree:
    """Add `profiler`: in measurements of this tool, the timing pass never had one attached."""
    conditions = tree.get("conditions")
    measured_here = isinstance(conditions, dict) and "before" in conditions
    return _known_machine(_layers_2(tree)) | {"profiler": "off" if measured_here else ""}


def _profile_4(tree: Tree) -> Tree:
    """Add the facts of the runtime, which were concluded from its name."""
    return tree | {"runtime": _runtime_of(tree)}


def _profile_6(tree: Tree) -> Tree:
    """Remove the counts of instructions and allocations, which are no longer recorded."""
    return {name: value for name, value in tree.items() if name != "counts"}


def _runtime_of(tree: Tree) -> Tree:
    backend, providers, conditions = (tree.get(name) for name in ("backend", "providers", "conditions"))
    before = conditions.get("before") if isinstance(conditions, dict) else None
    if backend in ("tensorrt", "tensorrt_rtx", "trtexec"):
        library = "" if backend == "trtexec" else str(backend).replace("_", "-")
        return {"library": library, "runs_engine": True, "on_gpu": True}
    if backend == "onnxruntime":
        facts = dict.fromkeys(("separates_copies", "inserts_casts", "times_layers_on_host"), True)
        on_gpu = providers[0] != "CPUExecutionProvider" if isinstance(providers, list) and providers else None
        return {"library": "onnxruntime", "on_gpu": on_gpu, **facts}
    # Runtimes other than ONNX Runtime and TensorRT name their devices freely.
    return {"on_gpu": "gpus" in before if isinstance(before, dict) and before else None}


def _known_machine(tree: Tree) -> Tree:
    """Replace 0 CPUs and 0 bytes of memory, which imports wrote for an unknown machine."""
    machine = tree.get("machine")
    if not isinstance(machine, dict):
        return tree
    unknown = {name: None for name in ("cpu_count", "memory_bytes") if machine.get(name) == 0}
    return tree | {"machine": machine | unknown}


def _unchanged(tree: Tree) -> Tree:
    """Return a document whose new fields have defaults that mean unknown, or only new values."""
    return tree


_UPGRADES: Mapping[tuple[str, int], Callable[[Tree], Tree]] = {
    ("accuracy", 1): _accuracy_2,
    ("accuracy", 2): _unchanged,
    ("accuracy", 3): _unchanged,
    ("accuracy", 4): _unchanged,
    ("accuracy", 5): _unchanged,
    ("build", 1): _layers_2,
    ("build", 2): _unchanged,
    ("build", 3): _unchanged,
    ("comparison", 1): _unchanged,
    ("comparison", 2): _unchanged,
    ("engine comparison", 1): _unchanged,
    ("noise", 1): _unchanged,
    ("profile", 1): _profile_2,
    ("profile", 2): _unchanged,
    ("profile", 3): _profile_4,
    ("profile", 4): _unchanged,
    ("profile", 5): _profile_6,
    ("run", 1): _run_2,
    ("run", 2): _unchanged,
    ("run", 3): _unchanged,
    ("run", 4): _unchanged,
    ("step", 1): _unchanged,
    ("step", 2): _unchanged,
    ("sweep", 1): _unchanged,
    ("sweep", 2): _unchanged,
}
"""Document and earlier version -> function that upgrades it to the next version."""


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
"""A number of bytes or of anything else, small enough to be added up, and divided, without error."""

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


class StrictRecord(Record):
    """A record that machines and caches of other people send, whose values are not converted: `"5"` is no number."""

    model_config = ConfigDict(strict=True)


class Document(Record):
    """A record that is written to a file, with its kind and the version of its format (`VERSIONS`)."""

    document: str
    format_version: int

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **settings: Any) -> Self:  # noqa: ANN401
        """Read a document of this version or an earlier one, which is upgraded.

        Raises NewerFormatError for one of a later version, and ValidationError for an invalid one.
        """
        try:
            return super().model_validate_json(json_data, **settings)
        except _OlderFormatError:
            return cls.model_validate_json(json.dumps(upgrade(cls._document(), json.loads(json_data))), **settings)

    @field_validator("format_version")
    @classmethod
    def _is_known(cls, version: int) -> int:
        """Check the version. The errors are not ValueErrors, so that they take precedence over pydantic's other
        errors."""
        known = VERSIONS[cls._document()]
        if not 0 < version <= _LAST_VERSION:
            raise ValueError("not the version of a format")
        if version > known:
            raise NewerFormatError(f"a `{cls._document()}`", version, known)
        if version < known:
            raise _OlderFormatError
        return version

    @classmethod
    def _document(cls) -> str:
        name: str = cls.model_fields["document"].default
        return name


class _OlderFormatError(Exception):
    """A document is of an earlier version, or one inside it is."""


MAX_BYTES = 500_000_000
"""Size limit of a document; a profile of 5,000 layers has 5 MB."""

AnyDocument = TypeVar("AnyDocument", bound=Document)


def read_document(kind: type[AnyDocument], path: Path) -> AnyDocument:
    """Read a document; one of an earlier version is upgraded.

    Raises OSError and ValidationError for an unreadable or invalid one, and NewerFormatError for a later version's.
    """
    try:
        return kind.model_validate_json(read_bounded(path))
    except NewerFormatError as error:
        raise error.at(path) from None


DAMAGE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError)
"""Errors that reading a damaged record as plain values raises."""


def read_tree(path: Path) -> Any:  # noqa: ANN401 - it may be anything
    """Return a file of JSON as plain values. Raises OSError, and ValueError for invalid or too deep JSON."""
    return from_json(read_bounded(path))


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file. Raises OSError, also for a pipe or a device, which may have no end."""
    size_bytes = stat_file(path).st_size
    if size_bytes > limit:
        raise OSError(errno.EFBIG, f"{size_bytes:,} bytes exceed the limit of {limit:,}", str(path))
    return path.read_bytes()


def stat_file(path: Path) -> os.stat_result:
    """Return the status of a regular file. Raises OSError, also for a pipe or a device, which may block."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
    return status
