"""The one right answer: docs/numerics.md as plain PyTorch, slow, on any device.

Every kernel of this package must equal these functions bit for bit (``bits.same_bits``).
"""

from .norm import add_rms_norm, fold, reciprocal_rms, rms_norm, rms_norm_backward

__all__ = ["add_rms_norm", "fold", "reciprocal_rms", "rms_norm", "rms_norm_backward"]
