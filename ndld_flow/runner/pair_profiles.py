"""Which profiles of several subjects are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ndld_flow.base.errors import RequestError
from ndld_flow.runner.subjects import FoundProfile, FoundSubject

UNNAMED = "profile"
"""What profiles of different names are called together: a history of comparisons keeps it when a file is renamed."""


@dataclass(frozen=True)
class Pairing:
    """Profiles by the name they share."""

    sections: dict[str, list[tuple[int, FoundProfile]]]
    """Name -> (position of the subject, its profile), the base's first; at least two."""
    left_out: tuple[str, ...]
    """Sentences about profiles without a partner."""


def pair_profiles(subjects: Sequence[FoundSubject]) -> Pairing:
    """Pair profiles by their step's name; where every subject has one only, these.

    Raises RequestError when a subject has nothing in common with the first.
    """
    if all(len(subject.profiles) == 1 for subject in subjects):
        only = [(place, subject.profiles[0]) for place, subject in enumerate(subjects)]
        names = {found.name for _, found in only}
        return Pairing({names.pop() if len(names) == 1 else UNNAMED: only}, ())
    sections: dict[str, list[tuple[int, FoundProfile]]] = {}
    for wanted in subjects[0].profiles:
        members = [(place, _named(subject, wanted.name)) for place, subject in enumerate(subjects)]
        sections[wanted.name] = [(place, found) for place, found in members if found is not None]
    paired = {name: members for name, members in sections.items() if len(members) > 1}
    _refuse_strangers(subjects, paired)
    return Pairing(paired, tuple(_left_out(subjects, paired)))


def _named(subject: FoundSubject, name: str) -> FoundProfile | None:
    return next((found for found in subject.profiles if found.name == name), None)


def _refuse_strangers(subjects: Sequence[FoundSubject], paired: dict[str, list[tuple[int, FoundProfile]]]) -> None:
    known = {place for members in paired.values() for place, _ in members}
    for place, subject in enumerate(subjects[1:], 1):
        if place not in known:
            base, other = (", ".join(found.name for found in one.profiles) for one in (subjects[0], subject))
            raise RequestError(
                f"{subject.label} has no profile of a name that {subjects[0].label} has: {other} against {base}. Say "
                f"which to compare, as {subjects[0].label}:{subjects[0].profiles[0].name}."
            )


def _left_out(subjects: Sequence[FoundSubject], paired: dict[str, list[tuple[int, FoundProfile]]]) -> list[str]:
    taken = {(place, found.name) for members in paired.values() for place, found in members}
    return [
        f"{subject.label}: profile {found.name} has no partner"
        for place, subject in enumerate(subjects)
        for found in subject.profiles
        if (place, found.name) not in taken
    ]
