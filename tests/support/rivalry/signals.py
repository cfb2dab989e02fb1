"""Models that listen, and one that reads brain waves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from tests.support.model_trials.subjects import WHEELS
from tests.support.rivalry.wheels import Array, Sample, fetch, fix_pinned, fix_shapes, fix_wheel, spoken
from tests.support.samples import fetch_pinned

_MELSPECTROGRAM = "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f"
_RATE = 16_000
_EEG_RATE = 200
_MOMENTS = 16


def voice_activity(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """Silero's detector of speech with its states, on a third of a second of synthesized speech with pauses."""
    fix_wheel("voice_activity_sequence", model, {"input": (10, 576)})
    windows = np.lib.stride_tricks.sliding_window_view(spoken(folder), 576)[::512]
    state = np.zeros((1, 1, 128), np.float32)
    for number in range(count):
        yield {"input": windows[10 * number : 10 * number + 10].copy(), "h": state, "c": state}


def speech_embedding(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """The embedding of speech on which wake words are found, on mel spectra of synthesized speech."""
    fix_wheel("speech_embedding", model, {"input_1": (1, 76, 32, 1)})
    mel = _mel_spectrum(spoken(folder))
    for number in range(count):
        yield {"input_1": mel[30 * number : 30 * number + 76][None, ..., None]}


def wake_word(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """openWakeWord's detector of "hey Mycroft", LSTMs, on embeddings of synthesized speech that says it now and then.

    It reads sixteen moments at once: the cosine similarity of a single score is always 1.
    """
    fix_wheel("wake_word", model, {"input_1": (_MOMENTS, 16, 96)})
    words = "hey Mycroft, what time is it? I asked the grocer for apples. Hey, my craft is carpentry. Good night. "
    mel = _mel_spectrum(spoken(folder, words * 20))
    embedding = ort.InferenceSession(fetch(WHEELS["speech_embedding"]), providers=["CPUExecutionProvider"])
    windows = np.lib.stride_tricks.sliding_window_view(mel, 76, 0)[::8].transpose(0, 2, 1)
    found = embedding.run(None, {"input_1": windows[..., None]})[0]
    moments = np.lib.stride_tricks.sliding_window_view(np.asarray(found).reshape(-1, 96), 16, 0).transpose(0, 2, 1)
    starts = np.linspace(0, len(moments) - 4 * _MOMENTS, count).astype(int)
    for start in starts:
        yield {"input_1": moments[start : start + 4 * _MOMENTS : 4].copy()}


def pitch(folder: Path, model: Path, count: int) -> Iterator[Sample]:
    """SwiftF0, which finds the pitch, with its STFT, on a second of synthesized speech or of a sung vowel."""
    source = "pypi:swift-f0==0.3.0/swift_f0/model.onnx"
    proto = onnx.load(fetch_pinned(source, "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22"))
    ends = {"fmin": 46.875, "fmax": 2093.75}
    for value in [value for value in proto.graph.input if value.name in ends]:
        proto.graph.input.remove(value)
        proto.graph.initializer.append(numpy_helper.from_array(np.array(ends[value.name], np.float32), value.name))
    fix_shapes(proto, {"audio": (1, _RATE)}, model)
    speech, pick = spoken(folder), np.random.default_rng(10)
    for number in range(count):
        heard = _sing(pick) if number % 3 == 0 else speech[_RATE * number : _RATE * (number + 1)]
        yield {"audio": heard[None].astype(np.float32)}


def eeg_classifier(_: Path, model: Path, count: int) -> Iterator[Sample]:
    """BrainMaze's detector of seizures, convolutions and LSTMs, on spectra of a minute of made-up brain waves."""
    source = "pypi:brainmaze-eeg-models==0.1.0/brainmaze_eeg_models/seizure/_models/modelA_paper.onnx"
    digest = "088c815a10b54435432a0bef2629977d59e655a0c60b48a89e744aa52b6d48e3"
    fix_pinned(source, digest, model, {"x": (1, 100, 119)})
    pick = np.random.default_rng(11)
    for number in range(count):
        yield {"x": _eeg_spectrum(_brain_waves(pick, seizes=number % 3 == 0))[None]}


def _mel_spectrum(heard: Array) -> Array:
    """Return the spectrum that openWakeWord's embedding reads."""
    source = WHEELS["speech_embedding"].source.replace("embedding_model", "melspectrogram")
    spectra = ort.InferenceSession(fetch_pinned(source, _MELSPECTROGRAM), providers=["CPUExecutionProvider"])
    found = spectra.run(None, {spectra.get_inputs()[0].name: (heard * 32767)[None]})[0]
    mel: Array = (np.asarray(found).reshape(-1, 32) / 10 + 2).astype(np.float32)
    return mel


def _sing(pick: np.random.Generator) -> Array:
    """Return a second of a vowel with vibrato, and some noise."""
    times = np.arange(_RATE) / _RATE
    base = pick.uniform(80, 600) * 2 ** (0.03 * np.sin(2 * np.pi * pick.uniform(4, 7) * times))
    phase = 2 * np.pi * np.cumsum(base) / _RATE
    partials = sum(np.sin(phase * n) / n ** pick.uniform(1, 2) for n in range(1, 8))
    sung: Array = 0.2 * partials + pick.normal(0, 0.005, _RATE)
    return sung


def _brain_waves(pick: np.random.Generator, *, seizes: bool) -> Array:
    """Return a minute of noise whose power falls with the frequency, waves of 8 to 12 Hz, and spikes of a seizure."""
    count = 60 * _EEG_RATE
    times, frequencies = np.arange(count) / _EEG_RATE, np.fft.rfftfreq(count, 1 / _EEG_RATE)
    spectrum = np.fft.rfft(pick.normal(size=count)) / np.maximum(frequencies, 0.5) ** pick.uniform(0.8, 1.4)
    waves = np.fft.irfft(spectrum, count)
    waves /= waves.std()
    alpha = np.sin(2 * np.pi * pick.uniform(8, 12) * times) * np.sin(2 * np.pi * pick.uniform(0.05, 0.3) * times)
    waves += pick.uniform(0.2, 1) * alpha
    if seizes:
        start, end = sorted(pick.uniform(0, 60, 2))
        spikes = (np.sin(2 * np.pi * pick.uniform(2.5, 4) * times) > 0.9) * pick.uniform(4, 10)
        waves += np.where((times >= start) & (times <= end), spikes, 0)
    found: Array = (waves - waves.mean()) / waves.std()
    return found


def _eeg_spectrum(waves: Array) -> Array:
    """Return the spectrum of seconds that overlap by half, as the package prepares it: bins of 1 Hz, standardized."""
    cut = np.lib.stride_tricks.sliding_window_view(waves, _EEG_RATE)[:: _EEG_RATE // 2]
    window = np.cos(np.linspace(-np.pi / 2, np.pi / 2, _EEG_RATE)) ** 0.5
    power = np.abs(np.fft.rfft((cut - cut.mean(1, keepdims=True)) * window, axis=1)[:, :100].T) ** 2
    scaled: Array = ((power - power.mean(1, keepdims=True)) / power.std(1, keepdims=True)).astype(np.float32)
    return scaled
