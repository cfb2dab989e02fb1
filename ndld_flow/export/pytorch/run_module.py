"""A program that runs a written module on stored inputs: `run_module.py FOLDER FEEDS OUTPUTS`.

It runs in a process of its own, and imports only what the module itself needs. FEEDS holds `0.npz`, `1.npz`, ... with
the arrays `input_0`, `input_1`, ... in the order of `forward`'s arguments, and `dtypes.json` with their types; it
writes files of the same names to OUTPUTS, with `output_0`, `output_1`, ...; bfloat16 is stored as float32.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path, feeds: Path, outputs: Path) -> None:
    """Run the module on every file of inputs."""
    sys.path.insert(0, str(folder))
    import model as written  # type: ignore[import-not-found]
    import numpy as np
    import torch

    module = written.load_model()
    dtypes = [getattr(torch, name) for name in json.loads((feeds / "dtypes.json").read_text())]
    for file in sorted(feeds.glob("*.npz"), key=lambda path: int(path.stem)):
        with np.load(file, allow_pickle=False) as arrays, torch.inference_mode():
            given = [torch.from_numpy(arrays[f"input_{n}"]).to(dtype) for n, dtype in enumerate(dtypes)]
            results = module(*given)
        results = results if isinstance(results, tuple) else (results,)
        stored = [each.float() if each.dtype == torch.bfloat16 else each for each in results]
        np.savez(outputs / file.name, **{f"output_{n}": each.numpy() for n, each in enumerate(stored)})
        print(f"sample {file.stem}", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
