"""From a weight to the tensors that hold it in a checkpoint. No torch."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from ..checkpoint.contents import BITS
from ..models.architecture import Architecture, Storage
from ..models.patterns import compiled
from .component import Weight

WORD = 32  # bits of the int32 words into which integers are packed


class Tensor(NamedTuple):
    """A tensor of a checkpoint.

    Arguments:
        name: as the checkpoint has it; of what `held` gives, its last part.
        shape: as stored, so of packed codes that of their words.
        dtype: PyTorch's name.
        bytes: of its data.
        parameters: learned values in it: codes count as what they stand for, scales as nothing.
        expected: the dtype is likely, but nobody is known to have read it in the checkpoint.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    parameters: int
    expected: bool


def held(weight: Weight, storage: Storage, quantised: bool) -> tuple[Tensor, ...]:
    """The tensors that hold a weight; ``quantised`` where its module is."""
    if not quantised:
        dtype, expected = weight.dtype or storage.dtype, weight.expected
        if weight.norm and storage.norm_dtype:
            dtype, expected = storage.norm_dtype, True
        return (_tensor(weight.name, weight.shape, dtype, weight.parameters, expected),)
    rows, columns = weight.shape
    name, values = weight.name, rows * columns
    if storage.format == "fp8_block":
        high, wide = storage.block
        tiles = (math.ceil(rows / high), math.ceil(columns / wide))
        return (
            _tensor(name, weight.shape, "float8_e4m3fn", values),
            _tensor(f"{name}_scale_inv", tiles, "float32"),
        )
    groups = (rows, math.ceil(columns / storage.group))
    if storage.format == "mxfp4":
        return (
            _tensor(f"{name}_packed", (rows, math.ceil(columns / 2)), "uint8", values),
            _tensor(f"{name}_scale", groups, "uint8"),
        )
    words = (rows, math.ceil(columns / (WORD // storage.bits)))
    return (
        _tensor(f"{name}_packed", words, "int32", values),
        _tensor(f"{name}_scale", groups, storage.dtype),
        # Kimi's are int32, without which the bytes published for K2-Thinking (594,205,920,512)
        # don't add up; compressed-tensors itself writes int64.
        _tensor(f"{name}_shape", (2,), "int32", expected=True),
    )


def _tensor(
    name: str, shape: tuple[int, ...], dtype: str, parameters: int = 0, expected: bool = False
) -> Tensor:
    return Tensor(name, shape, dtype, size(shape, dtype), parameters, expected)


def size(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * BITS[dtype] // 8


# What can't tell two numbers apart: letters, literal dots, anything at all, alternatives, ends.
_BLIND = re.compile(r"(?:[A-Za-z_()|^$]|\\\.|\.\*)*")
_NESTED = "language_model."


class Ignored:
    """Which modules a quantised checkpoint leaves as they are.

    A name or pattern is meant with or without "language_model." in front, whichever of the two the
    checkpoint has: lists of one model are found with both.
    """

    def __init__(self, architecture: Architecture) -> None:
        self._prefix = architecture.prefix or _NESTED
        patterns = architecture.storage.ignored
        # transformers takes an fp8 checkpoint's names for what is inside them or ends so, too
        self._within = architecture.storage.format == "fp8_block"
        self._names = {self._short(one) for one in patterns if not one.startswith("re:")}
        self._patterns = [compiled(one[3:]) for one in patterns if one.startswith("re:")]
        # whether two layers or experts may differ, so that each must be looked at
        self.by_number = bool(self._names) or not all(
            _BLIND.fullmatch(one.pattern) for one in self._patterns
        )

    def __contains__(self, module: str) -> bool:
        short = self._short(module)
        if self._within and any(
            short.startswith(f"{name}.") or short.endswith(f".{name}") for name in self._names
        ):
            return True
        return short in self._names or any(
            one.match(short) or one.match(self._prefix + short) for one in self._patterns
        )

    def _short(self, name: str) -> str:
        return name.removeprefix(self._prefix)
