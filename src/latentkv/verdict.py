"""What is said of a derived number that a checkpoint may or may not bear out. No torch."""

from __future__ import annotations

from collections.abc import Mapping


def unchecked(sizes: str = "sizes") -> str:
    """No checkpoint was read."""
    return f"{_derived(sizes)}; checkpoint tensors have not been independently counted."


def matched(sizes: str = "sizes", how: str = "") -> str:
    """They agree, ``how`` saying in what where not in everything."""
    return f"{_derived(sizes)}; the model total matches the checkpoint's tensors{how}."


def differs(counts: Mapping[str, int], same_total: bool = False) -> str:
    """They don't; ``counts`` has how many tensors by what is wrong with them."""
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    found = (
        "the model total matches, but not the checkpoint's tensors"
        if same_total
        else "the model total does not match the checkpoint's tensors"
    )
    return f"{_derived('sizes')}; {found}: {', '.join(told) or 'another total size'}."


def underived(why: str) -> str:
    """There is nothing to compare with."""
    return f"Counted from the checkpoint's own tensors; nothing is derived: {why.rstrip('.')}."


BY_NAME = " by name; sizes, shapes and dtypes are not in its index"
BY_NAME_AND_SIZE = " by name and total size; shapes and dtypes are not in its index"


def _derived(sizes: str) -> str:
    return f"Derived from the configured {sizes}"
