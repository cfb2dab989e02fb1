"""The page of activations without a browser: its data, size limits, files, and escaping."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import MINUS
from ndld_flow.records.accuracy import LayerDivergence
from ndld_flow.records.activations import ActivationMap, Activations
from ndld_flow.report.activations.maps import PackedMap, PackedMaps, is_within_folder, pack_maps, read_activations
from ndld_flow.report.activations.page import (
    ActivationsPage,
    collect_page,
    draw_activations,
    result_of,
    snr_words,
    title_of,
    verdict_of,
)
from ndld_flow.report.panels.activations import collect_activations
from ndld_flow.report.render import environment
from ndld_flow.report.run_page import draw_report
from tests.report.test_report import Tags
from tests.support import activation_samples as captured_maps
from tests.support.message_files import CheckMessage
from tests.support.models import save, tensor
from tests.support.page_data import data_of
from tests.support.run_fixtures import StepSketch, run_record, write_run
from tests.support.text_facts import numbers_in

FULL = 2**32


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured_maps.write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sketches = [captured_maps.Sketch(f"t{index}", "Conv", (4, 8, 8), scale=1e5) for index in range(2)]
    return captured_maps.write(tmp_path_factory.mktemp("small"), sketches, 1, model="a", reference="b")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured_maps.write_large(tmp_path_factory.mktemp("large"), tensors=3, samples=3, channels=40, side=12)


@pytest.fixture(scope="module")
def whole(large: Path) -> tuple[Activations, int, int]:
    """The large one: its record, and the letters of its pictures and of all its maps."""
    record = read_activations(large)
    return record, *letters_of(pack_maps(record, large, FULL))


def letters_of(packed: PackedMaps) -> tuple[int, int]:
    """Return the letters of images and of maps."""
    pictures = sum(len(packed.chunks[chunk]) for chunk in packed.pictures.values())
    return pictures, packed.letters - pictures


def page_of(folder: Path, budget: int = FULL) -> ActivationsPage:
    record = read_activations(folder)
    return collect_page(record, pack_maps(record, folder, budget), "")


def codes_of(packed: PackedMaps, drawn: PackedMap) -> Any:
    """Decode the codes as the page does."""
    data = gzip.decompress(base64.b64decode(packed.chunks[drawn.chunk]))
    low, high = (
        np.frombuffer(part, np.uint8).astype(np.uint16) for part in (data[: len(data) // 2], data[len(data) // 2 :])
    )
    codes = low | high << 8
    if drawn.over >= 0:
        base = next(other for other in packed.maps if other.chunk == drawn.over)
        codes ^= codes_of(packed, base)
    return codes


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def file_of(folder: Path, drawn: ActivationMap) -> Any:
    return np.frombuffer((folder / drawn.file).read_bytes(), "<u2").reshape(drawn.channels, -1)


def changed(folder: Path, to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return the document with a change, and the same files next to it."""
    document = json.loads((folder / "activations.json").read_text("utf-8"))
    change(document)
    shutil.copytree(folder, to, copy_function=os.link)
    (to / "activations.json").unlink()
    (to / "activations.json").write_text(json.dumps(document), encoding="utf-8")
    return to


# --- what is collected ---


def test_two_models_at_a_glance(pair: Path) -> None:
    page = page_of(pair)
    assert (page.title, page.verdict) == ("half against source", "failed")
    assert numbers_in(page.result) == [1, 11]
    assert "fp16 and bf16 tensors" in page.arithmetic
    figures = {figure.title: (figure.figure, figure.note, figure.tensor) for figure in page.figures}
    assert figures["Samples"] == ("2", "receipt_0.png, receipt_1.png", "")
    assert figures["Not finite"] == ("1", "first", "batch_norm_7.tmp_2")
    assert figures["Lowest signal to noise"][0].endswith(" dB")
    assert [figure.link for figure in page.figures if figure.title == "Not finite"] == ["#tensor=batch_norm_7.tmp_2"]
    _, op_type, tensor, *_, issues = page.tensors.rows[3]
    assert (op_type, tensor) == ("BatchNormalization", "float16 1×24×20×20 NCHW")  # noqa: RUF001
    assert re.match("2 NaN, .* infinite(,|$)", str(issues))
    assert [row[6].text for row in page.tensors.cells()][9] == "equal"


