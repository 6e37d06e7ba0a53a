"""Who follows a model's key-value path: implementations identified from their outputs alone."""

from .identify import PathReport, identify_path
from .implementation import PathImplementation

__all__ = ["PathImplementation", "PathReport", "identify_path"]
