"""Write a comparison in every form that people and programs read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.artifacts.files import write_text_atomically
from ndld_flow.records.comparison import Comparison
from ndld_flow.records.profile import Profile


def write_comparison(comparison: Comparison, profiles: Sequence[Sequence[Profile]], folder: Path) -> None:
    """Write report, data and pictures into a folder, each file whole or not at all."""
    write_text_atomically(folder / "comparison.json", comparison.to_json())
