"""`run --contained`: for recipes and models of strangers, such as those of pull requests.

The command starts itself again in a process with few environment variables, which enters the sandbox of the kernel
before it reads the recipe. What it may use is decided by the user's arguments and this installation, and by nothing
that the project contains: not by links, and not by its settings file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.processes.contained import VARIABLE
from ndld_flow.processes.sandbox import Access, enter_sandbox, find_obstacle
from ndld_flow.processes.watchdog import end_with_parent

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/nvidia")
_SYSTEM_FILES = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "passwd", "group", "nsswitch.conf"),
    *("machine-id", "os-release", "mime.types"),
)
"""Files of `/etc`. The system's password hashes, keys and host names are not among them."""
_KERNEL = ("/proc", "/sys")
_DEVICES = (
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
)
_KEPT = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CUDA_VISIBLE_DEVICES"}
    | {"NVIDIA_VISIBLE_DEVICES", "NDLD_FLOW_OUTPUTS", "NDLD_FLOW_IN_PROCESS", "NDLD_FLOW_QUEUE_TIMEOUT"}
)
"""Environment variables that a contained run keeps, with `LC_*` and those that change what libraries compute."""


@dataclass(frozen=True)
class Containment:
    """Facts for the contained process, passed in its environment."""

    project: str
    outputs: str
    cache: str
    """URL of a cache in a folder, which is only read; empty for none."""
    scratch: str
    """Its folder for temporary files, and its home."""
    probe: str
    """A file outside of everything that it may read."""
    parent: int


def refuse_options(given: Mapping[str, object]) -> None:
    """Raise RequestError for an option that a contained run cannot have; `given` has the options' values."""
    reasons = {
        "--trust": "it lets the recipe run code, and --contained is for recipes that you do not trust",
        "--ray": "there is no network",
        "--on": "there is no network",
        "--push": "results of strangers do not belong into a shared cache",
        "--output": "nothing is written outside of --outputs",
        "--apply": "nothing is written outside of --outputs",
    }
    for option in (option for option, value in given.items() if value):
        raise RequestError(f"{option} and --contained exclude each other: {reasons[option]}.")


def enter_or_run(recipe: Path, outputs: Path, cache: str | None) -> tuple[int | None, str]:
    """Enter the sandbox in the contained process; elsewhere, start this process and wait for it.

    Returns its exit code, None in the contained process itself, and the URL of its cache. `cache` is that of the
    command line, empty for none. Raises as `run_contained` and `enter` do.
    """
    if VARIABLE in os.environ:
        return None, enter(os.environ[VARIABLE]).cache
    return run_contained(recipe, outputs, cache), ""


def run_contained(recipe: Path, outputs: Path, cache: str | None) -> int:
    """Run this command again in a contained process, and return its exit code.

    `cache` is that of the command line, empty for none. Raises RequestError for what a contained run cannot do, and
    BackendError if this machine has no sandbox.
    """
    obstacle = find_obstacle()
    if obstacle:
        raise BackendError(
            f"--contained: {obstacle}. Run it in a container without network that has only the project's folder, or in "
            "a virtual machine."
        )
    project = find_project(recipe)
    _refuse_links(outputs, project)
    from ndld_flow.runner.outputs import Outputs

    Outputs(outputs).prepare()
    with tempfile.TemporaryDirectory(prefix="ndld_flow-contained-", ignore_cleanup_errors=True) as folder:
        scratch, probe = Path(folder, "scratch"), Path(folder, "probe")
        scratch.mkdir()
        probe.touch()
        url = _choose_cache(cache)
        facts = Containment(str(project), str(outputs.resolve()), url, str(scratch), str(probe), os.getpid())
        return _run_again(facts)


def find_project(recipe: Path) -> Path:
    """Return the folder that a contained run may read: the current one if the recipe is in it, else the recipe's.

    Raises RequestError for the root folder, and for one that contains the user's home.
    """
    here, place = Path.cwd(), recipe.absolute()
    project = here if Path(os.path.normpath(place)).is_relative_to(here) else place.parent.resolve()
    if Path.home().is_relative_to(project):
        raise RequestError(
            f"--contained: everything in {project} could be read, and your home folder is in it. Change to the folder "
            "of the project."
        )
    return project


