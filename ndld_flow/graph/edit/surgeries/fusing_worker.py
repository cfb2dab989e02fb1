"""ONNX Runtime's transformer optimizer in a separate process, because it prints, logs, and changes `sys.path`.

The folder has `source.onnx` and `job.json`; the process writes `result.onnx` or `error.txt`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ndld_flow.processes.worker import exit_worker, start_worker

SOURCE, RESULT, JOB, ERROR = "source.onnx", "result.onnx", "job.json", "error.txt"


def main(folder: Path) -> None:
    """Run the job in the folder."""
    progress = start_worker()
    progress(0, 1, "fusing")
    try:
        _fuse(folder, json.loads((folder / JOB).read_text(encoding="utf-8")))
    except Exception as error:  # errors of the library; the parent process reports them
        (folder / ERROR).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    exit_worker()


def _fuse(folder: Path, job: dict[str, Any]) -> None:
    import onnx
    from onnxruntime.transformers import optimizer

    options = optimizer.FusionOptions(job["model_type"])
    for name, value in job["options"].items():
        setattr(options, name, value)
    mask = {"raw": 2, "none": 3, "right_padded": 0}[job["mask"]]
    options.attention_mask_format = mask
    model = onnx.load(folder / SOURCE)
    fused = optimizer.optimize_by_fusion(
        model,
        job["model_type"],
        num_heads=job["num_heads"],
        hidden_size=job["hidden_size"],
        optimization_options=options,
    )
    onnx.save(fused.model, folder / RESULT)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
