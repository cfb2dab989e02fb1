"""Compare runs, profile files and exports, and write down what was found in every form people and programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.compare.comparison import compare
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.records.comparison import Comparison, Subject
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile
from ndld_flow.report.collector_at_rest import collector_at_rest
from ndld_flow.report.run_folder import COMPARISON_PAGE
from ndld_flow.runner.disk import explaining_disk
from ndld_flow.runner.events import Listener
from ndld_flow.runner.learn_noise import find_noise
from ndld_flow.runner.pair_profiles import Pairing, pair_profiles
from ndld_flow.runner.runs import LATEST, Outputs
from ndld_flow.runner.subjects import FoundSubject, find_subjects
from ndld_flow.runner.write_comparison import write_comparison
from ndld_flow.store.files import building_folder, point_to


@dataclass(frozen=True)
class Compared:
    """A comparison and where it was written."""

    comparison: Comparison
    profiles: list[list[Profile]]
    """For each profile comparison, its profiles in the order of its subjects."""
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / COMPARISON_PAGE


def compare_runs(
    references: Sequence[str],
    gates: Sequence[str] = (),
    rules: Rules | None = None,
    *,
    outputs: Path = Path("outputs"),
    to: Path | None = None,
    measure: Listener | None = None,
) -> Compared:
    """Compare what references name, the first being the base, and write report, data and pictures into a folder.

    `references`: runs, tags, ids, `RUN:STEP`, profile files, folders of trtexec or TREx exports. `gates`: sentences
    such as `latency.min <= +5 %`. `to`: the folder to write; default: one of its own below `outputs/comparisons/`.
    What was learned by `learn_noise` is used unless the rules bring their own. With `measure`, which hears the events,
    the two are measured again, against each other, until they are decided. Raises RequestError for what cannot be
    found, read, understood or measured.
    """
    kept = Outputs(outputs)
    if measure is not None:
        return _measure(references, gates, rules or Rules(metric="latency.median"), kept, to, measure)
    with collector_at_rest():
        return _compare(references, gates, rules or Rules(), kept, to)


def _measure(
    references: Sequence[str], gates: Sequence[str], rules: Rules, kept: Outputs, to: Path | None, listener: Listener
) -> Compared:
    from ndld_flow.runner.measure_pair import measure_pair

    subjects = find_subjects(references, kept)
    if [len(subject.profiles) for subject in subjects] != [1, 1]:
        raise RequestError("two profiles can be measured against each other: name them as RUN:STEP, the base first.")
    comparison, profiles = measure_pair(subjects, gates, rules, kept, listener)
    return _write(comparison, [profiles], kept, to)


def _compare(references: Sequence[str], gates: Sequence[str], rules: Rules, kept: Outputs, to: Path | None) -> Compared:
    subjects = find_subjects(references, kept)
    pairing = pair_profiles(subjects)
    if rules.noise is None:
        rules = replace(rules, noise=_find_noise(kept, pairing))
    sections = {
        name: [Measured(place, found.step, found.profile, found.metrics) for place, found in members]
        for name, members in pairing.sections.items()
    }
    comparison = compare([_subject(subject) for subject in subjects], sections, rules, gates, pairing.left_out)
    return _write(comparison, [[one.profile for one in members] for members in sections.values()], kept, to)


def _write(comparison: Comparison, profiles: list[list[Profile]], kept: Outputs, to: Path | None) -> Compared:
    folder = to or _new_folder(kept)
    with explaining_disk(f"comparison of {', '.join(one.label for one in comparison.subjects)}", folder):
        if to is not None:
            write_comparison(comparison, profiles, folder)
        else:
            with building_folder(folder) as built:
                write_comparison(comparison, profiles, built)
            point_to(folder.parent / LATEST, folder)
    return Compared(comparison, profiles, folder)


def _subject(found: FoundSubject) -> Subject:
    return Subject(
        label=found.label,
        location=found.reference,
        kind=found.kind,
        run_id=found.run_id,
        measured_at=found.profiles[0].profile.measured_at,
    )


def _find_noise(outputs: Outputs, pairing: Pairing) -> Noise | None:
    profiles = (found.profile for members in pairing.sections.values() for _, found in members)
    return next((noise for profile in profiles if (noise := find_noise(outputs, profile))), None)


def _new_folder(outputs: Outputs) -> Path:
    return outputs.root / "comparisons" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}"
