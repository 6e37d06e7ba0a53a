"""A share as a small bar, for a line of text that already says the number."""

from __future__ import annotations

from .svg import number


def bar(share: float) -> str:
    """A bar that is filled from the left, hidden from screen readers: its number stands beside it.

    Arguments:
        share: 0 to 1. What is above 0 is at least a hairline.

    Raises ValueError for a share outside that.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share is from 0 to 1, got {share!r}")
    filled = max(60 * share, 0.5) if share else 0
    return (
        '<svg class="bar" aria-hidden="true" focusable="false" viewBox="0 0 60 8" fill="none">'
        '<rect class="line" stroke="currentColor" x=".5" y=".5" width="59" height="7"/>'
        f'<rect class="ink" fill="currentColor" y="1" width="{number(filled)}" height="6"/></svg>'
    )
