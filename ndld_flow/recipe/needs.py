"""Resources that steps need on the machines of a cluster."""

from pydantic import Field

from ndld_flow.base.settings import Settings


class Needs(Settings):
    """Resources that a step needs on a machine of a Ray cluster."""

    gpus: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Number of GPUs that it uses."""
    cpus: float = Field(default=1, ge=0, allow_inf_nan=False)
    """Number of CPU cores that it uses."""
    device: str = ""
    """Device type, as configured on the machines of the cluster, such as `A100`."""
