"""Other machines on which steps run: targets, reached by OpenSSH, and what steps need on those of a cluster."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from ndld_flow.base.settings import Settings
from ndld_flow.base.text import lazy_pattern

ON = "on"
"""The key of a step's entry that names its target."""
HERE = "here"
"""The name of this machine among targets."""
_HOST = lazy_pattern(
    r"ssh://(?:(?P<user>[A-Za-z0-9._][A-Za-z0-9._-]*)@)?"
    r"(?P<name>[A-Za-z0-9._][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?/?"
)
_FOLDER = lazy_pattern(r"(~/|/)[A-Za-z0-9._/+-]*[A-Za-z0-9._+-]")


class Target(Settings):
    """A machine that is reached by `ssh`: Linux on x86-64 or aarch64."""

    synonyms: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("url", "address", "ssh", "machine"), "host"),
        **dict.fromkeys(("path", "directory"), "folder"),
    }

    host: str
    """`ssh://USER@HOST:PORT`; user and port are optional. HOST may be a name in `~/.ssh/config`, with its ProxyJump,
    keys and other options."""
    folder: str = "~/.ndld_flow"
    """Folder on the host for the environment, and for the results that it has computed: absolute, or below `~/`."""
    python: str = ""
    """Python of an environment on the host that has ndld-flow installed. Without it, a private environment with this
    machine's versions is created in the folder when it is first needed."""
    extras: list[Literal["gpu", "tensorrt", "rtx"]] = []
    """Extras that the private environment gets: `gpu` for ONNX Runtime with CUDA, `tensorrt`, `rtx`."""

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if _HOST.fullmatch(host) is None:
            raise ValueError(f"{host!r} is not of the form ssh://USER@HOST:PORT (user and port are optional)")
        return host

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: str) -> str:
        if _FOLDER.fullmatch(folder) is None or ".." in folder.split("/"):
            raise ValueError("a folder is absolute or begins with ~/, without spaces and `..`")
        return folder

    @property
    def destination(self) -> list[str]:
        """Return the arguments of `ssh` that name the host."""
        found = _HOST.fullmatch(self.host)
        assert found is not None  # checked above
        user, name, port = found["user"], found["name"].strip("[]"), found["port"]
        return [*(("-p", port) if port else ()), *(("-l", user) if user else ()), "--", name]


def expand_targets(targets: object) -> object:
    """Expand `{h100: ssh://host}` to `{h100: {host: ssh://host}}`; return anything else as it is."""
    if not isinstance(targets, dict):
        return targets
    return {name: {"host": target} if isinstance(target, str) else target for name, target in targets.items()}


def is_host(text: str) -> bool:
    """Return whether a text is the address of a host, and not the name of a target."""
    return "://" in text


class Needs(Settings):
    """Resources that a step needs on a machine of a Ray cluster."""

    gpus: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Number of GPUs that it uses."""
    cpus: float = Field(default=1, ge=0, allow_inf_nan=False)
    """Number of CPU cores that it uses."""
    device: str = ""
    """Device type, as configured on the machines of the cluster, such as `A100`."""
