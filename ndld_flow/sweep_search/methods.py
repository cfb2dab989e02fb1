"""The names of search methods."""

from __future__ import annotations

from typing import Literal

Method = Literal["grid", "one_at_a_time", "random", "hill_climb", "tpe"]
