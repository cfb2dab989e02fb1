"""A model that reads rows of a table."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.support.rivalry.environments import environment
from tests.support.rivalry.wheels import Sample

_PACKAGES = (
    "lightgbm==4.6.0",
    "onnxmltools==1.14.0",
    "skl2onnx==1.20.0",
    "scikit-learn==1.9.1",
    "onnx==1.19.1",
    "packaging",
)
_ROWS = 16
_TRAIN = """
import sys
import numpy as np
from lightgbm import LGBMClassifier
from onnxmltools.convert import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.datasets import load_digits

rows, digits = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(rows))
kept, trained = np.split(order, [int(sys.argv[1])])
settings = dict(n_estimators=60, num_leaves=15, random_state=0, n_jobs=1, deterministic=True, force_row_wise=True)
trees = LGBMClassifier(verbose=-1, **settings).fit(rows[trained], digits[trained])
inputs = [("rows", FloatTensorType([int(sys.argv[2]), rows.shape[1]]))]
found = convert_lightgbm(trees, initial_types=inputs, zipmap=False, target_opset=15)
open(sys.argv[3], "wb").write(found.SerializeToString())
np.save(sys.argv[4], rows[kept].astype(np.float32))
"""


def boosted_trees(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """LightGBM's trees as onnxmltools exports them, on rows of scikit-learn's digits that they were not trained on."""
    rows = folder / "rows.npy"
    python = environment(_PACKAGES, folder / "environments")
    subprocess.run([python, "-c", _TRAIN, str(count * _ROWS), str(_ROWS), model, rows], check=True)
    for part in np.load(rows).reshape(count, _ROWS, -1):
        yield {"rows": part}
