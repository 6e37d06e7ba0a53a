"""Byte layouts of cached latents: what lies where in one token's record. No torch.

``fp8_ds_mla``, the record that FlashMLA's sparse kernels and vLLM read (512 features, groups of
128, 64 key features)::

    byte 0              512                528                656
         | 512 codes     | 4 scales         | 64 key features  |
         | e4m3, 1 byte  | fp32, 4 bytes    | bf16, 2 bytes    |

Feature i of the latent is ``code[i] * scale[i // 128]``. ``plain`` is the same without codes:
latent and key side by side in one dtype, 1,152 bytes in bf16. A cache has one record a token and
nothing between them: an MLA cache has no second half for values, and one "head".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .contracts import RULES, KVContract

SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "uint8": 1}
FP8_BLOCK = 64  # tokens a block: FlashMLA's kernels take no other


@dataclass(frozen=True)
class Field:
    """``count`` values of one dtype from byte ``offset`` on."""

    name: str
    offset: int
    count: int
    dtype: str

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)

    @property
    def bytes(self) -> int:
        return self.count * SIZES[self.dtype]

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.bytes


@dataclass(frozen=True)
class Record:
    """One token's bytes, field after field, without gaps.

    ``element`` is the dtype of a tensor of such records, whose last dimension is then ``width``.

    Raises ValueError for fields that overlap or leave a gap, or a size that is not whole elements.
    """

    name: str
    element: str
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        _check_dtype(self.element)
        end = 0
        for field in self.fields:
            if field.offset != end or field.count < 0:
                raise ValueError(
                    f"record {self.name}: {field.name} begins at byte {field.offset}, not {end}"
                )
            end = field.end
        if not end or end % SIZES[self.element]:
            raise ValueError(f"record {self.name}: {end} bytes are no whole {self.element}")

    @property
    def bytes(self) -> int:
        """Bytes per token and layer."""
        return self.fields[-1].end

    @property
    def width(self) -> int:
        """Elements per token: the last dimension of a cache."""
        return self.bytes // SIZES[self.element]

    def field(self, name: str) -> Field:
        """The field of this name. Raises KeyError where there is none."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"record {self.name} has no field {name!r}")

    def has(self, name: str) -> bool:
        return any(field.name == name for field in self.fields)

    def as_json(self) -> dict[str, Any]:
        """As dictionaries and lists; `from_json` takes it back."""
        described = asdict(self)
        described["fields"] = list(described["fields"])
        return described


def from_json(described: dict[str, Any]) -> Record:
    """The record that `Record.as_json` described."""
    fields = tuple(Field(**field) for field in described["fields"])
    return Record(described["name"], described["element"], fields)


def plain(contract: KVContract, dtype: str = "bfloat16") -> Record:
    """Latent, then key, in one dtype: "bfloat16", "float16" or "float32"."""
    _check_contract(contract)
    if dtype not in ("bfloat16", "float16", "float32"):
        raise ValueError(f"a plain record is bfloat16, float16 or float32, not {dtype}")
    return _packed(
        dtype,
        dtype,
        ("latent", contract.norm.width, dtype),
        ("key", contract.key_width, dtype),
    )


def fp8_ds_mla(contract: KVContract) -> Record:
    """e4m3 codes, a fp32 scale for each group, the key in bf16: 656 bytes for the models' sizes.

    Raises ValueError for a contract without a scale rule, and for one whose fp32 scales would not
    lie at multiples of 4 bytes.
    """
    _check_contract(contract)
    if contract.quant is None:
        raise ValueError(
            "an fp8 cache needs a scale rule, and this contract has none: pass "
            'dataclasses.replace(contract, quant=LatentQuant(128, "flashmla")), or the rule that '
            f"the cache's reader expects, of {', '.join(RULES)}"
        )
    width, group = contract.norm.width, contract.quant.group
    if width % 4:
        raise ValueError(f"an fp8 record needs a latent width divisible by 4, not {width}")
    return _packed(
        "fp8_ds_mla",
        "uint8",
        ("codes", width, "float8_e4m3fn"),
        ("scales", width // group, "float32"),
        ("key", contract.key_width, "bfloat16"),
    )


def fp8_per_tensor(contract: KVContract) -> Record:
    """Latent and key in e4m3, their one scale kept elsewhere: a record of other software, as data,
    which nothing here writes."""
    _check_contract(contract)
    return _packed(
        "fp8_per_tensor",
        "float8_e4m3fn",
        ("codes", contract.norm.width, "float8_e4m3fn"),
        ("key", contract.key_width, "float8_e4m3fn"),
    )


def bytes_per_token(record: Record, layers: int = 1) -> int:
    """Bytes that one token takes in this many layers."""
    return record.bytes * layers


def bytes_per_layer(record: Record, tokens: int, block_size: int = 1) -> int:
    """Bytes of one layer's cache for this many tokens, in whole blocks."""
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if tokens < 0:
        raise ValueError(f"tokens must be at least 0, got {tokens}")
    return -(-tokens // block_size) * block_size * record.bytes


def bytes_per_model(record: Record, tokens: int, layers: int, block_size: int = 1) -> int:
    """Bytes of all layers' caches for this many tokens, in whole blocks."""
    return bytes_per_layer(record, tokens, block_size) * layers


def interleaved_of_half(width: int) -> tuple[int, ...]:
    """Where each feature of an interleaved key lies in the half layout: ``half[result[i]]``."""
    _check_even(width)
    return tuple(i // 2 + (i % 2) * (width // 2) for i in range(width))


def half_of_interleaved(width: int) -> tuple[int, ...]:
    """Where each feature of a half-layout key lies in the interleaved one."""
    _check_even(width)
    pairs = width // 2
    return tuple(2 * i if i < pairs else 2 * (i - pairs) + 1 for i in range(width))


def _packed(name: str, element: str, *fields: tuple[str, int, str]) -> Record:
    placed, end = [], 0
    for label, count, dtype in fields:
        placed.append(Field(label, end, count, dtype))
        end = placed[-1].end
    return Record(name, element, tuple(placed))


def _check_dtype(dtype: str) -> None:
    if dtype not in SIZES:
        raise ValueError(f"dtype {dtype!r} is unknown; allowed: {', '.join(SIZES)}")


def _check_even(width: int) -> None:
    if width < 0 or width % 2:
        raise ValueError(f"a key has an even number of features, since they are pairs: {width}")


def _check_contract(contract: KVContract) -> None:
    if not isinstance(contract, KVContract):
        raise TypeError(f"contract must be a KVContract, got {type(contract).__name__}")