def _refuse_links(outputs: Path, project: Path) -> None:
    """Raise RequestError if a link in the project decides where results are written."""
    place = Path(os.path.normpath(outputs.absolute()))
    inside = [each for each in (place, *place.parents) if each.is_relative_to(project) and each != project]
    links = [each for each in inside if each.is_symlink()]
    if links:
        raise RequestError(f"--contained: {links[0]} is a link, and would decide where results are written: remove it.")


def _choose_cache(cache: str | None) -> str:
    """Return the URL of the cache in a folder that the user, and not the project, has chosen; empty for none."""
    from ndld_flow.runner.cache_settings import CacheChoice, choose_cache

    settings = choose_cache(CacheChoice(cache, push=False), with_project=False) if cache != "" else None
    if settings is None:
        return ""
    if not settings.url.startswith("file://"):
        if cache:
            raise RequestError("--contained: there is no network, so the cache must be a folder; --no-cache uses none.")
        return ""
    return settings.url


def _run_again(facts: Containment) -> int:
    """Run this command in another process, whose open files are the standard streams, and pass signals on."""
    words = ["-P", *(word for word in sys.orig_argv[1:] if word != "-P")]
    environment = _clean_environment(Path(facts.scratch)) | {VARIABLE: json.dumps(asdict(facts))}
    child = subprocess.Popen([sys.executable, *words], env=environment, close_fds=True)

    def forward(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            time.sleep(0.3)  # a terminal sends Ctrl-C to the child too
        child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    code = child.wait()
    return code if code >= 0 else 5


def _clean_environment(scratch: Path) -> dict[str, str]:
    from ndld_flow.machine.host import computing_variables, deciding_variables

    deciding = {*deciding_variables(), *computing_variables()}
    kept = {
        name: value for name, value in os.environ.items() if name in _KEPT or name in deciding or name.startswith("LC_")
    }
    home = {name: str(scratch) for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    return {**kept, **home, **({"PYTHONUSERBASE": site.getuserbase()} if site.ENABLE_USER_SITE else {})}


def enter(facts_text: str) -> Containment:
    """Enter the sandbox in the contained process; return its facts. Raises BackendError if it does not hold."""
    facts = Containment(**json.loads(facts_text))
    end_with_parent(facts.parent)
    enter_sandbox(_describe_access(facts))
    with contextlib.suppress(OSError):
        Path(facts.probe).read_bytes()
        raise BackendError(f"--contained: the sandbox does not hold: {facts.probe} can be read.")
    import socket

    with contextlib.suppress(OSError):
        socket.socket().close()
        raise BackendError("--contained: the sandbox does not hold: sockets can be opened.")
    return facts


def _describe_access(facts: Containment) -> Access:
    outputs, scratch = Path(facts.outputs), Path(facts.scratch)
    cache = [Path(facts.cache.removeprefix("file://"))] if facts.cache else []
    system = (*(Path("/etc", name) for name in _SYSTEM_FILES), *map(Path, _KERNEL))
    return Access(
        read=(*_project_files(Path(facts.project)), *cache, *system),
        list=(Path(facts.project), *_folders_of_editable_packages()),
        execute=(*map(Path, _SYSTEM), *_installation()),
        write=(outputs, scratch),
        devices=(*(Path("/dev", name) for name in _DEVICES), *sorted(Path("/dev").glob("nvidia[0-9]*"))),
    )


def _project_files(project: Path) -> Iterator[Path]:
    """Yield what may be read in a project: not its hidden files and folders, such as `.git` and `.env`, which contain
    credentials, and not where links lead."""
    from ndld_flow.runner.cache_settings import PROJECT_FILE

    with os.scandir(project) as entries:
        for entry in entries:
            if not entry.is_symlink() and (not entry.name.startswith(".") or entry.name == PROJECT_FILE):
                yield Path(entry.path)


def _folders_of_editable_packages() -> list[Path]:
    """Return the folder of a checkout from which this package is imported, whose names Python lists."""
    import ndld_flow

    folders = [Path(path).parent for path in ndld_flow.__path__]
    return [folder for folder in folders if folder.name not in ("site-packages", "dist-packages")]


def _installation() -> Iterable[Path]:
    """Return the folders of Python and its installed packages, this one among them, and of named libraries."""
    import ndld_flow

    packages = [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    libraries = [Path(path) for path in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path]
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return (*prefixes, *packages, *libraries, *map(Path, ndld_flow.__path__))
