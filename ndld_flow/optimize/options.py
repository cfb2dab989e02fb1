"""The options of `optimize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class OptimizeOptions:
    """Options of `optimize`."""

    target: str = "any"
    """The target that the model is for: a preset, such as `any`, the installed runtimes of this CPU, or `rtx40`."""
    data: tuple[str, ...] = ()
    """`PATH` or `INPUT=PATH`: a folder, a glob or files, or one file of many samples. A third is held out."""
    keep: tuple[str, ...] = ()
    """Conditions on metrics of `check_accuracy`, such as `cosine >= 0.999`; by default its own judgement. And `latency
    <= 1.1x`: the latency allowed when another objective comes first, as a multiple of the source's."""
    budget: str = ""
    """The time for everything: `10 min`. No variant starts after half of it, and no further proof after all of it."""
    threads: tuple[int, ...] = ()
    """Numbers of threads to measure with; several are a part of the search, none leaves it to the runtime."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its shape."""
    metric: Path | None = None
    """A Python file with your own metric, as in `check_accuracy`."""
    labels: Path | None = None
    """The labels for it, a .csv or .json that names files."""
    minimize: tuple[str, ...] = ()
    """Objectives to minimize: `latency`, `size`, `memory`, `build_time`. By default those of the target."""
    maximize: tuple[str, ...] = ()
    """Objectives to maximize: `throughput`. With several objectives, those to minimize come first."""
    fix_shapes: bool = False
    """Allow variants that accept only the shapes that are measured, which runtimes optimize further."""
    tokenizer: Path | None = None
    """The `tokenizer.json` that makes tokens of the lines of a .txt."""
    on: str = ""
    """The host that measures, `ssh://USER@HOST`, for targets that are another machine."""
