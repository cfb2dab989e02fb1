"""Outcomes of attacks: counted by the tests that run them, printed at the end of the session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

PROPERTY = "tally"
"""Under this name a test's report carries its counts, from whichever process ran it."""


@dataclass
class Tally:
    """Counts of one kind of attack. Each attack is counted once, by its outcome."""

    attack: str
    """In a few words, such as `kill -9 of a run`."""
    survived: int = 0
    """The work was done all the same, right, at once or by the next run."""
    refused: int = 0
    """It ended with a message and its designed exit code, and nothing a user made was harmed."""
    lost: int = 0
    """Something was lost, damaged, delivered wrong, or told by a traceback."""

    def as_property(self) -> tuple[str, object]:
        return PROPERTY, asdict(self)


def format_tallies(properties: Iterable[tuple[str, object]]) -> Iterator[str]:
    """The lines of a table: one row for each kind of attack, those of several tests added up."""
    rows: dict[str, list[int]] = {}
    for name, value in properties:
        if name == PROPERTY and isinstance(value, Mapping):
            counts = rows.setdefault(str(value["attack"]), [0, 0, 0])
            for index, key in enumerate(("survived", "refused", "lost")):
                counts[index] += value[key]
    if rows:
        width = max(len(attack) for attack in rows)
        yield f"{'attack':{width}}  {'tried':>7}  {'survived':>8}  {'refused':>7}  {'lost':>4}"
        for attack, counts in sorted(rows.items()):
            yield f"{attack:{width}}  {sum(counts):7}  {counts[0]:8}  {counts[1]:7}  {counts[2]:4}"
