"""Untrusted samples and labels: read, or refused in one paragraph, in bounded time; no code runs."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from ndld_flow import api
from ndld_flow.accuracy.labelled_comparison import read_labels
from ndld_flow.base.errors import RecipeError, RequestError
from tests.golden.make_store import make_model
from tests.reliability.guarded import guarded
from tests.support.sample_files import gray
from tests.support.tally import Tally

Counts = Callable[[str], Tally]
ATTACK = "sample data"


class Bomb:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, ("touch exploded",)


def npy(header: str, data: bytes = b"\0" * 768) -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npz(name: str, data: bytes, says_bytes: int | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    result = file.getvalue()
    return result if says_bytes is None else result.replace(struct.pack("<I", len(data)), struct.pack("<I", says_bytes))


def png(width: int, height: int) -> bytes:
    """Return a PNG that declares a size and has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


def saved(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def picture() -> bytes:
    file = io.BytesIO()
    gray(7).save(file, "png")
    return file.getvalue()


HEADER = "{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"
GOOD = saved(np.zeros((1, 3, 8, 8), np.float32))
FILES: dict[str, bytes] = {
    "empty.npy": b"",
    "cut.npy": GOOD[:200],
    "pickled.npy": saved(np.array([Bomb()], dtype=object)),
    "pickle.npy": pickle.dumps(Bomb()),
    "huge.npy": npy(HEADER.format(descr="<f4", shape="(1, 3, 1000000, 1000000)")),
    "negative.npy": npy(HEADER.format(descr="<f4", shape="(1, 3, -8, -8)")),
    "overflowing.npy": npy(HEADER.format(descr="<f4", shape="(4294967296, 4294967296, 4294967296)")),
    "endless_int.npy": npy(HEADER.format(descr="<f4", shape="(" + "9" * 5000 + ",)")),
    "code.npy": npy("__import__('os').system('touch exploded')\n"),
    "nested.npy": npy("(" * 5000 + "\n"),
    "void.npy": npy(HEADER.format(descr="|V0", shape="(1, 3, 8, 8)")),
    "structured.npy": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n"),
    "long_header.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{",
    "text.npy": saved(np.array([["a" * 99]])),
    "nan.npy": saved(np.full((1, 3, 8, 8), np.nan, np.float32)),
    "no_zip.npz": b"PK\x03\x04" + b"\0" * 500,
    "empty.npz": b"PK\x05\x06" + b"\0" * 18,
    "pickled.npz": npz("x.npy", saved(np.array([Bomb()], dtype=object))),
    "escaping.npz": npz("../../x.npy", GOOD),
    "bomb.npz": npz("x.npy", npy(HEADER.format(descr="<f4", shape="(1, 3, 4096, 4096)"), bytes(2**24))),
    "lying.npz": npz("x.npy", GOOD, says_bytes=2**31),
    "bomb.png": png(100_000, 100_000),
    "no_pixels.png": png(8, 8),
    "no_size.png": png(0, 0),
    "cut.png": picture()[:60],
    "other.png": b"GIF89a" + b"\xff" * 300,
    "svg.png": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>',
    "empty.jpg": b"",
    "cut.gif": b"GIF89a\xff\xff\xff\xff\xf7\0\0",
    "cut.mp4": b"\0\0\0\x20ftypisom" + b"\0" * 200,
    "list.mp4": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "cut.pb": onnx.numpy_helper.from_array(np.zeros((1, 3, 8, 8), np.float32)).SerializeToString()[:-9],
    "external.pb": onnx.TensorProto(
        dims=[1, 3, 8, 8], data_type=1, data_location=onnx.TensorProto.EXTERNAL,
        external_data=[onnx.StringStringEntryProto(key="location", value="/etc/passwd")],
    ).SerializeToString(),
    "huge.pb": onnx.TensorProto(dims=[2**40, 2**40], data_type=1, raw_data=b"\0" * 16).SerializeToString(),
    "unknown_type.pb": onnx.TensorProto(dims=[1, 3, 8, 8], data_type=999, raw_data=b"\0" * 768).SerializeToString(),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(make_model(), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def attack(place: Path, data: str, count: Tally) -> None:
    """Have a step run the model on a file."""
    recipe = {"name": "r", "model": "model.onnx", "inputs": {"x": {"data": data}},
              "steps": {"agree": {"step": "check_accuracy", "reference": "source", "candidate": "source"}}}  # fmt: skip
    (place / "r.yaml").write_text(yaml.safe_dump(recipe))
    try:
        with guarded(place):
            api.run("r.yaml")
        count.survived += 1
    except RequestError as error:
        paragraphs = [problem.what for problem in error.problems] if isinstance(error, RecipeError) else [str(error)]
        assert len(paragraphs) == 1 and "\n" not in paragraphs[0].strip(), data
        assert len(str(error)) < 2_000, data
        count.refused += 1
    except Exception as error:
        count.lost += 1
        raise AssertionError(data) from error
    assert not (place / "exploded").exists()


@pytest.mark.parametrize("share", ["a sample", pytest.param("the rest", marks=pytest.mark.thorough)])
def test_hostile_sample_files_are_read_or_refused(place: Path, tally: Counts, share: str) -> None:
    count = tally(ATTACK)
    for number, (name, data) in enumerate(FILES.items()):
        if (number % 8 == 0) != (share == "a sample"):
            continue
        (place / name).write_bytes(data)
        attack(place, name, count)


def test_files_that_are_no_samples_are_refused(place: Path, tally: Counts) -> None:
    count = tally(ATTACK)
    for suffix in ("npy", "png"):
        os.mkfifo(place / f"pipe.{suffix}")
        (place / f"device.{suffix}").symlink_to("/dev/zero")
        (place / f"itself.{suffix}").symlink_to(f"itself.{suffix}")
        (place / f"folder.{suffix}").mkdir()
        for name in ("pipe", "device", "itself", "folder", "*e", "../*"):
            attack(place, f"{name}.{suffix}", count)


def attack_at_random(place: Path, rounds: range, count: Tally) -> None:
    for seed in rounds:
        rng = random.Random(seed)
        name = rng.choice(("x.npy", "x.npz", "x.png", "x.pb"))
        data = bytearray(
            {"x.npy": GOOD, "x.npz": npz("x.npy", GOOD), "x.png": picture(), "x.pb": FILES["cut.pb"]}[name]
        )
        for _ in range(rng.randint(1, 8)):
            data[min(int(rng.expovariate(0.02)), len(data) - 1)] = rng.randrange(256)
        path = place / f"{seed}{name[1:]}"
        path.write_bytes(data)
        attack(place, path.name, count)


def test_changed_sample_files_are_read_or_refused(place: Path, tally: Counts) -> None:
    attack_at_random(place, range(8), tally(ATTACK))


@pytest.mark.slow
def test_many_changed_sample_files_are_read_or_refused(place: Path, tally: Counts) -> None:
    attack_at_random(place, range(1000, 1300), tally(ATTACK))


LABELS: dict[str, bytes] = {
    "empty.csv": b"",
    "formulas.csv": b"file,label\n=cmd|' /C calc'!A0,@SUM(1)\n",
    "huge_field.csv": b"file,label\na.png," + b"x" * 200_000,
    "nul.csv": b"file,label\na\0.png,\0\n",
    "quotes.csv": b'file,label\n"a.png,1\n' * 50,
    "utf16.csv": "file,label\na.png,1\n".encode("utf-16"),
    "latin.csv": b"file,label\n\xe9.png,1\n",
    "deep.json": b"[" * 100_000,
    "deep_object.json": b'{"a":' * 100_000,
    "twice.json": b'{"a.png": 1, "a.png": 2}',
    "list.json": b"[1, 2]",
    "numbers.json": b'{"a.png": 1e400, "b.png": NaN, "c.png": ' + b"9" * 5000 + b"}",
    "pickled.npy": FILES["pickled.npy"],
    "huge.npy": FILES["huge.npy"],
    "code.npy": FILES["code.npy"],
    "nested.npy": FILES["nested.npy"],
    "zip.npy": npz("x.npy", GOOD),
}


def test_hostile_labels_are_read_or_refused(place: Path, tally: Counts) -> None:
    count = tally(ATTACK)
    for name, data in LABELS.items():
        (place / name).write_bytes(data)
        try:
            read_labels(place / name)
            count.survived += 1
        except RequestError as error:
            assert name in str(error), name
            count.refused += 1
    for suffix in ("csv", "json", "npy"):
        os.mkfifo(place / f"pipe.{suffix}")
        (place / f"device.{suffix}").symlink_to("/dev/zero")
        for name in (f"pipe.{suffix}", f"device.{suffix}"):
            with pytest.raises(RequestError, match="not a file"):
                read_labels(place / name)
            count.refused += 1
    assert not (place / "exploded").exists()
