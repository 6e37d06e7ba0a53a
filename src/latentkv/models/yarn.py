"""YaRN: from a configuration's keys to the ramp between pairs and the softmax's scale. No torch.

In fp64 throughout. Two keys are easily confused: ``mscale_all_dim`` scales the softmax;
``mscale`` divided by it scales cos and sin, which is 1 wherever the two are equal.
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

    Raises ValueError where mscale and mscale_all_dim differ: cos and sin would then be scaled,
    which no contract here has.
    """

    theta: float
    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float

    def __post_init__(self) -> None:
        if _attention(self.factor, self.mscale) != _attention(self.factor, self.mscale_all_dim):
            raise ValueError(
                f"mscale {self.mscale} and mscale_all_dim {self.mscale_all_dim} differ: cos and "
                "sin would be scaled, which no RopeContract describes"
            )

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
    """By what scores are multiplied: head_width^-0.5, with YaRN times its mscale squared.

    Arguments:
        head_width: features of a query's head, content and rotary ones (192 in the three models).
        yarn: None where nothing is rotated or stretched.
    """
    scale: float = head_width**-0.5
    if yarn is None or not yarn.mscale_all_dim:
        return scale
    temperature = _attention(yarn.factor, yarn.mscale_all_dim)
    return scale * temperature * temperature


def _attention(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
