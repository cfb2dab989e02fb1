"""Settings of a placement."""

from typing import Annotated, Literal

from pydantic import Field

from ndld_flow.base.quantities import Fraction, Milliseconds
from ndld_flow.base.settings import Settings


class PlacementSettings(Settings):
    """The goal and the limits of a placement."""

    objective: Literal["latency"] = "latency"
    """The quantity that must improve: the latency of one inference at the shapes of the first sample."""
    time: Annotated[Milliseconds, Field(gt=0)] = 300_000.0
    """Time for measurements and trials, without calibration. The largest layers are measured first; those that are not
    reached stay in floats unless they belong to a set that pays as a whole."""
    least_gain: Annotated[Fraction, Field(lt=1)] = 0.01
    """The smallest gain that is worth it: a model is delivered only if it is faster by this much at 95 % confidence."""
    trials: Annotated[int, Field(ge=1)] = 60
    """Maximum number of sets whose accuracy is tried."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of ONNX Runtime within an operator; 0 lets it choose. Other runtimes have this setting in `runtime`."""
