"""Packages of strangers: damaged files, paths that lead out, bombs."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.records.package import Package, PackagedFile
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package as a zip, and unpacked."""
    folder = tmp_path_factory.mktemp("archive")
    make_cnn(folder / "model.onnx")
    recipe = {"model": "model.onnx", "steps": {"ship": {"step": "package", "variants": {"a": {"model": "source"}}}}}
    recipe["steps"]["ship"]["variants"]["a"]["provider"] = "cpu"  # type: ignore[index]
    (folder / "r.yaml").write_text(json.dumps(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        api.run("r.yaml", output="toy.zip")
    with zipfile.ZipFile(folder / "toy.zip") as archive:
        archive.extractall(folder / "unpacked")
    return folder


def repacked(made: Path, target: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    with zipfile.ZipFile(made / "toy.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


def refusal(path: Path) -> str:
    with pytest.raises(RequestError) as error:
        api.fits(path)
    return str(error.value)


def test_a_whole_package_is_read_as_a_zip_and_as_a_folder(made: Path) -> None:
    fits = [api.fits(made / name) for name in ("toy.zip", "unpacked")]
    files = [path for path in (made / "unpacked").rglob("*") if path.is_file()]
    assert [fit.verified_count for fit in fits] == [len(files) - 1] * 2, "all but package.json"
    assert fits[0].variants == fits[1].variants
    assert fits[0].variants[0].state == "unknown", "it was not measured, so the version that it needs is unknown"


def test_the_exit_code_reports_the_unknown(made: Path) -> None:
    done = ndld_flow("fits", "toy.zip", cwd=made)
    assert done.returncode == 4
    assert "no variant is known to fit; unknown for a" in done.stdout
    assert "found ONNX Runtime" in done.stdout
    assert "requires unknown" in done.stdout


def test_a_file_without_its_sha256_is_named(made: Path, tmp_path: Path) -> None:
    model = "models/r.a/1/model.onnx"
    for change in (
        lambda files: files.update({model: files[model][:-1] + b"\0"}),
        lambda files: files.update({model: files[model] + b"more"}),
        lambda files: files.update({model: files[model][:-1]}),
    ):
        text = refusal(repacked(made, tmp_path / "a.zip", change))
        assert f"its file {model} does not have the SHA-256" in text
    text = refusal(repacked(made, tmp_path / "a.zip", lambda files: files.pop("README.md", None)))
    assert "its file README.md is missing" in text
    text = refusal(repacked(made, tmp_path / "a.zip", lambda files: files.update({"more.txt": b"x"})))
    assert "does not list its file more.txt" in text


@pytest.mark.parametrize("name", ["../out.txt", "/etc/out.txt", "a/../../out.txt", "a\\..\\out.txt", "C:/out.txt"])
def test_paths_that_lead_out_are_refused(made: Path, tmp_path: Path, name: str) -> None:
    text = refusal(repacked(made, tmp_path / "a.zip", lambda files: files.update({name: b"x"})))
    assert "so it is not read" in text


def test_links_are_refused(made: Path, tmp_path: Path) -> None:
    path = repacked(made, tmp_path / "a.zip", lambda files: None)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert "its entry link is a link" in refusal(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "package.json").write_text("{}")
    (folder / "link").symlink_to("/etc/passwd")
    assert "link is a link or a device" in refusal(folder)


def test_a_bomb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("package.json", "{}")
        archive.writestr("models/a", bytes(100 * 2**20))
    assert "claim to unpack to 100 MiB" in refusal(path)


def test_two_entries_of_one_name_are_refused(made: Path, tmp_path: Path) -> None:
    path = repacked(made, tmp_path / "a.zip", lambda files: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("package.json", "{}")
    assert "its entry package.json is there twice" in refusal(path)


def test_what_is_no_package_is_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no zip")
    assert "it is not a zip" in refusal(tmp_path / "text.zip")
    assert "there is no such package" in refusal(tmp_path / "nowhere.zip")
    assert "it has no package.json" in refusal(tmp_path)
    listed = Package(name="a", licenses=(), variants=(), files=(PackagedFile(path="x", sha256="", size_bytes=1),))
    for text, why in (("{", "package.json cannot be read"), (listed.to_json().replace('"x"', '"../x"'), "not a path")):
        (tmp_path / "package.json").write_text(text)
        assert why in refusal(tmp_path)
    torn = (made / "toy.zip").read_bytes()
    (tmp_path / "torn.zip").write_bytes(torn[: len(torn) // 2])
    assert "it is not a zip" in refusal(tmp_path / "torn.zip")