def test_one_model_is_not_compared(tmp_path: Path) -> None:
    page = page_of(captured_maps.write_single(tmp_path))
    assert (page.title, page.verdict, page.data.reference) == ("sanitize", "passed", "")
    assert numbers_in(page.result) == [] and page.result.endswith("finite")
    assert "execution provider does" in page.arithmetic
    assert dict(page.ran) == {
        "On": "CPUExecutionProvider",
        "Noise": "normal, deviation 0.02, seed 0",
        "Stopped at": "sigmoid_0",
    }
    assert "Signal to noise" not in [column.title for column in page.tensors.columns]
    assert [figure.title for figure in page.figures] == ["Tensors", "Samples", "Not finite"]


@pytest.mark.parametrize(
    ("db", "verdict", "words"),
    [
        (-28.0, "failed", f"signal to noise {MINUS}28.0 dB"),
        (0.0, "failed", "signal to noise 0.0 dB"),
        (35.0, "info", "signal to noise 35.0 dB"),
        (400.0, "passed", "Equal to source"),
        (None, "info", "none was compared"),
    ],
)
def test_the_headline_is_the_largest_difference(tmp_path: Path, db: float | None, verdict: str, words: str) -> None:
    finite = [sketch for sketch in captured_maps.PAIR if not sketch.broken]
    record = read_activations(captured_maps.write(tmp_path, finite, 1, model="half", reference="source"))
    layers = [layer.model_copy(update={"metrics": {"snr_db": 500.0}}) for layer in record.divergence]
    layers[2] = layers[2].model_copy(update={"metrics": {"snr_db": 500.0 if db is None else db}})
    record = record.model_copy(update={"divergence": () if db is None else tuple(layers)})
    assert verdict_of(record) == verdict
    assert words in result_of(record)
    assert (layers[2].tensor in result_of(record)) is (db is not None and db < 300)


@pytest.mark.parametrize(
    ("noise", "steepest"),
    [
        ((500.0, 58.0, 50.0, -26.0, -28.0), 3),
        ((500.0, 58.0, 50.0, 45.0, 44.0), None),  # the first rounding is no fall
        ((500.0, 58.0, 50.0, 45.0, -28.0), None),  # it is the furthest itself
        ((500.0, -5.0, -6.0, -7.0, -8.0), 1),
    ],
)
def test_the_headline_names_where_the_noise_begins(
    tmp_path: Path, noise: tuple[float, ...], steepest: int | None
) -> None:
    finite = [sketch for sketch in captured_maps.PAIR if not sketch.broken]
    record = read_activations(captured_maps.write(tmp_path, finite, 1, model="half", reference="source"))
    layers = [
        layer.model_copy(update={"metrics": {"snr_db": db}})
        for layer, db in zip(record.divergence, noise, strict=False)
    ]
    text = result_of(record.model_copy(update={"divergence": tuple(layers)}))
    assert len(layers) == len(noise)
    assert ("falls most at" in text) == (steepest is not None)
    assert steepest is None or f"falls most at {layers[steepest].tensor}, " in text


def test_a_page_without_captured_tensors_is_written(tmp_path: Path) -> None:
    record = Activations(model="m", provider="CPU", samples=(), tensors=())
    (tmp_path / "activations.json").write_text(record.to_json(), encoding="utf-8")
    text = draw_activations(tmp_path).read_text("utf-8")
    assert "No tensor was captured" in text
    assert '<div data-live="list"' not in text


@pytest.mark.parametrize(
    ("db", "words"),
    [(61.23, "61.2 dB"), (-28.04, "−28.0 dB"), (500.0, "equal"), (-500.0, "−∞ dB")],  # noqa: RUF001
)
def test_signal_to_noise_is_described(db: float, words: str) -> None:
    assert snr_words(db) == words


def test_titles_hold_names_of_80_characters(small: Path) -> None:
    record = read_activations(small)
    names = {"model": "m" * 80, "reference": "r" * 80}
    assert title_of(record.model_copy(update=names)) == "{model} against {reference}".format(**names)
    assert title_of(record.model_copy(update={**names, "reference": ""})) == names["model"]
    assert names["model"] not in title_of(record.model_copy(update={**names, "model": "m" * 81}))


def test_a_map_larger_than_the_estimates_part_is_packed(tmp_path: Path) -> None:
    sketch = captured_maps.Sketch("t", "Conv", (2, 256, 160))
    folder = captured_maps.write(tmp_path, [sketch], 1, model="a")
    packed = pack_maps(read_activations(folder), folder, FULL)
    assert [item.numbers for item in packed.maps] == [(0, 1)]
    assert packed.notes == []


