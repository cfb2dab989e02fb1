"""What a file holds that can be drawn: a model, or the layers of an engine or a profile."""

from __future__ import annotations

from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.drawing.choices import Reading
from ndld_flow.drawing.engine_graph import engine_graph
from ndld_flow.drawing.graph import DrawnGraph
from ndld_flow.profiles.read.read_profile import read_profile, recognise


def read_drawn(path: Path, reading: Reading) -> DrawnGraph:
    """Read what is to be drawn.

    Raises `RequestError` or `ModelError` where it is neither, or has no layers, or no such parts as `reading` asks for.
    """
    if not path.exists() or recognise(path) is None:
        from ndld_flow.models.drawn_graph import read_graph

        return read_graph(path, reading)
    if reading.depth or reading.subgraph or reading.constants:
        raise RequestError(f"{path}: layers have no bodies and no constants: leave out depth, subgraph and constants.")
    profile = read_profile(path)
    if not profile.layers:
        raise RequestError(f"{path} tells of no layers, so that there is nothing to draw.")
    return engine_graph(profile, reading.title or path.name, reading.shapes)
