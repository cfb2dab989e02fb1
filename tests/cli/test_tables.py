"""Tables, help and the ends of runs on terminals of any width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ndld_flow.base.quantities import milliseconds
from ndld_flow.cli.app import HelpContext, program
from ndld_flow.cli.tables import TerminalTable, wide_console
from ndld_flow.cli.terminal import format_end, hanging, width_of, wrapped
from ndld_flow.cli.verbs import list_verbs
from ndld_flow.report.tables import Column, Table

COLUMNS = (
    Column("layer", "name"),
    Column("base", "number", milliseconds),
    Column("interval", "label"),
    Column("", "outcome"),
)
TABLE = Table(
    COLUMNS,
    (
        ("a/very/long/name/of/a/layer/in/a/model/that/was/exported", 12.5, "-30 % … +108 %", "inconclusive"),
        ("b", None, "", "improved"),
    ),
    bad=frozenset({(0, 1)}),
)


def draw(width: int, *optional: str) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(TerminalTable(TABLE, optional))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [32, 48, 60, 80, 200])
def test_numbers_and_verdicts_are_never_cut(width: int) -> None:
    lines = draw(width, "interval")
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "12.5 ms" in text
    assert "? inconclusive" in text
    assert "✓ improved" in text
    assert "".join(line[: line.find(" ")] if " " in line else line for line in lines[1:]).startswith("a/very/long")


def test_names_are_wrapped_whole() -> None:
    first = [line.split(" ")[0] for line in draw(60)[1:-1]]
    assert "".join(first) == "a/very/long/name/of/a/layer/in/a/model/that/was/exported"


def test_columns_that_do_not_fit_are_left_out() -> None:
    assert "-30 % … +108 %" in "\n".join(draw(80, "interval"))
    narrow = "\n".join(draw(48, "interval"))
    assert "108" not in narrow
    assert "interval" not in narrow


def test_unknown_values_are_dashes() -> None:
    assert re.search(r"^b +\N{EN DASH} +✓ improved$", draw(80)[-1])


def test_columns_sets_the_width_of_tables_in_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wide_console().width == 120
    monkeypatch.setenv("COLUMNS", "60")
    assert wide_console().width == 60
    assert width_of(io.StringIO()) == 60
    assert hanging("name  ", "word " * 20).count("\n      word") == 1
    monkeypatch.setenv("COLUMNS", "none")
    assert width_of(io.StringIO()) == 120


def test_long_words_stay_whole() -> None:
    path = "outputs/runs/a-recipe-with-a-name/20261122T000000Z-abcdef/report.html"
    assert wrapped(f"report {path}", 40, "  ") == f"report\n  {path}"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_end_of_a_run_is_plain_in_a_log_and_aligned_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    lines = ["PASSED toy", "latency a sentence that is longer than forty columns", "report path", "odd line"]
    assert format_end(lines, "green", io.StringIO()) == lines
    head, *rest = format_end(lines, "green", _Terminal())
    assert head == "\x1b[1;32mPASSED toy\x1b[0m"
    path = f"outputs/{'x' * 40}"
    assert format_end(["PASSED", f"report {path}"], "green", _Terminal())[1].endswith(f"\x1b[0m{path}")
    assert rest == [
        "\x1b[2mlatency    \x1b[0ma sentence that is longer\n           than forty columns",
        "\x1b[2mreport     \x1b[0mpath",
        "odd line",
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    assert format_end(lines, "green", _Terminal())[2] == "report     path"


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("verb", ["", *list_verbs()])
def test_help_fits_the_terminal(verb: str, width: int) -> None:
    context = HelpContext(program, info_name="ndld-flow", terminal_width=width)
    command = program.get_command(context, verb) if verb else program
    assert command is not None
    text = command.get_help(command.context_class(command, info_name=verb, terminal_width=width))
    assert max(map(len, text.splitlines())) <= width