def test_non_finite_values_are_text_on_the_page(small: Path, tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["divergence"][0]["metrics"] |= {"snr_db": "Infinity", "cosine": "NaN"}
        document["tensors"][0]["channels"][0] |= {"mean": "-Infinity"}

    page = page_of(changed(small, tmp_path / "odd", change))
    first = page.data.tensors[0]
    assert first.divergence is not None
    assert first.divergence.metrics["snr_db"] == math.inf
    assert math.isnan(first.divergence.metrics["cosine"])
    assert first.channels.rows[0].mean == -math.inf
    assert next(page.tensors.cells())[6].text == "equal"


def test_a_layer_without_captures_has_no_link(small: Path, tmp_path: Path) -> None:
    foreign = LayerDivergence(position=1, node="n", op_type="o", tensor="elsewhere", metrics={"snr_db": -900.0})
    folder = changed(
        small, tmp_path / "foreign", lambda record: record["divergence"].append(foreign.model_dump(mode="json"))
    )
    assert "elsewhere" not in str(page_of(folder).figures)


# --- maps ---


def test_the_page_holds_the_codes_of_every_map(pair: Path) -> None:
    record = read_activations(pair)
    packed = pack_maps(record, pair, FULL)
    assert len(packed.maps) == sum(len(tensor.maps) for tensor in record.tensors) == 44
    for drawn in packed.maps:
        assert np.array_equal(codes_of(packed, drawn), file_of(pair, drawn.source).ravel()), drawn.source.file
    assert packed.notes == []
    over = {item.source.side: item.over >= 0 for item in packed.maps}
    assert over == {"reference": False, "candidate": True}


def test_two_nearly_equal_maps_take_little_more_than_one(tmp_path: Path) -> None:
    sketch = captured_maps.Sketch("t", "Conv", (16, 40, 40), relu=False, error=1e-4)
    packed = pack_maps(
        read_activations(captured_maps.write(tmp_path, [sketch], 1, model="a", reference="b")), tmp_path, FULL
    )
    reference, candidate = (len(packed.chunks[item.chunk]) for item in packed.maps)
    assert candidate < 0.6 * reference


@pytest.mark.parametrize(
    ("share", "samples", "fewest"), [(0.9, {0, 1, 2}, 30), (0.5, {0, 1, 2}, 16), (0.3, {0, 1}, 16), (0.1, {0}, 8)]
)
def test_all_samples_stay_while_there_is_room_for_enough_channels(
    large: Path, whole: tuple[Activations, int, int], share: float, samples: set[int], fewest: int
) -> None:
    record, pictures, maps = whole
    packed = pack_maps(record, large, pictures + int(share * maps))
    assert 0.75 * share * maps < letters_of(packed)[1] <= share * maps
    assert {item.source.sample for item in packed.maps} == samples
    assert min(len(item.numbers) for item in packed.maps) >= fewest
    (note,) = packed.notes
    assert "page small," in note
    assert (f"maps of {len(samples)} of 3 samples" in note) == (len(samples) < 3)
    for drawn in packed.maps:
        assert np.array_equal(codes_of(packed, drawn), file_of(large, drawn.source)[list(drawn.numbers)].ravel())


def test_the_channels_that_differ_most_are_kept(large: Path, whole: tuple[Activations, int, int]) -> None:
    record, pictures, maps = whole
    packed = pack_maps(record, large, pictures + maps // 2)
    kept = packed.maps[0].numbers
    assert list(kept) == sorted(kept)
    assert packed.maps[1].numbers == kept, "of both sides the same"
    by_difference = sorted(record.tensors[0].channels, key=lambda channel: -(channel.difference_rms or 0))
    assert set(kept) == {item.channel for item in by_difference[: len(kept)]}


def test_a_page_without_room_for_maps_reports_it(pair: Path) -> None:
    packed = pack_maps(read_activations(pair), pair, 30_000)
    assert packed.letters <= 30_000
    assert any("maps are left out" in note for note in packed.notes)
    held = {item.chunk for item in packed.maps}
    assert all(item.over in held for item in packed.maps if item.source.side == "candidate")


@settings(max_examples=8)
@given(share=st.floats(0, 1.2))
def test_no_size_limit_is_exceeded(large: Path, whole: tuple[Activations, int, int], share: float) -> None:
    record, pictures, maps = whole
    assert letters_of(pack_maps(record, large, pictures + int(share * maps)))[1] <= share * maps


@pytest.mark.representatives("<lambda>-No such file", "<lambda>-51,202 bytes, which is no")
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-2]), "not 16 channels of 40 x 40"),
        (lambda path: path.write_bytes(path.read_bytes() + b"00"), "51,202 bytes, which is no"),
        (make_pipe, "not a regular file"),
        (lambda path: path.unlink() or path.symlink_to(__file__), "out of the folder"),
        (lambda path: path.unlink() or path.symlink_to(path), "is left out"),
    ],
)
def test_a_damaged_map_is_reported_and_the_others_are_shown(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = captured_maps.write(tmp_path, captured_maps.PAIR[:2], 1, model="a", reference="b")
    damage(folder / "maps/0000-0-reference.u16")
    packed = pack_maps(read_activations(folder), folder, FULL)
    (note,) = packed.notes
    assert note.startswith("maps/0000-0-reference.u16 is left out: ")
    assert message in note
    (alone,) = [item for item in packed.maps if item.tensor == 0]
    assert np.array_equal(codes_of(packed, alone), file_of(folder, alone.source).ravel())


def test_an_invalid_image_is_skipped(tmp_path: Path) -> None:
    folder = captured_maps.write(tmp_path, captured_maps.PAIR[:1], 1, model="a")
    (folder / "samples/0.png").write_text("<svg onload=alert(1)>")
    packed = pack_maps(read_activations(folder), folder, FULL)
    (note,) = packed.notes
    assert note.startswith("samples/0.png is left out: ")
    assert packed.pictures == {}


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "maps/../../x", "C:x", "a\\b", "a\0b", "javascript:x"])
def test_file_names_cannot_leave_the_folder(small: Path, tmp_path: Path, name: str) -> None:
    assert not is_within_folder(name)

    def change(document: dict[str, Any]) -> None:
        document["tensors"][0]["maps"][0] |= {"file": name, "array_file": name}
        document["tensors"][1]["maps"][0] |= {"array_file": name}
        document["samples"][0]["picture"] = name

    page = page_of(changed(small, tmp_path / "out", change))
    assert len(page.notes) == (1 if name == "" else 2)
    assert page.data.tensors[1].maps[0].array == ""


