"""YaRN: from a configuration's keys to the ramp between pairs and the softmax's scale. No torch.

In fp64 throughout. Two keys are easily confused. ``mscale_all_dim`` gives m, by whose square
the attention scores are multiplied; ``mscale`` gives another, and cos and sin are multiplied by
its ratio to m, which is 1 wherever the two keys are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Yarn:
    """What a configuration says of its rotation.

    Arguments:
        theta: the base of the frequencies.
        factor: by how much the context is stretched.
        original: the positions of the unstretched context.
        beta_fast, beta_slow: turns over the original context above which a pair keeps its
            frequency, and below which it is stretched in full.
        mscale, mscale_all_dim: see above.
    """

    theta: float
    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float

    @property
    def temperature(self) -> float:
        """m: attention scores are multiplied by its square."""
        return _attention(self.factor, self.mscale_all_dim)

    @property
    def rotary_scale(self) -> float:
        """By what cos and sin are multiplied."""
        return _attention(self.factor, self.mscale) / self.temperature

    def ramp(self, width: int) -> tuple[int, int]:
        """The pairs ``(low, high)`` of a key of this width between which frequencies change over.

        Raises ValueError where both are the same pair.
        """

        def pair(turns: float) -> float:
            return (
                width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
            )

        low = max(math.floor(pair(self.beta_fast)), 0)
        high = min(math.ceil(pair(self.beta_slow)), width - 1)
        if not low < high:
            raise ValueError(f"the ramp begins at pair {low} and ends at {high}: it has no length")
        return low, high


def softmax_scale(head_width: int, yarn: Yarn | None) -> float:
    """By what attention scores are multiplied: head_width^-0.5, with YaRN times m squared.

    Arguments:
        head_width: features of a query's head, content and rotary ones (192 in the three models).
        yarn: None where nothing is rotated or stretched.
    """
    scale: float = head_width**-0.5
    # One factor after the other, as the models' code multiplies: the last bit depends on it.
    return scale if yarn is None else scale * yarn.temperature * yarn.temperature


def _attention(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
