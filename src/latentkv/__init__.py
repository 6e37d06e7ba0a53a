"""The key-value latent of multi-head latent attention, exact to the bit.

Names are bound on first use: importing latentkv, a contract or a model's facts does not import
torch; touching an operator, a module or the definition does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import bits, conformance, definition, models
    from .contracts import NormContract
    from .integrations import replace_latent_norms
    from .nn import LatentRMSNorm
    from .ops import add_rms_norm, rms_norm

__version__ = "0.1.0"

_HOME = {
    "LatentRMSNorm": "nn",
    "NormContract": "contracts",
    "add_rms_norm": "ops",
    "replace_latent_norms": "integrations",
    "rms_norm": "ops",
}
_ROOMS = ("bits", "conformance", "definition", "models")

__all__ = [
    "LatentRMSNorm",
    "NormContract",
    "add_rms_norm",
    "bits",
    "conformance",
    "definition",
    "models",
    "replace_latent_norms",
    "rms_norm",
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
