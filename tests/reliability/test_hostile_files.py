"""Models that are special files, or name files that they must not read: refused without waiting or copying."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx
import pytest
from _pytest.mark import ParameterSet
from onnx import TensorProto, helper

from tests.reliability.attacked_process import AttackedProcess, Ending
from tests.support.models import cnn_model, tensor
from tests.support.tally import Tally

Tallying = Callable[[str], Tally]
_SECRET = b"nobody may read this".ljust(64)
_LIMIT_S = 30.0
"""What waits for a pipe, or reads a device, has not ended then."""

_VERBS = {
    "inspect": ("inspect", "model.onnx", "--initializers", "--stats"),
    "draw": ("draw", "model.onnx", "-o", "model.html"),
    "diff": ("diff", "model.onnx", "model.onnx"),
    "plan": ("plan", "recipe.yaml"),
    "run": ("run", "recipe.yaml"),
}


_NEED_NO_DATA = frozenset({"inspect", "draw", "diff"})
_WITHOUT_DATA = frozenset(
    {
        *("link to itself", "missing", "name of 100,000 letters", "terminal escapes", "not UTF-8"),
        *("offset beyond the end", "offset of 2^62", "offset that overflows", "length of 2^62"),
    }
)
"""The data would be in the model's folder, and does not exist."""


def _in_turn(attacks: Iterable[str]) -> list[ParameterSet]:
    """Each attack with one verb, the next attack with the next; every third is quick."""
    pairs = enumerate(zip(attacks, itertools.cycle(_VERBS), strict=False))
    return [pytest.param(*pair, marks=[pytest.mark.slow] if index % 3 else []) for index, pair in pairs]


@pytest.fixture(scope="module")
def process() -> Iterator[AttackedProcess]:
    started = AttackedProcess()
    yield started
    started.close()


def _external(location: str, offset: int | str = 0, length: int | str = 64) -> onnx.ModelProto:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        proto.external_data.add(key=key, value=str(value))
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [tensor("x", [16])], [tensor("y", [16])], [proto])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


class Place:
    """A folder with a model, and a secret next to the folder."""

    def __init__(self, root: Path, process: AttackedProcess) -> None:
        self.secret = root / "secret.bin"
        self.secret.write_bytes(_SECRET)
        self.folder = root / "here"
        self.folder.mkdir()
        self.model = self.folder / "model.onnx"
        self._process = process
        recipe = {"name": "r", "model": "model.onnx", "steps": {"sanitize": {}}}
        (self.folder / "recipe.yaml").write_text(json.dumps(recipe))

    def read(self, *arguments: str) -> Ending:
        return self._process.do(arguments, self.folder, _LIMIT_S)

    def must_refuse(self, what: str, verbs: Iterable[str], count: Tally) -> None:
        """Each verb that needs the data ends with a paragraph, and the secret is nowhere."""
        for verb in verbs:
            ending = self.read(*_VERBS[verb])
            works = what in _WITHOUT_DATA and verb in _NEED_NO_DATA and ending.is_work
            count.survived += works
            count.refused += ending.is_refusal
            count.lost += not (ending.is_refusal or works)
            assert ending.is_refusal or works, f"{what}, read by {verb}: {ending.code}: {ending.said[-2000:]}"
        written = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert not [path for path in written if path.stat().st_nlink == 1 and _SECRET in path.read_bytes()]


@pytest.fixture
def place(tmp_path: Path, process: AttackedProcess) -> Place:
    return Place(tmp_path, process)


def _link(target: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "w.bin").symlink_to(target)


def _nothing(_folder: Path) -> None: ...


_ESCAPES: dict[str, tuple[onnx.ModelProto, Callable[[Path], object]]] = {
    "absolute": (_external("/etc/passwd"), _nothing),
    "above": (_external("../secret.bin"), _nothing),
    "above, by a detour": (_external("sub/../../secret.bin"), lambda folder: (folder / "sub").mkdir()),
    "link to a file": (_external("w.bin"), _link("../secret.bin")),
    "link to a folder": (_external("sub/secret.bin"), lambda folder: (folder / "sub").symlink_to("..")),
    "link to itself": (_external("w.bin"), _link("w.bin")),
    "hard link": (_external("w.bin"), lambda folder: (folder / "w.bin").hardlink_to(folder.parent / "secret.bin")),
    "pipe": (_external("w.bin"), lambda folder: os.mkfifo(folder / "w.bin")),
    "device": (_external("w.bin"), _link("/dev/zero")),
    "folder": (_external("w.bin"), lambda folder: (folder / "w.bin").mkdir()),
    "missing": (_external("w.bin"), _nothing),
    "no name": (_external(""), _nothing),
    "dot": (_external("."), _nothing),
    "NUL": (_external("w\0.bin"), _nothing),
    "name of 100,000 letters": (_external("w" * 100_000), _nothing),
    "terminal escapes": (_external("\x1b[31m\n../x"), _nothing),
    "not UTF-8": (_external("w.bin"), _nothing),
}
_BAD_EXTENTS: dict[str, tuple[int | str, int | str]] = {
    "offset beyond the end": (64, 64),
    "offset below 0": (-64, 64),
    "offset of 2^62": (2**62, 64),
    "offset that overflows": (2**63 - 1, 64),
    "offset of 2^80": (2**80, 64),
    "length below 0": (0, -1),
    "length of 2^62": (0, 2**62),
    "length of another shape": (0, 60),
    "offset that is no number": ("one", 64),
    "length that is no number": (0, "0x40"),
}


@pytest.mark.representatives("dot-diff", "absolute-inspect")
@pytest.mark.parametrize(("what", "verb"), _in_turn(_ESCAPES))
def test_external_data_outside_the_folder_is_refused(place: Place, tally: Tallying, what: str, verb: str) -> None:
    _escape(place, what)
    place.must_refuse(what, [verb], tally("external data that escapes"))


