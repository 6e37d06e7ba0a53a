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
from ..models.patterns import compiled

# Beside a weight they say how to read it.
_BESIDE = re.compile(
    r"(weight_)?(scale(_inv|_2)?|scales|shape|zero_point|qzeros|g_idx|global_scale|amax)|"
    r"(input|output|k|v|q)_(scale|zero_point|global_scale|amax)|"
    r"pre_quant_scale|weight\.(absmax|quant_map|nested_.*|quant_state\..*)"
)
_WEIGHTS = ("weight", "weight_packed", "qweight")
_PACKED = ("weight_packed", "qweight")
_SCALES = ("weight_scale", "weight_scale_inv", "scale", "scales", "weight.absmax")
_CACHE = ("k_scale", "v_scale", "kv_scale")  # of a quantised cache, one for an attention
_BUFFER = re.compile(r"(?:language_model\.)?model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_FREQUENCIES = 1024  # no rotation turns more pairs


def is_buffer(name: str, stored: Stored | None = None) -> bool:
    """Whether a tensor follows from the configuration, so that checkpoints may leave it out.

    ``stored`` is what its file says, where that was read.
    """
    if not name.endswith("inv_freq"):  # 497,220 names are asked
        return False
    if stored is not None and (len(stored.shape) != 1 or stored.shape[0] > _FREQUENCIES):
        return False
    return _BUFFER.fullmatch(name) is not None


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
            f"{len(self._guessed):,} tensors that look packed are counted as stored, since the "
            "quantization_config doesn't say how many bits a value of theirs has, such as "
            f"{self._guessed[0]}"
        ]

    def parameters(self, name: str) -> int:
        """Learned values in a tensor of the checkpoint."""
        tensor = self._stored[name]
        module, last = self._split(name)
        if is_buffer(name, tensor) or (last in _CACHE and math.prod(tensor.shape) == 1):
            return 0
        if _BESIDE.fullmatch(last) and self._has(module, _WEIGHTS):
            return 0
        values = math.prod(tensor.shape)
        if last not in _WEIGHTS or not self._packed(module, last, tensor.dtype):
            return values
        bits, width = self._bits(module), BITS[tensor.dtype]
        if bits is None:
            self._guessed.append(name)
            return values
        if bits >= width:
            return values
        # gptq's words run on where a value doesn't fit: of 3 bits, 32 lie in 3 words
        return values * width // bits if last == "qweight" else values * (width // bits)

    def _split(self, name: str) -> tuple[str, str]:
        """A module and what it stores; bitsandbytes puts more parts behind the weight's name."""
        module, _, last = name.rpartition(".")
        head, found, tail = name.partition(".weight.")
        return (head, f"weight.{tail}") if found else (module, last)

    def _packed(self, module: str, last: str, dtype: str) -> bool:
        """Whether several values may share an element."""
        scaled = self._has(module, _SCALES)
        return last in _PACKED or (scaled and dtype in ("uint8", "int8", "int32"))

    def _has(self, module: str, names: tuple[str, ...]) -> bool:
        return any(f"{module}.{one}" in self._stored for one in names)

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
            return compiled(target[3:]).match(module) is not None
        except ValueError:
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
        for key in ("bits", "w_bit"):  # gptq, awq: one for all
            if _is_bits(quantised.get(key)) and not quantised.get("dynamic"):
                yield ("",), quantised[key]
        groups = quantised.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
            targets = group.get("targets") if isinstance(group, Mapping) else None
            if _is_bits(bits) and isinstance(targets, list):
                yield tuple(one for one in targets if isinstance(one, str)), bits


def _is_bits(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 8
