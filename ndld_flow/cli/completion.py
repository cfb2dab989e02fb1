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


@click.command("completion", short_help="Complete verbs, recipes, settings and runs in your shell.")
@click.argument("shell", required=False, type=click.Choice(list(_SHELLS)))
@click.option("--install", is_flag=True, help="Write the script to the folder where the shell looks for it.")
def command(shell: str | None, install: bool) -> None:
    """Complete verbs, recipes, settings and runs in your shell.

    Without --install, the script is printed. The shell is that of $SHELL unless it is named.

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
    except OSError as error:
        raise OutputsError(f"{path}: the script cannot be written ({error.strerror}).") from None
    click.echo(f"{path}\nOpen a new shell to use it.")
    if name == "zsh":
        click.echo("~/.zshrc must have, before compinit: fpath+=~/.zfunc")
    if name == "bash":
        click.echo("It needs the package bash-completion; without it, ~/.bashrc must read the file by `source`.")
