"""Channel counts that tensor cores pad."""

from __future__ import annotations

from collections.abc import Iterator

from ndld_flow.base.quantities import share
from ndld_flow.profiles.diagnose.lint_subject import Channels, LintSubject, channels_of, is_product, name_some
from ndld_flow.profiles.diagnose.subject import Insight, layers_word
from ndld_flow.records.layer_arithmetic import TENSOR_CORE

_NOTABLE_SHARE = 0.02
_MUCH = 0.1
"""Minimum share of a layer's multiplications, without times."""
_MOST_STEPS = 200


def channel_alignment(subject: LintSubject) -> Iterator[Insight]:
    """Report padding that takes at least 2 % of the latency; without times, 10 % of a layer's multiplications.

    Ignores channel counts that are not a design choice: channels of images, and outputs that no other product reads,
    such as the classes of a classifier. Grouped convolutions follow other rules.
    """
    padded = {place: channels for place in range(len(subject.layers)) if (channels := _padded(subject, place))}
    saved = sum(channels.wasted * subject.share([place]) for place, channels in padded.items())
    if not padded or (subject.is_timed and saved < _NOTABLE_SHARE):
        return
    positions = tuple(sorted(padded, key=lambda place: -padded[place].wasted * (subject.share([place]) or 1.0)))
    worst = padded[positions[0]]
    yield Insight(
        score=saved,
        title=f"{layers_word(len(positions))} with channels that tensor cores pad"
        + (f": {share(saved)} of {subject.whole} multiplies zeros" if subject.is_timed else ""),
        evidence=f"{name_some(subject, positions)}: {subject.took(positions)}. In {name_some(subject, positions[:1])} "
        f"{share(worst.wasted)} of the multiplications are on padding: it has {' and '.join(worst.odd)}.",
        next_step=(
            "Channels up to the next multiple cost nothing extra: use them when the model is redesigned or pruned, "
            "or reduce to the multiple below."
        ),
        layers=positions,
    )


def _padded(subject: LintSubject, place: int) -> Channels | None:
    layer = subject.layers[place]
    known_off = layer.unit not in ("", TENSOR_CORE) and not layer.on_tensor_cores
    channels = channels_of(layer) if is_product(layer) and not known_off else None
    # In a product of two activations the channels are sequence lengths.
    if channels is None or not layer.weights_dtype or (layer.precision == "float32" and not layer.on_tensor_cores):
        return None
    free = Channels(
        channels.inputs,
        channels.outputs,
        1 if channels.is_image else channels.input_multiple,
        channels.output_multiple if _feeds_product(subject, place) else 1,
    )
    return free if free.wasted > (0.0 if subject.is_timed else _MUCH) else None


def _feeds_product(subject: LintSubject, place: int) -> bool:
    """Return whether another product reads this one's output, directly or through layers that do not multiply."""
    waiting, seen = [place], {place}
    while waiting and len(seen) < _MOST_STEPS:
        layer = subject.layers[waiting.pop()]
        readers = {reader for tensor in layer.outputs for reader in subject.readers.get(tensor.name, ())} - seen
        if any(is_product(subject.layers[reader]) for reader in readers):
            return True
        seen |= readers
        waiting += readers
    return False
