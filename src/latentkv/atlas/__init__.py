"""The atlas: static pages of the models, built from the objects that run. No torch."""

from .errors import AtlasError
from .site import build
from .write import write

__all__ = ["AtlasError", "build", "write"]
