"""Versions and entry points, read from folders as `importlib.metadata` reads them."""

from __future__ import annotations

import sys
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest

from ndld_flow.machine.installed import find_version, may_have_entry_points

METADATA = "Metadata-Version: 2.1\nName: {0}\nVersion: {1}\n\nVersion: 0 is what the description says\n"


def install(folder: Path, name: str, version: str, entry_points: str = "") -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA.format(name, version))
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on Python's path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_all_installed_versions_are_those_of_importlib() -> None:
    known: dict[str, str] = {}
    for found in distributions():
        known.setdefault(found.name, found.version)
    assert {name: find_version(name) for name in known} == known
    assert "pydantic" in known


def test_names_are_normalized_and_the_first_folder_wins(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_version("Some.Thing") is None
    install(site, "some_thing", "1.0+cu12")
    assert find_version("Some.Thing") == find_version("some-thing") == "1.0+cu12"
    install(site / "first", "Some_Thing", "2.0")
    monkeypatch.setattr(sys, "path", [str(site / "absent"), str(site / "first"), str(site)])
    assert find_version("some-thing") == "2.0"
    assert find_version("some") is None


def test_eggs_and_archives_are_found_too(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "old.egg-info").write_text(METADATA.format("old", "0.3"))
    assert find_version("old") == "0.3"
    with zipfile.ZipFile(site / "packed.zip", "w") as archive:
        archive.writestr("packed-4.0.dist-info/METADATA", METADATA.format("packed", "4.0"))
    monkeypatch.setattr(sys, "path", [str(site / "packed.zip")])
    assert find_version("packed") == "4.0"
    assert may_have_entry_points("ndld_flow."), "unknown"


def test_entry_points_of_a_group_are_noticed(site: Path) -> None:
    install(site, "program", "1", "[console_scripts]\nndld-flow = ndld_flow.cli:main\n")
    assert not may_have_entry_points("ndld_flow.")
    install(site, "plugin", "1", "[ndld_flow.steps]\nx = y:Z\n")
    assert may_have_entry_points("ndld_flow.")
