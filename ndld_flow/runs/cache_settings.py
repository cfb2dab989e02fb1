"""The settings files, and the shared cache that a command uses: from the command line, the environment, or a file.

::

    cache: s3://team/ndld_flow          # in `.ndld_flow.yaml` of the current directory, or in the user's settings.yaml
    cache: {url: s3://team/ndld_flow, push: true, machines: same_kind, wait: 5 s}
    shared: group                       # in the user's settings: new outputs folders are writable by their group
    targets: {h100: ssh://me@gpu-box, jetson: {host: ssh://jetson, extras: [tensorrt]}}     # the user's settings only
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ndld_flow.base.errors import Problem, RecipeError, RequestError, UnknownNameError
from ndld_flow.base.quantities import Milliseconds
from ndld_flow.base.settings import Settings
from ndld_flow.base.text import lazy_pattern
from ndld_flow.recipe.targets import Target, expand_targets
from ndld_flow.store.hidden_credentials import Credentials

PROJECT_FILE = ".ndld_flow.yaml"
"""Settings of the project, in the current directory."""
CACHE_VARIABLE = "NDLD_FLOW_CACHE"
_PASSWORD = lazy_pattern(r"//[^/@]*:[^/@]*@")


class CacheSettings(Settings):
    """The shared cache."""

    url: str
    """A folder, or a URL of fsspec: `s3://bucket/folder`, `gs://...`. Its credentials come from the environment."""
    push: bool = False
    """Add the results of runs to the cache; only in the user's own settings."""
    machines: Literal["this_host", "same_kind"] = "this_host"
    """Machines whose measurements are used: this host only, or all of its kind (`profile`'s `reuse_on: same_kind`)."""
    wait: Milliseconds = 10_000.0
    """Time to wait for answers that bring no result; then the run continues without the cache."""


class SettingsFile(Settings):
    """The settings of a user or a project."""

    cache: CacheSettings | None = None
    """The shared cache."""
    shared: Literal["umask", "group"] = "umask"
    """Access to new outputs folders: by the umask, or for everybody in their group too; only in the user's own
    settings."""
    targets: dict[str, Target] = {}
    """Other machines by name, on which steps may run; only in the user's own settings."""


@dataclass(frozen=True)
class CacheChoice:
    """The part of a request that decides on the cache."""

    url: str | None = None
    """Overrides environment and settings files; empty for no cache."""
    push: bool | None = None
    """Overrides the user's settings."""


NO_CACHE = CacheChoice("")


def user_settings_file() -> Path:
    """Return the path of the user's settings, where the platform has those of programs."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "ndld_flow" / "settings.yaml"


def choose_cache(choice: CacheChoice) -> CacheSettings | None:
    """Return the cache to use; None without one. The command line precedes the environment, the project, the user.

    Raises RecipeError for a settings file with mistakes, and RequestError for a URL that cannot be a cache.
    """
    if choice.url == "":
        return None
    user = read_settings(user_settings_file()).cache
    project = read_settings(Path(PROJECT_FILE)).cache
    if project is not None and project.push:
        raise RequestError(
            f"{PROJECT_FILE}: cache.push: a project cannot decide that this machine writes to a cache, since a pull "
            f"request could change that. Set it in {user_settings_file()}, or run with --push."
        )
    chosen = project or user
    variable = os.environ.get(CACHE_VARIABLE, "")
    url = choice.url or variable or (chosen.url if chosen is not None else "")
    if not url:
        if choice.push:
            raise RequestError(
                f"--push: there is no cache. Name one with --cache URL, in {CACHE_VARIABLE}, or in {PROJECT_FILE}."
            )
        return None
    others = (chosen or CacheSettings(url=url)).model_dump()
    push = choice.push if choice.push is not None else user is not None and user.push and user.url == url
    where = "--cache" if choice.url else CACHE_VARIABLE if variable else "cache.url"
    return CacheSettings(**others | {"url": _check_url(url, where), "push": push})


def shares_new_outputs() -> bool:
    """Return whether new outputs folders are writable by their group, as the user decides.

    Raises RequestError if the project decides it. A file with mistakes, which `choose_cache` reports, opens no folder.
    """
    try:
        user, project = read_settings(user_settings_file()), read_settings(Path(PROJECT_FILE))
    except RecipeError:
        return False
    if project.shared != "umask":
        raise RequestError(
            f"{PROJECT_FILE}: shared: a project cannot decide who may write to this machine's folders, since a pull "
            f"request could change that. Set it in {user_settings_file()}."
        )
    return user.shared == "group"


def read_settings(path: Path) -> SettingsFile:
    """Return the settings in a file; the defaults if there is none. Raises RecipeError for mistakes."""
    if not path.exists():
        return SettingsFile.model_construct()  # the defaults: no validator needs to be built
    from ndld_flow.recipe.validate import explain_mistakes
    from ndld_flow.recipe.yaml_file import read_yaml

    file = read_yaml(path)
    values: dict[str, Any] = dict(file.values)
    if isinstance(values.get("cache"), str):
        values["cache"] = {"url": values["cache"]}
    if "targets" in values:
        values["targets"] = expand_targets(values["targets"])
    try:
        return SettingsFile.model_validate(values)
    except ValidationError as error:
        raise RecipeError(
            [
                Problem(file.where(dotted), dotted, what, hint)
                for dotted, what, hint in explain_mistakes(error, SettingsFile, values)
            ]
        ) from None


def _check_url(url: str, where: str) -> str:
    """Return a URL of fsspec. Raises RequestError for an unknown protocol, and for credentials in files or options."""
    from ndld_flow.recipe.sources import PROTOCOLS

    protocol, separator, _ = url.partition("://")
    if not separator:
        return f"file://{Path(url).expanduser().absolute().as_posix()}"  # fsspec does not decode `%20` of a URI
    hidden = Credentials(url).hide(url)
    if "::" in url:
        raise RequestError(f"{where} {hidden}: chained URLs (`::`) are not supported. Give the URL of one place.")
    if protocol not in (*PROTOCOLS, "file", "memory"):
        raise UnknownNameError(f"{where} {hidden}: no cache is reached by {protocol!r}", protocol, PROTOCOLS)
    if where != CACHE_VARIABLE and (_PASSWORD.search(url) or ("?" in hidden and "***" in hidden.partition("?")[2])):
        raise RequestError(
            f"{where} {hidden}: it contains credentials, which files and shells keep. Give them by the environment, as "
            f"the protocol's library reads them (AWS_ACCESS_KEY_ID, ...), or give the whole URL in {CACHE_VARIABLE}."
        )
    return url
