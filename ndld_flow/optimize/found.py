"""The result of a search of `optimize`, and the run that describes the source."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import ModelError, RequestError, UnknownNameError
from ndld_flow.execution.events import SweepFinished
from ndld_flow.optimize.budget import Budget
from ndld_flow.optimize.compose import SOURCE, Composer
from ndld_flow.optimize.proof import Proof, Prover
from ndld_flow.optimize.variant import Variant
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.optimization import FrontPoint, TriedVariant
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import find_file, read_stored
from ndld_flow.records.run_record import metrics_of

TOO_NOISY = "the measurements are too noisy"
"""Why a search ended whose proofs leave open whether anything is better."""
TOO_SHORT = "the rest of the budget is too short for those not tried"
CUT_SHORT = "a search used up its share of the budget"


_FUSED = re.compile(r"^(Fused|Nhwc|Quick|Skip)+(?=.)")
"""Beginning of the names of ONNX Runtime's kernels that compute an operator of ONNX with others."""


@dataclass
class Found:
    """The result of a search."""

    delivered: Proof
    """The best proved model; at first the source."""
    variants: tuple[TriedVariant, ...] = ()
    stopped_because: str = ""
    not_tried: tuple[str, ...] = ()
    """Sentences on what was not tried, and why."""
    front: tuple[FrontPoint, ...] = ()
    sweep: SweepFinished | None = None

    @property
    def faster(self) -> bool:
        """Return whether a variant was proved better than the source."""
        return bool(self.delivered.gains)


class Search(ABC):
    """A search for variants; `run` ends with what was proved until then, whatever ends it."""

    def __init__(self, prover: Prover, source: Proof, budget: Budget) -> None:
        self._prover, self._composer, self._budget, self._source = prover, prover.composer, budget, source
        self._stopped_because = ""

    def run(self) -> Found:
        """Search until everything was tried, or the budget or Ctrl-C ends it."""
        try:
            if self._budget.left_s() <= 0:  # else its signal would end a process while that starts
                self._budget.end()
            with self._budget.enforced():
                self._search()
        except KeyboardInterrupt as ended:
            self._stopped_because = str(ended) or "interrupted"
        return self._found()

    @abstractmethod
    def _search(self) -> None:
        """Try variants, and prove the best."""

    @abstractmethod
    def _found(self) -> Found:
        """Return the result at any time."""


def prove_source(prover: Prover) -> Proof:
    """Run the source once: it shows what is wrong with the request before any variant is tried.

    Raises NdldFlowError for data, inputs or a runtime that do not fit, ModelError if it fails its own check.
    """
    composer = prover.composer
    proof = prover.run(Variant(SOURCE, composer.runtime_with(), is_source=True), composer.compose_probe())
    _check_conditions(composer, proof)
    if not proof.passed and not composer.preset.limits.operators:  # a variant may fit the target all the same
        raise ModelError(f"{composer.model}: the source does not pass its own check: {proof.why}")
    return proof


def _check_conditions(composer: Composer, source: Proof) -> None:
    """Raise RequestError for conditions that only a run shows to mean nothing: on a cosine of single values, which is 1
    for any positive ones, and on metrics that the user's own file does not return.
    """
    asked = {name for name, _ in composer.conditions.accuracy}
    if "cosine" in asked and source.finished is not None:
        agreement = read_stored(Accuracy, find_file(Path(source.finished.folder) / "agree", Accuracy.file_name))
        if not agreement.tells_by_cosine:
            raise RequestError(
                f"--keep cosine: {composer.model} returns one value for each sample, and the cosine of two positive "
                "values is 1 whatever they are. Bound the error: --keep 'max_abs <= 0.05'."
            )
    if composer.options.metric is None or source.record is None:
        return
    known = [name.removeprefix("agree.") for name in metrics_of(source.record.steps)]
    for name, bound in composer.conditions.accuracy:
        if name not in known:
            raise UnknownNameError(
                f"--keep '{name} {bound}': {composer.options.metric} returns no such metric, and neither does "
                f"check_accuracy",
                name,
                known,
            )


def time_shares(source: Proof) -> Mapping[str, float]:
    """Return operator -> its share of the time of the source's kernels; empty if they were not profiled."""
    assert source.finished is not None
    folder = Path(source.finished.folder) / "base"
    if not folder.is_dir():
        return {}
    profile = read_stored(Profile, find_file(folder, Profile.file_name))
    times: dict[str, float] = defaultdict(float)
    for layer, ms in zip(profile.layers, profile.layer_times.ms, strict=True):
        if layer.depth == 0:
            # A kernel is named after the operator that it computes: `com.microsoft::NhwcFusedConv` is a Conv.
            times[_FUSED.sub("", layer.type.rpartition("::")[2].rpartition(".")[2])] += ms
    total = sum(times.values())
    return {operator: ms / total for operator, ms in times.items()} if total else {}
