"""Search by a race: the cheap variants, a proof of the best, then those that take minutes to prepare, if they may win.

At any time there is a best proved model. Whatever ends the search, it is delivered.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ndld_flow.base.quantities import counted, percent, times_as_fast
from ndld_flow.base.text import first_of
from ndld_flow.execution.events import Notice, VariantTried
from ndld_flow.optimize.budget import Budget
from ndld_flow.optimize.compose import SOURCE, WORTH_SHARE, ProofTime
from ndld_flow.optimize.found import CUT_SHORT, TOO_NOISY, TOO_SHORT, Found, Search
from ndld_flow.optimize.goals import AT_LEAST, PAYS
from ndld_flow.optimize.proof import Proof, Prover
from ndld_flow.optimize.race_process import USELESS, RaceJob, RaceResult, find_useless, run_race
from ndld_flow.optimize.variant import MADE, Variant
from ndld_flow.records.measurement import BUSY, Metric
from ndld_flow.records.optimization import Speed, TriedVariant, VariantOutcome
from ndld_flow.store.files import write_text_atomically

_LEAST_SHARE = 0.5
"""Least share of what is left of the budget for a race of variants that are quick to prepare, however long proofs take:
on a busy machine, their time is overestimated."""
_PROBES = 6.0
"""Time of the first proof as a multiple of that of the source's run, which starts a sixth of the processes; what its
check is worth comes on top, if there is time."""
_ROUNDS_PASSES = 60
"""Passes of the source that the fewest alternating rounds of a proof take, about: most of it for slow models."""
_LONGER = 1.1
"""Time of a further proof as a multiple of the longest before it."""
_LAST_ROUNDS = 48
"""The most rounds of a proof after which no other variant waits for its time: noise that more rounds average out must
not leave a gain open while there is time."""
_FAR = 0.9
"""Ratio to the best below which a form that is not right is far faster: what may make it right is tried first."""
_WAITING = 2
"""Number of unproved variants that race again with others."""
_LEAST_S = 5.0
"""Least time for which another race is started."""


class RaceSearch(Search):
    """One search."""

    def __init__(self, prover: Prover, source: Proof, budget: Budget) -> None:
        super().__init__(prover, source, budget)
        self._best = source
        self._proofs: dict[str, Proof] = {}
        self._result = RaceResult()
        self._hopeless: dict[str, str] = {}
        self._longest_proof_s = 0.0

    def _search(self) -> None:
        cheap = [variant.name for variant in self._composer.variants if not variant.costly]
        self._race(cheap, _LEAST_SHARE)
        self._race_costly(self._promising(), certain=True)
        self._prove_best(certain=True)
        self._race_others(cheap, _LEAST_SHARE, certain=True)
        self._race_costly([variant.name for variant in self._composer.variants if variant.costly])
        self._prove_best()
        proofs = 0
        while proofs < len(self._proofs):
            proofs = len(self._proofs)
            self._race_others([*filter(self._lost_to_refuted, self._result.tried)])
            self._prove_best()
        self._stopped_because = self._describe_end()

    def _race_costly(self, names: Iterable[str], *, certain: bool = False) -> None:
        """Race those of the costly variants that may win."""
        self._hopeless = find_hopeless(
            self._composer.variants,
            self._result.tried,
            lambda metrics: bool(metrics) and not self._composer.conditions.violated(metrics),
        )
        self._race_others([name for name in names if name not in self._hopeless], certain=certain)

    def _race_others(self, names: Sequence[str], least_share: float = 0.0, *, certain: bool = False) -> None:
        """Race the best with variants that were not tried to the end, if there is time for more than their proof."""
        again = (self._is_untried, self._is_unranked, self._lost_to_refuted)
        others = [name for may_win in again for name in names if may_win(name)]
        left_s = self._budget.left_s()
        if others and left_s - self._proof_s(least_share) > _LEAST_S:
            unproved = [name for name in self._result.ranking if name not in self._proofs]
            waiting = [name for name in unproved if self._may_be_better(self._result.tried.get(name))][:_WAITING]
            self._race([self._best.variant.name, *waiting, *others], least_share)
            self._prove_best(certain=certain)

    def _promising(self) -> Iterator[str]:
        """Yield the costly variants that may make right what is far faster than the best right variant."""
        tried = self._result.tried
        best = next((tried[name].speed for name in self._result.ranking if name in tried), None)
        for variant in self._composer.variants:
            whole = tried.get(variant.whole)
            if whole is None or whole.speed is None or whole.outcome not in ("not right", "near the bound"):
                continue
            if whole.speed.ratio < _FAR * (best.ratio if best is not None else 1.0):
                yield variant.name

    def _describe_end(self) -> str:
        """Return why a search that nothing interrupted ended; noise is a reason if no proof after it found a gain."""
        known = [variant.name for variant in self._composer.variants if variant.name not in self._hopeless]
        unproved = [each for each in self._proofs.values() if each.outcome == "not proved"]
        reasons = [TOO_SHORT] if any(map(self._is_untried, known)) else []
        reasons += [CUT_SHORT] if any(each.outcome == "not found" for each in self._result.tried.values()) else []
        if unproved and self._best is self._source:
            others = max(each.used_by_others for each in unproved)
            load = f": other processes used {percent(others)} of the CPUs" if others >= BUSY else ""
            reasons.append(f"{TOO_NOISY}{load}")
        is_complete = not self._hopeless and all(each.outcome != "cannot win" for each in self._result.tried.values())
        return " and ".join(reasons) or ("all variants tried" if is_complete else "all that can win were tried")

    def _is_untried(self, name: str) -> bool:
        tried = self._result.tried.get(name)
        return name != SOURCE and (tried is None or tried.outcome == "not tried")

    def _is_unranked(self, name: str) -> bool:
        """Return whether the race ended before it decided whether this variant is the best."""
        tried = self._result.tried.get(name)
        is_open = not self._result.finished and tried is not None and tried.outcome == "not proved"
        return is_open and name not in (SOURCE, self._best.variant.name, *self._proofs)

    def _lost_to_refuted(self, name: str) -> bool:
        """Return whether a variant lost a race, a proof refuted a variant since, and this one may be the best now."""
        tried = self._result.tried.get(name)
        refuted = any(proof.outcome in _NOT_RIGHT for proof in self._proofs.values())
        return refuted and tried is not None and tried.outcome == "not the best" and self._may_be_better(tried)

    @property
    def _first_proof_s(self) -> float:
        """Return about how long the first proof takes, without what its check is worth."""
        return _PROBES * self._source.took_s + _ROUNDS_PASSES * self._composer.trial.pass_ms / 1e3

    def _proof_s(self, least_share: float) -> float:
        """Return the seconds to leave for a proof, so that a race has at least this share of the rest."""
        first_s = self._first_proof_s + WORTH_SHARE * (self._budget.seconds or 0.0)
        needed_s = _LONGER * self._longest_proof_s if self._longest_proof_s else first_s
        return min(needed_s, self._budget.left_s() * (1 - least_share))

    def _race(self, names: Sequence[str], least_share: float) -> None:
        """Race variants, the source first, until the budget leaves only time to prove one that is faster."""
        recipe = self._prover.folder / "search.yaml"
        write_text_atomically(recipe, self._composer.compose_sweep(recipe))
        request = self._prover.request
        job = RaceJob(
            recipe=str(recipe),
            outputs=str(request.outputs),
            trust=request.trust,
            variants=tuple(dict.fromkeys((SOURCE, *names))),
            extends={each.name: each.extends for each in self._composer.variants if each.extends},
            needs={each.name: each.needs for each in self._composer.variants if each.needs},
            accuracy=self._composer.conditions.accuracy,
            seconds=min(self._budget.left_s(), 1e6),
            proof_s=self._proof_s(least_share),
            proved=self._best.variant.name,
            may_fix_sizes=self._composer.may_fix_sizes,
        )
        self._result.finished = False
        others = job.variants[1:]
        named = f"{counted(len(others), 'variant')} with the source: {first_of(others, 3)}"
        self._prover.listener(Notice(text=f"racing {named}"))
        run_race(job, self._prover.folder, self._prover.listener, self._result)

    def _prove_best(self, *, certain: bool = False) -> None:
        """Prove variants from the fastest on, until one is right on samples that the race has not seen, and faster.

        `certain` leaves out those that may be less than 3 % faster than the source: others are tried in their time.
        So they are once noise has left a proof open, as it hides small gains. A second open proof is the last.
        """
        for name in [name for name in self._result.ranking if name not in self._proofs]:
            tried = self._result.tried.get(name)
            if name == SOURCE or tried is None or not self._may_be_better(tried):
                return
            left_open = sum(proof.outcome == "not proved" for proof in self._proofs.values())
            is_sure = tried.speed is not None and tried.speed.high < PAYS
            if left_open > 1 or ((certain or left_open) and not is_sure):
                return
            proof = self._proofs[name] = self._prove(name, certain=certain)
            if proof.passed:
                self._best = proof
                return
            self._result.tried[name] = self._describe(name)  # else its race makes variants hopeless
            self._prover.listener(VariantTried(variant=self._result.tried[name]))

    def _prove(self, name: str, *, certain: bool) -> Proof:
        """Prove a variant, and keep how long a proof takes."""
        variant = next(variant for variant in self._composer.variants if variant.name == name)
        self._prover.listener(
            Notice(text=f"proving {name}: samples that the race has not seen, then new processes in turns")
        )
        start_s, spare_s = self._budget.used_s, self._budget.left_s() - self._first_proof_s
        proof = self._prover.prove(
            variant, self._budget.left_s, spare_s, ProofTime().rounds if certain else _LAST_ROUNDS
        )
        if proof.speed is not None:  # else it ended with its check
            self._longest_proof_s = max(self._longest_proof_s, self._budget.used_s - start_s)
        return proof

    def _may_be_better(self, tried: TriedVariant | None) -> bool:
        """Return whether a variant was faster in the race than the source, or than the best that is proved.

        One that is at most 3 % faster, and perhaps no faster at all, is not worth the time of a proof.
        """
        if tried is None or tried.speed is None:
            return False
        best = self._speed_of_best
        if best is None:
            is_surely_close = tried.speed.low > PAYS and tried.speed.high > AT_LEAST
            return tried.speed.ratio < AT_LEAST and not is_surely_close
        return tried.speed.ratio < best.ratio * PAYS

    @property
    def _speed_of_best(self) -> Speed | None:
        """Return the speed that the proved variant had in the race; None for the source."""
        tried = self._result.tried.get(self._best.variant.name)
        return tried.speed if tried is not None and self._best is not self._source else None

    # The result

    def _found(self) -> Found:
        names = [variant.name for variant in self._composer.variants]
        described = [self._describe(name) for name in names]
        return Found(
            delivered=self._best,
            variants=tuple(sorted(described, key=_order)),
            stopped_because=self._stopped_because,
            not_tried=(
                *self._composer.left_out,
                *(f"{name} is not tried: {why}." for name, why in self._hopeless.items()),
            ),
        )

    def _describe(self, name: str) -> TriedVariant:
        """Return what is known of a variant."""
        variant = next(variant for variant in self._composer.variants if variant.name == name)
        tried = self._result.tried.get(name)
        if name == SOURCE:
            outcome: VariantOutcome = "delivered" if self._best is self._source else "not the best"
            return TriedVariant(name=name, runtime=variant.runtime, outcome=outcome)
        if tried is None:
            waited = self._result.waited
            untried = f"the race was waiting for {waited}" if waited else "too little time was left"
            why = self._hopeless.get(name, untried)
            outcome = "cannot win" if name in self._hopeless else "not tried"
            return TriedVariant(name=name, runtime=variant.runtime, outcome=outcome, why=why)
        proof = self._proofs.get(name)
        speed = proof.speed if proof is not None and proof.speed is not None else tried.speed
        raced = f"{times_as_fast(tried.speed.ratio)} in the race" if tried.speed is not None else ""
        metrics = proof.metrics if proof is not None and proof.outcome in _NOT_RIGHT else tried.metrics
        tried = tried.model_copy(update={"runtime": variant.runtime, "speed": speed, "metrics": dict(metrics)})
        if name == self._best.variant.name:
            return tried.model_copy(update={"outcome": "delivered", "why": f"as proved; {raced}" if raced else ""})
        if proof is not None:
            passed = {"outcome": "not the best", "why": "; ".join(gain.describe() for gain in proof.gains)}
            return tried.model_copy(update=passed if proof.passed else {"outcome": proof.outcome, "why": proof.why})
        if self._lost_to_refuted(name):
            why = "it was slower than variants that are not right, and there was no time to race it again"
            return tried.model_copy(update={"outcome": "not proved", "why": why})
        lost = tried.outcome in ("not proved", "not the best") and not self._may_be_better(tried)
        if lost and tried.speed is not None:  # with which variant it was compared before is of no interest now
            outcome = "not faster" if self._best is self._source else "not the best"
            compared = raced
            best = self._speed_of_best
            if best is not None:  # its proof may measure another ratio, by another clock
                exact = " and closer to the source" if tried.speed.ratio < best.ratio else ""
                compared += f", {self._best.variant.name} {times_as_fast(best.ratio)}{exact}"
            return tried.model_copy(update={"outcome": outcome, "why": compared})
        return tried


def _order(tried: TriedVariant) -> tuple[bool, float]:
    """Return a sort key: the delivered one first, then by speed."""
    return tried.outcome != "delivered", tried.speed.ratio if tried.speed is not None else float("inf")


def remove_leftovers(folder: Path) -> None:
    """Remove the folders of races that were killed."""
    for each in folder.glob("race-*"):
        shutil.rmtree(each, ignore_errors=True)


_BY_PLACEMENT = 1.5
"""A model with all suitable layers in INT8 becomes at most this much faster if some stay in floats: depthwise layers of
small nets are the extreme case that was measured."""
_BY_INT8 = 4.0
"""Largest gain by INT8: a vector register, or a byte read from memory, has four times as many values as in FP32."""
_NOT_RIGHT = ("not right", "not right on held-out data", "near the bound", "not judged", "failed")
"""Outcomes of variants that are wrong, or may be."""


def find_hopeless(
    variants: Sequence[Variant],
    tried: Mapping[str, TriedVariant],
    is_comfortable: Callable[[Mapping[str, Metric]], bool],
) -> dict[str, str]:
    """Return the names of the costly variants that cannot win, as those that were tried show -> the reason;
    `tried` are these by name.

    `is_comfortable` returns whether the metrics of a variant keep a margin to all conditions.
    """
    right = {name for name, each in tried.items() if each.outcome not in _NOT_RIGHT and is_comfortable(each.metrics)}
    cheap = [variant for variant in variants if not variant.costly]
    reasons = {}
    needs = {each.name: each.needs for each in variants}
    useless = {name for name, each in tried.items() if each.outcome in USELESS}
    for variant in (each for each in variants if each.costly):
        equal = next((name for name in variant.unless if name in right), None)
        whole = tried.get(variant.whole)
        why = f"{equal} is right without exceptions" if equal is not None else _too_slow(variant, cheap, tried)
        if whole is not None and whole.speed is not None and whole.speed.low > PAYS:
            why = f"{whole.name} is not faster than the source, and quantizes no less"
        if whole is not None and whole.outcome == "not judged" and whole.speed is None:
            why = f"{whole.name} cannot be judged: {whole.why}"
        if needed := find_useless(variant.name, needs, useless):
            why = f"it needs {needed}, which failed or changed nothing"
        if why:
            reasons[variant.name] = why
    return reasons


def _too_slow(costly: Variant, cheap: Sequence[Variant], tried: Mapping[str, TriedVariant]) -> str:
    """Return the reason if variants of the same runtime bound the speed of a costly one, and another is faster.

    Speeds are those against the source in the same rounds: a machine that slows down changes the time of a pass. Their
    intervals do not count: those of the few rounds of a variant that lost are wide, and the bounds leave room.
    """
    known = {each.name: each.speed for each in tried.values() if each.speed is not None}
    known[SOURCE] = Speed(ratio=1.0, low=1.0, high=1.0, clock="")
    here = {variant.name for variant in cheap if variant.runtime == costly.runtime} & known.keys()
    right = {
        name: speed.ratio
        for name, speed in known.items()
        if name == SOURCE or (tried[name].outcome not in _NOT_RIGHT and tried[name].metrics)  # else nobody judged it
    }
    if not here:
        return ""
    near, fastest = min(here, key=lambda name: known[name].ratio), min(right, key=lambda name: right[name])
    is_quantized = any(MADE in variant.steps and variant.name in here for variant in cheap)
    bound = _BY_PLACEMENT if is_quantized else _BY_INT8
    if known[near].ratio <= bound * right[fastest]:
        return ""
    both = f"{near} at {times_as_fast(known[near].ratio)} and {fastest} at {times_as_fast(right[fastest])}"
    return f"{both} of the source's speed, and it is at most {bound:g} times as fast as the first of these"
