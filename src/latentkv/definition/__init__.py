"""The one right answer: docs/numerics.md as plain PyTorch, slow, on any device.

Every kernel of this package must equal these functions bit for bit (``bits.same_bits``).
"""

from .norm import add_rms_norm, fold, reciprocal_rms, rms_norm, rms_norm_backward
from .path import compress_kv, compress_kv_backward
from .quant import dequantise, quantise
from .rope import rotary_table, rotate, rotate_backward

__all__ = [
    "add_rms_norm",
    "compress_kv",
    "compress_kv_backward",
    "dequantise",
    "fold",
    "quantise",
    "reciprocal_rms",
    "rms_norm",
    "rms_norm_backward",
    "rotary_table",
    "rotate",
    "rotate_backward",
]