@pytest.mark.slow
@pytest.mark.parametrize("what", _ESCAPES)
def test_external_data_outside_the_folder_is_refused_by_every_verb(place: Place, tally: Tallying, what: str) -> None:
    _escape(place, what)
    place.must_refuse(what, _VERBS, tally("external data that escapes"))


def _escape(place: Place, what: str) -> None:
    model, prepare = _ESCAPES[what]
    place.model.write_bytes(
        model.SerializeToString().replace(b"w.bin", b"w\xff\xfein" if what == "not UTF-8" else b"w.bin")
    )
    prepare(place.folder)


@pytest.mark.parametrize(("what", "verb"), _in_turn(_BAD_EXTENTS))
def test_missing_external_data_is_reported(place: Place, tally: Tallying, what: str, verb: str) -> None:
    (place.folder / "w.bin").write_bytes(bytes(64))
    place.model.write_bytes(_external("w.bin", *_BAD_EXTENTS[what]).SerializeToString())
    place.must_refuse(what, [verb], tally("external data that escapes"))


@pytest.mark.parametrize("what", ["pipe", "link to a file", "folder"])
def test_data_replaced_after_the_first_read_is_refused(place: Place, tally: Tallying, what: str) -> None:
    """Cached digests of a model do not cover its external files."""
    place.model.write_bytes(_external("w.bin").SerializeToString())
    data = place.folder / "w.bin"
    data.write_bytes(bytes(64))
    count = tally("external data that escapes")
    first = place.read("plan", "recipe.yaml")
    assert first.is_work, first.said
    data.unlink()
    _ESCAPES[what][1](place.folder)
    place.must_refuse(what, ("run", "plan", "inspect"), count)


@pytest.mark.representatives("sub/w.bin", "model.onnx.data")
@pytest.mark.parametrize(
    "name", ["model.onnx", "record.json", "log.txt", "model.onnx.data", "sub/w.bin", "recipe.yaml"]
)
def test_data_named_like_our_own_files_is_refused(place: Place, tally: Tallying, name: str) -> None:
    """The file of the model, and those next to it in the folder of a run."""
    count = tally("external data that escapes")
    data = _external(name)
    source = place.model if name == "model.onnx" else place.folder / name
    source.parent.mkdir(exist_ok=True)
    place.model.write_bytes(data.SerializeToString())
    before = source.read_bytes() if source.is_file() else bytes(64)
    source.write_bytes(before.ljust(64, b"\n"))
    kept = source.read_bytes()
    ending = place.read("run", "recipe.yaml")
    count.survived += ending.is_work
    count.refused += ending.is_refusal
    count.lost += not (ending.is_work or ending.is_refusal)
    assert ending.is_work or ending.is_refusal, f"{ending.code}: {ending.said}"
    assert source.read_bytes() == kept


def _sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 * 2**30)


_NO_MODELS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("ir_version: 8\ngraph { name: 'g' }\n"),
    "gzip": lambda path: path.write_bytes(gzip.compress(cnn_model().SerializeToString())),
    "ONNX text": lambda path: path.write_text(onnx.printer.to_text(cnn_model())),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "folder": lambda path: path.mkdir(),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to("model.onnx"),
    "deep groups": lambda path: path.write_bytes(b"\x0b" * 100_000),
    "deep messages": lambda path: path.write_bytes(_deep(10_000)),
    "If 10,000 deep": lambda path: path.write_bytes(_deep_ifs(10_000)),
    "length of 2 GB": lambda path: path.write_bytes(b"\x08\x08\x3a\xff\xff\xff\xff\x07" + b"a" * 100),
    "length of 2^63": lambda path: path.write_bytes(b"\x08\x08\x3a" + b"\xff" * 8 + b"\x7f" + b"a" * 100),
    "endless varint": lambda path: path.write_bytes(b"\x08" + b"\xff" * 1000),
}


def _deep(levels: int) -> bytes:
    """A type of a sequence of sequences, in a graph's input."""
    inner = b""
    for _ in range(levels):
        inner = _field(4, _field(1, inner))
    return b"\x08\x08" + _field(7, _field(11, _field(2, inner)))


def _deep_ifs(levels: int) -> bytes:
    graph = b""
    for _ in range(levels):
        graph = _field(1, _field(5, _field(6, graph)))
    return b"\x08\x08" + _field(7, graph)


def _field(number: int, content: bytes) -> bytes:
    length, digits = len(content), b""
    while length > 0x7F:
        digits += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + digits + bytes([length]) + content


@pytest.mark.parametrize(("what", "verb"), _in_turn(_NO_MODELS))
def test_files_that_are_no_model_are_refused(place: Place, tally: Tallying, what: str, verb: str) -> None:
    _NO_MODELS[what](place.model)
    place.must_refuse(what, [verb], tally("protobuf and memory bombs"))


@pytest.mark.slow
@pytest.mark.parametrize("what", _NO_MODELS)
def test_files_that_are_no_model_are_refused_by_every_verb(place: Place, tally: Tallying, what: str) -> None:
    _NO_MODELS[what](place.model)
    place.must_refuse(what, _VERBS, tally("protobuf and memory bombs"))


@pytest.mark.thorough
def test_a_file_larger_than_any_protobuf_is_refused(place: Place, tally: Tallying) -> None:
    count = tally("protobuf and memory bombs")
    _sparse_file(place.model)
    ending = place.read("inspect", "model.onnx")
    count.refused += ending.is_refusal
    assert ending.is_refusal, ending.said
    assert "2 GiB" in ending.said
