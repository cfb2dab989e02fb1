"""Any file of the outputs is truncated, changed or lost: nothing damaged is delivered, and the next run repairs it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from ndld_flow.records.run_folder import read_run_record
from ndld_flow.store import digest
from ndld_flow.store.digest import digest_file
from ndld_flow.store.files import BrokenSealError, read_note, seal, unseal, write_note
from ndld_flow.store.store import Store
from tests.reliability.damages import CHANGES, CUTS, LOSSES, is_possible
from tests.support.command_line import ndld_flow
from tests.support.models import make_cnn
from tests.support.sweep_toys import make_sweep_toy
from tests.support.tally import Tally
from tests.support.toys import make_toy

Tallies = Callable[[str], Tally]
Damage = Callable[[Path], None]

SEED = 20
ATTACKS: dict[str, Sequence[Damage]] = {"file cut": CUTS, "file changed": CHANGES, "file deleted or replaced": LOSSES}
TOY = """
name: toy
model: model.onnx
models: {empty: "new:20"}
steps_from: [steps/stamp.py]
steps:
  first: {step: stamp, word: a}
  bare: {step: stamp, from: empty}
"""
WHOLE = """
name: whole
model: model.onnx
models: {empty: "new:20"}
inputs: {x: {shape: [1, 3, 16, 16]}}
steps:
  lint: {}
  half: {step: convert_fp16, from: source}
  agree: {step: check_accuracy, reference: source, candidate: half}
  look: {step: inspect_activations}
  bare: {step: sanitize, from: empty}
  speed: {step: profile, from: half, runs: 1, duration: 5 ms, layer_passes: 2, stable: 0 %}
"""
BEFORE = (("plan", "RECIPE", "--trust"), ("runs",), ("report", "NAME"), ("gc", "--dry-run"))
AFTER = (("tag", "NAME", "good"), ("compare", "good", "NAME"))


@dataclass(frozen=True)
class Victim:
    """Outputs that are whole, of which a copy is damaged again and again."""

    folder: Path
    recipe: str
    name: str

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    def do(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run a verb on the outputs, which must end with one of these exit codes; return its output."""
        outcome = {"RECIPE": self.recipe, "NAME": self.name}
        done = ndld_flow(*(outcome.get(word, word) for word in arguments), cwd=self.folder)
        result = done.stdout + done.stderr
        assert done.returncode in codes, f"{' '.join(arguments)} ended with {done.returncode}: {result}"
        assert "Traceback" not in result
        return result

    def run(self) -> str:
        return self.do("run", "RECIPE", "--trust")

    def begin(self) -> Victim:
        self.run()
        self.do("tag", "NAME", "good")
        shutil.copytree(self.outputs, self.folder / "pristine", symlinks=True)
        return self

    def restore(self) -> None:
        shutil.rmtree(self.outputs)
        shutil.copytree(self.folder / "pristine", self.outputs, symlinks=True)

    def files(self) -> list[Path]:
        pristine = self.folder / "pristine"
        result = (path for path in sorted(pristine.rglob("*")) if path.is_symlink() or path.is_file())
        return [path.relative_to(pristine) for path in result]


