"""What a stored tensor holds: packed codes stand for several values, scales for none. No torch.

For tensors that nothing was derived for. Their own shapes and the configuration's quantisation are
all there is: a header has no values, so the unpacked shape that some writers store is not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from ..checkpoint import BITS, Stored

# Beside a weight they say how to read it.
_BESIDE = re.compile(
    r"(weight_)?(scale(_inv|_2)?|scales|shape|zero_point|qzeros|g_idx|global_scale)|"
    r"(input|output|k|v|q)_(scale|zero_point|global_scale)"
)
_WEIGHTS = ("weight", "weight_packed", "qweight")
_PACKED = ("weight_packed", "qweight")


def is_buffer(name: str) -> bool:
    """Whether a tensor follows from the configuration, so that checkpoints may leave it out."""
    return name.endswith("rotary_emb.inv_freq")


class Holdings:
    """Counts the learned values in a checkpoint's tensors."""

    def __init__(self, stored: Mapping[str, Stored], config: Mapping[str, Any] | None) -> None:
        self._stored = stored
        self._groups = tuple(_groups(config or {}))
        self._guessed: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """What was counted as it is stored, though it looks packed."""
        if not self._guessed:
            return []
        return [
            f"{len(self._guessed):,} packed tensors are counted as stored, since no "
            "quantization_config says how many bits a value has, such as "
            f"{self._guessed[0]}"
        ]

    def parameters(self, name: str) -> int:
        """Learned values in a tensor of the checkpoint."""
        tensor = self._stored[name]
        module, _, last = name.rpartition(".")
        if is_buffer(name):
            return 0
        if _BESIDE.fullmatch(last) and any(f"{module}.{one}" in self._stored for one in _WEIGHTS):
            return 0
        values = math.prod(tensor.shape)
        if last not in _PACKED:
            return values
        bits = self._bits(module)
        if bits is None:
            self._guessed.append(name)
            return values
        return values * (BITS[tensor.dtype] // bits)

    def _bits(self, module: str) -> int | None:
        """Of a value: what names the module counts before what names its class."""
        found = None
        for targets, bits in self._groups:
            for target in targets:
                if _names(target, module):
                    return bits
                if target == _class(module) or target == "":
                    found = bits
        return found


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        try:
            return re.match(target[3:], module) is not None
        except re.error:
            return False
    return bool(target) and (module == target or module.endswith(f".{target}"))


def _class(module: str) -> str:
    """The class that a target may name; a header doesn't have it, a name does."""
    return "Embedding" if module.endswith("embed_tokens") else "Linear"


def _groups(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Targets and bits of each group, from the top level or the nested language model's part."""
    for place in (config, config.get("text_config")):
        quantised = place.get("quantization_config") if isinstance(place, Mapping) else None
        if not isinstance(quantised, Mapping):
            continue
        if _is_bits(quantised.get("bits")):  # gptq, awq: one for all
            yield ("",), quantised["bits"]
        groups = quantised.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
            targets = group.get("targets") if isinstance(group, Mapping) else None
            if _is_bits(bits) and isinstance(targets, list):
                yield tuple(one for one in targets if isinstance(one, str)), bits


def _is_bits(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 8
