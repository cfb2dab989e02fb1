"""The budget and the result of a search of `optimize`, and the run that describes the source."""

from __future__ import annotations

import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ndld_flow.base.errors import ModelError, RequestError
from ndld_flow.base.quantities import seconds
from ndld_flow.base.text import suggest
from ndld_flow.execution.events import SweepFinished
from ndld_flow.optimize.compose import SOURCE, Composer
from ndld_flow.optimize.proof import Proof, Prover
from ndld_flow.optimize.variant import Variant
from ndld_flow.records.optimization import FrontPoint, TriedVariant
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import find_file, read_stored
from ndld_flow.records.run_record import metrics_of

_GRACE_S = 3.0
"""Seconds after the budget in which a proof that runs may still end."""
_LATE_S, _LATE_SHARE = 10.0, 0.1
"""Seconds, or share of the budget, after which the command has ended for certain."""
_SOURCE_S = 60.0
"""Seconds that the run of the source may take in any case: without it, nothing can be delivered."""
TOO_NOISY = "the measurements are too noisy"
"""Why a search ended whose proofs leave open whether anything is better."""
TOO_SHORT = "what was left of the budget was too short for the others"
_SIGNAL = getattr(signal, "SIGUSR1", None)


class BudgetEndedError(KeyboardInterrupt):
    """The budget is used up: what runs ends as it does by Ctrl-C. Its text is the reason."""


@dataclass(frozen=True)
class Budget:
    """The time for everything, which starts with the object."""

    seconds: float | None
    """None for no limit."""
    start: float = field(default_factory=time.monotonic)

    @property
    def used_s(self) -> float:
        return time.monotonic() - self.start

    @property
    def end_s(self) -> float:
        """Return the time after which the command has ended; infinity without a limit."""
        return float("inf") if self.seconds is None else self.seconds + max(_LATE_S, self.seconds * _LATE_SHARE)

    def left_s(self, share: float = 1.0) -> float:
        """Return the rest of a share of the time; infinity without a limit."""
        return float("inf") if self.seconds is None else self.seconds * share - self.used_s

    def end(self, *_: object) -> None:
        """Raise BudgetEndedError."""
        raise BudgetEndedError(f"the budget of {seconds(self.seconds or 0.0)} is used up")

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise BudgetEndedError in the block when the time is used up.

        Only a signal ends what the main thread waits for: other threads, and systems without signals of users, end
        with the step that runs.
        """
        main = threading.main_thread()
        if self.seconds is None or _SIGNAL is None or threading.current_thread() is not main:
            yield
            return

        timer = threading.Timer(
            max(self.left_s() + _GRACE_S, 0.0), lambda: signal.pthread_kill(main.ident or 0, _SIGNAL)
        )
        before = signal.signal(_SIGNAL, self.end)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # a signal that was sent is handled before the handler is restored
            signal.signal(_SIGNAL, before)

    @contextmanager
    def enforced_on_source(self) -> Iterator[None]:
        """Raise RequestError if the run of the source, in the block, uses up the time: there is no result then."""
        own = self if self.seconds is None else replace(self, seconds=max(self.seconds, _SOURCE_S))
        try:
            with own.enforced():
                yield
        except BudgetEndedError as ended:
            raise RequestError(
                f"{ended} before the source was measured: this machine is too busy, or another run holds its CPUs. "
                "Nothing was tried; give a longer --budget, or wait."
            ) from None


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
    proof = prover.run(Variant(SOURCE, composer.runtime, is_source=True), None, composer.compose_probe())
    _check_own_metric(composer, proof)
    if not proof.passed and not composer.preset.limits.operators:  # a variant may fit the target all the same
        raise ModelError(f"{composer.model}: the source does not pass its own check: {proof.why}")
    return proof


def _check_own_metric(composer: Composer, source: Proof) -> None:
    """Raise RequestError for conditions on metrics that the user's own file does not return: only a run shows them."""
    if composer.options.metric is None or source.record is None:
        return
    known = [name.removeprefix("agree.") for name in metrics_of(source.record.steps)]
    for name, bound in composer.conditions.accuracy:
        if name not in known:
            raise RequestError(
                f"--keep '{name} {bound}': {composer.options.metric} returns no such metric, and neither does "
                f"check_accuracy; {suggest(name, known)}"
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
            times[_operator_of(layer.type)] += ms
    total = sum(times.values())
    return {operator: ms / total for operator, ms in times.items()} if total else {}


def _operator_of(kernel: str) -> str:
    """Return the operator of ONNX that a kernel computes: Conv for `com.microsoft::NhwcFusedConv`."""
    return _FUSED.sub("", kernel.rpartition("::")[2].rpartition(".")[2])
