"""The hook of MkDocs that adds the generated reference to the site."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs loads this file by its path, not as a module of a package


@cache
def _pages() -> dict[str, str]:
    from docs.reference import pages

    return pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the generated pages of a folder where the navigation names the folder."""
    config.nav = _list_folders(config.nav)
    return config


def _list_folders(entry: Any) -> Any:  # noqa: ANN401 (the navigation is nested lists and mappings of YAML)
    if isinstance(entry, list):
        return [_list_folders(each) for each in entry]
    if isinstance(entry, dict):
        return {title: _list_folders(inner) for title, inner in entry.items()}
    return [path for path in _pages() if path.startswith(entry)] if str(entry).endswith("/") else entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that `reference.py` generates; nothing of them is kept in the repository."""
    for path, text in _pages().items():
        files.append(File.generated(config, path, content=text))
    return files
