"""Valid models with bytes and fields changed at random, by a seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.support import models

_BASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "cnn": models.cnn_model,
    "tfm": functools.partial(models.tfm_model, 1),
    "ctrl": models.ctrl_model,
    "func": models.func_model,
    "sparse": models.sparse_model,
}
_NUMBERS = (0, -1, 1, 2, 3, 7, 100, 255, 10**6, 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1)
_REALS = (0.0, -1.0, float("nan"), float("inf"), 1e30)
_TEXTS = (
    "", "x", "y", "\0", "\n", "\x1b[31m", "<b>", "../../etc/passwd", "a" * 1000, "ai.onnx", "com.microsoft", "local",
    "Conv", "If", "Loop", "Identity", "Add", "Reshape", "Constant", "ConstantOfShape",
)  # fmt: skip
_BYTES = (b"", b"\xff\xfe", b"abcd", bytes(9))


def mutant(seed: int) -> bytes:
    """A model of which bytes, or one to four fields, are not as they were."""
    rng = random.Random(seed)
    good = _base(rng.choice(sorted(_BASES)))
    if rng.random() < 0.3:
        return change_bytes(good, rng)
    model = onnx.ModelProto.FromString(good)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change_field(model, rng)
    return bytes(model.SerializeToString())


@functools.cache
def _base(name: str) -> bytes:
    return bytes(_BASES[name]().SerializeToString())


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip bits; delete, insert, copy or repeat bytes; or truncate the end."""
    changed, at, length = bytearray(data), rng.randrange(len(data)), rng.choice((1, 2, 8, 64, 300))
    match rng.choice(("flip", "flip", "lose", "add", "copy", "cut", "repeat")):
        case "flip":
            for _ in range(rng.choice((1, 2, 5, 20))):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "lose":
            del changed[at : at + length]
        case "add":
            changed[at:at] = rng.randbytes(length)
        case "copy":
            start = rng.randrange(len(data))
            changed[at : at + length] = data[start : start + length]
        case "cut":
            del changed[at:]
        case _:
            changed[at:at] = data[at : at + length]
    return bytes(changed)


def _change_field(model: Message, rng: random.Random) -> None:
    """One field of one message; each kind of message is as likely as any other, however many there are."""
    messages = list(_messages(model))
    kind = rng.choice(sorted({message.DESCRIPTOR.full_name for message in messages}))
    message = rng.choice([message for message in messages if message.DESCRIPTOR.full_name == kind])
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None:
        others = [_copied(message) for message in messages if message.DESCRIPTOR is field.message_type]
    else:
        kindred = (getattr(item, field.name) for item in messages if item.DESCRIPTOR is message.DESCRIPTOR)
        others = [value for item in kindred for value in (item if field.is_repeated else [item])]
        others += _values(field)
    if field.is_repeated:
        _change_list(getattr(message, field.name), others, rng)
    elif not others or rng.random() < 0.25:
        message.ClearField(field.name)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(rng.choice(others))
    else:
        setattr(message, field.name, rng.choice(others))


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _copied(message: Message) -> Message:
    """No message can be put into itself."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _change_list(items: Any, others: list[Any], rng: random.Random) -> None:
    match rng.choice(("lose", "repeat", "swap", "add", "replace", "clear")):
        case "clear":
            del items[:]
        case "lose" if items:
            del items[rng.randrange(len(items))]
        case "repeat" if items:
            items.append(items[rng.randrange(len(items))])
        case "swap" if len(items) > 1:
            shuffled = list(items)
            rng.shuffle(shuffled)
            del items[:]
            items.extend(shuffled)
        case "replace" if items and others:
            kept = list(items)
            kept[rng.randrange(len(kept))] = rng.choice(others)
            del items[:]
            items.extend(kept)
        case _ if others:
            items.append(rng.choice(others))


def _values(field: FieldDescriptor) -> list[Any]:
    """Values of a field's type that make trouble."""
    if field.enum_type is not None:
        return [value.number for value in field.enum_type.values]
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        return list(range(-1, 28))
    values: dict[int, list[Any]] = {
        FieldDescriptor.CPPTYPE_STRING: list(_BYTES if field.type == FieldDescriptor.TYPE_BYTES else _TEXTS),
        FieldDescriptor.CPPTYPE_FLOAT: list(_REALS),
        FieldDescriptor.CPPTYPE_DOUBLE: list(_REALS),
        FieldDescriptor.CPPTYPE_UINT64: [abs(number) for number in _NUMBERS],
    }
    return values.get(field.cpp_type, list(_NUMBERS))
