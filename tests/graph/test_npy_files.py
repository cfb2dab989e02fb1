"""Accepted and refused contents of `.npy` files that a recipe names."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit import constant_tensors as new_tensors
from ndld_flow.graph.edit.constant_tensors import read_npy
from tests.support.message_files import CheckMessage

WANTED = np.arange(12, dtype=np.float32).reshape(3, 4)


def header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("limit", [16, 2**20], ids=["large", "small"])
@pytest.mark.parametrize(
    "array",
    [WANTED, np.asfortranarray(WANTED), WANTED.astype(">f4"), np.float32(3), np.zeros((0, 3), np.float32)],
    ids=["plain", "columns first", "big-endian", "scalar", "empty"],
)
def test_arrays_of_all_layouts_are_read(
    array: npt.NDArray[Any], limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_tensors, "_STAYS_ON_DISK_BYTES", limit)
    np.save(tmp_path / "a.npy", array)
    tensor = read_npy(tmp_path / "a.npy", None, "a")
    assert isinstance(tensor, ir.ExternalTensor) == (limit == 16 and array is WANTED)
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("limit", [4, 2**20], ids=["large", "small"])
@pytest.mark.parametrize("word", ["bfloat16", "float8_e4m3fn", "int4"])
def test_types_that_numpy_does_not_name_need_a_dtype(
    word: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(new_tensors, "_STAYS_ON_DISK_BYTES", limit)
    wanted = np.arange(6).astype(getattr(ml_dtypes, word))
    np.save(tmp_path / "a.npy", wanted)
    tensor = read_npy(tmp_path / "a.npy", ir.DataType.from_numpy(wanted.dtype), "a")
    np.testing.assert_array_equal(tensor.numpy().astype(np.float32), np.arange(6))
    with pytest.raises(RequestError) as caught:
        read_npy(tmp_path / "a.npy", None, "a")
    check_message(caught.value)


def test_strings_become_string_tensors(tmp_path: Path) -> None:
    for array in (np.array([["a", "é"]]), np.array([[b"a", "é".encode()]])):
        np.save(tmp_path / "a.npy", array)
        tensor = read_npy(tmp_path / "a.npy", None, "a")
        assert (tensor.dtype, list(tensor.shape.numpy())) == (ir.DataType.STRING, [1, 2])
        assert tensor.numpy().tolist() == [[b"a", "é".encode()]]


def test_other_files_are_refused_and_no_code_is_run(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", WANTED)
    np.savez(tmp_path / "archive.npz", WANTED)
    np.save(tmp_path / "objects.npy", np.array([Touches(tmp_path / "ran")], dtype=object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Touches(tmp_path / "ran")))
    np.save(tmp_path / "pairs.npy", np.zeros(3, [("a", "f4"), ("b", "i4")]))
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-4])
    (tmp_path / "huge.npy").write_bytes(header("(1000000000000,)") + bytes(100))
    (tmp_path / "negative.npy").write_bytes(header("(-3,)") + bytes(100))
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    for name, message in {
        "none.npy": "there is no file",
        "archive.npz": "an archive of several arrays",
        "pairs.npy": "no tensor can have",
        "folder.npy": "is not a file",
        "pipe.npy": "is not a file",
        **dict.fromkeys(
            ("objects.npy", "pickle.npy", "text.npy", "empty.npy", "cut.npy", "huge.npy", "negative.npy"),
            "is not a .npy file of numbers",
        ),
    }.items():
        with pytest.raises(RequestError, match=message) as refused:
            read_npy(tmp_path / name, None, "a")
        assert "pickle=" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)
