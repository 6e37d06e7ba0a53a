"""Who follows a contract: implementations identified from their outputs alone."""

from .identify import Report, identify
from .implementation import Implementation, ImplementationError, load

__all__ = ["Implementation", "ImplementationError", "Report", "identify", "load"]
