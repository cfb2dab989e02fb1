"""The recipe's `sweep:`: what varies, how points are found, and which are best."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

from ndld_flow.base.quantities import Fraction, Milliseconds
from ndld_flow.base.settings import Settings
from ndld_flow.sweep_search.search import METHODS, Method

MAX_LISTED = 1000
"""Maximum number of values of an axis: each is checked in the recipe before anything runs."""
MAX_TEXT = 2000
"""Maximum number of characters in Hydra's grammar, whose parser is slow."""
MAX_STEPS = 10**9
"""Maximum number of steps between the ends of a range."""
MAX_NUMBER = 2**53
"""Integers up to this one are exact as floats too."""


class _Section(Settings):
    model_config = ConfigDict(populate_by_name=True)


class NumberRange(_Section):
    """Numbers between two ends, both included: integers if both ends (and `step`) are integers."""

    low: int | float = Field(alias="from", ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)
    """Lower end."""
    high: int | float = Field(alias="to", ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)
    """Upper end."""
    step: int | float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Distance between neighbours. Without it, every integer in the range counts, or every real number."""
    log: bool = False
    """Use a logarithmic scale, as for iterations or bytes; not together with `step`."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_nesting(cls, given: object) -> object:
        if isinstance(given, dict) and any(isinstance(value, list | dict) for value in given.values()):
            problem = "this is not a range with `from` and `to`; nested settings are dotted keys: "
            raise ValueError(f"{problem}`STEP.{next(iter(given))}`")
        return given

    @model_validator(mode="after")
    def _check(self) -> "NumberRange":
        if self.low > self.high:
            raise ValueError(f"`from` ({self.low}) is larger than `to` ({self.high})")
        if self.log and self.step is not None:
            raise ValueError("give either `step` or `log`, not both")
        if self.log and self.low <= 0:
            raise ValueError("`log: true` needs a `from` above 0")
        if self.step is not None and not (self.high - self.low) / self.step <= MAX_STEPS:
            raise ValueError(f"a range has at most {MAX_STEPS:,} steps; make `step` larger")
        return self

    @property
    def integer(self) -> bool:
        """True if all numbers are integers."""
        return all(isinstance(part, int) for part in (self.low, self.high, self.step) if part is not None)


def _axis_form(given: object) -> str:
    """Return the form of axis that a value has."""
    if isinstance(given, str):
        return "text"
    if not isinstance(given, dict):
        return "range" if isinstance(given, NumberRange) else "list"
    return "variants" if given and all(isinstance(value, dict) for value in given.values()) else "range"


AxisForm = Annotated[
    Annotated[list[JsonValue], Field(min_length=1, max_length=MAX_LISTED), Tag("list")]
    | Annotated[str, Field(max_length=MAX_TEXT), Tag("text")]
    | Annotated[NumberRange, Tag("range")]
    | Annotated[dict[str, dict[str, JsonValue]], Field(min_length=1, max_length=MAX_LISTED), Tag("variants")],
    Discriminator(_axis_form),
]
"""A list of values; text in Hydra's grammar (`1,2,4`, `range(1,9)`, `choice(a,b)`, `interval(0.1,2)`); `from`, `to` and
`step` or `log`; or a mapping of names to the settings of each."""

Duration = Annotated[Milliseconds, Field(gt=0)]
Durations = Annotated[
    Annotated[Duration, Tag("one")] | Annotated[dict[str, Duration], Tag("each")],
    Discriminator(lambda given: "each" if isinstance(given, dict) else "one"),
]
Sentences = str | list[str]


class SaturationSettings(_Section):
    """The condition that ends a search because further points gain too little."""

    gain: Fraction = 0.02
    """Smallest relative improvement of the first objective that counts."""
    points: int = Field(default=2, ge=1)
    """Number of points in a row without this gain that ends the search."""
    along: str = ""
    """An axis: for each combination of the others, its values are tried in order, and each series stops on its own."""


def _describe_methods() -> str:
    return " ".join(f"`{name}`: {summary[0].lower()}{summary[1:]}" for name, summary in METHODS.items())


class SweepSection(_Section):
    """The recipe's `sweep:`, which turns one recipe into many points."""

    synonyms: ClassVar[Mapping[str, str]] = {"needs": "needs: at the top of the recipe"}

    over: dict[str, AxisForm] = {}
    """The axes. A key is a setting (`speed.threads`, `speed.from`, `inputs.x.shape`, `model`) with its values: a
    list; `{from: 10, to: 1000, log: true}`, or with `step: 10`; text such as `1,2,4`, `range(1,9)`, `interval(0.1,2)`.
    Or it is a name of your own, with variants that set several keys together: `variant: {fp16: {speed.from: half}}`."""
    method: Method = Field(default="grid", description=_describe_methods())
    points: int | None = Field(default=None, ge=1)
    """Maximum number of points to try."""
    time: Duration | None = None
    """No further point starts after this time: `20 min`."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """The same seed tries the same points."""
    exclude: list[dict[str, JsonValue]] = Field(default=[], max_length=100)
    """Combinations to exclude: for each axis named, a value or a list of values."""
    minimize: Sentences = []
    """Objectives to minimize: a metric such as `speed.latency.min`, or arithmetic as in gates; or several."""
    maximize: Sentences = []
    """Objectives to maximize, likewise. With several objectives, those to minimize come first."""
    subject_to: Sentences = []
    """Conditions that a point must satisfy to be a candidate, as in gates: `agree.cosine >= 0.999`."""
    saturation: SaturationSettings | None = None
    """Stop when further points gain too little."""
    mixed: bool = True
    """Shuffle the points of a grid over the measurement sessions, so that the machine's drift looks like the effect of
    no axis. `false` tries them in the order in which they are listed, the most promising first if `time` may end the
    sweep; the `winners` are measured in turns either way."""
    together: int = Field(default=8, ge=1)
    """Number of points measured in turns, so that the machine's drift affects all of them equally."""
    short: dict[str, JsonValue] = {}
    """Settings of each point's first measurement where they differ from the recipe's: `{speed.runs: 1, speed.passes:
    10}`. The `winners` are measured again with the recipe's own settings, so that most of the time is spent on them."""
    winners: int = Field(default=3, ge=0)
    """Number of the best points that are measured again at the end, in turns, to determine the best. 0: none."""
    timeout: Durations | None = None
    """Time limit of each step, or by step: `{engine: 20 min}`."""

    def timeout_ms(self, step: str) -> float | None:
        """Return the time limit of a step; None if it has none."""
        return self.timeout.get(step) if isinstance(self.timeout, dict) else self.timeout


def sentences(given: Sentences) -> tuple[str, ...]:
    """Return one condition, or several, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)
