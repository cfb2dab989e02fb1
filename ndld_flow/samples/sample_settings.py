"""Settings of steps that run a model on several samples, and of noise on the inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ndld_flow.base.quantities import Fraction
from ndld_flow.base.settings import Settings
from ndld_flow.inputs import Data, name_input_files, patterns_of
from ndld_flow.step import DataFile, RunsCode, SampleData


class SampleSettings(Settings):
    """The samples that a step runs its model on, created by `make_samples`."""

    data: Annotated[dict[str, Data], SampleData(), AfterValidator(name_input_files)] = Field(default={})
    """Input name -> its values for this step, instead of `inputs.NAME.data` and in the same forms: sample i is the
    i-th file, frame or row. Shape, `mean`, `std`, `layout` and `every` remain those of `inputs:`."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Number of samples; by default all that `data` has, or one if all values are generated."""
    steps: Annotated[int, Field(ge=2)] | None = None
    """Number of steps of a sequence, for models with states (`inputs: {state: {from: stateN}}`), where an output of
    each step is an input of the next. By default as many as `data` has. Each file is a sequence that starts from the
    first state; `samples` limits their number."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of random inputs: sample i uses `seed` + i."""
    loader: Annotated[Path | None, DataFile(), RunsCode()] = None
    """A Python file whose function `samples()` yields for each sample a mapping, input -> array, or a pair of a label
    and such a mapping; at most `samples` of them are read. Every file in the file's folder and below is part of the
    step's key. It runs only when the recipe is trusted."""

    @model_validator(mode="after")
    def _check_loader(self) -> "SampleSettings":
        files = [name for name, data in self.data.items() if patterns_of(data)]
        if self.loader is not None and files:
            raise ValueError(f"give either `loader` or files in `data` ({files[0]}), not both")
        return self

    @property
    def needs_total(self) -> bool:
        """Return True if the chosen samples depend on the number of all."""
        return False

    def choose(self, total: int | None) -> Sequence[int]:
        """Return the places of the samples to use, of `total` in the data; None if any number can be generated."""
        return range(self.samples or total or 1)


FEWEST_TO_HOLD_OUT = 3


class Seen(Settings):
    """The samples of some data that a step was fitted to."""

    first: Annotated[int, Field(ge=0)] | None = None
    """It saw the first so many; by default all."""
    hold_out: bool = False
    """It did not see every third."""

    def places(self, total: int | None) -> Sequence[int]:
        """Return the places of these samples, of `total` in the data; None if any number can be generated."""
        if total is None:
            return range(1 if self.first is None else self.first)
        places = range(total if self.first is None else min(self.first, total))
        return [i for i in places if i % 3 != 2] if self.hold_out and len(places) >= FEWEST_TO_HOLD_OUT else places


class FittedSettings(SampleSettings):
    """The samples that a result is fitted to, by calibration or a search."""

    hold_out: bool = False
    """Leave every third sample, of three or more, to the checks of the result. This is the default where a check in the
    recipe judges the result on the same data, and `samples` is not set."""

    @property
    def seen(self) -> Seen:
        """Return the samples that are used."""
        return Seen(first=self.samples, hold_out=self.hold_out)

    def choose(self, total: int | None) -> Sequence[int]:
        return self.seen.places(total) if self.hold_out else super().choose(total)


class JudgedSettings(SampleSettings):
    """The samples that a result is judged on."""

    seen: dict[str, Seen] = Field(default={})
    """Step -> the samples of the same data that it was fitted to, by calibration or a search: others are judged, as far
    as there are any, and the result reports it. By default those of the steps between the reference and the candidate,
    found in the recipe."""

    @property
    def needs_total(self) -> bool:
        return bool(self.seen)

    def seen_places(self, total: int | None) -> Mapping[str, Sequence[int]]:
        """Return step -> the places of the samples that it saw."""
        return {step: seen.places(total) for step, seen in self.seen.items()}

    def choose(self, total: int | None) -> Sequence[int]:
        if not self.seen:
            return super().choose(total)
        seen = {place for places in self.seen_places(total).values() for place in places}
        if total is None:
            start = max(seen, default=-1) + 1
            return range(start, start + (self.samples or 1))
        others = [index for index in range(total) if index not in seen]
        return others[: self.samples] if others else super().choose(total)


Made = Annotated[
    Literal["auto", "off"] | Annotated[int, Field(ge=1)],
    # YAML 1.1 reads `off` as false.
    BeforeValidator(lambda given: "off" if given is False else given),
]


class MadeSettings(Settings):
    """Samples that a step makes itself."""

    made: Made = "auto"
    """Samples that are made to reach more of the model than the given ones, and added to them: other forms of floats,
    sizes and batches, masks that hide a part, all rows of tables, other branches. `auto` makes 4 where all values are
    generated and no sequence runs. A number makes as many next to data too, `off` none. Their labels describe them:
    `made: smooth, 24 frames`."""


class Noise(Settings):
    """Noise on the inputs of the candidate, or of both models."""

    kind: Literal["normal", "uniform", "salt_pepper"] = "normal"
    """`normal` and `uniform` are added; `salt_pepper` sets elements to the smallest or largest value of their input."""
    deviation: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """`normal`: standard deviation, in the units of the model's input (after `mean` and `std`)."""
    amplitude: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """`uniform`: the noise is in [-amplitude, amplitude]."""
    share: Annotated[Fraction, Field(gt=0, le=1)] | None = None
    """`salt_pepper`: the share of elements that are replaced, half by the smallest and half by the largest value."""
    inputs: tuple[str, ...] = ()
    """Inputs that get noise; by default all float inputs."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the noise; sample i uses `seed` + i."""
    applies_to: Literal["candidate", "both"] = "candidate"
    """`candidate`: the reference runs on the clean inputs, so that the differences include the effect of the noise.
    `both`: both models run on the same noisy inputs, so that the differences are those of the models alone."""

    @model_validator(mode="after")
    def _check_amount(self) -> "Noise":
        amounts = {"normal": "deviation", "uniform": "amplitude", "salt_pepper": "share"}
        mine = amounts.pop(self.kind)
        if getattr(self, mine) is None:
            raise ValueError(f"noise of kind `{self.kind}` needs `{mine}`")
        extra = [name for name in amounts.values() if getattr(self, name) is not None]
        if extra:
            raise ValueError(f"`{extra[0]}` does not apply to noise of kind `{self.kind}`: give `{mine}`")
        return self

    @property
    def amount(self) -> float:
        return self.deviation or self.amplitude or self.share or 0.0

    @property
    def on_reference(self) -> bool:
        """Return True if the reference gets the same noise as the candidate."""
        return self.applies_to == "both"

    def describe(self, *, compared: bool) -> str:
        """Return `normal, deviation 0.02, seed 0`, and which of two compared models get the noise."""
        word = {"normal": "deviation", "uniform": "amplitude", "salt_pepper": "share"}[self.kind]
        where = f", on {', '.join(self.inputs)}" if self.inputs else ""
        models = (", both models" if self.on_reference else ", candidate only") if compared else ""
        return f"{self.kind}, {word} {self.amount:g}, seed {self.seed}{where}{models}"
