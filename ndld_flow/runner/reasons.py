"""Reasons why a step runs or is reused: a closed set. One enum owns text, symbol and colour."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """Each decision of the plan has exactly one reason."""

    REUSED = ("reused", "=", "green")
    SHARED = ("shared", "=", "green")
    """Another point of the same sweep computed it."""
    NEW = ("new", "+", "cyan")
    SETTINGS = ("settings changed", "~", "yellow")
    INPUT = ("input changed", "~", "yellow")
    VERSION = ("step version", "~", "yellow")
    TOOL = ("tool version", "~", "yellow")
    MACHINE = ("machine", "~", "yellow")
    TOGETHER = ("measured in turns", "~", "yellow")
    FORCED = ("forced", "!", "magenta")
    NEVER = ("never reused", "!", "magenta")
    DAMAGED = ("artifact damaged", "x", "red")

    def __init__(self, text: str, symbol: str, colour: str) -> None:
        self.text = text
        self.symbol = symbol
        self.colour = colour