def test_a_folder_of_maps_outside_the_run_is_not_read(pair: Path, tmp_path: Path) -> None:
    shutil.copy(pair / "activations.json", tmp_path)
    for below in ("maps", "samples"):
        (tmp_path / below).symlink_to(pair / below, target_is_directory=True)
    packed = pack_maps(read_activations(tmp_path), tmp_path, FULL)
    assert (packed.maps, packed.pictures) == ([], {})
    assert len(packed.notes) == 46
    names = [note.partition(" ")[0] for note in packed.notes]
    assert len(set(names)) == 46 and all((pair / name).is_file() for name in names)


@pytest.mark.parametrize(("field", "value"), [("height", 10**30), ("channels", 10**400), ("width", -40), ("width", 0)])
def test_a_map_of_an_impossible_size_is_skipped(small: Path, tmp_path: Path, field: str, value: int) -> None:
    def change(document: dict[str, Any]) -> None:
        document["tensors"][0]["maps"][0][field] = value

    page = page_of(changed(small, tmp_path / "odd", change))
    assert sum(" is left out: " in note for note in page.notes) == 1


@pytest.mark.parametrize("place", ["range", "histogram", "saturated"])
def test_impossible_counts_are_refused(small: Path, tmp_path: Path, place: str, check_message: CheckMessage) -> None:
    def change(document: dict[str, Any]) -> None:
        of = {"range": "nan_count", "histogram": "counts"}
        holder, name = (document["tensors"][0][place], of[place]) if place in of else (document["tensors"][0], place)
        holder[name] = [10**400] if name == "counts" else 10**400

    with pytest.raises(RequestError) as caught:
        page_of(changed(small, tmp_path / "odd", change))
    check_message(caught.value)