@pytest.fixture
def small_files_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache digests of small files too, as of files over 16 MiB that are seconds old."""
    monkeypatch.setattr(digest, "ALWAYS_HASH_BELOW_BYTES", 1)
    monkeypatch.setattr(digest, "SETTLED_AFTER_S", -1.0)


def make_toy_victim(folder: Path) -> Victim:
    toy = make_toy(folder, TOY)
    return Victim(folder, toy.recipe.name, "toy").begin()


def make_whole_victim(folder: Path) -> Victim:
    make_cnn(folder / "model.onnx")
    (folder / "whole.yaml").write_text(WHOLE)
    return Victim(folder, "whole.yaml", "whole").begin()


def make_swept_victim(folder: Path) -> Victim:
    toy = make_sweep_toy(folder)
    toy.write(toy.recipe.read_text().replace("[1, 2, 4]", "[1]"))
    return Victim(folder, toy.recipe.name, "toy").begin()


def attack(victim: Victim, file: Path, damage: Damage, verbs: bool) -> bool:
    """Damage a file; every verb must handle it, and the next run repair it. Return whether it was refused instead:
    files in place of a lock or of the store marker are left for the user.
    """
    victim.restore()
    damage(victim.outputs / file)
    for verb in BEFORE if verbs else ():
        victim.do(*verb, codes=(0, 2))
    if damage in LOSSES and ("locks" in file.parts or file.name == "FORMAT"):
        for verb in (("run", "RECIPE", "--trust"), ("verify",)):
            if "\nerror: " in "\n" + victim.do(*verb, codes=(0, 1, 2)):  # a sweep has told of its points before
                return True
    victim.run()
    check_delivered(victim)
    document = json.loads(victim.do("verify", "--json", codes=(0, 1)))
    victim.run()
    check_delivered(victim)
    again = json.loads(victim.do("verify", "--json", codes=(0, 1)))
    assert not again["damaged"] and not again["damaged_records"], (document, again)
    for verb in AFTER if verbs else ():
        victim.do(*verb, codes=(0, 1, 2, 4))
    return False


def check_delivered(victim: Victim) -> None:
    """Check that the newest run's artifacts, in the store and in its folder, match its record."""
    for latest in victim.outputs.glob("runs/*/latest"):
        run = read_run_record(latest)
        assert (latest / "report.html").read_bytes().rstrip().endswith(b"</html>")
        store = Store(victim.outputs / "store")
        for step in run.steps:
            assert step.record is not None
            for file in step.record.artifact.files:
                kept = store.object_folder(step.record.artifact.digest) / file.path
                assert digest_file(kept) == digest_file(latest / step.name / file.path) == file.digest


def attack_all(victim: Victim, attacks: Sequence[tuple[str, Path, Damage]], tally: Tallies, verbs: bool) -> None:
    counts = {name: tally(name) for name in ATTACKS}
    lost: list[str] = []
    for name, file, damage in attacks:
        try:
            refused = attack(victim, file, damage, verbs)
        except AssertionError as error:
            counts[name].lost += 1
            lost.append(f"{damage.__name__} {file}: {error}")
        else:
            counts[name].refused += refused
            counts[name].survived += not refused
    assert not lost, f"seed {SEED}\n" + "\n".join(lost)


def every_attack(victim: Victim) -> Iterator[tuple[str, Path, Damage]]:
    for file in victim.files():
        for name, damages in ATTACKS.items():
            for damage in damages:
                if is_possible(damage, victim.folder / "pristine" / file):
                    yield name, file, damage


def test_damaged_files_of_a_run_are_detected(in_folder: Path, small_files_are_remembered: None, tally: Tallies) -> None:
    victim = make_toy_victim(in_folder)
    chosen = random.Random(SEED).sample(list(every_attack(victim)), 8)
    attack_all(victim, chosen, tally, verbs=False)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_whole_victim, make_swept_victim], ids=["run", "sweep"])
def test_every_file_is_damaged_in_each_way(
    make: Callable[[Path], Victim], in_folder: Path, small_files_are_remembered: None, tally: Tallies
) -> None:
    victim = make(in_folder)
    by_file = groupby(every_attack(victim), key=lambda result: result[1])
    chance = random.Random(SEED)
    attack_all(victim, [chance.choice(list(attacks)) for _, attacks in by_file], tally, verbs=True)


def object_of(victim: Victim, step: str) -> Path:
    record = read_run_record(victim.outputs / "runs" / victim.name / "latest").steps
    kept = next(item.record for item in record if item.name == step)
    assert kept is not None
    return Store(victim.outputs / "store").object_folder(kept.artifact.digest) / "model.onnx"


