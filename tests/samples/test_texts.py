"""Text as the values of inputs, through a tokenizer file."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.execution.keys import describe_key
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples.feeds import make_feeds
from ndld_flow.samples.sample_feeds import make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs, write_model
from tests.support.recipes import load_recipe

needs_tokenizers = pytest.mark.skipif(
    find_spec("tokenizers") is None, reason="tokenizers is not installed: pip install 'ndld-flow[text]'"
)
WORDS = {"[PAD]": 3, "[CLS]": 1, "[SEP]": 2, "[UNK]": 0, "a": 4, "b": 5, "c": 6}
MODEL = [
    TensorSpec("input_ids", "int64", ("batch", 6)),
    TensorSpec("attention_mask", "int64", ("batch", 6)),
    TensorSpec("token_type_ids", "int32", ("batch", 6)),
]
TEXT = {"input_ids": {"data": "t.txt", "tokenizer": "tokenizer.json"}}


@pytest.fixture
def folder(in_folder: Path) -> Path:
    (in_folder / "t.txt").write_text("a b\n\nb c a b c a\n")
    return in_folder


def write_tokenizer(padding: dict[str, Any] | None = None) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    if padding is not None:
        tokenizer.enable_padding(**padding)
    tokenizer.save("tokenizer.json")


def rows(inputs: dict[str, Any], *wanted: TensorSpec) -> list[dict[str, list[int]]]:
    samples = make_samples(wanted or MODEL, specs(inputs), SampleSettings(), "half")
    return [{name: feed.values.tolist()[0] for name, feed in sample.feeds.items()} for sample in samples]


@needs_tokenizers
def test_lines_fill_tokens_mask_and_types_together(folder: Path) -> None:
    write_tokenizer()
    first, second = rows(TEXT)
    assert first == {
        "input_ids": [1, 4, 5, 2, 3, 3],
        "attention_mask": [1, 1, 1, 1, 0, 0],
        "token_type_ids": [0] * 6,
    }
    assert second["input_ids"] == [1, 5, 6, 4, 5, 2]  # the last token stays [SEP]
    assert second["attention_mask"] == [1] * 6
    samples = list(make_samples(MODEL, specs(TEXT), SampleSettings(), "half"))
    assert [sample.label for sample in samples] == ["t.txt line 1", "t.txt line 3"]
    described = [sample.feeds["input_ids"].description for sample in samples]
    one, three = (text.split(", ") for text in described)
    assert one == ["text t.txt line 1", "4 tokens", "padded to 6", "int64 1x6"]
    assert three == ["text t.txt line 3", "8 tokens", "truncated to 6", "int64 1x6"]
    assert make_feeds(MODEL, specs(TEXT))["attention_mask"].values.tolist() == [[1, 1, 1, 1, 0, 0]]


@needs_tokenizers
def test_values_of_the_recipe_replace_those_of_the_text(folder: Path) -> None:
    write_tokenizer()
    first, _ = rows({**TEXT, "attention_mask": {"data": "ones"}})
    assert first["attention_mask"] == [1] * 6


@needs_tokenizers
def test_free_lengths_follow_the_text(folder: Path) -> None:
    write_tokenizer()
    free = [TensorSpec("input_ids", "int64", ("n", "t")), TensorSpec("position_ids", "int64", ("n", "t"))]
    first, second = rows(TEXT, *free)
    assert first == {"input_ids": [1, 4, 5, 2], "position_ids": [0, 1, 2, 3]}
    assert len(second["input_ids"]) == 8
    short = {"input_ids": {**TEXT["input_ids"], "max_length": 3}}
    assert [sample["input_ids"] for sample in rows(short, *free)] == [[1, 4, 2], [1, 5, 2]]


@needs_tokenizers
def test_the_padding_is_that_of_the_tokenizer(folder: Path) -> None:
    write_tokenizer({"direction": "left", "pad_id": 6, "pad_token": "c"})
    first, _ = rows(TEXT)
    assert first["input_ids"] == [6, 6, 1, 4, 5, 2]
    assert first["attention_mask"] == [0, 0, 1, 1, 1, 1]


@needs_tokenizers
def test_text_that_does_not_fit_is_refused(folder: Path) -> None:
    write_tokenizer()
    for words, wanted, given in (
        ("set `tokenizer:`", MODEL[0], {"data": "t.txt"}),
        ("tokens are integers, the input is float32", TensorSpec("input_ids", "float32", (1, 6)), TEXT["input_ids"]),
        ("tokens need 1 or 2 dimensions", TensorSpec("input_ids", "int64", (1, 6, 2)), TEXT["input_ids"]),
        ("there is no file gone.txt", MODEL[0], {**TEXT["input_ids"], "data": "gone.txt"}),
        ("empty.txt contains no text", MODEL[0], {**TEXT["input_ids"], "data": "empty.txt"}),
        ("cannot be read as UTF-8", MODEL[0], {**TEXT["input_ids"], "data": "latin.txt"}),
        ("bad.json is not a tokenizer", MODEL[0], {**TEXT["input_ids"], "tokenizer": "bad.json"}),
        ("known.json cannot encode", MODEL[0], {**TEXT["input_ids"], "tokenizer": "known.json"}),
        ("there is no file gone.json", MODEL[0], {**TEXT["input_ids"], "tokenizer": "gone.json"}),
    ):
        Path("empty.txt").write_text("\n\n")
        Path("latin.txt").write_bytes(b"caf\xe9\n")
        Path("bad.json").write_text("{}")
        known = json.loads(Path("tokenizer.json").read_text())
        del known["model"]["vocab"]["[UNK]"], known["model"]["vocab"]["c"]
        Path("known.json").write_text(json.dumps(known))
        with pytest.raises(RequestError, match=words):
            rows({"input_ids": given}, wanted)


def test_text_needs_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage) -> None:
    monkeypatch.setattr("ndld_flow.base.extras.find_spec", lambda name: None)
    Path("tokenizer.json").write_text("{}")
    with pytest.raises(BackendError) as caught:
        rows(TEXT)
    check_message(caught.value)


def test_the_contents_of_the_tokenizer_are_in_the_key(folder: Path) -> None:
    write_model(folder / "model.onnx", "g (int64[n, 6] input_ids) => (int64[n, 6] y) { y = Identity(input_ids) }")
    recipe = "name: a\nmodel: model.onnx\ninputs: {input_ids: {data: t.txt, tokenizer: %s}}\nsteps: {profile: {}}\n"
    keys = []
    for name, contents in (("one.json", "1"), ("two.json", "1"), ("two.json", "2")):
        Path(name).write_text(contents)
        (folder / "r.yaml").write_text(recipe % name)
        loaded = load_recipe(folder / "r.yaml")
        parts = describe_key(loaded.steps[0], {"from": "ab" * 32}, loaded.file.inputs, Store(folder / "store"))
        keys.append(parts.model_dump_json())
    assert keys[0] == keys[1] != keys[2]