def test_shares_refer_to_the_format_in_the_document(small: Path, tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["range_format"] = "bf16"

    page = page_of(changed(small, tmp_path / "bf16", change))
    assert page.data.format == "bf16"
    assert "Beyond bf16" in [figure.title for figure in page.figures]
    assert all(not issues or str(issues).endswith(" beyond bf16") for *_, issues in page.tensors.rows)


@pytest.mark.parametrize(
    ("label", "how", "shown"),
    [
        ("a.png", "image /x y/z/a.png as NCHW, float32 1x3", "image a.png as NCHW, float32 1x3"),
        ("b/a.mp4 frame 3", "image /z/b/a.mp4 frame 3 as NCHW", "image b/a.mp4 frame 3 as NCHW"),
        ("a.png, k.npy row 0", "rel/k.npy row 0 cast, int64 1", "k.npy row 0 cast, int64 1"),
        ("", "random, float32 1/2", "random, float32 1/2"),
        ("random, seed 3", "normal, seed 3", "normal, seed 3"),
    ],
)
def test_paths_are_shortened_to_their_label(small: Path, tmp_path: Path, label: str, how: str, shown: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["samples"][0] |= {"label": label, "inputs": {"x": how}}

    assert page_of(changed(small, tmp_path / "p", change)).data.samples[0].inputs == [("x", shown)]


# --- what is written ---


def test_a_page_has_no_external_references(pair: Path) -> None:
    text = draw_activations(pair).read_text("utf-8")
    tags = Tags(text).found
    assert '<th scope="row" class="mono clip"><bdi>batch_norm_7.tmp_2</bdi></th>' in text, "where no script runs"
    assert not {"img", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in tags}
    assert {dict(given).get("type") for tag, given in tags if tag == "script"} == {
        None,
        "module",
        "application/json+gzip",
        "application/octet-stream",
    }
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "action")]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = captured_maps.write_hostile(tmp_path)
    text = draw_activations(folder).read_text("utf-8")
    assert "<img" not in text
    assert not set(text) & {"\u202e", "\x1b"}
    assert "&lt;/script&gt;" in text
    (shown,) = page_of(folder).data.tensors
    assert shown.name.startswith("</script><img")
    links = {figure.link for figure in page_of(folder).figures if figure.link}
    assert {unquote(link.removeprefix("#tensor=")) for link in links} == {shown.name}
    cards = collect_activations({captured_maps.HOSTILE: read_activations(folder)})
    section = environment().get_template("panels/activations.html.j2").render(panel={"view": cards})
    assert "<img" not in section
    assert 'href="./%3C/script%3E' in section


def test_equal_documents_give_equal_pages(pair: Path) -> None:
    first = draw_activations(pair).read_bytes()
    assert draw_activations(pair).read_bytes() == first


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{}",
        '{"format_version": 99, "model": "m", "provider": "p", "samples": [], "tensors": []}',
    ],
)
def test_invalid_documents_are_refused(tmp_path: Path, text: str | None, check_message: CheckMessage) -> None:
    if text is not None:
        (tmp_path / "activations.json").write_text(text, encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        draw_activations(tmp_path)
    check_message(caught.value)


def test_the_report_of_a_run_redraws_activations(tmp_path: Path) -> None:
    run = run_record([StepSketch("look", "inspect_activations", "activations")])
    write_run(tmp_path, run, {})
    captured_maps.write_single(tmp_path / "look")
    text = draw_report(tmp_path).read_text("utf-8")
    assert (tmp_path / "look" / "activations.html").is_file()
    assert 'href="./look/activations.html"' in text


def test_maps_that_were_not_copied_are_read_in_place(pair: Path, tmp_path: Path) -> None:
    """The store keeps what is large; arrays are linked to there."""
    (tmp_path / "stored").symlink_to(pair, target_is_directory=True)
    page = draw_activations(tmp_path)
    first = data_of(page.read_text("utf-8"))["tensors"][0]
    assert next(item["array"] for item in first["maps"] if item["array"]).startswith("stored/arrays/")
    assert page.parent == tmp_path


def test_a_run_writes_the_page(tmp_path: Path, in_folder: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu"), helper.make_node("Neg", ["y"], ["z"], "neg")],
        "g",
        [tensor("x", [1, 2, 6, 6])],
        [tensor("z", [1, 2, 6, 6])],
    )
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), in_folder / "m.onnx")
    (in_folder / "look.yaml").write_text(
        "model: m.onnx\ninputs: {x: {shape: [1, 2, 6, 6]}}\nsteps: {look: {step: inspect_activations}}\n"
    )
    done = api.run("look.yaml")
    text = (Path(done.folder) / "look" / "activations.html").read_text("utf-8")
    assert "Every captured value" in text
    assert 'href="./look/activations.html"' in (Path(done.folder) / "report.html").read_text("utf-8")
