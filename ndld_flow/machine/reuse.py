"""The machines on which a result may be reused, and their description in keys."""

from __future__ import annotations

import enum

from ndld_flow.machine.hardware import read_hardware
from ndld_flow.machine.host import deciding_variables, describe_circumstances, visible_kinds


class Reuse(enum.Enum):
    """The machines on which the result of a step may be reused."""

    ANYWHERE = "anywhere"
    """A pure transform: its result is the same on every machine."""
    THIS_MACHINE = "this_machine"
    """Engines, and numbers that depend on the type of CPU and GPU: the same on every machine of a type."""
    THIS_HOST = "this_host"
    """A measurement, valid on this host with the same CPUs, limits, GPUs, power limits and variables."""
    SAME_KIND = "same_kind"
    """A measurement, valid on every host of the same type under the same limits."""
    NEVER = "never"


def describe_place(where: Reuse, device: str) -> str:
    """Return the properties of this machine that determine a result: `FINGERPRINT; name: value; ...`."""
    if where in (Reuse.THIS_HOST, Reuse.SAME_KIND):
        circumstances = describe_circumstances(device or "cpu", same_kind=where is Reuse.SAME_KIND)
        return f"{fingerprint_machine()}; {circumstances}"
    variables = ", ".join(f"{name}={value}" for name, value in deciding_variables().items())
    return f"{fingerprint_machine()}; variables: {variables}" if variables else fingerprint_machine()


def fingerprint_machine() -> str:
    """Return the properties that distinguish kinds of machines for measurements and engines."""
    machine = read_hardware()
    gpus = ", ".join(visible_kinds(machine.gpus)) or "no GPU"
    driver = f", driver {machine.driver}" if machine.driver else ""
    return f"{machine.system} {machine.architecture}, {machine.cpu} x {machine.cpu_count}, {gpus}{driver}"
