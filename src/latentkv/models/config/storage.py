"""From a configuration's quantization_config to how its checkpoint stores weights. No torch."""

from __future__ import annotations

from ...reading.files import short
from ..architecture import Storage
from ..configured import Note
from ..patterns import compiled
from .keys import Keys

_DTYPES = ("bfloat16", "float16", "float32")
_MOST_PATTERNS = 100  # published lists have up to 6
_FORMATS = ("mxfp4-pack-quantized", "pack-quantized")


def storage(keys: Keys, experts_only: bool) -> tuple[Storage | None, tuple[Note, ...]]:
    """How the weights are stored, and what is not known of it.

    Arguments:
        keys: of the language model.
        experts_only: whether a checkpoint of this model is known to pack its routed experts alone,
            whatever its list says.

    Returns None for what a `Storage` can't describe.

    Raises ConfigError for a value of a kind or range that no method has.
    """
    dtype = keys.word("dtype").removeprefix("torch.") or None
    unknown: tuple[Note, ...] = ()
    if dtype is None:
        dtype = "bfloat16"
        unknown = (Note("dtype", "the configuration has none; bfloat16 is taken."),)
    elif dtype not in _DTYPES:
        keys.fail(f"{keys.place('dtype')} is {dtype!r}; {', '.join(_DTYPES)} are known")
    quantised = keys.inside("quantization_config")
    if quantised is None:
        return Storage(dtype=dtype), unknown
    method = quantised.word("quant_method")
    if not method:
        keys.fail(
            f"{quantised.place('quant_method')} is missing; fp8 and compressed-tensors are known"
        )
    if method == "fp8":
        found, why = _fp8(quantised, dtype)
    elif method == "compressed-tensors":
        found, why = _packed(quantised, dtype, experts_only)
    else:  # it changes neither eps nor order
        found, why = (
            None,
            f"{quantised.place('quant_method')} is {short(method)}, and not known here",
        )
    return found, unknown + ((Note("storage", f"{why}."),) if why else ())


def own_storage(keys: Keys) -> Storage:
    """That of DeepSeek's own configuration, whose dtype says it."""
    if keys.word("dtype", "bf16", allowed=("bf16", "fp8")) == "fp8":
        return Storage(format="fp8_block")
    return Storage()


def _fp8(quantised: Keys, dtype: str) -> tuple[Storage | None, str]:
    block = quantised.sizes("weight_block_size")
    if block is None:
        return None, "fp8 weights without weight_block_size, one scale a tensor"
    if len(block) != 2:
        quantised.fail(f"{quantised.place('weight_block_size')} must be rows and columns of a tile")
    quantised.word("fmt", "e4m3", allowed=("e4m3", "float8_e4m3fn"))
    ignored = quantised.words("modules_to_not_convert") or ()
    return Storage(dtype, "fp8_block", (block[0], block[1]), ignored=ignored), ""


def _packed(quantised: Keys, dtype: str, experts_only: bool) -> tuple[Storage | None, str]:
    groups = quantised.inside("config_groups")
    names = groups.names() if groups else ()
    if groups is None or not names:
        quantised.fail(f"{quantised.place('config_groups')} must hold at least one group")
    layouts = set()
    for name in names:
        group = groups.inside(name)
        weights = group.inside("weights") if group else None
        if group is None or weights is None:
            groups.fail(f"{groups.place(name)} must be an object with weights")
        if (group.words("targets") or ()) != ("Linear",):
            return None, f"{groups.place(name)} is for other targets than Linear"
        if not weights.flag("symmetric", True):
            return None, f"{weights.place('symmetric')} is false, which adds zero points"
        if weights.has("actorder"):
            return None, f"{weights.place('actorder')} is set, which adds the order of the columns"
        layouts.add(
            (
                group.word("format") or quantised.word("format"),
                weights.size("num_bits", most=32),
                weights.size_or("group_size", 0, least=-1),
            )
        )
    if len(layouts) > 1:
        return (
            None,
            "config_groups of different bits, group sizes or formats: no Storage has two",
        )
    format_, bits, size = layouts.pop()
    ignored = quantised.words("ignore") or ()
    if sum(one.startswith("re:") for one in ignored) > _MOST_PATTERNS:
        return (
            None,
            f"{quantised.place('ignore')} has more than {_MOST_PATTERNS} regular expressions",
        )
    for one in ignored:
        if one.startswith("re:"):
            try:
                compiled(one[3:])
            except ValueError as error:
                return None, f"{quantised.place('ignore')}: {error}"
    if format_ not in _FORMATS or size < 1 or (bits != 4 and format_ == _FORMATS[0]) or 32 % bits:
        return None, (
            f"weights of {bits} bits in groups of {size}, format {format_ or 'unnamed'}, which no "
            "Storage describes"
        )
    if format_ == _FORMATS[0]:
        if experts_only:
            return Storage(dtype, "mxfp4", group=size, quantised="experts"), ""
        return Storage(dtype, "mxfp4", group=size, ignored=ignored), ""
    return Storage(dtype, "int", group=size, bits=bits, ignored=ignored), ""
