"""`ndld-flow completion`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from ndld_flow.base.errors import OutputsError
from ndld_flow.cli.app import COMPLETION_VARIABLE
from ndld_flow.store.files import write_text_atomically

PROGRAM = "ndld-flow"


@add_completion_class
class _Bash(BashComplete):
    """Bash, without a space after a key that waits for its value."""

    source_template = BashComplete.source_template.replace("complete -o nosort", "complete -o nosort -o nospace")

    def format_completion(self, item: CompletionItem) -> str:
        return super().format_completion(item) + ("" if str(item.value).endswith("=") else " ")


_SHELLS: dict[str, tuple[type[ShellComplete], str]] = {
    "bash": (_Bash, "~/.local/share/bash-completion/completions/ndld-flow"),
    "zsh": (ZshComplete, "~/.zfunc/_ndld-flow"),
    "fish": (FishComplete, "~/.config/fish/completions/ndld-flow.fish"),
}
_BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
"""Reads the scripts of users by itself."""
_STARTUP = {
    "bash": ("~/.bashrc", ". ~/.local/share/bash-completion/completions/ndld-flow"),
    "zsh": ("~/.zshrc", "fpath+=(~/.zfunc); autoload -Uz compinit && compinit"),
}
"""Shell -> its startup file, and the line by which it finds the script."""


@click.command("completion", short_help="Complete verbs, recipes, settings and runs in your shell.")
@click.argument("shell", required=False, type=click.Choice(list(_SHELLS)))
@click.option("--install", is_flag=True, help="Write the script, and let the shell's startup file read it.")
def command(shell: str | None, install: bool) -> None:
    """Complete verbs, recipes, settings and runs in your shell.

    Without --install, the script is printed. The shell is taken from $SHELL unless it is given.

    \b
      ndld-flow completion --install
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise click.UsageError(f"name a shell: {', '.join(_SHELLS)}.")
    complete, place = _SHELLS[name]
    script = complete(click.Group(), {}, PROGRAM, COMPLETION_VARIABLE).source()
    if not install:
        click.echo(script, nl=False)
        return
    path = Path(place).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, script)
        changed = _let_startup_file_read_it(name)
    except OSError as error:
        raise OutputsError(f"{path}: the script cannot be written ({error.strerror}).") from None
    click.echo(f"{path}\n{changed}Open a new shell to use it.")


def _let_startup_file_read_it(shell: str) -> str:
    """Add a line to a shell's startup file unless the shell finds the script without it; return a note on the change.

    Raises OSError.
    """
    if shell not in _STARTUP or (shell == "bash" and _BASH_COMPLETION.is_file()):
        return ""
    place, line = _STARTUP[shell]
    path = Path(place).expanduser()
    text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    if line in text:
        return ""
    with path.open("a", encoding="utf-8") as file:
        newline = "\n" if text and not text.endswith("\n") else ""
        file.write(f"{newline}{line}  # completion of ndld-flow\n")
    return f"added to {place}: {line}\n"
