"""Connected regions of a mask."""

from __future__ import annotations

import numpy as np

from ndld_flow.models.tensors import Array


def find_regions(mask: Array) -> list[tuple[int, int, int, int]]:
    """Return left, top, right and bottom (exclusive) of each region of a bool mask [height, width], largest first.

    Pixels that touch, also at their corners, belong to one region. Runs of rows are joined by union-find.
    """
    parents: list[int] = []
    boxes: list[list[int]] = []

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    above: list[tuple[int, int, int]] = []
    for row in range(len(mask)):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], mask[row].astype(np.int8), [0]))))
        current = []
        place = 0
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            run = len(parents)
            parents.append(run)
            boxes.append([start, row, end, row + 1])
            while place < len(above) and above[place][1] < start:
                place += 1
            touching = place
            while touching < len(above) and above[touching][0] <= end:
                parents[root(above[touching][2])] = root(run)
                touching += 1
            current.append((start, end, run))
        above = current
    joined: dict[int, list[int]] = {}
    for run, (left, top, right, bottom) in enumerate(boxes):
        box = joined.setdefault(root(run), [left, top, right, bottom])
        box[:] = min(box[0], left), min(box[1], top), max(box[2], right), max(box[3], bottom)
    regions = [(left, top, right, bottom) for left, top, right, bottom in joined.values()]
    return sorted(regions, key=lambda box: (box[0] - box[2]) * (box[3] - box[1]))
