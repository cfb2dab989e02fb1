"""The hook of MkDocs that adds the generated reference to the site."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
_OF_ROOT = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
_ROOT_LINK = re.compile(r"\]\((?:\.\./)*(SECURITY|CONTRIBUTING|CHANGELOG)\.md")
sys.path.insert(0, str(_ROOT))  # MkDocs loads this file by its path, not as a module of a package


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


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to pages of the repository's root, as a forge reads them, lead to those of the site."""
    up = "../" * page.file.src_uri.count("/")
    return _ROOT_LINK.sub(lambda match: f"]({up}about/{match[1].lower()}.md", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that `reference.py` generates, and those that a forge shows in the repository's root."""
    root = {f"about/{path.stem.lower()}.md": path.read_text(encoding="utf-8") for path in map(_ROOT.joinpath, _OF_ROOT)}
    for path, text in (_pages() | root).items():
        files.append(File.generated(config, path, content=text))
    return files
