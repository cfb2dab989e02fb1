"""Audio as the values of an input: windows, sample rates, channels, and files that are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.samples import audio
from ndld_flow.samples.audio import read_audio, resample
from ndld_flow.samples.sample_feeds import Samples, make_samples
from ndld_flow.samples.sample_settings import SampleSettings
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs
from tests.support.sample_files import write_wav

WHOLE = TensorSpec("x", "float32", ("batch", "samples"))
TEN = TensorSpec("x", "float32", (1, 10))
needs_decoder = pytest.mark.skipif(
    find_spec("av") is None, reason="PyAV is not installed: pip install 'ndld-flow[video]'"
)


def samples(spec: TensorSpec, given: Mapping[str, Any], **asked: Any) -> Samples:
    wanted = SampleSettings.model_validate_json(json.dumps(asked))
    return make_samples([spec], specs({"x": given}), wanted, "half")


def refused(spec: TensorSpec, **given: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        list(samples(spec, given))
    return caught.value


def ramp(count: int) -> np.ndarray[Any, Any]:
    """Samples that 8 bits represent exactly: 0, 1/128, ..."""
    return np.arange(count) / 128


def sine(rate: int, hertz: float, seconds: float = 0.5) -> np.ndarray[Any, Any]:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)[None]


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_pcm_is_scaled_to_one(bits: int, in_folder: Path) -> None:
    write_wav(in_folder / "a.wav", np.stack([ramp(20), -ramp(20)]), 8000, bits)
    rate, waveform = read_audio(in_folder / "a.wav", "x")
    assert rate == 8000
    np.testing.assert_array_equal(waveform, np.stack([ramp(20), -ramp(20)]).astype(np.float32))


def test_a_file_is_one_sample_of_an_input_of_any_length(in_folder: Path) -> None:
    write_wav(in_folder / "a.wav", ramp(25))
    (sample,) = samples(WHOLE, {"data": "a.wav", "rate": 16000})
    assert sample.label == "a.wav"
    np.testing.assert_array_equal(sample.feeds["x"].values, ramp(25)[None])
    assert sample.feeds["x"].description == "audio a.wav, 16000 Hz, float32 1x25"


def test_windows_of_a_file_are_samples_and_the_last_is_padded(in_folder: Path) -> None:
    write_wav(in_folder / "a.wav", ramp(25))
    given = {"data": "a.wav", "rate": 16000}
    assert [sample.label for sample in samples(TEN, given)] == ["a.wav sample 0", "a.wav sample 10", "a.wav sample 20"]
    last = list(samples(TEN, given))[-1].feeds["x"]
    np.testing.assert_array_equal(last.values[0], [*ramp(25)[20:], 0, 0, 0, 0, 0])
    assert "padded by 5 samples" in last.description
    hops = [sample.feeds["x"].values[0, 0] * 128 for sample in samples(TEN, {**given, "hop": 5})]
    assert hops == [0, 5, 10, 15]
    assert [sample.label for sample in samples(TEN, {**given, "hop": 5, "every": 2})] == [
        "a.wav sample 0",
        "a.wav sample 10",
    ]
    write_wav(in_folder / "a.wav", ramp(10))
    assert len(samples(TEN, given)) == 1
    write_wav(in_folder / "a.wav", ramp(11))
    assert len(samples(TEN, given)) == 2
    assert len(samples(TEN, {**given, "hop": 1})) == 2
    write_wav(in_folder / "a.wav", ramp(15))
    assert len(samples(TEN, {**given, "hop": 15})) == 1  # no window of padding alone


def test_channels_are_mixed_or_repeated_and_reported(in_folder: Path, check_message: CheckMessage) -> None:
    write_wav(in_folder / "two.wav", np.stack([ramp(10), 3 * ramp(10)]))
    (mixed,) = samples(TEN, {"data": "two.wav", "rate": 16000})
    np.testing.assert_allclose(mixed.feeds["x"].values[0], 2 * ramp(10))
    assert "2 -> 1 channel, 16000 Hz" in mixed.feeds["x"].description
    write_wav(in_folder / "one.wav", ramp(10))
    (both,) = samples(TensorSpec("x", "float32", (1, 2, 10)), {"data": "one.wav", "rate": 16000})
    np.testing.assert_array_equal(both.feeds["x"].values, np.stack([ramp(10), ramp(10)])[None])
    check_message(refused(TensorSpec("x", "float32", (1, 3, 10)), data="two.wav"))


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((10,), None, (10,)),
        ((1, 1, "t"), None, (1, 1, 10)),
        ((4, "t", 1), "NTC", (4, 10, 1)),
        ((1, 10, 1), None, (1, 10, 1)),
        ((1, "c", "t"), None, (1, 2, 10)),
        ((2, 10), "CT", (2, 10)),
    ],
)
def test_the_layout_is_that_of_the_shape(
    shape: tuple[Any, ...], layout: str | None, expected: Any, in_folder: Path
) -> None:
    write_wav(in_folder / "two.wav", np.stack([ramp(10), ramp(10)]))
    given = {"data": "two.wav", "rate": 16000} | ({"layout": layout} if layout else {})
    (sample,) = samples(TensorSpec("x", "float32", shape), given)
    assert sample.feeds["x"].values.shape == expected
    np.testing.assert_allclose(np.unique(sample.feeds["x"].values), ramp(10))


def test_integers_use_the_range_of_their_type(in_folder: Path) -> None:
    write_wav(in_folder / "a.wav", np.array([-1, 0, 0.5]))
    (sample,) = samples(TensorSpec("x", "int16", (1, 3)), {"data": "a.wav", "rate": 16000})
    assert sample.feeds["x"].values.tolist() == [[-32768, 0, 16384]]
    (sample,) = samples(TensorSpec("x", "float32", (1, 3)), {"data": "a.wav", "rate": 16000, "scale": 32768})
    assert sample.feeds["x"].values.tolist() == [[-32768, 0, 16384]]


def test_another_rate_is_converted_if_the_models_is_known_and_a_caveat_if_not(in_folder: Path) -> None:
    write_wav(in_folder / "a.wav", 0.5 * sine(44100, 1000), 44100)
    converted = samples(WHOLE, {"data": "a.wav", "rate": 16000})
    feed = next(iter(converted)).feeds["x"]
    assert "44100 -> 16000 Hz" in feed.description
    np.testing.assert_allclose(feed.values[0, 500:-500], 0.5 * sine(16000, 1000)[0, 500:-500], atol=1e-4)
    assert converted.notes == ()
    unknown = samples(WHOLE, {"data": "a.wav"})
    (note,) = unknown.notes
    assert note.startswith("input x: a.wav has 44100 Hz") and "`rate:`" in note
    assert next(iter(unknown)).feeds["x"].values.shape == (1, 22050)


@pytest.mark.parametrize(("rate", "new"), [(44100, 16000), (8000, 16000), (16000, 44100), (48000, 16000)])
def test_converted_rates_keep_tones_and_remove_those_that_would_alias(rate: int, new: int) -> None:
    inner = slice(new // 16, -new // 16)
    for share in (0.05, 0.4):
        tone = share * min(rate, new)
        np.testing.assert_allclose(
            resample(sine(rate, tone), rate, new)[0, inner], sine(new, tone)[0, inner], atol=1e-4
        )
    if new < rate:
        assert np.abs(resample(sine(rate, 0.55 * new), rate, new)[0, inner]).max() < 1e-4


def test_the_converted_length_is_that_of_the_time() -> None:
    for frames in (1, 2, 441, 442):
        assert resample(np.ones((1, frames), np.float32), 44100, 16000).shape == (1, -(-frames * 160 // 441))


def test_files_that_do_not_fit_are_refused(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    write_wav(in_folder / "a.wav", ramp(100))
    cut = (in_folder / "a.wav").read_bytes()[:100]
    (in_folder / "cut.wav").write_bytes(cut)
    (in_folder / "empty.wav").write_bytes(cut[:44])
    check_message(refused(WHOLE, data="none.wav"))
    check_message(refused(WHOLE, data="cut.wav"))
    check_message(refused(WHOLE, data="empty.wav"))
    check_message(refused(TensorSpec("x", "int8", (1, 3)), data="a.wav"))
    check_message(refused(TensorSpec("x", "float32", (1, 80, 3000)), data="a.wav"))
    check_message(refused(TensorSpec("x", "float32", (1, 10)), data="a.wav", layout="NCHW"))
    check_message(refused(WHOLE, data="a.wav", hop=5))
    check_message(refused(WHOLE, data="a.wav", std=[0]))
    check_message(refused(TensorSpec("x", "float32", (1, 0)), data="a.wav"))
    check_message(refused(WHOLE, data=str(write_wav(in_folder / "b.wav", ramp(9), 900000)), rate=8000))
    monkeypatch.setattr(audio, "MOST_VALUES", 99)
    check_message(refused(WHOLE, data="a.wav", rate=16000))
    monkeypatch.setattr(audio, "MOST_VALUES", 150)
    check_message(refused(WHOLE, data="a.wav", rate=32000))


@pytest.mark.parametrize(("place", "value"), [(34, 40), (34, 255), (16, 255), (22, 0)])
def test_headers_that_no_program_writes_are_refused(place: int, value: int, in_folder: Path) -> None:
    """A sample of 40 bits, a chunk that ends beyond the file, no channels."""
    data = bytearray(write_wav(in_folder / "a.wav", ramp(25)).read_bytes())
    data[place] = value
    Path("a.wav").write_bytes(data)
    with pytest.raises((RequestError, BackendError)):
        list(samples(WHOLE, {"data": "a.wav"}))


def test_a_length_that_a_pipe_left_open_is_the_rest_of_the_file(in_folder: Path) -> None:
    data = bytearray(write_wav(in_folder / "a.wav", ramp(25)).read_bytes())
    data[40:44] = (0xFFFFFFFF).to_bytes(4, "little")
    (in_folder / "a.wav").write_bytes(data)
    assert read_audio(in_folder / "a.wav", "x")[1].shape == (1, 25)


@needs_decoder
@pytest.mark.parametrize(("suffix", "codec"), [(".flac", "flac"), (".wav", "pcm_f32le")])
def test_other_formats_are_decoded(suffix: str, codec: str, in_folder: Path) -> None:
    import av

    path = in_folder / f"a{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=16000, layout="mono")
        assert isinstance(stream, av.AudioStream)
        form = "s16" if codec == "flac" else "flt"
        values = 0.5 * sine(16000, 440)
        pcm = np.round(values * 32768).astype(np.int16) if form == "s16" else values
        frame = av.AudioFrame.from_ndarray(pcm, format=form, layout="mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    rate, waveform = read_audio(path, "x")
    assert rate == 16000
    np.testing.assert_allclose(waveform, values, atol=1e-4)
    assert len(samples(TensorSpec("x", "float32", (1, 4000)), {"data": str(path), "rate": 16000})) == 2


@needs_decoder
def test_files_that_are_not_audio_are_refused(in_folder: Path, check_message: CheckMessage) -> None:
    Path("list.wav").write_text("#EXTM3U\n/etc/passwd\n")
    check_message(refused(WHOLE, data="list.wav"))
    Path("noise.mp3").write_bytes(bytes(range(256)) * 4)
    check_message(refused(WHOLE, data="noise.mp3"))


def test_other_formats_need_a_decoder(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    Path("a.flac").write_bytes(b"fLaC")
    monkeypatch.setattr("ndld_flow.base.extras.find_spec", lambda name: None)
    with pytest.raises(BackendError) as caught:
        list(samples(WHOLE, {"data": "a.flac"}))
    check_message(caught.value)


@pytest.mark.parametrize(("rate", "new"), [(1, 16000), (48000, 100)])
def test_rates_that_are_too_far_apart_are_refused(
    rate: int, new: int, in_folder: Path, check_message: CheckMessage
) -> None:
    """16,000 samples that claim 1 Hz would become a GiB."""
    write_wav(in_folder / "a.wav", ramp(25), rate)
    check_message(refused(WHOLE, data="a.wav", rate=new))
    assert len(list(samples(WHOLE, {"data": "a.wav", "rate": rate}))) == 1
