"""convert_fp16 on ONNX's own test models: one of every operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backend_models import BackendModel, one_of_each_set_of_operators
from tests.support.fp16_checks import convert, session


def is_supported(case: BackendModel) -> bool:
    return not any(opset.domain == "" and opset.version < 7 for opset in case.model.opset_import)


def loads(path: Path) -> bool:
    """Return whether ONNX Runtime supports the model."""
    try:
        session(path)
    except Exception:
        return False
    return True


@pytest.mark.filterwarnings("ignore")  # what onnx's cases compute their expected outputs with
@pytest.mark.parametrize("share", ["a sample", pytest.param("the rest", marks=pytest.mark.thorough)])
def test_every_operator_of_onnx_is_converted(share: str, tmp_path: Path) -> None:
    """The step itself checks its result with strict shape inference and raises when that is broken."""
    every = list(filter(is_supported, one_of_each_set_of_operators()))
    assert len(every) > 200
    refused = []
    for number, case in enumerate(every):
        if (number % 10 == 0) != (share == "a sample"):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        path, _ = convert(case.model, folder, '{"keep_io": false}')
        if loads(folder / "source.onnx") and not loads(path):
            refused.append(case.name)
    assert refused == []
