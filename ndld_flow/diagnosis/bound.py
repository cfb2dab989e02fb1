"""What a profile is bound by."""

from __future__ import annotations

from ndld_flow.diagnosis.insight import Bound
from ndld_flow.records.profile import Profile


def bound_by(profile: Profile) -> Bound:
    """What takes the most of the latency, decided from lanes, layers and roofs in that order."""
    return Bound("unknown", f"{len(profile.layers)} layers say nothing yet")
