"""Keys are computed from true values; displayed values are without credentials and never enter keys."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import yaml

from ndld_flow import api
from ndld_flow.base.errors import OutputsError, RecipeError
from ndld_flow.execution.request import Request
from ndld_flow.recipe.recipe import ModelSource
from ndld_flow.recipe.sources import find_model
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.records.run_record import RunRecord
from ndld_flow.store.hidden_credentials import find_redacted, hide_credentials
from ndld_flow.store.store import Store
from ndld_flow.sweep.run_request import run_request
from tests.support.message_files import CheckMessage
from tests.support.toys import RECIPE, Toy, make_toy, started

LONG = "https://hub.example/model?revision=0123456789abcdef0123456789abcdef0123456"
ONE = "name: toy\nmodel: model.onnx\nsteps_from: [steps/stamp.py]\nsteps: {first: {step: stamp, word: '%s'}}\n"


def stamp_of(folder: str, step: str = "first") -> str:
    return str(onnx.load(Path(folder) / step / "model.onnx").doc_string).strip()


def record_of(folder: str) -> RunRecord:
    return read_run_record(Path(folder))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{LONG}a", f"{LONG}b"),
        ("https://joe:password-one@host/x", "https://joe:password-two@host/x"),
        pytest.param("s3://joe@bucket-host/x", "s3://ann@bucket-host/x", marks=pytest.mark.thorough),
        pytest.param("https://host/x?token=abcdefgh1", "https://host/x?token=abcdefgh2", marks=pytest.mark.thorough),
        pytest.param("https://host/x?opaque-one", "https://host/x?opaque-two", marks=pytest.mark.thorough),
    ],
)
def test_a_changed_part_of_an_address_recomputes(in_folder: Path, one: str, other: str) -> None:
    toy = make_toy(in_folder, ONE % one)
    first, _ = toy.run()
    toy.write(ONE % other)
    assert toy.plan()["first"][0] == "settings changed"
    second, events = toy.run()
    assert started(events) == ["first"]
    assert (stamp_of(first.folder), stamp_of(second.folder)) == (one, other)
    toy.write(ONE % one)
    assert started(toy.run()[1]) == []


def test_the_digest_for_caches_of_ci_is_the_same_with_another_credential(in_folder: Path) -> None:
    """Each machine may have its own. What else differs is in the digest."""
    toy, digests = make_toy(in_folder, ONE % "https://h/x?token=canary-one"), list[str]()
    for word in ("https://h/x?token=canary-one", "https://h/x?token=canary-two", "https://h/y?token=canary-two"):
        toy.write(ONE % word)
        digests.append(api.digest(toy.recipe, outputs=in_folder / "outputs", trust=True))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.thorough
def test_points_of_a_sweep_over_an_address_have_separate_results(in_folder: Path) -> None:
    words = [f"{LONG}a", f"{LONG}b", "https://h/x?token=canary-one", "https://h/x?token=canary-two"]
    toy = make_toy(
        in_folder, (ONE % "x") + f"sweep: {{over: {{first.word: {json.dumps(words)}}}, maximize: first.length}}\n"
    )
    best = in_folder / "best.yaml"
    request = Request(toy.recipe, (), in_folder / "outputs", trust=True, apply=best)
    done = run_request(request, print)
    points = sorted(Path(done.folder).glob("points/*"))
    assert [stamp_of(str(point), "first/stored") for point in points] == words
    leaking = [path for path in (in_folder / "outputs").rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    assert [path for path in leaking if path.suffix != ".onnx"] == []
    assert yaml.safe_load(best.read_text())["steps"]["first"]["word"] in words
    again = api.sweep(toy.recipe, outputs=in_folder / "outputs", trust=True)
    assert again.nothing_to_do


def test_a_run_folder_with_a_public_address_repeats_itself(in_folder: Path) -> None:
    first, _ = make_toy(in_folder, ONE % LONG).run()
    again = api.run(Path(first.folder) / "recipe.yaml", outputs=in_folder / "elsewhere", trust=True)
    assert stamp_of(again.folder) == LONG


def test_a_run_folder_with_a_redacted_credential_does_not_run(in_folder: Path) -> None:
    first, _ = make_toy(in_folder, ONE % "https://joe:canary-word@host/x").run()
    recipe = Path(first.folder) / "recipe.yaml"
    assert "canary" not in recipe.read_text() and "steps.first.word" in recipe.read_text().partition("name:")[0]
    for check in (api.run, api.plan):
        with pytest.raises(RecipeError, match=r"(?s)steps\.first\.word.*credential.*\$\{oc\.env:NAME\}"):
            check(recipe, outputs=in_folder / "elsewhere", trust=True)
    whole = api.run(
        recipe, ["steps.first.word='https://joe:canary-word@host/x'"], outputs=in_folder / "outputs", trust=True
    )
    assert whole.nothing_to_do or stamp_of(whole.folder) == "https://joe:canary-word@host/x"


def test_an_override_with_a_redacted_credential_is_refused(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder)
    with pytest.raises(RecipeError) as caught:
        toy.run("steps.first.word='https://***@host/x'")
    check_message(caught.value)
    with pytest.raises(RecipeError, match="credential"):
        api.sweep(toy.recipe, ["steps.first.word='https://host/?token=***',b"], trust=True)
    assert toy.run("steps.first.word='three *** stars'")[0].passed


def test_a_credential_from_a_variable_is_written_as_its_name(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word = "https://joe:${oc.env:TOY_PASS}@host/x"
    monkeypatch.setenv("TOY_PASS", "canary-one")
    toy = make_toy(in_folder, ONE % word)
    first, _ = toy.run()
    recipe = Path(first.folder) / "recipe.yaml"
    assert yaml.safe_load(recipe.read_text())["steps"]["first"]["word"] == word
    assert api.run(recipe, outputs=in_folder / "outputs", trust=True).nothing_to_do
    monkeypatch.setenv("TOY_PASS", "canary-two")
    second = api.run(recipe, outputs=in_folder / "outputs", trust=True)
    assert stamp_of(second.folder) == "https://joe:canary-two@host/x"
    texts = [path for path in Path(second.folder).rglob("*") if path.is_file() and path.suffix != ".onnx"]
    assert [path for path in texts if b"canary" in path.read_bytes()] == []


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_occurs(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_API_TOKEN", "canary-12345")
    first, _ = make_toy(in_folder, ONE % "${oc.env:TOY_API_TOKEN}").run()
    assert stamp_of(first.folder) == "canary-12345"
    texts = [path for path in (in_folder / "outputs").rglob("*") if path.is_file() and path.suffix != ".onnx"]
    assert [path for path in texts if b"canary" in path.read_bytes()] == []
    recipe = yaml.safe_load((Path(first.folder) / "recipe.yaml").read_text())
    assert recipe["steps"]["first"]["word"] == "${oc.env:TOY_API_TOKEN}"
    typed = api.run(Toy(in_folder).write(ONE % "canary-12345").recipe, outputs=in_folder / "other", trust=True)
    marked = yaml.safe_load((Path(typed.folder) / "recipe.yaml").read_text())
    assert list(find_redacted(marked)) == ["steps.first.word"]


def test_keys_do_not_allow_guessing_passwords(in_folder: Path) -> None:
    """Equal runs in two stores have other keys: a digest that can be tried needs the store's own salt."""
    toy = make_toy(in_folder, ONE % "https://joe:1234@host/x")
    first, _ = toy.run()
    second = api.run(toy.recipe, outputs=in_folder / "second", trust=True)
    keys = [[step.record.key for step in record_of(run.folder).steps if step.record] for run in (first, second)]
    assert keys[0] != keys[1]
    salt = in_folder / "outputs" / "store" / "salt"
    assert salt.stat().st_mode & 0o077 == 0
    assert salt.read_bytes() not in b"".join(
        path.read_bytes() for path in Path(first.folder).rglob("*") if path.is_file()
    )


