"""latentkv inside other people's models. Nothing here imports its host before it is called."""

from __future__ import annotations

from .replace import replace_latent_norms, restore_latent_norms

__all__ = ["replace_latent_norms", "restore_latent_norms"]
