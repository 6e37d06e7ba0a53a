"""How this project compares: bits, not closeness.

``torch.equal`` calls -0 and +0 equal and a NaN unequal to itself; a tolerance that passes one
rounding order passes the other as well.
"""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape and dtype differ in their bits; every NaN equals every NaN.

    Returns a bool tensor of that shape. Raises ValueError if shape, dtype or device differ.
    """
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        raise ValueError(
            f"can't compare {a.dtype} {tuple(a.shape)} on {a.device} with "
            f"{b.dtype} {tuple(b.shape)} on {b.device}"
        )
    return (_as_integers(a) != _as_integers(b)) & ~(a.isnan() & b.isnan())


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit agree; every NaN equals every NaN, -0 is not +0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return not bool(differing(a, b).any())


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many representable values apart two tensors are, element by element.

    -0 and +0 are one apart, like any other neighbours; two NaNs are 0 apart; a NaN is as far as
    int64 reaches from everything else, which is also the largest distance in fp64.

    Returns int64. Raises ValueError as `differing` does.
    """
    distinct = differing(a, b)
    first, second = _ordinal(a), _ordinal(b)
    distance = torch.maximum(first, second) - torch.minimum(first, second)
    # Over fp64's whole range, the difference may wrap.
    distance = torch.where(distance < 0, torch.iinfo(torch.int64).max, distance)
    one_nan = a.isnan() ^ b.isnan()
    distance = torch.where(one_nan, torch.iinfo(torch.int64).max, distance)
    return torch.where(distinct, distance, 0)


def _as_integers(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(_INTEGERS[value.element_size()])


def _ordinal(value: torch.Tensor) -> torch.Tensor:
    """An integer per value, in the order of the values: ..., -2^-149 -> -2, -0 -> -1, +0 -> 0."""
    bits = _as_integers(value).long()
    lowest = torch.iinfo(_INTEGERS[value.element_size()]).min
    return torch.where(bits < 0, lowest - bits - 1, bits)
