"""Write and execute the example notebook: `python docs/notebooks/make_notebook.py`, in a clone with nbclient and
ipykernel. The test of the notebook executes its cells without them.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
CELLS = (
    (
        "markdown",
        "# Measure, compare and sweep in a notebook\n\n"
        "Every result of `ndld_flow.api` shows its verdict here; `api.frame` makes a table of it. This notebook "
        "needs `pip install 'ndld-flow[frames]'`.",
    ),
    (
        "code",
        "from ndld_flow import api\n\n"
        "recipe = {\n"
        '    "name": "squeeze",\n'
        '    "model": "package:onnx/backend/test/data/light/light_squeezenet.onnx",\n'
        '    "steps": {\n'
        '        "sanitize": {},\n'
        '        "agree": {"step": "check_accuracy", "reference": "source", "candidate": "sanitize"},\n'
        '        "base": {"step": "profile", "from": "source", "threads": 1, "passes": 30},\n'
        '        "speed": {"step": "profile", "from": "sanitize", "threads": 1, "passes": 30},\n'
        "    },\n"
        "}\n"
        "finished = api.run(recipe)\n"
        "finished",
    ),
    ("markdown", "A run's table has its metrics, a profile's its layers."),
    ("code", 'metrics = api.frame(finished)\nmetrics[metrics.index.str.contains("latency.m|nodes|cosine")]'),
    ("code", 'layers = api.layers("squeeze:speed")\nlayers.groupby("type")["median_ms"].agg(["count", "sum"])'),
    ("markdown", "Compare two profiles: the verdict with its interval, then the slowest layers."),
    ("code", 'compared = api.compare(["squeeze:base", "squeeze:speed"])\ncompared'),
    (
        "code",
        "changes = api.frame(compared)\n"
        'changes.nlargest(5, "base_ms")[["base_layers", "base_ms", "candidate_ms", "delta_ms", "verdict"]]',
    ),
    ("markdown", "A sweep: one row for each point."),
    (
        "code",
        'over = {"speed.optimization": ["disabled", "basic", "all"], "speed.threads": [1, 2]}\n'
        'swept = api.sweep(recipe | {"sweep": {"over": over, "minimize": "speed.latency.median"}})\n'
        "swept",
    ),
    ("code", 'api.frame(swept)[["point", "outcome", "rank", "speed.optimization", "speed.threads"]]'),
    ("markdown", "All runs of this folder."),
    ("code", 'api.frame(api.runs())[["run", "outcome", "wall_s", "model"]]'),
)


def main() -> None:
    notebook = nbformat.v4.new_notebook()
    makers = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    notebook.cells = [makers[kind](text, id=f"cell-{index}") for index, (kind, text) in enumerate(CELLS)]
    os.environ["COLUMNS"] = "100"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": os.environ.get("FOLDER", ".")}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # times of execution
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", ()):
                del output.data["text/plain"]  # of a comparison, all its layers
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(notebook, FOLDER / "measure.ipynb")


if __name__ == "__main__":
    main()
