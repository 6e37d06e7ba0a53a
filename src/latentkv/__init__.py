"""The key-value latent of multi-head latent attention, exact to the bit.

Names are bound on first use: importing latentkv, a contract or a model's facts does not import
torch; touching an operator, a module or the definition does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import accounting, bits, cache, checkpoint, conformance, definition, layouts, models
    from .cache import LatentCache, half_to_interleaved, interleaved_to_half
    from .compress import compress_kv, write_kv
    from .contracts import KVContract, LatentQuant, NormContract, RopeContract
    from .integrations import replace_latent_norms
    from .nn import KVCompression, LatentRMSNorm
    from .ops import add_rms_norm, rms_norm

__version__ = "0.1.0"

_HOME = {
    "KVCompression": "nn",
    "KVContract": "contracts",
    "LatentCache": "cache",
    "LatentQuant": "contracts",
    "LatentRMSNorm": "nn",
    "NormContract": "contracts",
    "RopeContract": "contracts",
    "add_rms_norm": "ops",
    "compress_kv": "compress",
    "half_to_interleaved": "cache",
    "interleaved_to_half": "cache",
    "replace_latent_norms": "integrations",
    "rms_norm": "ops",
    "write_kv": "compress",
}
_ROOMS = (
    "accounting",
    "bits",
    "cache",
    "checkpoint",
    "conformance",
    "definition",
    "layouts",
    "models",
)

__all__ = [
    "KVCompression",
    "KVContract",
    "LatentCache",
    "LatentQuant",
    "LatentRMSNorm",
    "NormContract",
    "RopeContract",
    "accounting",
    "add_rms_norm",
    "bits",
    "cache",
    "checkpoint",
    "compress_kv",
    "conformance",
    "definition",
    "half_to_interleaved",
    "interleaved_to_half",
    "layouts",
    "models",
    "replace_latent_norms",
    "rms_norm",
    "write_kv",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _ROOMS:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # uncached, every later access would cost 1.9 us
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