def test_files_set_aside_are_reported(in_folder: Path) -> None:
    victim = make_toy_victim(in_folder)
    model = object_of(victim, "first")
    size = model.stat().st_size
    CUTS[1](model)
    assert f"artifact damaged  model.onnx: {size // 2:,} of {size:,}" in victim.do("plan", "RECIPE", "--trust")
    result = victim.run()
    assert f"damaged (model.onnx: {size // 2:,} of {size:,} bytes)" in result
    [aside] = (victim.outputs / "store" / "damaged").iterdir()
    assert f"outputs/store/damaged/{aside.name} and is recomputed" in result
    assert (aside / "model.onnx").stat().st_size == size // 2
    step = read_run_record(victim.outputs / "runs" / "toy" / "latest").steps[0]
    assert step.reason == "artifact damaged"
    assert step.detail.startswith(f"model.onnx: {size // 2:,} of {size:,} ") and step.detail.endswith(aside.name)
    assert "set aside" in (victim.outputs / "runs" / "toy" / "latest" / "log.txt").read_text()


@pytest.mark.parametrize("damage", [CUTS[1], CHANGES[0], LOSSES[0]])
def test_a_damaged_record_is_kept_and_reported(damage: Damage, in_folder: Path) -> None:
    victim = make_toy_victim(in_folder)
    step = read_run_record(victim.outputs / "runs" / "toy" / "latest").steps[0]
    assert step.record is not None
    record = Store(victim.outputs / "store").record_path(step.record.key)
    damage(record)
    assert "record cannot be read" in victim.do("plan", "RECIPE", "--trust")
    events = [json.loads(line) for line in victim.do("run", "RECIPE", "--trust", "--json").splitlines()]
    assert any("record cannot be read" in event["text"] for event in events if event["event"] == "notice")
    assert len(list((victim.outputs / "store" / "damaged").iterdir())) == 1
    assert record.is_file()


@pytest.mark.parametrize("damage", [CUTS[1], LOSSES[2]])
def test_a_run_whose_record_is_damaged_is_named_and_the_others_are_listed(damage: Damage, in_folder: Path) -> None:
    victim = make_toy_victim(in_folder)
    first = (victim.outputs / "runs" / "toy" / "latest").resolve()
    (in_folder / "steps" / "stamp.py").write_text((in_folder / "steps" / "stamp.py").read_text() + "\n")
    victim.do("run", "RECIPE", "--trust", "--force", "all")
    damage(first / "run.json")
    result = victim.do("runs").splitlines()
    assert sum("passed" in line for line in result) == 1
    [unread] = [line for line in result if f"remove outputs/runs/toy/{first.name}" in line]
    assert "passed" not in unread
    assert first.name in victim.do("gc", codes=(2,))  # who knows what it needs?


def test_files_in_place_of_the_store_marker_are_named(in_folder: Path) -> None:
    toy = make_toy(in_folder, TOY)
    (in_folder / "outputs" / "store" / "FORMAT").mkdir(parents=True)
    result = Victim(in_folder, toy.recipe.name, "toy").do("run", "RECIPE", "--trust", codes=(2,))
    assert "outputs/store/FORMAT cannot be created" in result


def test_a_damaged_result_replaced_by_force_is_reported_in_the_log(in_folder: Path) -> None:
    store = Store(in_folder / "store")
    result: list[str] = []
    for _ in range(2):
        built = in_folder / "built"
        built.mkdir()
        (built / "model.onnx").write_bytes(b"whole")
        kept = store.keep("onnx", built, result.append)
        model = store.object_folder(kept.digest) / "model.onnx"
        CUTS[2](model)
    assert len(result) == 1
    assert "model.onnx: 4 of 5 bytes" in result[0]


def test_a_cache_entry_with_one_wrong_byte_is_ignored(tmp_path: Path) -> None:
    note = tmp_path / "note.json"
    write_note(note, [1, "a"])
    data = note.read_bytes()
    assert read_note(note) == [1, "a"]
    for index in range(len(data)):
        note.write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        assert read_note(note) is None


def test_files_must_match_their_seal() -> None:
    sealed = seal('{\n "key": 1}\n').encode()
    assert json.loads(sealed)["key"] == 1
    assert unseal(sealed) == b'{\n "key": 1}\n'
    for damaged in (sealed.replace(b"1}", b"2}"), sealed[:-2], sealed[1:], b'{"key": 1}', b"{}", b""):
        with pytest.raises(BrokenSealError):
            unseal(damaged)
