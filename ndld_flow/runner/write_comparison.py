"""Write a comparison as page, JSON, Markdown, JUnit, CSV, trace and picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ndld_flow.records.comparison import Comparison
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import COMPARISON_PAGE
from ndld_flow.report.comparison.draw import draw_comparison
from ndld_flow.report.exports.benchmark_json import comparison_benchmark_json
from ndld_flow.report.exports.chrome_trace import chrome_trace
from ndld_flow.report.exports.comparison_junit import comparison_junit
from ndld_flow.report.exports.comparison_markdown import comparison_markdown
from ndld_flow.report.exports.csv_tables import comparison_csv
from ndld_flow.store.files import temporary_folder, write_bytes_atomically, write_text_atomically

PICTURE = "comparison.png"


def write_comparison(comparison: Comparison, profiles: Sequence[Sequence[Profile]], folder: Path) -> None:
    """Write report, data and picture into a folder, each file atomically.

    `profiles[i][j]` is the profile that `comparison.profiles[i]` has at position j of its subjects.
    """
    texts = {
        "comparison.json": comparison.to_json(),
        "comparison.md": comparison_markdown(comparison, profiles, PICTURE),
        "junit.xml": comparison_junit(comparison),
        "benchmark.json": comparison_benchmark_json(comparison),
        "layers.csv": comparison_csv(comparison, profiles),
        "trace.json": chrome_trace(_labelled(comparison, profiles)),
    }
    for name, text in texts.items():
        write_text_atomically(folder / name, text)
    _write_picture(comparison, profiles, folder / PICTURE)
    draw_comparison(comparison, profiles, folder / COMPARISON_PAGE)


def _labelled(comparison: Comparison, profiles: Sequence[Sequence[Profile]]) -> list[tuple[str, Profile]]:
    several = len(comparison.profiles) > 1
    return [
        (f"{comparison.subjects[subject].label}{f' {compared.name}' if several else ''}", profile)
        for compared, members in zip(comparison.profiles, profiles, strict=True)
        for subject, profile in zip(compared.subjects, members, strict=True)
    ]


def _write_picture(comparison: Comparison, profiles: Sequence[Sequence[Profile]], path: Path) -> None:
    # Imported here, as matplotlib takes half a second.
    from ndld_flow.report.exports.comparison_picture import comparison_picture

    with temporary_folder() as aside:
        picture = comparison_picture(comparison, profiles, aside / path.name)
        write_bytes_atomically(path, picture.read_bytes())