def test_a_variable_that_names_a_file_is_no_credential(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_folder / "credentials.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(in_folder / "credentials.json"))
    assert hide_credentials(f"{in_folder}/credentials.json") == f"{in_folder}/credentials.json"


def test_a_salt_that_cannot_be_read_is_reported(in_folder: Path, check_message: CheckMessage) -> None:
    toy = make_toy(in_folder, ONE % "https://joe:1234@host/x")
    (in_folder / "outputs" / "store" / "salt").mkdir(parents=True)
    with pytest.raises(OutputsError) as caught:
        toy.run()
    check_message(caught.value)


def test_a_damaged_salt_only_causes_a_recomputation(in_folder: Path) -> None:
    toy = make_toy(in_folder, ONE % "https://joe:1234@host/x")
    toy.run()
    (in_folder / "outputs" / "store" / "salt").write_bytes(b"short")
    done, events = toy.run()
    assert done.passed and started(events) == ["first"]
    assert len(Store(in_folder / "outputs" / "store")._salt()) == 32


def test_models_that_differ_in_hidden_parts_are_distinguished(in_folder: Path) -> None:
    """A model that is pinned by blake3 alone is found by it, not by its address without credentials."""
    import fsspec

    make_toy(in_folder)
    store, addresses, digests = Store(in_folder / "store"), [], []
    for name in ("one", "two"):
        model = onnx.load(in_folder / "model.onnx")
        model.doc_string = name
        onnx.save(model, in_folder / f"{name}.onnx")
        digests.append(find_model(ModelSource(source=f"{name}.onnx"), store, print).record.digest)
        addresses.append(f"memory://toy/m.onnx?token={name}")
        with fsspec.open(addresses[-1], "wb") as file:
            file.write((in_folder / f"{name}.onnx").read_bytes())
    for address, digest in zip(addresses, digests, strict=True):
        assert find_model(ModelSource(source=address, blake3=digest), store, print).record.digest == digest


@pytest.mark.parametrize(
    "text",
    [
        "https://host/x?revision=0123456789abcdef0123456789abcdef01234567",
        "https://host/x?ref=feature/a-long-branch&download=true",
        "https://host/x?layout=channels-last-with-padding",
        "https://host/x?version=2025-06-01T12:00:00Z",
        "https://joe:${oc.env:PASSWORD}@host/x?token=${oc.env:TOKEN}",
        "/data/***/a *** b",
    ],
)
def test_values_without_credentials_are_shown(text: str) -> None:
    assert hide_credentials(text) == text
    assert list(find_redacted(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "https://host/x?access_key=a",
        "https://host/x?code=abcdef",
        "https://host/x?x=9f86d081884c7d659a2feaa0c55ad015",
        "https://joe:${oc.env:PASSWORD,fallback}@host/x",
        "https://joe:pw${oc.env:PASSWORD}@host/x",
    ],
)
def test_possible_credentials_are_hidden(text: str) -> None:
    assert "***" in hide_credentials(text)
    assert list(find_redacted([{"a": hide_credentials(text)}])) == ["0.a"]


def test_the_toy_recipe_has_no_redacted_value() -> None:
    assert list(find_redacted(yaml.safe_load(RECIPE))) == []
